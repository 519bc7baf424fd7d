// What all connections of a worker share: the lease, its cap, and its books.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
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
#include "stages.h"
#include "turns.h"

namespace gpukernel::worker {

using Clock = std::chrono::steady_clock;

// The driver's granularity: what one allocation costs of the cap.
constexpr uint64_t charge(uint64_t bytes) { return (bytes + 511) / 512 * 512; }

class HostFunctions;

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
    Stages stages{cuda, stray_error};

    // Room for `bytes` or CUDA_ERROR_OUT_OF_MEMORY; what is reserved must be committed or cancelled.
    bool reserve(uint64_t bytes);
    void cancel(uint64_t bytes);
    void commit(CUdeviceptr address, uint64_t bytes, uint64_t asked, const void* owner);
    // A module's variable: valid while the module lives; the module's own footprint pays for it.
    void know(CUdeviceptr address, uint64_t bytes, const void* owner, const void* module);
    // What a loaded module, or an array of a program, takes of the device; false, and nothing is charged,
    // where that is over the cap.
    bool hold(const void* module, uint64_t bytes, const void* owner = nullptr);
    void let_go(const void* module);
    // Memory that a context's limit sets aside (the heap of malloc() on the device, its printf buffer).
    bool set_aside(CUlimit limit, uint64_t bytes);
    std::map<CUlimit, size_t> usual_limits;  // of those that were changed; under `taking`
    // An allocation ends in two steps: nobody may use it any more, and the driver has it back.
    bool begin_release(CUdeviceptr address,
                       const void* owner);  // false: not an allocation, or ending already
    void end_release(CUdeviceptr address);
    uint64_t releases();                    // how many have ended
    bool wait_for_release(uint64_t after);  // another than the first `after`; false: none is under way
    bool valid(CUdeviceptr address, uint64_t bytes) const;  // wholly inside one allocation or variable
    void forget(const void* owner, const std::function<void(CUdeviceptr)>& free);

    // Physical memory of cuMemCreate, which has no address of its own …
    bool charge(const void* owner, uint64_t bytes);  // false where that is over the cap
    void refund(const void* owner, uint64_t bytes);
    // … and the addresses where it is mapped and accessible; no bytes: no longer.
    void window(CUdeviceptr address, uint64_t bytes);
    uint64_t addresses = 0, ranges = 0;  // reserved, and how many ranges and mappings; under `taking`

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
    std::atomic<uint64_t> heard_out{0};  // so many launches have printed all they had to print

    // Threads that serve requests while others of the same connection wait: bounded for all connections
    // together.
    bool one_more_thread() { return ++threads_ <= MOST_THREADS || (--threads_, false); }
    void one_thread_less() { --threads_; }
    // Has the connection of that key served while it waits; the server's.
    std::function<void(uint64_t key)> attend;
    std::function<std::shared_ptr<HostFunctions>(uint64_t key)>
        host_functions_of;  // nullptr: no such program

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
        bool ending = false;
    };
    mutable std::mutex mutex_;
    std::map<CUdeviceptr, Block> blocks_;
    struct Held {
        uint64_t bytes;
        const void* owner;  // nullptr: the device's, as modules are
    };
    std::map<const void*, Held> modules_;
    std::map<CUdeviceptr, uint64_t> windows_;
    std::map<const void*, uint64_t> physical_;
    std::map<CUlimit, uint64_t> aside_;
    int ending_ = 0;
    uint64_t releases_ = 0;
    std::condition_variable ended_;
    std::atomic<uint64_t> limit_{0}, used_{0}, peak_{0}, recent_peak_{0};
    Clock::time_point busy_since_{};
    double busy_ = 0;
    Activity activity_;
    std::map<const void*, Program> programs_;
    bool is_busy_ = false;
    static constexpr int MOST_THREADS = 128;
    std::atomic<int> threads_{0};
    std::atomic<Clock::rep> last_call_{Clock::now().time_since_epoch().count()};
};

}  // namespace gpukernel::worker
