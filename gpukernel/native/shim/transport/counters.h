// Counters of this process's use of its slice, for `%%gpu`.  libcuda.so.1 exports gpukernel_counters to read
// them.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpukernel::shim {

struct Counters {
    std::atomic<uint64_t> launches{0}, bytes_to_device{0}, bytes_to_host{0};
};
extern Counters counters;

}  // namespace gpukernel::shim
