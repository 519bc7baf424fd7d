// Copies between devices, batches of pitched copies, and borders of texture references.  The other calls that
// make and describe arrays, textures and surfaces are generated (codegen/calls.txt); copies of spans of
// arrays are in libcuda/arrays.cpp.
#include <cstring>
#include <string_view>

#include "libcuda/entry_points.h"
#include "libcuda/library.h"
#include "shim/graphs/capture.h"
#include "shim/memory/memory.h"
#include "shim/transport/request.h"

using namespace gpukernel::shim;

namespace {
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
        copy.srcMemoryType = CU_MEMORYTYPE_ARRAY, copy.srcArray = array.array;
        copy.srcXInBytes = array.offset.x * texel;
        copy.srcY = array.offset.y, copy.srcZ = array.offset.z;
    } else {
        copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED, copy.srcDevice = op.src.op.ptr.ptr;
        copy.srcPitch = op.src.op.ptr.rowLength * texel, copy.srcHeight = op.src.op.ptr.layerHeight;
    }
    if (op.dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
        const auto& array = op.dst.op.array;
        copy.dstMemoryType = CU_MEMORYTYPE_ARRAY, copy.dstArray = array.array;
        copy.dstXInBytes = array.offset.x * texel;
        copy.dstY = array.offset.y, copy.dstZ = array.offset.z;
    } else {
        copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED, copy.dstDevice = op.dst.op.ptr.ptr;
        copy.dstPitch = op.dst.op.ptr.rowLength * texel, copy.dstHeight = op.dst.op.ptr.layerHeight;
    }
    return copy.WidthInBytes && copy.Height && copy.Depth ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
}  // namespace

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
    return &to == &from ? copy_pitched(to, copy, hStream) : copy_pitched_across(from, copy, to, copy);
}
CUresult CUDAAPI cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* pCopy) {
    return cuMemcpy3DPeerAsync(pCopy, nullptr);
}

// --- batches: one copy after another, which stream order allows ---

CUresult gpukernel::libcuda::may_batch(CUstream stream) {
    GPUKERNEL_CURRENT(connection);
    if (capturing())
        if (Captured captured = captured_refusal(*connection, stream)) return *captured;
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
        if (error == CUDA_SUCCESS) error = copy_pitched(*connection, copy, hStream);
        if (error == CUDA_SUCCESS) continue;
        if (failIdx) *failIdx = i;
        return error;
    }
    return CUDA_SUCCESS;
}

// The form of CUDA 13, which does not say which copy failed.
extern "C" CUresult cuMemcpy3DBatchAsync_v2(size_t numOps, CUDA_MEMCPY3D_BATCH_OP* opList,
                                            unsigned long long flags, CUstream hStream) {
    return cuMemcpy3DBatchAsync(numOps, opList, nullptr, flags, hStream);
}

// One copy, on any stream, captured too.
extern "C" CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP* op, unsigned long long flags,
                                                  CUstream hStream) {
    GPUKERNEL_CURRENT(connection);
    CUDA_MEMCPY3D copy;
    if (!op || flags) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = as_copy(*op, copy); error != CUDA_SUCCESS) return error;
    return cuMemcpy3DAsync(&copy, hStream);
}

// --- texture references ---

namespace {
CUresult has_border_colors() {
    return context_stack().back()->device->facts.attributes[0] & gpukernel::wire::HAS_BORDER_COLORS
               ? CUDA_SUCCESS
               : gpukernel::unsupported(
                     "border colours of texture references, by a worker of an older version");
}
}  // namespace

CUresult CUDAAPI cuTexRefSetBorderColor(CUtexref hTexRef, float* pBorderColor) {
    GPUKERNEL_CURRENT(connection);
    if (!pBorderColor) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = has_border_colors(); error != CUDA_SUCCESS) return error;
    const std::string_view color(reinterpret_cast<const char*>(pBorderColor), 4 * sizeof(float));
    Request request(*connection,
                    gpukernel::wire::SetBorderColorRequest{reinterpret_cast<uint64_t>(hTexRef), color});
    return request.send();
}

CUresult CUDAAPI cuTexRefGetBorderColor(float* pBorderColor, CUtexref hTexRef) {
    GPUKERNEL_CURRENT(connection);
    if (!pBorderColor) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = has_border_colors(); error != CUDA_SUCCESS) return error;
    Request request(*connection, gpukernel::wire::BorderColorRequest{reinterpret_cast<uint64_t>(hTexRef)});
    if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
    const auto answer = request.answer<gpukernel::wire::BorderColorAnswer>();
    if (answer.color.size() != 4 * sizeof(float)) return CUDA_ERROR_UNKNOWN;
    std::memcpy(pBorderColor, answer.color.data(), answer.color.size());
    return CUDA_SUCCESS;
}
