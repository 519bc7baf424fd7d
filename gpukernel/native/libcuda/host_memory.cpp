// Pinned host memory (driver API chapter "Memory Management").
#include "libcuda/entry_points.h"
#include "libcuda/library.h"

using namespace gpukernel::libcuda;

CUresult CUDAAPI cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) {
    if (CUresult error = current_usable(); error != CUDA_SUCCESS) return error;
    constexpr unsigned known =
        CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if (!pp || !bytesize || (Flags & ~known)) return CUDA_ERROR_INVALID_VALUE;
    if (Flags & CU_MEMHOSTALLOC_DEVICEMAP) return allocate_mapped(pp, bytesize, Flags);
    return allocate_pinned(pp, bytesize);
}
CUresult CUDAAPI cuMemAllocHost(void** pp, size_t bytesize) { return cuMemHostAlloc(pp, bytesize, 0); }

CUresult CUDAAPI cuMemHostGetFlags(unsigned int* pFlags, void* p) {
    if (CUresult error = host_memory_usable(); error != CUDA_SUCCESS) return error;
    const std::optional<unsigned> mapped = mapped_flags(p);
    if (!pFlags || (!mapped && !is_pinned(p))) return CUDA_ERROR_INVALID_VALUE;
    *pFlags = mapped.value_or(0);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr* pdptr, void* p, unsigned int Flags) {
    if (CUresult error = host_memory_usable(); error != CUDA_SUCCESS) return error;
    if (!pdptr || Flags) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = map_pinned(p); error != CUDA_SUCCESS) return error;
    if (!mapped_flags(p)) return is_pinned(p) ? registered_pointer(p, *pdptr) : CUDA_ERROR_INVALID_VALUE;
    *pdptr = reinterpret_cast<CUdeviceptr>(p);
    return CUDA_SUCCESS;
}
