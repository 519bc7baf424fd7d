// Occupancy: the blocks and clusters that fit a device (driver API chapter "Occupancy").
#include <algorithm>
#include <climits>

#include "simgpu/driver/modules/launch.h"

namespace gpukernel::simgpu {
// What each block takes of a multiprocessor's shared memory beside its own.
static size_t reserved_shared(const Model& model) { return model.major >= 8 ? 1024 : 0; }

Residency residency_of(const Model& m, const KernelInfo& info, int threads, size_t shared) {
    const int warps = (threads + 31) / 32;
    const int registers = std::clamp<int>(info.registers, 16, 255) * warps * 32;
    const size_t each = shared + info.static_shared_bytes + reserved_shared(m);
    Residency found{m.blocks_per_multiprocessor, m.threads_per_multiprocessor / 32, "blocks"};
    const auto bound = [&](int blocks, const char* by) {
        if (blocks < found.blocks) found.blocks = blocks, found.limit = by;
    };
    bound(m.threads_per_multiprocessor / (warps * 32), "threads");
    bound(65536 / registers, "registers");
    if (each) bound(static_cast<int>(m.shared_per_multiprocessor / each), "shared memory");
    return found;
}

CUresult blocks_per_multiprocessor(int* blocks, const void* handle, int threads, size_t shared) {
    GPUKERNEL_HERE(device);
    Kernel* function = launchable(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult error = prepare(*function); error != CUDA_SUCCESS) return error;
    if (!blocks || threads < 1 || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
    *blocks = block_possible(*device, *function, threads, shared)
                  ? residency_of(*device->model, *function->info, threads, shared).blocks
                  : 0;
    return CUDA_SUCCESS;
}
}  // namespace gpukernel::simgpu

using namespace gpukernel::simgpu;

CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func, int blockSize,
                                                             size_t dynamicSMemSize) {
    return blocks_per_multiprocessor(numBlocks, func, blockSize, dynamicSMemSize);
}
CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* numBlocks, CUfunction func,
                                                                      int blockSize, size_t dynamicSMemSize,
                                                                      unsigned int flags) {
    return blocks_per_multiprocessor(numBlocks, func, blockSize, dynamicSMemSize);
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(int* minGridSize, int* blockSize, CUfunction func,
                                                           CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                           size_t dynamicSMemSize, int blockSizeLimit,
                                                           unsigned int flags) {
    GPUKERNEL_HERE(device);
    Kernel* function = launchable(func);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult error = prepare(*function); error != CUDA_SUCCESS) return error;
    if (!minGridSize || !blockSize) return CUDA_ERROR_INVALID_VALUE;
    const int limit = std::min<int>(function->info->max_threads, blockSizeLimit > 0 ? blockSizeLimit : 1024);
    const auto blocks_of = [&](int threads, int& blocks) {
        const size_t shared =
            blockSizeToDynamicSMemSize ? blockSizeToDynamicSMemSize(threads) : dynamicSMemSize;
        return blocks_per_multiprocessor(&blocks, func, threads, shared);
    };
    return gpukernel::libcuda::best_block_size(limit, 32, device->model->multiprocessors, blocks_of,
                                               *minGridSize, *blockSize);
}
CUresult CUDAAPI cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, CUfunction func,
                                                         int numBlocks, int blockSize) {
    GPUKERNEL_HERE(device);
    Kernel* function = launchable(func);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult error = prepare(*function); error != CUDA_SUCCESS) return error;
    if (!dynamicSmemSize || numBlocks < 1) return CUDA_ERROR_INVALID_VALUE;
    const Model& m = *device->model;
    const size_t own = function->info->static_shared_bytes, fixed = own + reserved_shared(m),
                 each = m.shared_per_multiprocessor / numBlocks, most = m.shared_per_block_optin;
    *dynamicSmemSize = each > fixed && most > own
                           ? std::min({each - fixed, most - own, size_t(function->dynamic_shared_limit)})
                           : 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func,
                                                    const CUlaunchConfig* config) {
    GPUKERNEL_HERE(device);
    Kernel* function = launchable(func);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult error = prepare(*function); error != CUDA_SUCCESS) return error;
    if (!clusterSize || !config) return CUDA_ERROR_INVALID_VALUE;
    if (function->cluster.volume()) {
        *clusterSize = static_cast<int>(function->cluster.volume());
        return CUDA_SUCCESS;
    }
    uint64_t most = device->model->major < 9 ? 1 : largest_cluster(*function);
    if (function->info->max_cluster) most = std::min<uint64_t>(most, function->info->max_cluster);
    *clusterSize = static_cast<int>(most);
    return CUDA_SUCCESS;
}

// The clusters that the blocks of all multiprocessors make up.  A GPU may have fewer, since a cluster stays
// within a group of multiprocessors.
CUresult CUDAAPI cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func,
                                              const CUlaunchConfig* config) {
    GPUKERNEL_HERE(device);
    Kernel* function = launchable(func);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (CUresult error = prepare(*function); error != CUDA_SUCCESS) return error;
    if (!numClusters || !config) return CUDA_ERROR_INVALID_VALUE;
    const gpukernel::libcuda::LaunchShape shape = gpukernel::libcuda::shape_of(*config);
    Dim3 cluster;
    bool explicitly;
    if (CUresult error = cluster_of(*device, *function, cluster_of(shape), cluster, explicitly);
        error != CUDA_SUCCESS)
        return error;
    if (!explicitly) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    int each = 0;
    const int threads = static_cast<int>(std::min<uint64_t>(block_of(shape).volume(), INT_MAX));
    if (CUresult error = blocks_per_multiprocessor(&each, func, threads, shape.shared_bytes);
        error != CUDA_SUCCESS)
        return error;
    *numClusters = static_cast<int>(uint64_t(each) * device->model->multiprocessors / cluster.volume());
    return CUDA_SUCCESS;
}
