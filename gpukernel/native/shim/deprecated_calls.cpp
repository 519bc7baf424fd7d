// Deprecated calls that programs still make, each implemented by its replacement.
#include <algorithm>
#include <cstring>
#include <map>

#include "shim/transport/request.h"

using namespace gpukernel::shim;

// --- contexts ---

CUresult CUDAAPI cuCtxAttach(CUcontext* pctx, unsigned int flags) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    if (context_stack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (flags || !pctx) return CUDA_ERROR_INVALID_VALUE;
    GPUKERNEL_CURRENT(connection);
    Context* const context = context_stack().back();
    if (context == context->device->primary.get())
        return cuDevicePrimaryCtxRetain(pctx, context->device->index);
    ++context->uses;
    *pctx = context;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxDetach(CUcontext ctx) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    Context* const context = context_of(ctx);
    if (!context || context_stack().empty() || context_stack().back() != context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context == context->device->primary.get()) {
        context_stack().pop_back();
        return cuDevicePrimaryCtxRelease(context->device->index);
    }
    return --context->uses ? CUDA_SUCCESS : cuCtxDestroy_v2(ctx);
}

CUresult CUDAAPI cuDeviceGetProperties(CUdevprop* prop, CUdevice dev) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    const Device* const device = device_at(dev);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (!prop) return CUDA_ERROR_INVALID_VALUE;
    const auto& of = device->facts.attributes;
    *prop = {of[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK],
             {of[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X], of[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y],
              of[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z]},
             {of[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X], of[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y],
              of[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z]},
             of[CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK],
             of[CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY],
             of[CU_DEVICE_ATTRIBUTE_WARP_SIZE],
             of[CU_DEVICE_ATTRIBUTE_MAX_PITCH],
             of[CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK],
             of[CU_DEVICE_ATTRIBUTE_CLOCK_RATE],
             of[CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT]};
    return CUDA_SUCCESS;
}

// --- launches whose shape and parameters are set one by one ---

namespace {
constexpr size_t MOST = 4096;  // bytes of parameters, the limit of the time

struct Setup {
    unsigned block[3] = {1, 1, 1}, shared = 0;
    size_t size = 0;
    char parameters[MOST] = {};
};
std::mutex setups_mutex;
std::map<std::pair<const Connection*, CUfunction>, Setup> setups;

template <class Change>
CUresult change(CUfunction function, Change how) {
    GPUKERNEL_CURRENT(connection);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    std::lock_guard lock(setups_mutex);
    return how(setups[{connection, function}]);
}

CUresult set_parameter(CUfunction function, int offset, const void* value, size_t bytes) {
    if (offset < 0 || !value || bytes > MOST || static_cast<size_t>(offset) > MOST - bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return change(function, [&](Setup& setup) {
        std::memcpy(setup.parameters + offset, value, bytes);
        return CUDA_SUCCESS;
    });
}

CUresult launch(CUfunction function, int width, int height, CUstream stream) {
    GPUKERNEL_CURRENT(connection);
    Setup setup;
    {
        std::lock_guard lock(setups_mutex);
        setup = setups[{connection, function}];
    }
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, setup.parameters, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &setup.size, CU_LAUNCH_PARAM_END};
    return cuLaunchKernel(function, width, height, 1, setup.block[0], setup.block[1], setup.block[2],
                          setup.shared, stream, nullptr, extra);
}
}  // namespace

CUresult CUDAAPI cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z) {
    if (x < 1 || y < 1 || z < 1) return CUDA_ERROR_INVALID_VALUE;
    return change(hfunc, [&](Setup& setup) {
        const unsigned block[] = {unsigned(x), unsigned(y), unsigned(z)};
        std::copy(block, block + 3, setup.block);
        return CUDA_SUCCESS;
    });
}
CUresult CUDAAPI cuFuncSetSharedSize(CUfunction hfunc, unsigned int bytes) {
    return change(hfunc, [&](Setup& setup) {
        setup.shared = bytes;
        return CUDA_SUCCESS;
    });
}
CUresult CUDAAPI cuParamSetSize(CUfunction hfunc, unsigned int numbytes) {
    if (numbytes > MOST) return CUDA_ERROR_INVALID_VALUE;
    return change(hfunc, [&](Setup& setup) {
        setup.size = numbytes;
        return CUDA_SUCCESS;
    });
}
CUresult CUDAAPI cuParamSeti(CUfunction hfunc, int offset, unsigned int value) {
    return set_parameter(hfunc, offset, &value, sizeof value);
}
CUresult CUDAAPI cuParamSetf(CUfunction hfunc, int offset, float value) {
    return set_parameter(hfunc, offset, &value, sizeof value);
}
CUresult CUDAAPI cuParamSetv(CUfunction hfunc, int offset, void* ptr, unsigned int numbytes) {
    return set_parameter(hfunc, offset, ptr, numbytes);
}
CUresult CUDAAPI cuLaunch(CUfunction f) { return launch(f, 1, 1, nullptr); }
CUresult CUDAAPI cuLaunchGrid(CUfunction f, int grid_width, int grid_height) {
    return launch(f, grid_width, grid_height, nullptr);
}
CUresult CUDAAPI cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream) {
    return launch(f, grid_width, grid_height, hStream);
}
