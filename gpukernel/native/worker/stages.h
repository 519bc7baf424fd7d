// Pinned host memory through which large copies go where the host cannot reach the device's memory, or its
// stream is busy: taken from the connection at once, so that what comes behind is served, and copied when the
// stream gets there.
#pragma once

#include <atomic>
#include <list>
#include <mutex>

#include "driver.h"

namespace gpukernel::worker {

class Stages {
  public:
    struct Stage {
        char* memory = nullptr;  // wire::COPY_PIECE bytes
        CUevent free = nullptr;  // passed when no copy uses it any more
        bool taken = true;
    };
    // Errors of work that is waited for here go to `error`.
    Stages(const Driver& cuda, std::atomic<CUresult>& error) : cuda_(cuda), error_(error) {}

    // Waits for one where all are in use; nullptr where the host has no pinned memory.
    Stage* take();
    // In use until what was submitted to `stream` so far is done; without a stream, no longer.
    void give(Stage* stage, CUstream stream);
    void give(Stage* stage);
    void clear();  // nobody uses any

  private:
    static constexpr size_t MOST = 24;
    const Driver& cuda_;
    std::atomic<CUresult>& error_;
    std::mutex mutex_;
    std::list<Stage> stages_;  // longest given first
};

}  // namespace gpukernel::worker
