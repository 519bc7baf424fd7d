// Memory that programs have freed in stream order (cuMemFreeAsync).
//
// The driver frees such a block when its stream gets there, which may be never.  So the block stays charged
// until the device is done with it.
//
// The newest of these blocks are not given to the driver at once.  An allocation of the same size by the same
// program in the same stream gets such a block again: the stream's order makes that safe, and a loop that
// allocates and frees neither waits nor grows.  The others go to the driver in batches, an event behind them.
#pragma once

#include <atomic>
#include <deque>
#include <optional>
#include <vector>

#include "worker/server/driver.h"

namespace gpukernel::worker {

class Lease;

// Guarantees: a block is refunded after the device has freed it.  All but `any` under the lease's
// `allocation_mutex`, with the context current.
class FreedBlocks {
  public:
    explicit FreedBlocks(Lease& lease) : lease_(lease) {}
    void use_device(CUdevice device);  // whose driver keeps a pool: not the simulated GPU's

    // Whether there is anything to flush or to settle.
    bool any() const { return any_.load(std::memory_order_relaxed); }
    // Frees an allocation of the owner's in the stream's order.
    CUresult free(CUdeviceptr address, CUstream stream, const void* owner);
    // A block of `bytes` that this owner has freed in this stream; it is an allocation of the owner's again.
    std::optional<CUdeviceptr> reuse(uint64_t bytes, CUstream stream, const void* owner);

    // Gives the blocks of a stream, or of all, to the driver.
    void flush(CUstream stream);
    void flush();
    // The same for a stream that is going to be destroyed; where nothing of it is kept any more.
    void before_destruction(CUstream stream);
    void record();
    // Refunds what the device has freed; returns how much.  Without `may_wait` it looks only where that takes
    // no place in a stream, for which the caller might have to wait.
    uint64_t settle(bool may_wait = true);
    // The same after the host has waited for `stream`, and for all streams where there is none, since
    // `flushed`, which counted the batches then.
    void synchronized(uint64_t flushed, std::optional<CUstream> stream);
    uint64_t flushed() const { return flushed_; }
    // Bytes that the driver was given and that are charged still.
    uint64_t pending() const { return pending_; }

    // Leaves the owner's blocks to `Lease::free_all`, and after the host has waited for all of the owner's
    // work, refunds those that the driver was given.
    void forget(const void* owner);
    void settle(const void* owner);

  private:
    struct Block {
        CUdeviceptr address;
        uint64_t bytes;
        CUstream stream;
        const void* owner;
    };
    struct Charge {
        uint64_t bytes;
        const void* owner;
    };
    struct Batch {  // of one stream
        CUstream stream;
        CUevent event;  // behind the blocks; nullptr: none was recorded yet
        uint64_t number;
        std::vector<Charge> charges;
        bool gone = false;  // the stream was destroyed, and another may have its address
    };
    void give_to_driver(const std::vector<Block>& blocks);
    bool record(Batch& batch);
    uint64_t refund(Batch& batch);
    void drop_empty();
    void note() { any_ = !kept_.empty() || !batches_.empty(); }

    static constexpr size_t MOST_KEPT = 32, FEW = 4;  // more than a few: only of a quarter of the cap
    Lease& lease_;
    std::deque<Block> kept_;  // the oldest first
    std::deque<Batch> batches_;
    std::vector<CUevent> events_;  // for the next batches
    uint64_t flushed_ = 0, pending_ = 0;
    CUmemoryPool pool_ = nullptr;
    std::atomic<bool> any_{false};
};

}  // namespace gpukernel::worker
