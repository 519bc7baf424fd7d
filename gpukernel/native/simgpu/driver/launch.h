// What a launch is, and how much of a device it takes: for launch.cpp and occupancy.cpp.
#pragma once

#include "state.h"

namespace gpukernel::simgpu {

struct Shape {
    Dim3 grid, block;
    unsigned shared;
    bool cooperative = false;
    Dim3 cluster{0, 0, 0};  // zeros: the launch does not say
};
Shape shape_of(const CUlaunchConfig& config);

constexpr uint64_t PORTABLE_CLUSTER = 8, LARGEST_CLUSTER = 16;  // blocks, of sm_90
inline uint64_t largest_cluster(const Kernel& kernel) {
    return kernel.large_clusters ? LARGEST_CLUSTER : PORTABLE_CLUSTER;
}
// What clusters a launch has, of those that it names and those that its kernel wants.
CUresult cluster_of(const Device& device, const Kernel& kernel, Dim3 named, Dim3& cluster, bool& explicitly);

CUresult blocks_per_multiprocessor(int* blocks, const void* handle, int threads, size_t shared);

}  // namespace gpukernel::simgpu
