// What a cuDNN handle keeps, in the program and beside the simulated GPU; versions and the names of statuses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "libraries/cudnn/types.h"
#include "libraries/library.h"

namespace gpukernel::libraries::cudnn {

struct CudnnHandle {
    CUstream stream = nullptr;
    uint64_t name = 0;  // the worker's number of it, in the program
    int device = -1;
    bool captured = false;  // a graph has calls with it
};
using Handle = CudnnHandle;  // as generated code calls it

Handle* handle_of(void* handle);  // nullptr for a stray one
// For cudnnCreate and cudnnDestroy, which each side defines: makes it valid, and invalid.
void* keep_handle(Handle* handle);
Handle* drop_handle(void* handle);

// cudnn_version.h's number of the release whose names this library exports, and which the simulated GPU's is.
constexpr size_t OWN_VERSION = 9 * 10000 + 28 * 100 + 0;
size_t version();  // of the library that computes; each side defines it

int status_of(CUresult result);  // what a driver's error is among the library's
// "Not supported", after one line that names what.
int refused(const char* function, const char* what);

}  // namespace gpukernel::libraries::cudnn
