// The level of x86-64 that this processor has.
#pragma once

#include <string_view>
#include <vector>

namespace gpukernel::simgpu {

// 2, 3 or 4: the newest level whose instructions both the processor and the operating system support.  The
// operating system counts because it must save the wide registers (AVX, AVX-512) when it switches threads.
int processor_level();
// The same, or the older one that GPUKERNEL_SIMGPU_LEVEL names.
int wanted_level();
// The oldest level that the instruction handlers of this build were compiled for.
int oldest_level();
// Whether a processor of level 4 counts the bits of a vector's elements, too (AVX512_VPOPCNTDQ).
bool processor_counts_bits();

// The names of all handlers at that level, of each one.
std::vector<std::string_view> handler_names();

}  // namespace gpukernel::simgpu
