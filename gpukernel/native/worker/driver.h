// The CUDA library that this worker loads: NVIDIA's, or the simulated GPU's; to the worker they are the same.
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <string>

namespace gpukernel::worker {

struct Driver {
#define GPUKERNEL_DRIVER_FUNCTION(name) decltype(&::name) name = nullptr;
#include "driver_functions.inc"
#undef GPUKERNEL_DRIVER_FUNCTION

    // Functions that an older driver lacks are answered with CUDA_ERROR_NOT_SUPPORTED; false where there is
    // no driver at all.
    bool load(const std::string& path, std::string& error);
    std::string error_name(CUresult code) const;
};

}  // namespace gpukernel::worker
