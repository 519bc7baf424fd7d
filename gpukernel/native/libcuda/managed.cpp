// Managed memory: the first versions of its calls, and several attributes at once (driver API chapter
// "Unified Addressing").
#include "libcuda/library.h"
#include "libcuda/managed_advice.h"

using gpukernel::ManagedAdvice;

CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream) {
    return cuMemPrefetchAsync_v2(devPtr, count, ManagedAdvice::location(dstDevice), 0, hStream);
}

CUresult CUDAAPI cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
    return cuMemAdvise_v2(devPtr, count, advice, ManagedAdvice::location(device));
}

// One after another, which their order on a stream allows.
extern "C" CUresult cuMemPrefetchBatchAsync(CUdeviceptr* dptrs, size_t* sizes, size_t count,
                                            CUmemLocation* prefetchLocs, size_t* prefetchLocIdxs,
                                            size_t numPrefetchLocs, unsigned long long flags,
                                            CUstream hStream) {
    if (CUresult error = gpukernel::libcuda::current_usable(); error != CUDA_SUCCESS) return error;
    if (!dptrs || !sizes || !count || !prefetchLocs || !prefetchLocIdxs || !numPrefetchLocs ||
        numPrefetchLocs > count || prefetchLocIdxs[0] != 0 || flags || !hStream ||
        hStream == CU_STREAM_LEGACY)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 1; i < numPrefetchLocs; ++i)
        if (prefetchLocIdxs[i] <= prefetchLocIdxs[i - 1] || prefetchLocIdxs[i] >= count)
            return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0, place = 0; i < count; ++i) {
        if (place + 1 < numPrefetchLocs && prefetchLocIdxs[place + 1] == i) ++place;
        if (CUresult error = cuMemPrefetchAsync_v2(dptrs[i], sizes[i], prefetchLocs[place], 0, hStream);
            error != CUDA_SUCCESS)
            return error;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRangeGetAttributes(void** data, size_t* dataSizes, CUmem_range_attribute* attributes,
                                         size_t numAttributes, CUdeviceptr devPtr, size_t count) {
    if (!data || !dataSizes || !attributes || !numAttributes) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < numAttributes; ++i)
        if (CUresult error = cuMemRangeGetAttribute(data[i], dataSizes[i], attributes[i], devPtr, count);
            error != CUDA_SUCCESS)
            return error;
    return CUDA_SUCCESS;
}
