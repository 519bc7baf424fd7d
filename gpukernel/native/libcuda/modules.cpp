// Modules and libraries from memory and from files (driver API chapters "Module Management", "Library
// Management").
#include <fstream>
#include <iterator>

#include "common/register_limit.h"
#include "libcuda/library.h"

using namespace gpukernel::libcuda;

std::string gpukernel::libcuda::limited_registers(std::string_view image, const JitLogs& logs) {
    const std::string_view text = image.substr(0, image.find('\0'));
    const bool limits = logs.max_registers() && text.find(".version") != std::string_view::npos;
    return limits ? limit_registers(text, logs.max_registers()) : std::string();
}

namespace {
bool read_file(const char* path, std::string& bytes) {
    std::ifstream file(path ? path : "", std::ios::binary);
    bytes.assign((std::istreambuf_iterator<char>(file)), {});
    return file.good() || file.eof();
}

// A module needs a current context, a library only cuInit.
CUresult may_load(const CUmodule*) { return current_usable(); }
CUresult may_load(const CUlibrary*) { return initialised(); }

CUresult load_as(CUmodule* module, const void* image, size_t bytes, const JitLogs& logs) {
    return load_module(image, bytes, logs, *module);
}
CUresult load_as(CUlibrary* library, const void* image, size_t bytes, const JitLogs& logs) {
    return load_library(image, bytes, logs, *library);
}

template <class Handle>
CUresult load(Handle* handle, const void* image, size_t bytes, const JitLogs& logs) {
    if (CUresult error = may_load(handle); error != CUDA_SUCCESS) return error;
    if (!handle || !image) return CUDA_ERROR_INVALID_VALUE;
    std::string limited;
    if (logs.max_registers()) {
        const std::string_view text = static_cast<const char*>(image);  // what has a header has a zero in it
        limited = limited_registers(text, logs);
        if (!limited.empty()) image = limited.c_str(), bytes = limited.size() + 1;
    }
    return load_as(handle, image, bytes, logs);
}

// PTX from a file is ended by a zero, as from memory.
template <class Handle>
CUresult load_file(Handle* handle, const char* path, const JitLogs& logs) {
    if (CUresult error = may_load(handle); error != CUDA_SUCCESS) return error;
    std::string bytes;
    if (!read_file(path, bytes)) return CUDA_ERROR_FILE_NOT_FOUND;
    return load(handle, bytes.c_str(), bytes.size() + 1, logs);
}
}  // namespace

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions,
                                    CUjit_option* options, void** optionValues) {
    return load(module, image, 0, JitLogs(numOptions, options, optionValues));
}
CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) { return load(module, image, 0, {}); }
CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) {
    return load(module, fatCubin, 0, {});
}
CUresult CUDAAPI cuModuleLoad(CUmodule* module, const char* fname) { return load_file(module, fname, {}); }

CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                                   void** jitOptionsValues, unsigned int numJitOptions,
                                   CUlibraryOption* libraryOptions, void** libraryOptionValues,
                                   unsigned int numLibraryOptions) {
    return load(library, code, 0, JitLogs(numJitOptions, jitOptions, jitOptionsValues));
}
CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option* jitOptions,
                                       void** jitOptionsValues, unsigned int numJitOptions,
                                       CUlibraryOption* libraryOptions, void** libraryOptionValues,
                                       unsigned int numLibraryOptions) {
    return load_file(library, fileName, JitLogs(numJitOptions, jitOptions, jitOptionsValues));
}

CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

namespace {
// `info` refuses the number after the last parameter's; a kernel has no more bytes of them than MOST.
template <class Handle>
CUresult parameters_of(Handle handle, CUresult (*info)(Handle, size_t, size_t*, size_t*), size_t* count) {
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    constexpr size_t MOST = 32764;
    size_t known = 0, offset, size;
    CUresult result = CUDA_SUCCESS;
    while (known < MOST && (result = info(handle, known, &offset, &size)) == CUDA_SUCCESS) ++known;
    if (result != CUDA_ERROR_INVALID_VALUE) return result;
    *count = known;
    return CUDA_SUCCESS;
}
}  // namespace

extern "C" CUresult cuFuncGetParamCount(CUfunction func, size_t* paramCount) {
    return parameters_of(func, cuFuncGetParamInfo, paramCount);
}
extern "C" CUresult cuKernelGetParamCount(CUkernel kernel, size_t* paramCount) {
    return parameters_of(kernel, cuKernelGetParamInfo, paramCount);
}

CUresult CUDAAPI cuLinkAddFile(CUlinkState state, CUjitInputType type, const char* path,
                               unsigned int numOptions, CUjit_option* options, void** optionValues) {
    std::string bytes;
    if (!read_file(path, bytes)) return CUDA_ERROR_FILE_NOT_FOUND;
    return cuLinkAddData(state, type, bytes.data(), bytes.size(), path, numOptions, options, optionValues);
}
