// Managed memory: the first versions of its calls, and several attributes at once (driver API chapter
// "Unified Addressing").
#include "libcuda/managed_advice.h"

using gpukernel::ManagedAdvice;

CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream) {
    return cuMemPrefetchAsync_v2(devPtr, count, ManagedAdvice::location(dstDevice), 0, hStream);
}

CUresult CUDAAPI cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
    return cuMemAdvise_v2(devPtr, count, advice, ManagedAdvice::location(device));
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
