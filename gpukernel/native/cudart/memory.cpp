// Memory: allocations, memory of the host, what a pointer is.
#include <atomic>
#include <cstring>

#include "cudart/runtime.h"

using namespace gpukernel::cudart;

namespace {
CUdeviceptr* device(void** pointer) { return reinterpret_cast<CUdeviceptr*>(pointer); }
CUdeviceptr device(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

std::atomic<bool> allocates_managed{false};

// The runtime gives nothing, and no error, to who asks for no bytes.
template <class Allocate>
cudaError_t allocated(void** pointer, size_t bytes, Allocate allocate) {
    if (!pointer) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    if (!bytes) {
        *pointer = nullptr;
        return cudaSuccess;
    }
    return done(allocate());
}
}  // namespace

API cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    return allocated(pointer, bytes, [=] {
        return allocates_managed ? driver::cuMemAllocManaged(device(pointer), bytes, CU_MEM_ATTACH_GLOBAL)
                                 : driver::cuMemAlloc(device(pointer), bytes);
    });
}

// Not NVIDIA's: with 1, cudaMalloc gives managed memory from now on, which the processor may touch, too, as
// it may what the program maps (cuMemMap). `gpukernel.frameworks` asks for it on simulated devices. Returns
// cudaSuccess.
API cudaError_t gpukernelAllocateManaged(int wanted) {
    allocates_managed = wanted != 0;
    // Where the device is in this process, mapped memory is the process's own, and there is no such function.
    if (auto reach = reinterpret_cast<void (*)(int)>(driver::symbol("gpukernel_reach_mapped"))) reach(wanted);
    return cudaSuccess;
}

API cudaError_t cudaFree(void* pointer) {
    if (CUresult result = enter()) return done(result);
    return pointer ? done(driver::cuMemFree(device(pointer))) : cudaSuccess;
}

API cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned int flags) {
    if (!pointer || !bytes) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    return done(driver::cuMemAllocManaged(device(pointer), bytes, flags));
}

API cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
    if (!pitch) return fail(cudaErrorInvalidValue);
    if (!width || !height) *pitch = 0;
    return allocated(pointer, width * height,
                     [=] { return driver::cuMemAllocPitch(device(pointer), pitch, width, height, 4); });
}

API cudaError_t cudaMalloc3D(cudaPitchedPtr* pointer, cudaExtent extent) {
    if (!pointer) return fail(cudaErrorInvalidValue);
    *pointer = {nullptr, 0, extent.width, extent.height};
    return cudaMallocPitch(&pointer->ptr, &pointer->pitch, extent.width, extent.height * extent.depth);
}

API cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int flags) {
    return allocated(pointer, bytes, [=] { return driver::cuMemHostAlloc(pointer, bytes, flags); });
}

API cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }

API cudaError_t cudaFreeHost(void* pointer) {
    if (CUresult result = enter()) return done(result);
    return pointer ? done(driver::cuMemFreeHost(pointer)) : cudaSuccess;
}

API cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
    return allocated(pointer, bytes, [=] { return driver::cuMemAllocAsync(device(pointer), bytes, stream); });
}

API cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t pool,
                                        cudaStream_t stream) {
    return allocated(pointer, bytes,
                     [=] { return driver::cuMemAllocFromPoolAsync(device(pointer), bytes, pool, stream); });
}

API cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
    if (CUresult result = enter()) return done(result);
    return done(driver::cuMemFreeAsync(device(pointer), stream));
}

API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* to, const void* pointer) {
    if (!to) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    std::memset(to, 0, sizeof *to);
    int kind = 0, ordinal = 0;
    unsigned managed = 0;
    void* host = nullptr;
    CUdeviceptr on_device = 0;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                        CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void* values[] = {&kind, &managed, &ordinal, &on_device, &host};
    if (CUresult result = driver::cuPointerGetAttributes(5, attributes, values, device(pointer)))
        return done(result);
    if (!kind) {  // memory that CUDA does not know
        to->type = cudaMemoryTypeUnregistered;
        to->device = cudaInvalidDeviceId;
        to->hostPointer = const_cast<void*>(pointer);
        return cudaSuccess;
    }
    to->type = managed                      ? cudaMemoryTypeManaged
               : kind == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                                            : cudaMemoryTypeDevice;
    to->device = ordinal;
    to->devicePointer = reinterpret_cast<void*>(on_device);
    to->hostPointer = host;
    return cudaSuccess;
}

API cudaError_t cudaMemset(void* pointer, int value, size_t count) {
    if (CUresult result = enter()) return done(result);
    if (!count) return cudaSuccess;
    const auto byte = static_cast<unsigned char>(value);
    return done(on_default_stream(
        [=] { return driver::cuMemsetD8(device(pointer), byte, count); },
        [=](CUstream s) { return driver::cuMemsetD8Async(device(pointer), byte, count, s); }));
}

API cudaError_t cudaMemsetAsync(void* pointer, int value, size_t count, cudaStream_t stream) {
    if (CUresult result = enter()) return done(result);
    if (!count) return cudaSuccess;
    return done(driver::cuMemsetD8Async(device(pointer), static_cast<unsigned char>(value), count, stream));
}

API cudaError_t cudaMemset2D(void* pointer, size_t pitch, int value, size_t width, size_t height) {
    if (CUresult result = enter()) return done(result);
    if (!width || !height) return cudaSuccess;
    const auto byte = static_cast<unsigned char>(value);
    return done(on_default_stream(
        [=] { return driver::cuMemsetD2D8(device(pointer), pitch, byte, width, height); },
        [=](CUstream s) {
            return driver::cuMemsetD2D8Async(device(pointer), pitch, byte, width, height, s);
        }));
}

API cudaError_t cudaMemset2DAsync(void* pointer, size_t pitch, int value, size_t width, size_t height,
                                  cudaStream_t stream) {
    if (CUresult result = enter()) return done(result);
    if (!width || !height) return cudaSuccess;
    return done(driver::cuMemsetD2D8Async(device(pointer), pitch, static_cast<unsigned char>(value), width,
                                          height, stream));
}

// Rows of all layers are as far from each other as those of one; layers are so only where none is cut short.
API cudaError_t cudaMemset3DAsync(cudaPitchedPtr to, int value, cudaExtent extent, cudaStream_t stream) {
    if (extent.depth == 1 || extent.height == to.ysize)
        return cudaMemset2DAsync(to.ptr, to.pitch, value, extent.width, extent.height * extent.depth, stream);
    for (size_t z = 0; z < extent.depth; ++z) {
        void* const layer = static_cast<char*>(to.ptr) + z * to.pitch * to.ysize;
        if (cudaError_t error =
                cudaMemset2DAsync(layer, to.pitch, value, extent.width, extent.height, stream))
            return error;
    }
    return cudaSuccess;
}

API cudaError_t cudaMemset3D(cudaPitchedPtr to, int value, cudaExtent extent) {
    const cudaStream_t stream = PerThreadDefault::wanted ? cudaStreamPerThread : nullptr;
    if (cudaError_t error = cudaMemset3DAsync(to, value, extent, stream)) return error;
    return PerThreadDefault::wanted ? done(driver::cuStreamSynchronize(stream)) : cudaSuccess;
}

#if MAJOR < 13
API cudaError_t cudaMemAdvise(const void* pointer, size_t count, cudaMemoryAdvise advice, int to) {
    if (CUresult result = enter()) return done(result);
    return done(invoke(driver::cuMemAdvise_v8000, pointer, count, advice, to));
}
API cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t count, int to, cudaStream_t stream) {
    if (CUresult result = enter()) return done(result);
    return done(invoke(driver::cuMemPrefetchAsync_v8000, pointer, count, to, stream));
}
#else
API cudaError_t cudaMemAdvise(const void* pointer, size_t count, cudaMemoryAdvise advice,
                              cudaMemLocation to) {
    if (CUresult result = enter()) return done(result);
    return done(invoke(driver::cuMemAdvise_v12020, pointer, count, advice, to));
}
API cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t count, cudaMemLocation to,
                                     unsigned int flags, cudaStream_t stream) {
    if (CUresult result = enter()) return done(result);
    return done(invoke(driver::cuMemPrefetchAsync_v12020, pointer, count, to, flags, stream));
}
#endif
