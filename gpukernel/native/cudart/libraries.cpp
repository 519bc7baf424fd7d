// Libraries of kernels that a program loads itself, and cudaGetDriverEntryPoint.
#include "cudart/runtime.h"

using namespace gpukernel::cudart;

#if MAJOR >= 12
// Options have the same numbers in both APIs.
API cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption* options,
                                    void** values, unsigned int count, cudaLibraryOption* library_options,
                                    void** library_values, unsigned int library_count) {
    if (CUresult result = enter()) return done(result);
    return done(invoke(driver::cuLibraryLoadData, library, code, options, values, count, library_options,
                       library_values, library_count));
}

API cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t* library, const char* name, cudaJitOption* options,
                                        void** values, unsigned int count, cudaLibraryOption* library_options,
                                        void** library_values, unsigned int library_count) {
    if (CUresult result = enter()) return done(result);
    return done(invoke(driver::cuLibraryLoadFromFile, library, name, options, values, count, library_options,
                       library_values, library_count));
}
#endif

namespace {

cudaError_t entry_point(const char* symbol, void** function, int version, unsigned long long flags,
                        int* status) {
    if (!symbol || !function) return fail(cudaErrorInvalidValue);
    if (CUresult result = initialise()) return done(result);
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    *function = nullptr;
    const CUresult result = driver::cuGetProcAddress_v12000(symbol, function, version, flags, &found);
    if (status) *status = found;
    return done(result);
}

// Functions in _ptsz give what the program's default stream is: its thread's own.
unsigned long long of_thread(unsigned long long flags) {
    return flags & CU_GET_PROC_ADDRESS_LEGACY_STREAM ? flags
                                                     : flags | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
}

}  // namespace

#if MAJOR < 12
API cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags) {
    int status;
    if (cudaError_t error = entry_point(symbol, function, CUDART_VERSION, flags, &status)) return error;
    return *function ? cudaSuccess : fail(cudaErrorSymbolNotFound);
}
API cudaError_t cudaGetDriverEntryPoint_ptsz(const char* symbol, void** function, unsigned long long flags) {
    return cudaGetDriverEntryPoint(symbol, function, of_thread(flags));
}
#else
API cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                        cudaDriverEntryPointQueryResult* status) {
    return entry_point(symbol, function, CUDART_VERSION, flags, reinterpret_cast<int*>(status));
}
API cudaError_t cudaGetDriverEntryPoint_ptsz(const char* symbol, void** function, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status) {
    return cudaGetDriverEntryPoint(symbol, function, of_thread(flags), status);
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int version,
                                                 unsigned long long flags,
                                                 cudaDriverEntryPointQueryResult* status) {
    return entry_point(symbol, function, static_cast<int>(version), flags, reinterpret_cast<int*>(status));
}
API cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char* symbol, void** function,
                                                      unsigned int version, unsigned long long flags,
                                                      cudaDriverEntryPointQueryResult* status) {
    return cudaGetDriverEntryPointByVersion(symbol, function, version, of_thread(flags), status);
}
#endif
