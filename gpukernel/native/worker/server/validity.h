// The worker's own end: it lives no longer than its agent says, which says it in time of CLOCK_BOOTTIME, the
// same clock for all processes of the machine.  So it ends in time although its agent is frozen or dead.
#pragma once

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace gpukernel::worker {

class Validity {
  public:
    // Seconds since the machine's start.  An end that is earlier than the one that is known changes nothing.
    void extend(double until) {
        double known = until_;
        while (until > known && !until_.compare_exchange_weak(known, until)) {
        }
    }
    double until() const { return until_; }  // 0: it has no end
    bool over() const { return until_ > 0 && now() >= until_; }
    // Kills the process where it has not ended by itself soon after its end: its threads may be inside the
    // driver.
    void enforce() const {
        std::thread([this] {
            // Looks often all the same: a machine's sleep counts, and sleeping threads do not count it.
            for (double left; (left = until_ > 0 ? until_ + GRACE_SECONDS - now() : LOOK_SECONDS) > 0;)
                ::usleep(static_cast<useconds_t>(1e6 * std::min(left, LOOK_SECONDS)) + 1);
            ::kill(::getpid(), SIGKILL);
        }).detach();
    }

  private:
    static constexpr double GRACE_SECONDS = 3, LOOK_SECONDS = 2;
    static double now() {
        timespec time{};
        ::clock_gettime(CLOCK_BOOTTIME, &time);
        return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
    }
    std::atomic<double> until_{0};
};

inline Validity validity;

}  // namespace gpukernel::worker
