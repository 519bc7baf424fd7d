#include "libcuda/entry_points.h"

#include <cstdio>
#include <cstring>
#include <initializer_list>

namespace gpukernel {

CUresult find_entry_point(const char* symbol, void** function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult* status) {
    if (!symbol || !function) return CUDA_ERROR_INVALID_VALUE;
    const bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    bool known = false;
    for (bool suffix : {per_thread, false}) {
        for (const ProcAddress* entry = proc_address; entry->base; ++entry) {
            if (std::strcmp(entry->base, symbol) != 0 || entry->per_thread != suffix) continue;
            known = true;
            if (entry->version > version) continue;
            *function = entry->function;
            if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
            return CUDA_SUCCESS;
        }
        if (!suffix) break;
    }
    *function = nullptr;
    if (status)
        *status = known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult error_text(CUresult error, const char** name, const char** sentence) {
    for (const ErrorText* text = error_texts; text->name; ++text)
        if (text->code == error) {
            if (name) *name = text->name;
            if (sentence) *sentence = text->sentence;
            return CUDA_SUCCESS;
        }
    if (name) *name = nullptr;
    if (sentence) *sentence = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
}

bool bus_place(const char* text, BusPlace& place) {
    place = {};
    if (!text) return false;
    if (std::sscanf(text, "%x:%x:%x", &place.domain, &place.bus, &place.device) == 3) return true;
    place = {};
    return std::sscanf(text, "%x:%x", &place.bus, &place.device) == 2;
}

}  // namespace gpukernel

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
