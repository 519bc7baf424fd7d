// The shape of a launch and its occupancy, for launch.cpp and occupancy.cpp.
#pragma once

#include "simgpu/driver/state.h"

namespace gpukernel::simgpu {

inline Dim3 grid_of(const libcuda::LaunchShape& shape) {
    return {shape.sides[0], shape.sides[1], shape.sides[2]};
}
inline Dim3 block_of(const libcuda::LaunchShape& shape) {
    return {shape.sides[3], shape.sides[4], shape.sides[5]};
}
// Zeros where the launch does not say.
inline Dim3 cluster_of(const libcuda::LaunchShape& shape) {
    return {shape.cluster[0], shape.cluster[1], shape.cluster[2]};
}

// Has the module read the kernel, before anybody looks at what it takes.
CUresult prepare(Kernel& kernel);
// A module by its handle, which may be a library's in the context; nullptr where it is none.
Loaded* module_of(const void* handle);
// The kernel that a program may launch by `handle`, a function's or a library's kernel's; nullptr where it is
// none.
Kernel* launchable(const void* handle);

constexpr uint64_t PORTABLE_CLUSTER = 8, LARGEST_CLUSTER = 16;  // blocks, of sm_90
inline uint64_t largest_cluster(const Kernel& kernel) {
    return kernel.large_clusters ? LARGEST_CLUSTER : PORTABLE_CLUSTER;
}
// The clusters of a launch, from those that it names and those that its kernel requires.
CUresult cluster_of(const Device& device, const Kernel& kernel, Dim3 named, Dim3& cluster, bool& explicitly);

// Whether a launch may have blocks of so many threads with so much dynamic shared memory.
bool block_possible(const Device& device, const Kernel& kernel, uint64_t threads, uint64_t shared);
// What a multiprocessor can have at a time of blocks that a launch may have: blocks, warps of any kernel at
// most, and what bounds the blocks.
struct Residency {
    int blocks, most_warps;
    const char* limit;
};
Residency residency_of(const Model& model, const KernelInfo& info, int threads, size_t shared);
// 0 where a launch of such blocks is refused, and only there.
CUresult blocks_per_multiprocessor(int* blocks, const void* handle, int threads, size_t shared);

}  // namespace gpukernel::simgpu
