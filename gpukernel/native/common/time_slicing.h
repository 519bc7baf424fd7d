// Time slicing: the workers of one device, and the programs in direct mode, take turns by weight while
// several of them have work (weighted fair sharing).
//
// All of them map one small table.  While no other has had work in the last moments, a worker launches
// without asking.  Otherwise a launch first acquires the turn.  The turn goes to the one who wants it and has
// had the least device time for its weight; it holds it for some milliseconds, waits for what it launched,
// and passes it on.  The scheme is work-conserving, and idle time earns no credit.
//
// NVIDIA's kernels cannot be preempted: one that runs for longer than a turn is charged for all of it.  One
// that runs for very much longer loses the turn to those who wait; from then on the device itself shares its
// time among them.
//
// A simulated device can be paused in the middle of a kernel (common/execution_gate.h).  There the turn
// belongs to the kernels that run, not to their launches: it ends after some milliseconds whatever they do,
// and they rest until the next one.  So weights hold for kernels without end, too (time_slicing_gate.cpp).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "common/execution_gate.h"

namespace gpukernel::worker {

struct TimeSlicingTable;
struct TimeSlicingSlot;

// One participant; its methods may be called from any thread.
class TimeSlicing {
  public:
    // Makes the table's file where there is none; a confined worker can only open it afterwards.
    static bool prepare(const std::string& path);
    // Maps the table at `path`, which is made where there is none; false where that fails: then launches do
    // not wait.  `wait` returns when everything launched is done; `enter` is called once in the thread that
    // passes the turn on.  Errors of work that is waited for here, and not by its program, are stored in
    // `error`.  `set_gate` gives the device its gate, or returns false where it can have none.
    bool open(const std::string& path, std::function<CUresult()> wait, const std::function<void()>& enter,
              std::atomic<CUresult>& error,
              const std::function<bool(const ExecutionGate&)>& set_gate = nullptr);
    void set_weight(double weight);
    double weight() const { return weight_; }
    // Notes a launch and returns whether others have work, so that it needs the turn.  Costs a clock reading.
    bool contended();
    void before_launch();  // acquires the turn where others have work
    bool has_turn() const { return has_turn_.load(std::memory_order_relaxed); }
    void end();                                  // passes the turn on; later launches acquire none
    double seconds() const { return seconds_; }  // of all turns had: device time while others wanted it, too
    double paused_seconds() const { return paused_seconds_; }  // kernels waited in the middle, for a turn

  private:
    TimeSlicingSlot& mine() const;
    bool others_work(int64_t now);
    bool others_deserve_it() const;
    void take();
    bool try_take(int64_t start, bool first, uint32_t& seen);
    void wait_for_change(uint32_t seen);
    void give(bool keep_open = false);
    void wait_for_device();
    void give_when_idle();

    // Of a device with a gate:
    bool use_gate(const std::function<bool(const ExecutionGate&)>& set_gate);
    void open_gate();
    void close_gate();
    void close_where_contended();
    void request_turn();
    bool turn_is_over(int64_t now, int64_t& last_ran);
    void give_by_time();

    std::function<CUresult()> wait_;
    TimeSlicingTable* table_ = nullptr;
    int file_ = -1, mine_ = -1;
    std::mutex mutex_;
    std::condition_variable taken_;
    std::atomic<double> weight_{1};
    std::atomic<bool> has_turn_{false}, ended_{false};
    bool has_gate_ = false, requested_ = false;  // requested: kernels rest
    uint32_t begun_ = 0;                         // kernels, when last looked at
    int64_t began_ = 0, last_wait_ = 0, gave_ = 0;
    std::atomic<int64_t> asked_others_{0};
    std::atomic<bool> others_{false};
    int launched_ = 0;       // since the last wait
    int most_launched_ = 4;  // how many launches take some milliseconds, by the last measurement
    std::atomic<double> seconds_{0}, paused_seconds_{0};
    std::atomic<CUresult>* error_ = nullptr;
};

}  // namespace gpukernel::worker
