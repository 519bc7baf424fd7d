// The memory of the host that work on the simulated device takes, beside the device's own: blocks of threads,
// decoded modules, queued work.  Who has the device in its process may bound it (`gpukernel_simgpu_bound`).
#pragma once

#include <cstdint>
#include <utility>

extern "C" {
// From now on what is taken is asked for: `take` returns whether there is so much.  Called before cuInit.
void gpukernel_simgpu_bound(bool (*take)(void* book, uint64_t bytes),
                            void (*give_back)(void* book, uint64_t bytes), void* book);
}

namespace gpukernel::simgpu {

bool take_host_memory(uint64_t bytes);
void give_back_host_memory(uint64_t bytes);

// Bytes that are given back with this object.
class HostShare {
  public:
    HostShare() = default;
    HostShare(HostShare&& other) noexcept : bytes_(std::exchange(other.bytes_, 0)) {}
    HostShare& operator=(HostShare&& other) noexcept {
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~HostShare() { shrink(0); }
    // So many bytes in all; false, and it stays as it is, where there are not so many.
    bool grow(uint64_t bytes) {
        if (bytes <= bytes_) return true;
        if (!take_host_memory(bytes - bytes_)) return false;
        bytes_ = bytes;
        return true;
    }
    void shrink(uint64_t bytes) {
        if (bytes < bytes_) give_back_host_memory(bytes_ - bytes), bytes_ = bytes;
    }
    void join(HostShare&& other) { bytes_ += std::exchange(other.bytes_, 0); }
    uint64_t bytes() const { return bytes_; }

  private:
    uint64_t bytes_ = 0;
};

}  // namespace gpukernel::simgpu
