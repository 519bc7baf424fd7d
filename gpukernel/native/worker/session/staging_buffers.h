// Staging buffers: pinned host memory through which large copies go where the host cannot address the
// device's memory, or the copy's stream is busy.  The data is read from the connection at once, so that later
// requests are served, and copied when the stream gets there.
#pragma once

#include <atomic>
#include <list>
#include <mutex>

#include "worker/lease/host_memory.h"
#include "worker/server/driver.h"

namespace gpukernel::worker {

class StagingBuffers {
  public:
    struct StagingBuffer {
        char* memory = nullptr;  // wire::COPY_PIECE bytes
        CUevent free = nullptr;  // recorded after the last copy that uses it
        bool taken = true;
    };
    // Errors of work that `take` waits for are stored in `error`.
    StagingBuffers(const Driver& cuda, std::atomic<CUresult>& error, HostMemory& book)
        : cuda_(cuda), error_(error), book_(book) {}

    // A buffer; waits for one where all are in use.  nullptr where the host has no pinned memory left.
    StagingBuffer* take();
    // Gives a buffer back: with `stream`, it is in use until everything submitted to it so far is done.
    void give(StagingBuffer* buffer, CUstream stream);
    void give(StagingBuffer* buffer);
    void clear();  // frees all that nobody has taken

  private:
    static constexpr size_t MOST = 24;
    const Driver& cuda_;
    std::atomic<CUresult>& error_;
    HostMemory& book_;
    std::mutex mutex_;
    std::list<StagingBuffer> buffers_;  // given back longest ago first
};

}  // namespace gpukernel::worker
