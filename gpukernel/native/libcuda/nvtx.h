// The ranges that a program marks by NVTX, for who profiles its kernels.
//
// What it guarantees.  The library takes NVTX's functions over where NVTX_INJECTION64_PATH names it, and
// costs a program without ranges nothing.  It keeps 256 names of domains, 16,384 registered strings, 256
// ranges that have been started, and 1,024 that a thread has pushed; what is beyond that is counted and has
// no name.
#pragma once

#include <atomic>
#include <string_view>

#pragma GCC visibility push(hidden)

namespace gpukernel::libcuda {

// The ranges around what the calling thread does now, from the outermost on, with "/" between them: those
// that anybody in the process has started, then those that the thread has pushed.  Empty: none.  At most
// MOST_RANGE bytes (common/kernel_table.h), until the thread's next call.
inline std::string_view nvtx_range();

// Whether anybody in the process has ever marked a range, and the ranges where somebody has.
extern std::atomic<bool> has_marked_ranges;
std::string_view marked_range();

inline std::string_view nvtx_range() {
    return has_marked_ranges.load(std::memory_order_relaxed) ? marked_range() : std::string_view();
}

}  // namespace gpukernel::libcuda

#pragma GCC visibility pop
