// What the math libraries of a program and those beside the simulated GPU have in common.
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <string>

#define GPUKERNEL_EXPORT extern "C" __attribute__((visibility("default")))

namespace gpukernel::libraries {

// The libcuda.so.1 of this process, and a function of it; nullptr where there is none.
void* driver();
template <class Function>
Function* driver_function(const char* name);

// Prints one line on stderr; with `once`, each sentence once.
void complain(const std::string& sentence, bool once = true);

// The answer of a function that is not there: "not supported" in the library's own numbers, and a line with
// its name.
int unsupported(const char* name);
extern const int NOT_SUPPORTED_STATUS;

void* find_in_driver(const char* name);
template <class Function>
Function* driver_function(const char* name) {
    return reinterpret_cast<Function*>(find_in_driver(name));
}

}  // namespace gpukernel::libraries
