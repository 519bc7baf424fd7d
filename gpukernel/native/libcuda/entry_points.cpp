#include "libcuda/entry_points.h"

#include <cuda_newest.h>

#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <mutex>

namespace gpukernel {

bool ProcAddress::means(const char* name) const {
    if (std::strcmp(base, name) == 0) return true;
    const size_t length = std::strlen(name);
    if (std::strncmp(symbol, name, length) != 0) return false;
    const char* const rest = symbol + length;
    return !*rest || std::strcmp(rest, "_ptds") == 0 || std::strcmp(rest, "_ptsz") == 0;
}

CUresult find_entry_point(const char* symbol, void** function, int version, cuuint64_t flags,
                          CUdriverProcAddressQueryResult& status) {
    if (!symbol || !function) return CUDA_ERROR_INVALID_VALUE;
    *function = nullptr;
    if (version > GPUKERNEL_CUDA_VERSION) return CUDA_ERROR_INVALID_VALUE;
    const bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (bool suffix : {per_thread, false}) {
        for (const ProcAddress* entry = proc_address; entry->base; ++entry) {
            if (entry->per_thread != suffix || !entry->means(symbol)) continue;
            status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
            if (entry->version > version) continue;
            *function = entry->function;
            status = CU_GET_PROC_ADDRESS_SUCCESS;
            return CUDA_SUCCESS;
        }
        if (!suffix) break;
    }
    return CUDA_SUCCESS;
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

// What is not found is a null pointer, and no error.
CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult* symbolStatus) {
    CUdriverProcAddressQueryResult status;
    const CUresult result = gpukernel::find_entry_point(symbol, pfn, cudaVersion, flags, status);
    if (result == CUDA_SUCCESS && symbolStatus) *symbolStatus = status;
    return result;
}
// The form of CUDA 11.3, which has no status to tell it by.
#undef cuGetProcAddress
extern "C" CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
    CUdriverProcAddressQueryResult status;
    const CUresult result = gpukernel::find_entry_point(symbol, pfn, cudaVersion, flags, status);
    return result == CUDA_SUCCESS && !*pfn ? CUDA_ERROR_NOT_FOUND : result;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** pStr) {
    return gpukernel::error_text(error, pStr, nullptr);
}
CUresult CUDAAPI cuGetErrorString(CUresult error, const char** pStr) {
    return gpukernel::error_text(error, nullptr, pStr);
}

// Undocumented tables of functions: there are none here.  Without one of them NVIDIA's runtime gives up, and
// names a cause that is none; tools and libraries that ask for others go on without them.
CUresult CUDAAPI cuGetExportTable(const void** ppExportTable, const CUuuid* pExportTableId) {
    constexpr unsigned char RUNTIMES[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                            0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
    if (pExportTableId && std::memcmp(pExportTableId, RUNTIMES, sizeof RUNTIMES) == 0) {
        static std::once_flag told;
        std::call_once(told, gpukernel::runtime_gives_up);
    }
    if (ppExportTable) *ppExportTable = nullptr;
    return CUDA_ERROR_NOT_FOUND;
}
