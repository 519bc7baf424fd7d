// Copies between devices.  They have no peer access, but this process reaches the memory of both.
#include <new>
#include <vector>

#include "simgpu/driver/memory/arrays.h"

using namespace gpukernel::simgpu;

namespace {
Context* context_of(CUcontext handle) { return driver() ? driver()->contexts.get<Context>(handle) : nullptr; }

// One end of a copy, with its device's context current.
template <class Copy>
CUresult on(Context* context, Copy copy) {
    context_stack().push_back(context);
    CUresult error = copy();
    context_stack().pop_back();
    return error;
}
}  // namespace

CUresult CUDAAPI cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* p) {
    if (!p) return CUDA_ERROR_INVALID_VALUE;
    Context *from = context_of(p->srcContext), *to = context_of(p->dstContext);
    if (!from || !to) return CUDA_ERROR_INVALID_CONTEXT;
    if (!p->WidthInBytes || !p->Height || !p->Depth) return CUDA_SUCCESS;
    size_t bytes;
    if (__builtin_mul_overflow(p->WidthInBytes, p->Height, &bytes) ||
        __builtin_mul_overflow(bytes, p->Depth, &bytes) || bytes > from->device->memory->capacity())
        return CUDA_ERROR_INVALID_VALUE;
    std::vector<char> between;
    try {
        between.resize(bytes);
    } catch (const std::bad_alloc&) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUDA_MEMCPY3D out{}, in{};
    out.WidthInBytes = in.WidthInBytes = p->WidthInBytes, out.Height = in.Height = p->Height;
    out.Depth = in.Depth = p->Depth;
    out.srcXInBytes = p->srcXInBytes, out.srcY = p->srcY, out.srcZ = p->srcZ;
    out.srcMemoryType = p->srcMemoryType, out.srcHost = p->srcHost, out.srcDevice = p->srcDevice;
    out.srcArray = p->srcArray, out.srcPitch = p->srcPitch, out.srcHeight = p->srcHeight;
    out.dstMemoryType = CU_MEMORYTYPE_HOST, out.dstHost = between.data();
    in.srcMemoryType = CU_MEMORYTYPE_HOST, in.srcHost = between.data();
    in.dstXInBytes = p->dstXInBytes, in.dstY = p->dstY, in.dstZ = p->dstZ;
    in.dstMemoryType = p->dstMemoryType, in.dstHost = p->dstHost, in.dstDevice = p->dstDevice;
    in.dstArray = p->dstArray, in.dstPitch = p->dstPitch, in.dstHeight = p->dstHeight;
    CUresult error = on(from, [&] { return cuMemcpy3D(&out); });
    return error == CUDA_SUCCESS ? on(to, [&] { return cuMemcpy3D(&in); }) : error;
}
// In the stream's order: its earlier work is done first, and the copy is done when the call returns.
CUresult CUDAAPI cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* pCopy, CUstream hStream) {
    CUresult error = cuStreamSynchronize(hStream);
    return error == CUDA_SUCCESS ? cuMemcpy3DPeer(pCopy) : error;
}

CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                              CUcontext srcContext, size_t ByteCount) {
    CUDA_MEMCPY3D_PEER copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = srcDevice, copy.dstDevice = dstDevice;
    copy.srcContext = srcContext, copy.dstContext = dstContext;
    copy.WidthInBytes = ByteCount, copy.Height = copy.Depth = 1;
    return cuMemcpy3DPeer(&copy);
}
CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                   CUcontext srcContext, size_t ByteCount, CUstream hStream) {
    CUresult error = cuStreamSynchronize(hStream);
    return error == CUDA_SUCCESS ? cuMemcpyPeer(dstDevice, dstContext, srcDevice, srcContext, ByteCount)
                                 : error;
}

CUresult gpukernel::libcuda::may_batch(CUstream) { return CUDA_SUCCESS; }
