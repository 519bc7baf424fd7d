// A row for each kernel of the process: launches, time, and which tier runs it.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "common/kernel_table.h"

namespace gpukernel::simgpu {

struct Function;

namespace profile {

// Lives as long as the process.
struct KernelRow {
    std::string name;
    std::atomic<uint64_t> launches{0}, compiled_launches{0}, failed{0}, nanoseconds{0},
        compile_nanoseconds{0};
    std::atomic<bool> compiled{false};
    void say(std::string why);  // it is not compiled
    std::string reason() const;

  private:
    mutable std::mutex mutex_;
    std::string reason_;
};

// The row of a kernel.  Where the table has no more room it is one that all others share.
KernelRow& row_of(const Function& function);

uint64_t read_kernels(void (*row)(void* to, const KernelUse& one), void* to);

}  // namespace profile
}  // namespace gpukernel::simgpu
