# The simulated GPU's engine: decoder, scheduler, and the instruction handlers once per x86-64 level, of which the
# machine's best is picked at run time.
find_package(Threads REQUIRED)
set(native ${CMAKE_CURRENT_LIST_DIR}/..)  # includes name their path from there
set(handlers arithmetic/compare arithmetic/convert arithmetic/floating arithmetic/half arithmetic/integer arithmetic/video async
    atomic matrix memory tensor texture warp warpgroup)
list(TRANSFORM handlers PREPEND ${CMAKE_CURRENT_LIST_DIR}/exec/handlers/)
list(TRANSFORM handlers APPEND .cpp)
# A package has all three, so that it runs well anywhere; a developer's build may name one and be done sooner.
set(SIMGPU_LEVELS 2 3 4 CACHE STRING "x86-64 levels that the simulated GPU's instruction handlers are compiled for")
set(level_objects)
set(level_definitions)
foreach(level ${SIMGPU_LEVELS})
  list(APPEND level_definitions SIMGPU_WITH_V${level})
  add_library(simgpu_handlers_v${level} OBJECT ${handlers})
  target_compile_features(simgpu_handlers_v${level} PRIVATE cxx_std_20)
  target_compile_definitions(simgpu_handlers_v${level} PRIVATE SIMGPU_LEVEL=v${level})
  target_include_directories(simgpu_handlers_v${level} PRIVATE ${native})
  if("${sanitizers}" STREQUAL "thread")  # a kernel's races with the program's copies are the program's own
    target_compile_options(simgpu_handlers_v${level} PRIVATE -fno-sanitize=thread)
  endif()
  # No contraction: mul then add stays two roundings.  Signed overflow wraps, lanes alias by type.
  target_compile_options(simgpu_handlers_v${level} PRIVATE
    -O3 -march=x86-64-v${level} $<$<EQUAL:${level},4>:-mprefer-vector-width=512> -ffp-contract=off -fno-math-errno
    -fno-trapping-math -fwrapv -fno-strict-aliasing -fvisibility=hidden -w -Wno-psabi)
  set_target_properties(simgpu_handlers_v${level} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  list(APPEND level_objects $<TARGET_OBJECTS:simgpu_handlers_v${level}>)
endforeach()
set(engine
    compiler/assembler compiler/avx2/accesses compiler/avx2/avx2 compiler/avx2/cache compiler/avx2/conversions compiler/avx2/encoding compiler/avx2/masks compiler/avx2/moves
    compiler/background compiler/flow compiler/run compiler/settled compiler/shapes compiler/signature compiler/tier compiler/vector_ops
    compiler/generate/abreast compiler/generate/allocate compiler/generate/arithmetic compiler/generate/broadcasts compiler/generate/control compiler/generate/exchange
    compiler/generate/halves compiler/generate/integers compiler/generate/kept compiler/generate/lanes compiler/generate/memory compiler/generate/operands compiler/generate/places compiler/generate/shared compiler/generate/together compiler/generate/turns compiler/generate/vectors
    ptx/lexer ptx/link ptx/outline
    ptx/parse/body ptx/parse/declarations ptx/parse/expressions ptx/parse/module ptx/parse/operands
    ptx/check/check ptx/check/control ptx/check/floating ptx/check/integer ptx/check/memory ptx/check/special
    ptx/decode/arithmetic ptx/decode/control ptx/decode/convert ptx/decode/function ptx/decode/matrix ptx/decode/memory
    ptx/decode/operands ptx/decode/rows ptx/decode/tensor ptx/decode/texture ptx/decode/video ptx/decode/warpgroup
    exec/access exec/address_space exec/block exec/builtins exec/hopper/faults exec/hopper/warpgroups exec/host_memory exec/kernel_threads exec/launch exec/levels exec/memory exec/processor
    exec/scheduler exec/textures
    profile/kernel_rows profile/session profile/watch)
list(TRANSFORM engine PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM engine APPEND .cpp)
add_library(simgpu_engine STATIC ${engine} ${level_objects})
target_compile_features(simgpu_engine PUBLIC cxx_std_20)
target_compile_definitions(simgpu_engine PRIVATE ${level_definitions})
target_compile_options(simgpu_engine PRIVATE -O2 -Wall -Wextra -fno-strict-aliasing -fvisibility=hidden)
target_include_directories(simgpu_engine PRIVATE ${native})
set_target_properties(simgpu_engine PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_link_libraries(simgpu_engine PUBLIC Threads::Threads)
