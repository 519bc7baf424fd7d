// Reads that come with the news of a host function, so that the program need not ask for them.
//
// They have a stream of their own, which waits for no other: they are made while a host function keeps its
// stream waiting.  A device may still lead two streams through one queue, and a copy then waits for that
// function, which waits for its news.  So a read that does not end soon is given up, which needs memory that
// it may be copied into later.
#pragma once

#include <mutex>
#include <vector>

#include "wire/protocol.h"
#include "worker/lease/host_memory.h"
#include "worker/server/driver.h"

namespace gpukernel::worker {

class Lease;

// Of all programs of a lease, one after another.
class EarlyReads {
  public:
    explicit EarlyReads(Lease& lease) : lease_(lease) {}
    void prepare();  // before the first read, by a thread that may wait for the device
    void clear();    // frees what that took
    // Nothing is read while its result lives: memory is being freed, which its program knows to be unused.
    std::unique_lock<std::mutex> pause();
    // Writes what wire::EarlyRead describes to `out`, or nothing.  Returns an error of earlier work, which
    // the device has told now and will not tell again.
    CUresult read(const std::vector<wire::EarlyRead>& reads, std::vector<char>& out);

  private:
    CUresult wait();  // CUDA_ERROR_NOT_READY where that takes too long

    Lease& lease_;
    std::mutex mutex_;
    CUstream stream_ = nullptr;
    char* memory_ = nullptr;  // pinned
    HostCharge charge_;
    bool busy_ = false;  // a read that was given up may still write to the memory
};

}  // namespace gpukernel::worker
