// The real CUDA driver that direct mode loads: NVIDIA's, or the simulated GPU's.
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <string>

#include "codegen/cuda_driver.h"

extern "C" CUresult cuCtxSynchronize_v2(CUcontext ctx);  // newer than the headers

namespace gpukernel::direct {

// The driver's functions that this library calls.  One that an older driver lacks answers
// CUDA_ERROR_NOT_SUPPORTED.
struct Real {
#define GPUKERNEL_INTERCEPTED(name) decltype(&::name) name;
#include "direct/called.inc"
#include "intercepted.inc"
#undef GPUKERNEL_INTERCEPTED
};
extern Real real;

// Why there is no driver; empty where there is one.  It is loaded with this library.
const std::string& no_driver_because();
// Beside the driver lies its NVML, which is not the one that this program finds by name.
const std::string& real_driver_path();

// The names that are passed on, in the order of the table that their functions jump through.
extern const char* const passed_on[];
CUresult no_driver();

void complain(const std::string& sentence);  // one line on standard error

}  // namespace gpukernel::direct
