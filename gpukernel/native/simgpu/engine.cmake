# The simulated GPU's engine: decoder, scheduler, and the instruction handlers once per x86-64 level, of which the
# machine's best is picked at run time.
set(SIMGPU_DIR ${CMAKE_CURRENT_LIST_DIR})
find_package(Threads REQUIRED)
set(SIMGPU_HANDLERS
    ${SIMGPU_DIR}/exec/handlers/integer.cpp ${SIMGPU_DIR}/exec/handlers/compare.cpp
    ${SIMGPU_DIR}/exec/handlers/floating.cpp ${SIMGPU_DIR}/exec/handlers/half.cpp
    ${SIMGPU_DIR}/exec/handlers/convert.cpp
    ${SIMGPU_DIR}/exec/handlers/memory.cpp ${SIMGPU_DIR}/exec/handlers/atomic.cpp ${SIMGPU_DIR}/exec/handlers/async.cpp ${SIMGPU_DIR}/exec/handlers/video.cpp ${SIMGPU_DIR}/exec/handlers/texture.cpp ${SIMGPU_DIR}/exec/handlers/matrix.cpp ${SIMGPU_DIR}/exec/handlers/warp.cpp)
# A package has all three, so that it runs well anywhere; a developer's build may name one and be done sooner.
set(SIMGPU_LEVELS 2 3 4 CACHE STRING "x86-64 levels that the simulated GPU's instruction handlers are compiled for")
set(SIMGPU_LEVEL_OBJECTS)
set(SIMGPU_LEVEL_DEFINITIONS)
foreach(level ${SIMGPU_LEVELS})
  list(APPEND SIMGPU_LEVEL_DEFINITIONS SIMGPU_WITH_V${level})
  add_library(simgpu_handlers_v${level} OBJECT ${SIMGPU_HANDLERS})
  target_compile_features(simgpu_handlers_v${level} PRIVATE cxx_std_20)
  target_compile_definitions(simgpu_handlers_v${level} PRIVATE SIMGPU_LEVEL=v${level})
  if("${sanitizers}" STREQUAL "thread")  # a kernel's races with the program's copies are the program's own
    target_compile_options(simgpu_handlers_v${level} PRIVATE -fno-sanitize=thread)
  endif()
  # No contraction: mul then add stays two roundings.  Signed overflow wraps, lanes alias by type.
  target_compile_options(simgpu_handlers_v${level} PRIVATE
    -O3 -march=x86-64-v${level} $<$<EQUAL:${level},4>:-mprefer-vector-width=512> -ffp-contract=off -fno-math-errno
    -fno-trapping-math -fwrapv -fno-strict-aliasing -fvisibility=hidden -w -Wno-psabi)
  set_target_properties(simgpu_handlers_v${level} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  list(APPEND SIMGPU_LEVEL_OBJECTS $<TARGET_OBJECTS:simgpu_handlers_v${level}>)
endforeach()
add_library(simgpu_engine STATIC
    ${SIMGPU_DIR}/ptx/lexer.cpp ${SIMGPU_DIR}/ptx/parser.cpp ${SIMGPU_DIR}/ptx/link.cpp
    ${SIMGPU_DIR}/ptx/decode/function.cpp ${SIMGPU_DIR}/ptx/decode/operands.cpp ${SIMGPU_DIR}/ptx/decode/arithmetic.cpp
    ${SIMGPU_DIR}/ptx/decode/video.cpp ${SIMGPU_DIR}/ptx/decode/convert.cpp ${SIMGPU_DIR}/ptx/decode/memory.cpp ${SIMGPU_DIR}/ptx/decode/control.cpp ${SIMGPU_DIR}/ptx/decode/texture.cpp ${SIMGPU_DIR}/ptx/decode/matrix.cpp
    ${SIMGPU_DIR}/ptx/decode/rows.cpp
    ${SIMGPU_DIR}/exec/memory.cpp ${SIMGPU_DIR}/exec/address_space.cpp ${SIMGPU_DIR}/exec/access.cpp ${SIMGPU_DIR}/exec/block.cpp ${SIMGPU_DIR}/exec/scheduler.cpp ${SIMGPU_DIR}/exec/levels.cpp ${SIMGPU_DIR}/exec/textures.cpp
    ${SIMGPU_DIR}/exec/builtins.cpp ${SIMGPU_DIR}/exec/launch.cpp ${SIMGPU_LEVEL_OBJECTS})
target_compile_features(simgpu_engine PUBLIC cxx_std_20)
target_compile_definitions(simgpu_engine PRIVATE ${SIMGPU_LEVEL_DEFINITIONS})
target_compile_options(simgpu_engine PRIVATE -O2 -Wall -Wextra -fno-strict-aliasing -fvisibility=hidden)
set_target_properties(simgpu_engine PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_link_libraries(simgpu_engine PUBLIC Threads::Threads)
