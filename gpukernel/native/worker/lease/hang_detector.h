// The hang detector: a thread that synchronises with the device on demand.  A synchronisation that does not
// return means a kernel that does not end.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>

#include "worker/lease/lease.h"

namespace gpukernel::worker {

class HangDetector {
  public:
    explicit HangDetector(Lease& lease) : lease_(lease) {}
    // Starts a synchronisation with everything submitted so far, unless one is still under way.
    void check();
    // For how many seconds the synchronisation under way has lasted; nothing where none is.
    std::optional<double> pending_seconds() const;
    // The same without the time that kernels were paused for the sake of others.
    double pending_seconds_at_work() const;

  private:
    void run();
    Lease& lease_;
    mutable std::mutex mutex_;
    std::condition_variable requested_;
    bool pending_ = false, started_ = false;
    Clock::time_point since_{};
    double paused_before_ = 0;
};

}  // namespace gpukernel::worker
