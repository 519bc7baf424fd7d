// Contexts: made, ended, waited for, limited (driver API chapter "Context Management").  The stack of each
// thread is in libcuda/contexts.cpp.
#include <algorithm>

#include "simgpu/driver/devices/machine.h"
#include "simgpu/driver/state.h"

using namespace gpukernel::simgpu;

namespace {
// From its first context on a process is one of the device's.
void list_process(Device* device) {
    std::lock_guard lock(device->mutex);
    if (device->listed) return;
    device->listed = true;
    if (ProcessUsage* use = list_this_process(device->machine_index)) {
        use->has_context = 1;
        device->memory->tell(use->bytes);
        device->busy_nanoseconds = &use->busy_nanoseconds;
    }
}

// The bytes that a larger limit than a new context's sets aside; a stack is for each thread that the device
// holds at one time.
size_t set_aside_by(const Device& device, CUlimit limit, size_t value) {
    const size_t first = limit == CU_LIMIT_STACK_SIZE         ? 1024
                         : limit == CU_LIMIT_PRINTF_FIFO_SIZE ? 1 << 20
                         : limit == CU_LIMIT_MALLOC_HEAP_SIZE ? 8 << 20
                                                              : SIZE_MAX;
    if (value <= first || first == SIZE_MAX) return 0;
    size_t each = 1, bytes;
    if (limit == CU_LIMIT_STACK_SIZE)
        each = static_cast<size_t>(device.model->threads_per_multiprocessor) *
               static_cast<size_t>(device.model->multiprocessors);
    return __builtin_mul_overflow(value, each, &bytes) ? SIZE_MAX : bytes;
}
}  // namespace

namespace gpukernel::libcuda {
bool is_context(CUcontext handle) { return driver()->contexts.get<Context>(handle) != nullptr; }
Device& device_of(CUcontext context) { return *context->device; }
unsigned& flags_of(CUcontext context) { return context->flags; }
PrimaryContext primary_context(Device& device) {
    simgpu::Device& its = static_cast<simgpu::Device&>(device);
    return {driver()->primaries[its.index].get(), its.mutex, its.retained};
}
}  // namespace gpukernel::libcuda

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    list_process(device);
    std::lock_guard lock(device->mutex);
    ++device->retained;
    *pctx = driver()->primaries[dev].get();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    return device->synchronize();
}

CUresult CUDAAPI cuCtxCreate(CUcontext* pctx, unsigned int flags, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    list_process(device);
    auto* context = driver()->contexts.add(new Context{device, false, flags});
    context_stack().push_back(context);
    *pctx = context;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxDestroy(CUcontext ctx) {
    auto* context = driver() ? driver()->contexts.get<Context>(ctx) : nullptr;
    if (!context || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    schedule().wait_all(*context->device, context->legacy.get());
    context->device->told();
    driver()->contexts.remove(context);
    if (current_context() == context) context_stack().pop_back();
    delete context;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void) {
    GPUKERNEL_HERE(device);
    schedule().wait_all(*device, current_context()->legacy.get());
    return device->told();
}

CUresult CUDAAPI cuCtxGetLimit(size_t* pvalue, CUlimit limit) {
    GPUKERNEL_HERE(device);
    if (!pvalue) return CUDA_ERROR_INVALID_VALUE;
    if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *pvalue = device->limits[limit];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
    GPUKERNEL_HERE(device);
    if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    const size_t before = device->limits[limit];
    if (!device->memory->set_aside(limit, set_aside_by(*device, limit, std::max(value, before))))
        return CUDA_ERROR_OUT_OF_MEMORY;
    // What kernels have from malloc() lives on, so the heap stays as large as that.
    const bool taken = limit != CU_LIMIT_MALLOC_HEAP_SIZE || device->memory->limit_heap(value);
    if (taken) device->limits[limit] = value;
    device->memory->set_aside(limit, set_aside_by(*device, limit, device->limits[limit]));
    return taken ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// For the worker, between two programs of one context: what kernels of the first have from malloc() is
// nobody's, as with the end of a context.
extern "C" __attribute__((visibility("default"))) int gpukernel_simgpu_clear_heap() {
    GPUKERNEL_HERE(device);
    device->memory->clear_heap();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
    GPUKERNEL_HERE(device);
    if (leastPriority) *leastPriority = 0;
    if (greatestPriority) *greatestPriority = -5;
    return CUDA_SUCCESS;
}
