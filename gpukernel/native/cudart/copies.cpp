// Copies between the host, the device, and the program's variables, in one, two and three dimensions.
#include <initializer_list>

#include "cudart/runtime.h"

namespace gpukernel::cudart {

namespace {
CUdeviceptr device(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

bool known(cudaMemcpyKind kind) { return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault; }

CUmemorytype from_type(cudaMemcpyKind kind) {
    return kind == cudaMemcpyDefault                                        ? CU_MEMORYTYPE_UNIFIED
           : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost ? CU_MEMORYTYPE_HOST
                                                                            : CU_MEMORYTYPE_DEVICE;
}

CUmemorytype to_type(cudaMemcpyKind kind) {
    return kind == cudaMemcpyDefault                                        ? CU_MEMORYTYPE_UNIFIED
           : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost ? CU_MEMORYTYPE_HOST
                                                                            : CU_MEMORYTYPE_DEVICE;
}

CUresult copy(void* to, const void* from, size_t count, cudaMemcpyKind kind) {
    switch (kind) {
        case cudaMemcpyHostToDevice:
            return driver::cuMemcpyHtoD(device(to), from, count);
        case cudaMemcpyDeviceToHost:
            return driver::cuMemcpyDtoH(to, device(from), count);
        case cudaMemcpyDeviceToDevice:
            return driver::cuMemcpyDtoD(device(to), device(from), count);
        default:
            return driver::cuMemcpy(device(to), device(from), count);
    }
}

CUresult copy(void* to, const void* from, size_t count, cudaMemcpyKind kind, CUstream stream) {
    switch (kind) {
        case cudaMemcpyHostToDevice:
            return driver::cuMemcpyHtoDAsync(device(to), from, count, stream);
        case cudaMemcpyDeviceToHost:
            return driver::cuMemcpyDtoHAsync(to, device(from), count, stream);
        case cudaMemcpyDeviceToDevice:
            return driver::cuMemcpyDtoDAsync(device(to), device(from), count, stream);
        default:
            return driver::cuMemcpyAsync(device(to), device(from), count, stream);
    }
}

cudaError_t rows(CUDA_MEMCPY2D& to, void* d, size_t d_pitch, const void* s, size_t s_pitch, size_t width,
                 size_t height, cudaMemcpyKind kind) {
    if (!known(kind)) return fail(cudaErrorInvalidMemcpyDirection);
    if (height > 1 && (width > d_pitch || width > s_pitch)) return fail(cudaErrorInvalidPitchValue);
    to = {};
    to.srcMemoryType = from_type(kind);
    to.srcHost = s;
    to.srcDevice = device(s);
    to.srcPitch = s_pitch;
    to.dstMemoryType = to_type(kind);
    to.dstHost = d;
    to.dstDevice = device(d);
    to.dstPitch = d_pitch;
    to.WidthInBytes = width;
    to.Height = height;
    return cudaSuccess;
}
}  // namespace

CUresult copy_of(const cudaMemcpy3DParms& from, CUDA_MEMCPY3D& to) {
    if (!known(from.kind)) return static_cast<CUresult>(cudaErrorInvalidMemcpyDirection);
    if ((from.srcArray && from.srcPtr.ptr) || (from.dstArray && from.dstPtr.ptr))
        return CUDA_ERROR_INVALID_VALUE;
    to = {};
    // Extents and positions count elements as soon as an array takes part, and bytes of the side that is
    // none.
    size_t element = 1;
    for (cudaArray_t array : {from.srcArray, from.dstArray}) {
        if (!array) continue;
        CUDA_ARRAY3D_DESCRIPTOR descriptor;
        if (CUresult result = driver::cuArray3DGetDescriptor(&descriptor, reinterpret_cast<CUarray>(array)))
            return result;
        element = element_bytes(descriptor.Format, descriptor.NumChannels);
    }
    to.WidthInBytes = from.extent.width * element;
    to.Height = from.extent.height;
    to.Depth = from.extent.depth;
    to.srcXInBytes = from.srcPos.x * (from.srcArray ? element : 1);
    to.srcY = from.srcPos.y;
    to.srcZ = from.srcPos.z;
    to.srcMemoryType = from.srcArray ? CU_MEMORYTYPE_ARRAY : from_type(from.kind);
    to.srcArray = reinterpret_cast<CUarray>(from.srcArray);
    to.srcHost = from.srcPtr.ptr;
    to.srcDevice = device(from.srcPtr.ptr);
    to.srcPitch = from.srcPtr.pitch;
    to.srcHeight = from.srcPtr.ysize;
    to.dstXInBytes = from.dstPos.x * (from.dstArray ? element : 1);
    to.dstY = from.dstPos.y;
    to.dstZ = from.dstPos.z;
    to.dstMemoryType = from.dstArray ? CU_MEMORYTYPE_ARRAY : to_type(from.kind);
    to.dstArray = reinterpret_cast<CUarray>(from.dstArray);
    to.dstHost = from.dstPtr.ptr;
    to.dstDevice = device(from.dstPtr.ptr);
    to.dstPitch = from.dstPtr.pitch;
    to.dstHeight = from.dstPtr.ysize;
    return CUDA_SUCCESS;
}

cudaError_t part_of(const void* symbol, size_t count, size_t offset, CUdeviceptr& address) {
    size_t size;
    if (cudaError_t error = find_variable(symbol, address, size)) return error;
    if (offset > size || count > size - offset) return fail(cudaErrorInvalidValue);
    address += offset;
    return cudaSuccess;
}

}  // namespace gpukernel::cudart

using namespace gpukernel::cudart;

API cudaError_t cudaMemcpy(void* to, const void* from, size_t count, cudaMemcpyKind kind) {
    if (CUresult result = enter()) return done(result);
    if (!known(kind)) return fail(cudaErrorInvalidMemcpyDirection);
    if (!count) return cudaSuccess;
    return done(on_default_stream([=] { return copy(to, from, count, kind); },
                                  [=](CUstream stream) { return copy(to, from, count, kind, stream); }));
}

API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t count, cudaMemcpyKind kind,
                                cudaStream_t stream) {
    if (CUresult result = enter()) return done(result);
    if (!known(kind)) return fail(cudaErrorInvalidMemcpyDirection);
    return count ? done(copy(to, from, count, kind, stream)) : cudaSuccess;
}

API cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                             size_t height, cudaMemcpyKind kind) {
    if (CUresult result = enter()) return done(result);
    CUDA_MEMCPY2D copy;
    if (cudaError_t error = rows(copy, to, to_pitch, from, from_pitch, width, height, kind)) return error;
    if (!width || !height) return cudaSuccess;
    return done(on_default_stream([&] { return driver::cuMemcpy2DUnaligned(&copy); },
                                  [&](CUstream stream) { return driver::cuMemcpy2DAsync(&copy, stream); }));
}

API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                  size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    if (CUresult result = enter()) return done(result);
    CUDA_MEMCPY2D copy;
    if (cudaError_t error = rows(copy, to, to_pitch, from, from_pitch, width, height, kind)) return error;
    return width && height ? done(driver::cuMemcpy2DAsync(&copy, stream)) : cudaSuccess;
}

API cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* from) {
    if (!from) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUDA_MEMCPY3D copy;
    if (CUresult result = copy_of(*from, copy)) return done(result);
    return done(on_default_stream([&] { return driver::cuMemcpy3D(&copy); },
                                  [&](CUstream stream) { return driver::cuMemcpy3DAsync(&copy, stream); }));
}

API cudaError_t cudaMemcpy3DAsync(const cudaMemcpy3DParms* from, cudaStream_t stream) {
    if (!from) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUDA_MEMCPY3D copy;
    if (CUresult result = copy_of(*from, copy)) return done(result);
    return done(driver::cuMemcpy3DAsync(&copy, stream));
}

// ---- between devices
API cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t count) {
    if (CUresult result = enter()) return done(result);
    CUcontext there, here;
    if (CUresult result = primary_context(to_device, there)) return done(result);
    if (CUresult result = primary_context(from_device, here)) return done(result);
    return count ? done(driver::cuMemcpyPeer(device(to), there, device(from), here, count)) : cudaSuccess;
}

API cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t count,
                                    cudaStream_t stream) {
    if (CUresult result = enter()) return done(result);
    CUcontext there, here;
    if (CUresult result = primary_context(to_device, there)) return done(result);
    if (CUresult result = primary_context(from_device, here)) return done(result);
    return count ? done(driver::cuMemcpyPeerAsync(device(to), there, device(from), here, count, stream))
                 : cudaSuccess;
}

// ---- variables of the program
API cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t count, size_t offset,
                                   cudaMemcpyKind kind) {
    if (CUresult result = enter()) return done(result);
    if (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost)
        return fail(cudaErrorInvalidMemcpyDirection);
    CUdeviceptr to;
    if (cudaError_t error = part_of(symbol, count, offset, to)) return error;
    return cudaMemcpy(reinterpret_cast<void*>(to), from, count, kind);
}

API cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t count, size_t offset,
                                     cudaMemcpyKind kind) {
    if (CUresult result = enter()) return done(result);
    if (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost)
        return fail(cudaErrorInvalidMemcpyDirection);
    CUdeviceptr from;
    if (cudaError_t error = part_of(symbol, count, offset, from)) return error;
    return cudaMemcpy(to, reinterpret_cast<void*>(from), count, kind);
}

API cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t count, size_t offset,
                                        cudaMemcpyKind kind, cudaStream_t stream) {
    if (CUresult result = enter()) return done(result);
    if (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost)
        return fail(cudaErrorInvalidMemcpyDirection);
    CUdeviceptr to;
    if (cudaError_t error = part_of(symbol, count, offset, to)) return error;
    return cudaMemcpyAsync(reinterpret_cast<void*>(to), from, count, kind, stream);
}

API cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t count, size_t offset,
                                          cudaMemcpyKind kind, cudaStream_t stream) {
    if (CUresult result = enter()) return done(result);
    if (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost)
        return fail(cudaErrorInvalidMemcpyDirection);
    CUdeviceptr from;
    if (cudaError_t error = part_of(symbol, count, offset, from)) return error;
    return cudaMemcpyAsync(to, reinterpret_cast<void*>(from), count, kind, stream);
}

#if MAJOR >= 13
API cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* sizes,
                                     size_t count, cudaMemcpyAttributes* attributes, size_t* indices,
                                     size_t kinds, cudaStream_t stream) {
    if (CUresult result = enter()) return done(result);
    return done(invoke(driver::cuMemcpyBatchAsync_v13000, to, from, sizes, count, attributes, indices, kinds,
                       stream));
}
#endif
#if MAJOR == 12
API cudaError_t cudaMemcpyBatchAsync(void** to, void** from, size_t* sizes, size_t count,
                                     cudaMemcpyAttributes* attributes, size_t* indices, size_t kinds,
                                     size_t* failed, cudaStream_t stream) {
    if (CUresult result = enter()) return done(result);
    return done(invoke(driver::cuMemcpyBatchAsync_v12080, to, from, sizes, count, attributes, indices, kinds,
                       failed, stream));
}
#endif
