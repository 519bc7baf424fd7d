// What this process did on its slice, for `%%gpu`: read through gpukernel_counters, which libcuda.so.1
// exports beside the driver's functions.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpukernel::shim {

struct Counters {
    std::atomic<uint64_t> launches{0}, bytes_to_device{0}, bytes_to_host{0};
};
extern Counters counters;

}  // namespace gpukernel::shim
