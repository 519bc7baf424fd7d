// What kernels have printed since the last synchronisation: a circular buffer, as the guide says of CUDA's
// ("Formatted Output", "Limitations").  Where more comes than it holds, the oldest is overwritten.
#pragma once

#include <deque>
#include <mutex>
#include <string_view>

#include "simgpu/host_memory.h"

namespace gpukernel::simgpu {

// Guarantees: never more than the buffer, nor than the host has room for, which is charged as text comes.
class PrintedText {
  public:
    static constexpr size_t MOST = size_t{64} << 20;  // whatever the context's limit says

    // `buffer` is the size of the context's, in bytes.
    void add(std::string_view text, size_t buffer);
    // Writes all there is to a file, and forgets it.  Of what a pipe that does not block has no room for,
    // with `more` bytes behind it, the oldest is lost.
    void write_to(int file, size_t more = 0);

  private:
    void keep_newest(size_t bytes);
    std::mutex mutex_;
    std::deque<char> text_;
    HostShare share_;
};

}  // namespace gpukernel::simgpu
