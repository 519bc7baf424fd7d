// The lease: what all connections of a worker share, its memory cap, and the accounts of memory and use.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/time_slicing.h"
#include "worker/calls/images.h"
#include "worker/lease/activity.h"
#include "worker/lease/footprint.h"
#include "worker/lease/freed_blocks.h"
#include "worker/lease/host_memory.h"
#include "worker/lease/shared.h"
#include "worker/server/driver.h"
#include "worker/session/early_reads.h"
#include "worker/session/staging_buffers.h"

namespace gpukernel::worker {

using Clock = std::chrono::steady_clock;

// What an allocation of `bytes` is charged: it is rounded up to the driver's granularity of 512 bytes.
constexpr uint64_t charge(uint64_t bytes) { return (bytes + 511) / 512 * 512; }

class HostFunctions;

// Guarantees: quantities are unsigned and checked, so that nothing is refunded that was not charged; the sum
// of all charges never exceeds the cap.  `owner` identifies the program that memory belongs to.
class Lease {
  public:
    std::string id, secret;
    int device = 0;
    Driver cuda;
    CUcontext context = nullptr;
    HostMemory host_memory;
    Footprint footprint;
    Images images;
    TimeSlicing time_slicing;
    // An error of work that another thread waited for; the next answer returns it.
    std::atomic<CUresult> stray_error{CUDA_SUCCESS};
    StagingBuffers staging_buffers{cuda, stray_error, host_memory};
    EarlyReads early_reads{*this};
    FreedBlocks freed{*this};

    // --- allocations ---
    // Charges `bytes` in advance; false where they are beyond the cap.  `commit` or `cancel` must follow.
    bool reserve(uint64_t bytes);
    void cancel(uint64_t bytes);
    // Memory in stream order (`asynchronous`) is not shared by name.
    void commit(CUdeviceptr address, uint64_t bytes, uint64_t asked, const void* owner,
                bool asynchronous = false);
    // Frees an allocation in two steps: from the first on no call may use it; after the second, once the
    // driver has freed it, it is refunded.  False where it is no allocation of the owner's, or is being freed
    // already.
    bool begin_release(CUdeviceptr address, const void* owner);
    void end_release(CUdeviceptr address);
    void cancel_release(CUdeviceptr address);  // the driver did not free it
    // A block that its program has freed, and nobody uses until it takes it again.  Returns a number by which
    // to tell that the device is done with it; 0 where it is not the program's, or shared.
    uint64_t keep(CUdeviceptr address, const void* owner);
    void settle_kept(CUdeviceptr address, uint64_t number);
    // `settled` is whether the device is done with it.
    bool take_again(CUdeviceptr address, const void* owner, bool& settled);
    // The same in stream order (`FreedBlocks`): no call may use the allocation of `asked` bytes any more; it
    // is used again; the driver frees it, and only its charge is left, to be refunded to the owner.
    bool retire(CUdeviceptr address, const void* owner, uint64_t& asked);
    void revive(CUdeviceptr address);
    uint64_t detach(CUdeviceptr address);
    void freed_some();    // in stream order
    uint64_t releases();  // the number of times that memory was refunded so far
    // Waits for `pause` at most until `releases` is no longer `after`; false where it still is.
    bool wait_for_release(uint64_t after, std::chrono::microseconds pause);
    bool is_releasing();          // whether the driver is freeing an allocation, outside any stream
    std::atomic<int> leaving{0};  // programs that are gone and whose memory comes back
    // How many programs have streams that may wait for something else than the device.
    std::atomic<int> waits_for_host{0};
    // Whether the range lies in one allocation or variable, or in accessible mappings without a gap.
    // `lasting`: in none that goes in a stream's order or with a module.
    bool valid(CUdeviceptr address, uint64_t bytes, bool lasting = false) const;
    // Frees all allocations of the owner's with `free`; what the driver does not free stays charged.
    void free_all(const void* owner, const std::function<bool(CUdeviceptr)>& free);

    // --- sharing between programs ---
    // The name of an allocation of the owner's, the same until it is freed; nothing where it cannot be
    // shared.
    std::optional<SharedName> name_of(CUdeviceptr address, const void* owner);
    bool has_name(CUdeviceptr address) const;  // or may get one
    // Where the allocation of that name is; an error where there is none, or it is the program's own.
    CUresult find(const SharedName& name, const void* program, CUdeviceptr& address) const;
    SharedEvents shared_events;

    // --- modules, arrays, limits ---
    // Makes a module's variable valid while the module lives; the module's own charge pays for it.
    void add_variable(CUdeviceptr address, uint64_t bytes, const void* owner, const void* module);
    // Charges what a loaded module, or an array of the owner's, takes of the device; false, and nothing is
    // charged, where that is beyond the cap.  Up to `slack` bytes of it may be too much.
    bool charge_module(const void* module, uint64_t bytes, const void* owner = nullptr, uint64_t slack = 0);
    // The same of what one of them takes later: false where it is beyond the cap, and so is all that it takes
    // until there is room for what it took.
    bool grow_module(const void* module, uint64_t bytes, uint64_t slack = 0);
    bool charges_module(const void* module) const;
    // Numbers that differ where memory was charged or refunded meanwhile; nothing while some is charged that
    // is not allocated yet.
    std::optional<std::pair<uint64_t, uint64_t>> books() const;
    // Whether the driver loads a module's code when it is first used.
    bool loads_lazily = false;
    // Whether kernels' local memory is the device's, so that the first launch of one may take more of it.
    bool local_memory_on_device = false;
    bool heeds_first_use() const { return loads_lazily || local_memory_on_device; }
    // The most local memory of one thread, of all kernels that were used; under `allocation_mutex`.
    uint64_t local_bytes = 0;
    // Gives back what was charged too much, once no free is pending.  Under `allocation_mutex`.
    void correct();
    uint64_t footprint_at_first = 0;  // of a context without programs
    void refund_module(const void* module);
    // Charges what a limit of the context sets aside (the heap of malloc() on the device, its printf buffer).
    bool set_aside(CUlimit limit, uint64_t bytes);
    std::map<CUlimit, size_t> usual_limits;  // the defaults of changed limits; under `allocation_mutex`
    // For the next program, where there is no other; what the driver keeps larger stays charged, and is tried
    // again.
    void reset_limits();

    // --- virtual memory ---
    // Physical memory of cuMemCreate, which has no address; `charge` is false where it is beyond the cap.
    bool charge(const void* owner, uint64_t bytes);
    void refund(const void* owner, uint64_t bytes);
    void pass_on(const void* owner, const void* to, uint64_t bytes);
    // What programs share, while any of them holds it.  Under `allocation_mutex`.
    std::map<SharedName, std::weak_ptr<PhysicalMemory>> shared_physical;
    // Makes a mapping accessible at `address`; with 0 bytes, no longer.
    void set_accessible(CUdeviceptr address, uint64_t bytes);
    // Bytes of reserved addresses; the number of ranges and mappings.  Under `allocation_mutex`.
    uint64_t addresses = 0, ranges = 0;

    // Held while the driver allocates or frees, so that a module's footprint can be measured.
    std::mutex allocation_mutex;

    // --- the cap ---
    bool limit(uint64_t bytes);  // false where more is charged already
    uint64_t memory_limit() const { return limit_; }
    uint64_t memory_used() const { return used_; }
    uint64_t memory_peak() const { return peak_; }
    uint64_t recent_peak(bool begin_again);  // since it was last asked to begin again
    void restore_peak(uint64_t bytes) { peak_ = bytes; }

    // --- use ---
    void call(bool launch);  // a program's call was received
    void finished();         // everything launched so far is done
    std::atomic<uint64_t> calls{0}, launches{0};
    std::atomic<uint64_t> heard_out{0};  // the number of launches whose printed text has been read
    double gpu_seconds() const;
    double gpu_share() const;     // of the last second, 0 to 1
    double idle_seconds() const;  // since the last call
    void restore_gpu_seconds(double seconds) { busy_ = seconds; }

    // --- connections ---
    // Threads that serve requests while others of their connection wait, bounded for all connections
    // together.
    bool one_more_thread() { return ++threads_ <= MOST_THREADS || (--threads_, false); }
    void one_thread_less() { --threads_; }
    // Set by the server.  Has the connection with that key served while it waits:
    std::function<void(uint64_t key)> attend;
    // The host functions of the program with that key; nullptr where there is none:
    std::function<std::shared_ptr<HostFunctions>(uint64_t key)> host_functions_of;

    // A program: a connection that made a call.
    struct Program {
        uint32_t pid = 0;  // on the program's own machine; 0: unknown
        std::string command;
        uint64_t bytes = 0;
    };
    void enter(const void* owner);
    void introduce(const void* owner, uint32_t pid, std::string_view command);
    void leave(const void* owner);
    std::vector<Program> programs() const;
    std::atomic<uint32_t> connections{0};  // of programs
    std::atomic<uint64_t> programs_so_far{0};
    // Whether the context is lost by a sticky error; the worker then restarts itself.
    std::atomic<bool> poisoned{false};

  private:
    // Charge and refund `used_`, under mutex_.
    bool take(uint64_t bytes);
    void give_back(uint64_t bytes);
    // An allocation; a variable, for which nothing is charged.
    struct Block {
        uint64_t bytes, charged;
        const void* owner;
        const void* module;
        bool ending = false, releasing = false;  // releasing: by a call that waits
        bool shareable = false, settled = false;
        uint64_t kept = 0;
        std::optional<SharedName> name = {};
    };
    mutable std::mutex mutex_;
    std::map<CUdeviceptr, Block> blocks_;
    struct ModuleCharge {
        uint64_t bytes;
        const void* owner;  // nullptr: no program's, as for modules
        uint64_t slack;     // so much of `bytes` may be too much
        uint64_t owed = 0;  // taken, and not charged for want of room
    };
    uint64_t in_advance_ = 0;  // charged, and not yet allocated
    std::map<const void*, ModuleCharge> modules_;
    std::map<CUdeviceptr, uint64_t> accessible_;
    std::map<const void*, uint64_t> physical_;
    std::map<CUlimit, uint64_t> aside_;
    int ending_ = 0;
    uint64_t releases_ = 0, keeps_ = 0;
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
