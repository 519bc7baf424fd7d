// Tells whether the device still gets on with what was launched: a question that stays unanswered means a
// kernel that does not end.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>

#include "lease.h"

namespace gpukernel::worker {

class Watch {
  public:
    explicit Watch(Lease& lease) : lease_(lease) {}
    // Asks whether all that was submitted until now is done; a question that is still open stays the one.
    void ask();
    // How long the open question has waited for its answer, in seconds; nothing where none is open.
    std::optional<double> unanswered() const;

  private:
    void answer();
    Lease& lease_;
    mutable std::mutex mutex_;
    std::condition_variable asked_;
    bool open_ = false, started_ = false;
    Clock::time_point since_{};
};

}  // namespace gpukernel::worker
