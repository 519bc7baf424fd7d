// The book of host memory: what the lease's programs make this process take of the machine's own memory,
// beside the memory of a simulated device.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace gpukernel::worker {

// Guarantees: what was taken with `take` is never more than the limit, and GATES_BEYOND for gates of host
// functions.  Any thread may call.
class HostMemory {
  public:
    static constexpr uint64_t USUAL = uint64_t{1} << 30;  // where no option says otherwise
    // Bytes for one of each, with what the driver keeps of it: generous, since drivers do not tell.
    static constexpr uint64_t STREAM = 4096, EVENT = 1024, LINK = 1024, MODULE = 4096, ARRAY = 1024,
                              TEXTURE = 1024, HANDLE = 256, BLOCK = 512, RANGE = 1024, HOST_FUNCTION = 512;
    // Bytes for gates without which work would pass functions that were taken (session/host_functions.h).
    static constexpr uint64_t GATES_BEYOND = 256 * HOST_FUNCTION;

    void limit(uint64_t bytes) { limit_ = bytes; }
    uint64_t limit() const { return limit_; }
    uint64_t used() const { return used_; }

    // Charges `bytes` before they are taken; false, and nothing is charged, where they are beyond the limit
    // and `beyond`.
    bool take(uint64_t bytes, uint64_t beyond = 0) {
        const uint64_t most = limit_ + beyond;
        uint64_t used = used_.load(std::memory_order_relaxed);
        do {
            if (bytes > most || used > most - bytes) return ++refusals_, false;
        } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
        return true;
    }
    // Charges what was taken already; the next `take` may be refused for it.
    void note(uint64_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }
    void give_back(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
    uint64_t refusals() const { return refusals_; }

  private:
    std::atomic<uint64_t> limit_{USUAL}, used_{0}, refusals_{0};
};

// A charge that ends with this object.
class HostCharge {
  public:
    HostCharge() = default;
    explicit HostCharge(HostMemory& book) : book_(&book) {}
    HostCharge(HostCharge&& other) noexcept : book_(other.book_), bytes_(std::exchange(other.bytes_, 0)) {}
    HostCharge& operator=(HostCharge&& other) noexcept {
        std::swap(book_, other.book_), std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~HostCharge() { shrink(0); }

    // Charges up to `bytes` in all; false, and the charge stays as it is, where that is beyond the limit.
    bool grow(uint64_t bytes) {
        if (bytes <= bytes_) return true;
        if (!book_->take(bytes - bytes_)) return false;
        bytes_ = bytes;
        return true;
    }
    // The same for what was taken already.
    void note(uint64_t bytes) {
        if (bytes > bytes_) book_->note(bytes - bytes_), bytes_ = bytes;
    }
    void shrink(uint64_t bytes) {
        if (bytes < bytes_) book_->give_back(bytes_ - bytes), bytes_ = bytes;
    }
    uint64_t bytes() const { return bytes_; }
    void keep() { bytes_ = 0; }  // somebody else gives it back

  private:
    HostMemory* book_ = nullptr;
    uint64_t bytes_ = 0;
};

}  // namespace gpukernel::worker
