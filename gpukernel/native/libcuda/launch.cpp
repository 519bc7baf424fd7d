// Launches (driver API chapter "Execution Control") and the search for a block size (chapter "Occupancy").
#include "libcuda/launch.h"

#include <algorithm>

#include "libcuda/library.h"

namespace gpukernel::libcuda {

void read_attribute(CUlaunchAttributeID id, const CUlaunchAttributeValue& value, LaunchShape& shape) {
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) shape.cooperative = value.cooperative != 0;
    if (id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
        shape.cluster[0] = value.clusterDim.x;
        shape.cluster[1] = value.clusterDim.y;
        shape.cluster[2] = value.clusterDim.z;
    }
}

LaunchShape shape_of(const CUlaunchConfig& config) {
    LaunchShape shape{{config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX, config.blockDimY,
                       config.blockDimZ},
                      config.sharedMemBytes};
    for (unsigned i = 0; i < config.numAttrs; ++i)
        read_attribute(config.attrs[i].id, config.attrs[i].value, shape);
    return shape;
}

ParameterBuffer buffer_of(void** extra) {
    ParameterBuffer buffer;
    for (int i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer.data = extra[i + 1];
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) buffer.bytes = *static_cast<size_t*>(extra[i + 1]);
    }
    return buffer;
}

CUresult best_block_size(int most_threads, int warp, int multiprocessors,
                         const std::function<CUresult(int threads, int& blocks)>& blocks_of, int& grid,
                         int& block) {
    int best = 0;
    if (warp < 1 || most_threads < 1) return CUDA_ERROR_INVALID_VALUE;
    for (int rounded = (most_threads + warp - 1) / warp * warp; rounded > 0; rounded -= warp) {
        const int threads = std::min(rounded, most_threads);
        int blocks = 0;
        if (CUresult error = blocks_of(threads, blocks); error != CUDA_SUCCESS) return error;
        if (blocks * threads > best)
            best = blocks * threads, block = threads, grid = blocks * multiprocessors;
    }
    return best ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace gpukernel::libcuda

using namespace gpukernel::libcuda;

CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                void** kernelParams, void** extra) {
    return launch(f, {{gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ}, sharedMemBytes},
                  hStream, kernelParams, extra);
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                                  void** extra) {
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = launch(f, shape_of(*config), config->hStream, kernelParams, extra);
    // The events of a launch are recorded when all of it is done: later than they might be, and never too
    // early.
    for (unsigned i = 0; i < config->numAttrs && result == CUDA_SUCCESS; ++i) {
        const CUlaunchAttribute& a = config->attrs[i];
        if (a.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
            result = cuEventRecord(a.value.programmaticEvent.event, config->hStream);
        if (a.id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
            result = cuEventRecord(a.value.launchCompletionEvent.event, config->hStream);
    }
    return result;
}

CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                           unsigned int gridDimZ, unsigned int blockDimX,
                                           unsigned int blockDimY, unsigned int blockDimZ,
                                           unsigned int sharedMemBytes, CUstream hStream,
                                           void** kernelParams) {
    return launch(f, {{gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ}, sharedMemBytes, true},
                  hStream, kernelParams, nullptr);
}

// How the thread that calls `fn` waits for it, asleep (0) or not (1), is a hint.
extern "C" CUresult cuLaunchHostFunc_v2(CUstream hStream, CUhostFn fn, void* userData,
                                        unsigned int syncMode) {
    return syncMode > 1 ? CUDA_ERROR_INVALID_VALUE : cuLaunchHostFunc(hStream, fn, userData);
}

CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func,
                                                  CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                  size_t dynamicSMemSize, int blockSizeLimit) {
    return cuOccupancyMaxPotentialBlockSizeWithFlags(minGridSize, blockSize, func, blockSizeToDynamicSMemSize,
                                                     dynamicSMemSize, blockSizeLimit, 0);
}
