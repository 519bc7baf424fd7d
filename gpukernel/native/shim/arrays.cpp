// CUDA arrays as functions of older shapes name them, spans of one-dimensional arrays, copies between
// devices, and copies by the batch.  Making and describing arrays, textures and surfaces is regular
// (codegen/calls.txt).
#include "capture.h"
#include "memory.h"
#include "request.h"

using namespace gpukernel::shim;

namespace {
CUDA_MEMCPY3D span(size_t bytes) {
    CUDA_MEMCPY3D copy{};
    copy.WidthInBytes = bytes, copy.Height = copy.Depth = 1;
    return copy;
}
void from_array(CUDA_MEMCPY3D& copy, CUarray array, size_t offset) {
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY, copy.srcArray = array, copy.srcXInBytes = offset;
}
void to_array(CUDA_MEMCPY3D& copy, CUarray array, size_t offset) {
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY, copy.dstArray = array, copy.dstXInBytes = offset;
}
void from_host(CUDA_MEMCPY3D& copy, const void* host) {
    copy.srcMemoryType = CU_MEMORYTYPE_HOST, copy.srcHost = host;
}
void to_host(CUDA_MEMCPY3D& copy, void* host) {
    copy.dstMemoryType = CU_MEMORYTYPE_HOST, copy.dstHost = host;
}

CUDA_MEMCPY3D without_contexts(const CUDA_MEMCPY3D_PEER& p) {
    CUDA_MEMCPY3D copy{};
    copy.srcXInBytes = p.srcXInBytes, copy.srcY = p.srcY, copy.srcZ = p.srcZ, copy.srcLOD = p.srcLOD;
    copy.srcMemoryType = p.srcMemoryType, copy.srcHost = p.srcHost, copy.srcDevice = p.srcDevice;
    copy.srcArray = p.srcArray, copy.srcPitch = p.srcPitch, copy.srcHeight = p.srcHeight;
    copy.dstXInBytes = p.dstXInBytes, copy.dstY = p.dstY, copy.dstZ = p.dstZ, copy.dstLOD = p.dstLOD;
    copy.dstMemoryType = p.dstMemoryType, copy.dstHost = p.dstHost, copy.dstDevice = p.dstDevice;
    copy.dstArray = p.dstArray, copy.dstPitch = p.dstPitch, copy.dstHeight = p.dstHeight;
    copy.WidthInBytes = p.WidthInBytes, copy.Height = p.Height, copy.Depth = p.Depth;
    return copy;
}
}  // namespace

CUresult CUDAAPI cuArrayCreate(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
    if (!pAllocateArray) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR shape{pAllocateArray->Width,  pAllocateArray->Height,      0,
                                        pAllocateArray->Format, pAllocateArray->NumChannels, 0};
    return cuArray3DCreate(pHandle, &shape);
}
CUresult CUDAAPI cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    if (!pArrayDescriptor) return CUDA_ERROR_INVALID_VALUE;
    CUresult error = cuArray3DGetDescriptor(&shape, hArray);
    if (error == CUDA_SUCCESS)
        *pArrayDescriptor = {shape.Width, shape.Height, shape.Format, shape.NumChannels};
    return error;
}

CUresult CUDAAPI cuMemcpyHtoA(CUarray dstArray, size_t dstOffset, const void* srcHost, size_t ByteCount) {
    CUDA_MEMCPY3D copy = span(ByteCount);
    from_host(copy, srcHost), to_array(copy, dstArray, dstOffset);
    return cuMemcpy3D(&copy);
}
CUresult CUDAAPI cuMemcpyHtoAAsync(CUarray dstArray, size_t dstOffset, const void* srcHost, size_t ByteCount,
                                   CUstream hStream) {
    CUDA_MEMCPY3D copy = span(ByteCount);
    from_host(copy, srcHost), to_array(copy, dstArray, dstOffset);
    return cuMemcpy3DAsync(&copy, hStream);
}
CUresult CUDAAPI cuMemcpyAtoH(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount) {
    CUDA_MEMCPY3D copy = span(ByteCount);
    from_array(copy, srcArray, srcOffset), to_host(copy, dstHost);
    return cuMemcpy3D(&copy);
}
CUresult CUDAAPI cuMemcpyAtoHAsync(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                                   CUstream hStream) {
    CUDA_MEMCPY3D copy = span(ByteCount);
    from_array(copy, srcArray, srcOffset), to_host(copy, dstHost);
    return cuMemcpy3DAsync(&copy, hStream);
}
CUresult CUDAAPI cuMemcpyDtoA(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount) {
    CUDA_MEMCPY3D copy = span(ByteCount);
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE, copy.srcDevice = srcDevice;
    to_array(copy, dstArray, dstOffset);
    return cuMemcpy3D(&copy);
}
CUresult CUDAAPI cuMemcpyAtoD(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount) {
    CUDA_MEMCPY3D copy = span(ByteCount);
    from_array(copy, srcArray, srcOffset);
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE, copy.dstDevice = dstDevice;
    return cuMemcpy3D(&copy);
}
CUresult CUDAAPI cuMemcpyAtoA(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
                              size_t ByteCount) {
    CUDA_MEMCPY3D copy = span(ByteCount);
    from_array(copy, srcArray, srcOffset), to_array(copy, dstArray, dstOffset);
    return cuMemcpy3D(&copy);
}

// --- between devices ---

CUresult CUDAAPI cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* pCopy, CUstream hStream) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pCopy) return CUDA_ERROR_INVALID_VALUE;
    const Context *there = context_of(pCopy->dstContext), *here = context_of(pCopy->srcContext);
    if (!there || !here) return CUDA_ERROR_INVALID_CONTEXT;
    Connection &to = there->device->connection, &from = here->device->connection;
    const CUDA_MEMCPY3D copy = without_contexts(*pCopy);
    if (capturing())
        if (Captured captured =
                &to == &from ? captured_copy(to, copy, hStream) : captured_refusal(from, hStream))
            return *captured;
    return &to == &from ? copy_box(to, copy, hStream) : copy_box_across(from, copy, to, copy);
}
CUresult CUDAAPI cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* pCopy) {
    return cuMemcpy3DPeerAsync(pCopy, nullptr);
}

// --- by the batch: one after another, which their order on a stream allows ---

CUresult CUDAAPI cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                                    CUmemcpyAttributes* attrs, size_t* attrsIdxs, size_t numAttrs,
                                    size_t* failIdx, CUstream hStream) {
    GPUKERNEL_CURRENT(connection);
    if (failIdx) *failIdx = SIZE_MAX;
    if (!count || !dsts || !srcs || !sizes || !attrs || !attrsIdxs || !numAttrs || numAttrs > count ||
        attrsIdxs[0] != 0 || !hStream)
        return CUDA_ERROR_INVALID_VALUE;
    if (capturing())
        if (Captured captured = captured_refusal(*connection, hStream)) return *captured;
    for (size_t i = 0; i < count; ++i)
        if (CUresult error = cuMemcpyAsync(dsts[i], srcs[i], sizes[i], hStream); error != CUDA_SUCCESS) {
            if (failIdx) *failIdx = i;
            return error;
        }
    return CUDA_SUCCESS;
}
