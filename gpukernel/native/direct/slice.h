// The slices of this process's lease: their tables and caps, and the slice that a call concerns.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/time_slicing.h"
#include "direct/real.h"
#include "wire/slice_table.h"

namespace gpukernel::direct {

class Slice {
  public:
    // False, and `error` says why, where the directory that the agent made is not there or is not what it
    // was.
    bool open(const std::string& directory, std::string& error);
    bool join(std::string& error);  // takes a slot for this process

    const wire::SliceTable& table() const { return *table_; }
    uint64_t limit() const { return table_->limit.load(std::memory_order_relaxed); }
    uint64_t used() const;
    bool ended() const { return table_->ended.load(std::memory_order_relaxed); }

    // Room for `bytes`, or false; what is reserved belongs to this process until it gives it back or ends.
    bool reserve(uint64_t bytes);
    void give_back(uint64_t bytes);
    void count(uint64_t bytes);  // bytes that are taken already, whatever the limit
    // Memory of modules and contexts, which no call asks for in bytes.
    void add_overhead(int64_t bytes);
    // By NVML's account of this process, where there is one: then whatever is not counted is overhead.
    bool measure();
    // Pools say what they hold; the dead hold nothing.
    void tidy();

    // One launch on `stream`; `per_thread` is whether stream 0 is the thread's own.
    void before_launch(CUstream stream, bool per_thread);
    void after_launch(CUstream stream, bool per_thread);

    // Bytes that memory pools of this device have reserved, and so take from other programs.
    std::mutex pools_mutex;
    std::map<CUmemoryPool, uint64_t> pools;
    std::atomic<bool> pools_changed{false};
    void settle_pools();

  private:
    bool try_reserve(uint64_t bytes);
    void free_slots_of_the_dead();
    CUresult wait_for_launched();
    bool capturing(CUstream stream, bool per_thread);

    wire::SliceTable* table_ = nullptr;
    wire::ProgramSlot* mine_ = nullptr;
    int file_ = -1;
    std::mutex mutex_;
    std::string path_;

    // Time slicing, opened with the first launch.
    void open_time_slicing();
    std::atomic<bool> time_slicing_opened_{false};
    bool has_time_slicing_ = false;
    worker::TimeSlicing time_slicing_;
    CUcontext context_ = nullptr;
    std::atomic<CUresult> stray_error_{CUDA_SUCCESS};  // the program hears of it by its own waiting
    std::mutex launched_mutex_;
    struct Launched {
        CUstream stream;
        bool per_thread;
        CUevent event;
        bool waiting;
    };
    std::vector<Launched> launched_;
};

// cuInit's part: the lease's tables, and CUDA_VISIBLE_DEVICES for the driver.  Then, when the driver knows
// its devices, which of them is which slice.
CUresult join_lease();
CUresult find_devices();

// Null before cuInit, for a device that is none, and where no context is current; then the driver answers.
Slice* slice_of(CUdevice device);
Slice* current_slice();

// While the driver works for us, its calls of its own exported functions are not the program's.
class Inside {
  public:
    Inside() { ++depth; }
    ~Inside() { --depth; }
    static constinit inline thread_local int depth = 0;
};

}  // namespace gpukernel::direct
