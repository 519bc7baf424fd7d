// How much of a device a kernel can fill (driver API chapter "Occupancy"), where that is no plain question.
#include <algorithm>

#include "launch.h"
#include "request.h"

using namespace gpukernel::shim;
namespace wire = gpukernel::wire;
using wire::Special;

namespace {
CUresult cluster_occupancy(int* count, CUfunction function, const CUlaunchConfig* config, bool active) {
    GPUKERNEL_CURRENT(connection);
    if (!count || !config) return CUDA_ERROR_INVALID_VALUE;
    wire::Launch head{reinterpret_cast<uint64_t>(function),
                      0,
                      {config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                       config->blockDimY, config->blockDimZ},
                      config->sharedMemBytes,
                      {}};
    if (!read_attributes(*config, head.mode)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    Request request(*connection, Special::cluster_occupancy);
    request.put(head);
    request.put<uint8_t>(active);
    CUresult result = request.send();
    if (result == CUDA_SUCCESS) *count = request.get<int32_t>();
    return result;
}

// The search of the worker's driver, with one question for each size: the callback is the program's own.
CUresult best_block_size(int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of, int limit,
                         unsigned flags) {
    CUdevice device;
    int warp = 0, multiprocessors = 0, most = 0, best = 0;
    if (CUresult error = cuCtxGetDevice(&device); error != CUDA_SUCCESS) return error;
    cuDeviceGetAttribute(&warp, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
    cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    if (CUresult error = cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
        error != CUDA_SUCCESS)
        return error;
    if (limit > 0) most = std::min(most, limit);
    if (warp < 1 || most < 1) return CUDA_ERROR_INVALID_VALUE;
    for (int rounded = (most + warp - 1) / warp * warp; rounded > 0; rounded -= warp) {
        const int threads = std::min(rounded, most);
        int blocks = 0;
        if (CUresult error = cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, threads,
                                                                                  shared_of(threads), flags);
            error != CUDA_SUCCESS)
            return error;
        if (blocks * threads > best)
            best = blocks * threads, *block = threads, *grid = blocks * multiprocessors;
    }
    return best ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
}  // namespace

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSizeWithFlags(int* minGridSize, int* blockSize, CUfunction func,
                                                           CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                           size_t dynamicSMemSize, int blockSizeLimit,
                                                           unsigned int flags) {
    GPUKERNEL_CURRENT(connection);
    if (!minGridSize || !blockSize) return CUDA_ERROR_INVALID_VALUE;
    if (blockSizeToDynamicSMemSize)
        return best_block_size(minGridSize, blockSize, func, blockSizeToDynamicSMemSize, blockSizeLimit,
                               flags);
    Request request(*connection, Special::best_block_size);
    request.put(reinterpret_cast<uint64_t>(func));
    request.put<uint64_t>(dynamicSMemSize);
    request.put<int32_t>(blockSizeLimit);
    CUresult result = request.send();
    if (result == CUDA_SUCCESS) *minGridSize = request.get<int32_t>(), *blockSize = request.get<int32_t>();
    return result;
}
CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func,
                                                  CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                  size_t dynamicSMemSize, int blockSizeLimit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                                     dynamicSMemSize, blockSizeLimit, 0);
}

CUresult CUDAAPI cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func,
                                                    const CUlaunchConfig* config) {
    return cluster_occupancy(clusterSize, func, config, false);
}
CUresult CUDAAPI cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func,
                                              const CUlaunchConfig* config) {
    return cluster_occupancy(numClusters, func, config, true);
}
