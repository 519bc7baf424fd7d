// Fair compute: the workers of one device, and the programs in direct mode, take turns, by weight, where
// several have work at the same time.
//
// All of a device map one small table.  As long as no other has had work in the last moments, a
// worker launches without asking.  Where others have, a launch first takes the turn: whoever wants it and has
// had the least time for its weight gets it next, holds it for some milliseconds, waits for what it launched,
// and passes it on.  Time that nobody else wants costs nothing, and nobody saves up time by being idle.
//
// A kernel cannot be interrupted half way: one that runs for longer than a turn is charged for all of it. One
// that runs for very much longer loses the turn to those who wait; from then on the device itself shares out
// its time between them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

namespace gpukernel::worker {

struct TurnTable;

class Turns {
  public:
    // The table at `path`, made where it is not there; false where that fails, and there are no turns then.
    // `wait` returns when what was launched is done; `enter` is called once in a thread that will wait.
    // Errors of work that is waited for here, and not by the program that it belongs to, go to `error`.
    bool open(const std::string& path, std::function<CUresult()> wait, const std::function<void()>& enter,
              std::atomic<CUresult>& error);
    void weigh(double weight);
    double weight() const { return weight_; }
    // A launch comes: whether others are at work, so that it needs the turn.  Costs next to nothing.
    bool contended();
    void before_launch();  // takes the turn where others are at work
    bool holding() const { return holding_.load(std::memory_order_relaxed); }
    void end();                                  // gives the turn away; later launches take none
    double seconds() const { return seconds_; }  // of all turns had: device time while others wanted it too

  private:
    bool others_work(int64_t now);
    bool others_deserve_it() const;
    void take();
    void give();
    void wait_for_device();
    void give_when_idle();

    std::function<CUresult()> wait_;
    TurnTable* table_ = nullptr;
    int file_ = -1, mine_ = -1;
    std::mutex mutex_;
    std::condition_variable taken_;
    std::atomic<double> weight_{1};
    std::atomic<bool> holding_{false}, ended_{false};
    int64_t began_ = 0, last_wait_ = 0, gave_ = 0;
    std::atomic<int64_t> asked_others_{0};
    std::atomic<bool> others_{false};
    int launched_ = 0, most_launched_ = 4;  // since the last wait; how many are some milliseconds' worth
    std::atomic<double> seconds_{0};
    std::atomic<CUresult>* error_ = nullptr;
};

}  // namespace gpukernel::worker
