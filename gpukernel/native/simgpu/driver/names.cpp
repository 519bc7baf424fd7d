// Error names, and how programs find functions (driver API chapters "Error Handling", "Driver Entry Point
// Access").
#include <cstring>

#include "entry_points.h"
#include "state.h"

CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult* symbolStatus) {
    return gpukernel::find_entry_point(symbol, pfn, cudaVersion, flags, symbolStatus);
}
#undef cuGetProcAddress
extern "C" CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
    return gpukernel::find_entry_point(symbol, pfn, cudaVersion, flags, nullptr);
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** pStr) {
    return gpukernel::error_text(error, pStr, nullptr);
}
CUresult CUDAAPI cuGetErrorString(CUresult error, const char** pStr) {
    return gpukernel::error_text(error, nullptr, pStr);
}

// Undocumented tables of functions: there are none here.
CUresult CUDAAPI cuGetExportTable(const void** ppExportTable, const CUuuid* pExportTableId) {
    if (ppExportTable) *ppExportTable = nullptr;
    return CUDA_ERROR_NOT_FOUND;
}
