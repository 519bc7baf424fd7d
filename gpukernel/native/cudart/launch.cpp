// Launches: what <<<…>>> becomes, and its relatives.
#include <vector>

#include "cudart/runtime.h"

using namespace gpukernel::cudart;

namespace {

struct Configuration {
    dim3 grid, block;
    size_t shared;
    CUstream_st* stream;
};
thread_local std::vector<Configuration> configurations;

// The driver says of any argument that it is invalid; the runtime tells a grid or block that no device can
// have.
cudaError_t told(CUresult result, dim3 grid, dim3 block) {
    if (result != CUDA_ERROR_INVALID_VALUE) return done(result);
    const int device = current_device();
    const auto most = [device](CUdevice_attribute attribute) {
        int value = 0;
        driver::cuDeviceGetAttribute(&value, attribute, device);
        return static_cast<unsigned>(value);
    };
    const bool fits = grid.x <= most(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X) &&
                      grid.y <= most(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y) &&
                      grid.z <= most(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z) &&
                      block.x <= most(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X) &&
                      block.y <= most(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y) &&
                      block.z <= most(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z) &&
                      1ull * block.x * block.y * block.z <= most(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    const bool some = grid.x && grid.y && grid.z && block.x && block.y && block.z;
    return fits && some ? done(result) : fail(cudaErrorInvalidConfiguration);
}

// The dynamic shared memory that a kernel may have without asking; more is rare enough for a question.
constexpr size_t USUAL_SHARED = 48 << 10;

bool too_much(const void* function, size_t shared) {
    CUfunction in_context;
    int most = 0;
    return find_function(function, in_context) == CUDA_SUCCESS &&
           driver::cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, in_context) ==
               CUDA_SUCCESS &&
           shared > static_cast<size_t>(most);
}

// An image that has nothing for the device, and a handle that is none, are errors of the function.
cudaError_t found(const void* function, CUfunction& kernel) {
    if (CUresult result = enter()) return done(result);
    return done(find_kernel(function, kernel));
}

CUlaunchConfig config_of(const cudaLaunchConfig_t& from) {
    CUlaunchConfig to{};
    to.gridDimX = from.gridDim.x, to.gridDimY = from.gridDim.y, to.gridDimZ = from.gridDim.z;
    to.blockDimX = from.blockDim.x, to.blockDimY = from.blockDim.y, to.blockDimZ = from.blockDim.z;
    to.sharedMemBytes = static_cast<unsigned>(from.dynamicSmemBytes);
    to.hStream = from.stream;
    to.attrs = reinterpret_cast<CUlaunchAttribute*>(from.attrs);
    to.numAttrs = from.numAttrs;
    return to;
}

}  // namespace

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
    configurations.push_back({grid, block, shared, stream});
    return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    if (configurations.empty()) return fail(cudaErrorMissingConfiguration);
    const Configuration& last = configurations.back();
    *grid = last.grid;
    *block = last.block;
    *shared = last.shared;
    *static_cast<CUstream_st**>(stream) = last.stream;
    configurations.pop_back();
    return cudaSuccess;
}

// Over a network, launches are queued, and their errors come later; what a program asks for by mistake is
// told at once.
API cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                                 cudaStream_t stream) {
    CUfunction kernel;
    if (cudaError_t error = found(function, kernel)) return error;
    if (shared > USUAL_SHARED && too_much(function, shared)) return fail(cudaErrorInvalidValue);
    return told(driver::cuLaunchKernel(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                       static_cast<unsigned>(shared), stream, arguments, nullptr),
                grid, block);
}

API cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                            size_t shared, cudaStream_t stream) {
    CUfunction kernel;
    if (cudaError_t error = found(function, kernel)) return error;
    return told(driver::cuLaunchCooperativeKernel(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                                  static_cast<unsigned>(shared), stream, arguments),
                grid, block);
}

API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                    void** arguments) {
    if (!config) return fail(cudaErrorInvalidValue);
    CUfunction kernel;
    if (cudaError_t error = found(function, kernel)) return error;
    const CUlaunchConfig to = config_of(*config);
    return told(driver::cuLaunchKernelEx(&to, kernel, arguments, nullptr), config->gridDim, config->blockDim);
}

API cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t* config, const void* function,
                                         void** arguments) {
    if (!config) return fail(cudaErrorInvalidValue);
    cudaLaunchConfig_t own = *config;
    own.stream = per_thread(own.stream);
    return cudaLaunchKernelExC(&own, function, arguments);
}

#if MAJOR >= 12
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                   size_t shared, cudaStream_t stream) {
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

API cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                        size_t shared, cudaStream_t stream) {
    return cudaLaunchKernel(kernel, grid, block, arguments, shared, per_thread(stream));
}
#endif

API cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function,
                                               const cudaLaunchConfig_t* config) {
    if (!config) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUfunction kernel;
    if (CUresult result = find_function(function, kernel)) return done(result);
    const CUlaunchConfig to = config_of(*config);
    return done(driver::cuOccupancyMaxActiveClusters(clusters, kernel, &to));
}

API cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* function,
                                                     const cudaLaunchConfig_t* config) {
    if (!config) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUfunction kernel;
    if (CUresult result = find_function(function, kernel)) return done(result);
    const CUlaunchConfig to = config_of(*config);
    return done(driver::cuOccupancyMaxPotentialClusterSize(size, kernel, &to));
}
