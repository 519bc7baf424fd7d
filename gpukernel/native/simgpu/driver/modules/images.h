// Images: the PTX in what a program hands to cuModuleLoadData, be it text, a fat binary or a linked image.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "simgpu/host_memory.h"

namespace gpukernel::simgpu {

struct Image {
    std::vector<std::string> texts;
    CUresult error = CUDA_SUCCESS;
    std::string message;
    HostShare share;  // of what the texts take beyond the bytes that came
};

// `bytes` is what may be read at `data`, or 0 where the caller did not say (cuModuleLoadData does not).
// Of a fat binary it is the PTX that suits compute capability `target` (80 is 8.0) best.
Image read_image(const void* data, size_t bytes, uint32_t target = UINT32_MAX);

// The image of several linked texts.
std::string link_image(const std::vector<std::string>& texts);

}  // namespace gpukernel::simgpu
