// The simulated models: figures from NVIDIA's data sheets and the CUDA C++ Programming Guide's table of
// compute capabilities.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpukernel::simgpu {

struct Model {
    std::string_view key, name;
    uint64_t memory_bytes;
    int major, minor, multiprocessors;
    int clock_khz, memory_clock_khz, bus_bits, l2_bytes;
    int threads_per_multiprocessor, blocks_per_multiprocessor, shared_per_multiprocessor,
        shared_per_block_optin;
    int driver_version;  // CUDA's, of the newest driver for this model, in cuDriverGetVersion's form
};

const Model* model_named(std::string_view key);

// "v100:2,t4" as a list of models, one a device; an unknown name ends up in `unknown`.
std::vector<const Model*> models_from(std::string_view specification, std::string& unknown);

}  // namespace gpukernel::simgpu
