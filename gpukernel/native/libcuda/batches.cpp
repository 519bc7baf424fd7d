// Copies by the batch (cuMemcpyBatchAsync): one after another, which their order on a stream allows.
#include "libcuda/library.h"

using namespace gpukernel::libcuda;

CUresult CUDAAPI cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                                    CUmemcpyAttributes* attrs, size_t* attrsIdxs, size_t numAttrs,
                                    size_t* failIdx, CUstream hStream) {
    if (CUresult error = current_usable(); error != CUDA_SUCCESS) return error;
    if (failIdx) *failIdx = SIZE_MAX;
    // Which attributes belong to which copy is checked as CUDA checks it; all of them are hints.
    if (!dsts || !srcs || !sizes || !count || !attrs || !attrsIdxs || !numAttrs || numAttrs > count ||
        attrsIdxs[0] != 0 || !hStream || hStream == CU_STREAM_LEGACY)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 1; i < numAttrs; ++i)
        if (attrsIdxs[i] <= attrsIdxs[i - 1] || attrsIdxs[i] >= count) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = may_batch(hStream); error != CUDA_SUCCESS) return error;
    for (size_t i = 0; i < count; ++i)
        if (CUresult error = cuMemcpyAsync(dsts[i], srcs[i], sizes[i], hStream); error != CUDA_SUCCESS) {
            if (failIdx) *failIdx = i;
            return error;
        }
    return CUDA_SUCCESS;
}

// The form of CUDA 13, which does not say which copy failed.
extern "C" CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                                          CUmemcpyAttributes* attrs, size_t* attrsIdxs, size_t numAttrs,
                                          CUstream hStream) {
    return cuMemcpyBatchAsync(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, nullptr, hStream);
}

// One copy; all of its attributes are hints.
extern "C" CUresult cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t size,
                                                CUmemcpyAttributes* attr, CUstream hStream) {
    if (CUresult error = current_usable(); error != CUDA_SUCCESS) return error;
    if (!attr) return CUDA_ERROR_INVALID_VALUE;
    return cuMemcpyAsync(dst, src, size, hStream);
}
