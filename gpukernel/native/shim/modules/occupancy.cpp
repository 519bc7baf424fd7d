// Occupancy queries (driver API chapter "Occupancy") that take structures or callbacks; the others are
// generated.
#include <algorithm>
#include <cstring>

#include "shim/modules/launch.h"
#include "shim/modules/libraries.h"
#include "shim/transport/request.h"

using namespace gpukernel::shim;
namespace wire = gpukernel::wire;

namespace {
CUresult cluster_occupancy(int* count, CUfunction function, const CUlaunchConfig* config, bool active) {
    GPUKERNEL_CURRENT(connection);
    if (!count || !config) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = name_there(*connection, function); error != CUDA_SUCCESS) return error;
    const gpukernel::libcuda::LaunchShape shape = gpukernel::libcuda::shape_of(*config);
    wire::Launch head{reinterpret_cast<uint64_t>(function), 0, {}, shape.shared_bytes, {}};
    std::memcpy(head.shape, shape.sides, sizeof head.shape);
    if (!mode_of(shape, head.mode)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    Request request(*connection, wire::ClusterOccupancyRequest{head, active});
    CUresult result = request.send();
    if (result == CUDA_SUCCESS) *count = request.answer<wire::ClusterOccupancyAnswer>().count;
    return result;
}

// The worker's driver searches in the same way; here with a request for each size, since the callback is the
// program's.
CUresult best_block_size(int* grid, int* block, CUfunction function, CUoccupancyB2DSize shared_of, int limit,
                         unsigned flags) {
    CUdevice device;
    int warp = 0, multiprocessors = 0, most = 0;
    if (CUresult error = cuCtxGetDevice(&device); error != CUDA_SUCCESS) return error;
    cuDeviceGetAttribute(&warp, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
    cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    if (CUresult error = cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
        error != CUDA_SUCCESS)
        return error;
    if (limit > 0) most = std::min(most, limit);
    const auto blocks_of = [&](int threads, int& blocks) {
        return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, function, threads,
                                                                    shared_of(threads), flags);
    };
    return gpukernel::libcuda::best_block_size(most, warp, multiprocessors, blocks_of, *grid, *block);
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
    if (CUresult error = name_there(*connection, func); error != CUDA_SUCCESS) return error;
    Request request(*connection, wire::BestBlockSizeRequest{reinterpret_cast<uint64_t>(func), dynamicSMemSize,
                                                            blockSizeLimit});
    if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
    const auto answer = request.answer<wire::BestBlockSizeAnswer>();
    *minGridSize = answer.grid, *blockSize = answer.block;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func,
                                                    const CUlaunchConfig* config) {
    return cluster_occupancy(clusterSize, func, config, false);
}
CUresult CUDAAPI cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func,
                                              const CUlaunchConfig* config) {
    return cluster_occupancy(numClusters, func, config, true);
}
