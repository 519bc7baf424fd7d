// Libraries, which are a process's and not a device's.
//
// Each device has a worker that knows its own images only.  In a process of several devices a library and its
// kernels have names of this process, and a worker loads the image when it is first used on its device.  A
// process of one device uses the worker's names.
#pragma once

#include <optional>
#include <string_view>

#include "shim/process.h"

namespace gpukernel::shim {

// Replace a library, a kernel, or a function that may be a kernel, of a process of several devices by the
// worker's name for it; a stray handle stays.
CUresult replace_name(Connection& connection, CUlibrary& library);
CUresult replace_name(Connection& connection, CUkernel& kernel);
CUresult replace_name(Connection& connection, CUfunction& function);
CUresult replace_name(Connection& connection, const void*& function);
// The same, in a process of one device nothing.
template <class Handle>
CUresult name_there(Connection& connection, Handle& handle) {
    return several_devices() ? replace_name(connection, handle) : CUDA_SUCCESS;
}

// Returns the process's name of a library that the worker has loaded as `handle`.
CUlibrary named_library(Connection& connection, uint64_t handle, std::string_view image);
// Replaces the worker's names of a library's kernels by the process's.
CUresult name_kernels(Connection& connection, CUlibrary library, CUkernel* kernels, size_t count);

// Forgets what a worker that has been reset called libraries and kernels: they are loaded there again.
void forget_names(const Connection& connection);

std::optional<CUresult> process_cuLibraryUnload(Connection& connection, CUlibrary library);
std::optional<CUresult> process_cuLibraryGetKernel(Connection& connection, CUkernel* kernel,
                                                   CUlibrary library, const char* name);
std::optional<CUresult> process_cuKernelGetLibrary(Connection& connection, CUlibrary* library,
                                                   CUkernel kernel);

}  // namespace gpukernel::shim
