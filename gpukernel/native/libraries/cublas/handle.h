// What a cuBLAS handle keeps in the process that uses it: the same in the program and beside the simulated
// GPU.
#pragma once

#include <cstdint>

#include "libraries/cublas/types.h"
#include "libraries/library.h"

namespace gpukernel::libraries::cublas {

// The version that the library says it is, by its major number; those that frameworks are built with.
constexpr int version_of(int major) { return major == 11 ? 111103 : major == 12 ? 120903 : 130000; }

struct Settings {
    CUstream stream = nullptr;
    int pointer_mode = HOST, math_mode = 0, atomics = 0, multiprocessors = 0;
    void* workspace = nullptr;
    size_t workspace_bytes = 0;
};

struct Handle {
    Settings settings;
    uint64_t name = 0;  // the worker's number of it, in the program
    int device = -1;
    int version = 0;
    bool captured = false;  // a graph has calls with it
};

Handle* handle_of(void* handle);  // nullptr for a stray one
// For cublasCreate_v2 and cublasDestroy_v2, which each side defines: makes it valid, and invalid.
void* keep_handle(Handle* handle);
Handle* drop_handle(void* handle);

const char* status_name(int status);
const char* status_text(int status);
int status_of(CUresult result);
int property(int type, int major, int* value);  // of the library's version

}  // namespace gpukernel::libraries::cublas
