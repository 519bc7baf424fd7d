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

// An operand of a batch, whose lengths count texels where an array takes part, and else bytes.
CUresult texel_bytes(CUarray array, size_t& bytes) {
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    if (CUresult error = cuArray3DGetDescriptor(&shape, array); error != CUDA_SUCCESS) return error;
    switch (shape.Format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8:
            bytes = shape.NumChannels;
            return CUDA_SUCCESS;
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF:
            bytes = 2 * shape.NumChannels;
            return CUDA_SUCCESS;
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT:
            bytes = 4 * shape.NumChannels;
            return CUDA_SUCCESS;
        default:
            return gpukernel::unsupported("a batch of copies of normalised arrays");
    }
}
CUresult as_copy(const CUDA_MEMCPY3D_BATCH_OP& op, CUDA_MEMCPY3D& copy) {
    copy = {};
    size_t texel = 0;
    for (const CUmemcpy3DOperand* side : {&op.src, &op.dst})
        if (side->type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
            size_t bytes = 0;
            if (CUresult error = texel_bytes(side->op.array.array, bytes); error != CUDA_SUCCESS)
                return error;
            if (texel && texel != bytes) return CUDA_ERROR_INVALID_VALUE;
            texel = bytes;
        } else if (side->type != CU_MEMCPY_OPERAND_TYPE_POINTER) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    if (!texel) texel = 1;
    copy.WidthInBytes = op.extent.width * texel, copy.Height = op.extent.height, copy.Depth = op.extent.depth;
    if (op.src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
        const auto& array = op.src.op.array;
        from_array(copy, array.array, array.offset.x * texel);
        copy.srcY = array.offset.y, copy.srcZ = array.offset.z;
    } else {
        copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED, copy.srcDevice = op.src.op.ptr.ptr;
        copy.srcPitch = op.src.op.ptr.rowLength * texel, copy.srcHeight = op.src.op.ptr.layerHeight;
    }
    if (op.dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
        const auto& array = op.dst.op.array;
        to_array(copy, array.array, array.offset.x * texel);
        copy.dstY = array.offset.y, copy.dstZ = array.offset.z;
    } else {
        copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED, copy.dstDevice = op.dst.op.ptr.ptr;
        copy.dstPitch = op.dst.op.ptr.rowLength * texel, copy.dstHeight = op.dst.op.ptr.layerHeight;
    }
    return copy.WidthInBytes && copy.Height && copy.Depth ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
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
    // Which attributes are whose is checked as CUDA checks it; all of them are hints.
    if (!dsts || !srcs || !sizes || !count || !attrs || !attrsIdxs || !numAttrs || numAttrs > count ||
        attrsIdxs[0] != 0 || !hStream || hStream == CU_STREAM_LEGACY)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 1; i < numAttrs; ++i)
        if (attrsIdxs[i] <= attrsIdxs[i - 1] || attrsIdxs[i] >= count) return CUDA_ERROR_INVALID_VALUE;
    if (capturing())
        if (Captured captured = captured_refusal(*connection, hStream)) return *captured;
    for (size_t i = 0; i < count; ++i)
        if (CUresult error = cuMemcpyAsync(dsts[i], srcs[i], sizes[i], hStream); error != CUDA_SUCCESS) {
            if (failIdx) *failIdx = i;
            return error;
        }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemcpy3DBatchAsync(size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList, size_t* failIdx,
                                      unsigned long long flags, CUstream hStream) {
    GPUKERNEL_CURRENT(connection);
    if (failIdx) *failIdx = SIZE_MAX;
    if (!numOps || !opList || flags || !hStream) return CUDA_ERROR_INVALID_VALUE;
    if (capturing())
        if (Captured captured = captured_refusal(*connection, hStream)) return *captured;
    for (size_t i = 0; i < numOps; ++i) {
        CUDA_MEMCPY3D copy;
        CUresult error = as_copy(opList[i], copy);
        if (error == CUDA_SUCCESS) error = copy_box(*connection, copy, hStream);
        if (error == CUDA_SUCCESS) continue;
        if (failIdx) *failIdx = i;
        return error;
    }
    return CUDA_SUCCESS;
}
