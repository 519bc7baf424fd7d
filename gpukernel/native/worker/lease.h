// What all connections of a worker share: the lease, its cap, and its books.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "activity.h"
#include "driver.h"
#include "footprint.h"
#include "images.h"
#include "turns.h"

namespace gpukernel::worker {

using Clock = std::chrono::steady_clock;

// Memory and use of one lease.  Quantities are unsigned and checked: nothing is given back that was not
// taken.
class Lease {
  public:
    std::string id, secret;
    int device = 0;
    Driver cuda;
    CUcontext context = nullptr;
    Footprint footprint;
    Images images;
    Turns turns;
    // Of work that somebody else waited for: told by the next answer.
    std::atomic<CUresult> stray_error{CUDA_SUCCESS};

    // Room for `bytes` or CUDA_ERROR_OUT_OF_MEMORY; what is reserved must be committed or cancelled.
    bool reserve(uint64_t bytes);
    void cancel(uint64_t bytes);
    void commit(CUdeviceptr address, uint64_t bytes, uint64_t asked, const void* owner);
    // A module's variable: valid while the module lives; the module's own footprint pays for it.
    void know(CUdeviceptr address, uint64_t bytes, const void* owner, const void* module);
    // What a loaded module takes of the device; false, and nothing is charged, where that is over the cap.
    bool hold(const void* module, uint64_t bytes);
    void let_go(const void* module);
    // Memory that a context's limit sets aside (the heap of malloc() on the device, its printf buffer).
    bool set_aside(CUlimit limit, uint64_t bytes);
    std::map<CUlimit, size_t> usual_limits;                 // of those that were changed; under `taking`
    bool release(CUdeviceptr address, const void* owner);   // false: not an allocation
    bool valid(CUdeviceptr address, uint64_t bytes) const;  // wholly inside one allocation or variable
    void forget(const void* owner, const std::function<void(CUdeviceptr)>& free);

    // Held by whoever has the driver give or take memory, so that a module's footprint can be measured.
    std::mutex taking;

    bool limit(uint64_t bytes);  // false where more is taken already
    uint64_t memory_limit() const { return limit_; }
    uint64_t memory_used() const { return used_; }
    uint64_t memory_peak() const { return peak_; }
    uint64_t recent_peak(bool begin_again);  // since it was last asked to begin again
    void restore_peak(uint64_t bytes) { peak_ = bytes; }

    void call(bool launch);
    void finished();  // everything launched so far is done
    std::atomic<uint64_t> calls{0}, launches{0};

    // The programs: connections that made a call.  `owner` is that of their memory.
    struct Program {
        uint32_t pid = 0;  // in the program's own machine; 0: it did not say
        std::string command;
        uint64_t bytes = 0;
    };
    void enter(const void* owner);
    void introduce(const void* owner, uint32_t pid, std::string_view command);
    void leave(const void* owner);
    std::vector<Program> programs() const;
    std::atomic<uint32_t> connections{0};
    std::atomic<bool> poisoned{false};
    double gpu_seconds() const;
    double gpu_share() const;  // of the last second, 0 to 1
    double idle_seconds() const;
    void restore_gpu_seconds(double seconds) { busy_ = seconds; }

  private:
    bool take(uint64_t bytes);  // under mutex_
    void give_back(uint64_t bytes);
    struct Block {
        uint64_t bytes, charged;
        const void* owner;
        const void* module;
    };
    mutable std::mutex mutex_;
    std::map<CUdeviceptr, Block> blocks_;
    std::map<const void*, uint64_t> modules_;
    std::map<CUlimit, uint64_t> aside_;
    std::atomic<uint64_t> limit_{0}, used_{0}, peak_{0}, recent_peak_{0};
    Clock::time_point busy_since_{};
    double busy_ = 0;
    Activity activity_;
    std::map<const void*, Program> programs_;
    bool is_busy_ = false;
    std::atomic<Clock::rep> last_call_{Clock::now().time_since_epoch().count()};
};

}  // namespace gpukernel::worker
