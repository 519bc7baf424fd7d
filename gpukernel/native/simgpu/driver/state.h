// What the driver API's functions share: devices, the one context of each, the queue of work, and how an
// `CUstream`, `CUevent`, `CUfunction` … is told from a stray pointer.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "../engine.h"
#include "models.h"

namespace gpukernel {
CUresult unsupported(const char* name);  // says so once on stderr
}

namespace gpukernel::simgpu {

using Clock = std::chrono::steady_clock;

void log_line(const std::string& text);  // one line on stderr
CUresult code_of(Status status);
bool sticky(CUresult code);

// Work of one device, in the order of submission.  All streams share it: the order in which work was
// submitted is one that the rules of streams and events allow, so nothing that is correct on a GPU deadlocks
// or sees other results here. Whoever waits works: a synchronising caller takes work from the queue itself,
// so a launch and a wait for it need no switch of threads.
class Queue {
  public:
    ~Queue();
    uint64_t submit(std::function<CUresult()> work);
    void wait(uint64_t ticket);
    void wait_all();
    bool done(uint64_t ticket) const { return finished_.load(std::memory_order_acquire) >= ticket; }
    uint64_t last() const { return submitted_.load(std::memory_order_acquire); }
    bool idle() const { return done(last()); }
    // Time with work is added up there from now on.
    void tell(std::atomic<uint64_t>& busy_nanoseconds) { busy_ = &busy_nanoseconds; }
    bool inside() const { return runner_.load() == std::this_thread::get_id(); }

    CUresult sticky_error() const { return sticky_.load(std::memory_order_acquire); }
    CUresult take_error();  // the first error of finished work, told once unless it is sticky

  private:
    static constexpr uint64_t MOST_WAITING = 1024;
    void run_one();
    void background();
    std::mutex queue_mutex_, run_mutex_;
    std::condition_variable arrived_;
    std::deque<std::function<CUresult()>> work_;
    std::thread thread_;
    bool started_ = false, stopping_ = false;
    std::atomic<uint64_t> submitted_{0}, finished_{0};
    std::atomic<CUresult> sticky_{CUDA_SUCCESS}, pending_{CUDA_SUCCESS};
    std::atomic<std::thread::id> runner_{};
    std::atomic<std::atomic<uint64_t>*> busy_{nullptr};
};

struct Loaded {  // a module or a library: the same thing under two names
    std::unique_ptr<Module> image;
    struct Device* device = nullptr;
    std::vector<std::unique_ptr<struct Kernel>> functions;
    std::mutex mutex;
};

// A CUfunction and a CUkernel.  Not "Function": that is what exec/machine.h calls a decoded one, and of two
// classes of one name in one library the linker keeps one destructor.
struct Kernel {
    Loaded* owner;
    const KernelInfo* info;
    int dynamic_shared_limit = 48 << 10;
    int carveout = -1;
};

struct Stream {
    struct Device* device;
    unsigned flags;
    int priority;
    std::atomic<uint64_t> last{0};
    unsigned long long id;
};

struct Event {
    struct Device* device;
    unsigned flags;
    std::mutex mutex;
    uint64_t ticket = 0;
    bool recorded = false;
    std::shared_ptr<Clock::time_point> when;
};

struct Device {
    int index;
    int place = 0;        // among the machine's devices, of which this process may see fewer
    bool listed = false;  // among the device's processes
    const Model* model;
    std::unique_ptr<DeviceMemory> memory;
    Queue queue;
    std::mutex mutex;
    int retained = 0;     // of the primary context
    std::string printed;  // by kernels, until the next synchronisation
    std::mutex print_mutex;
    std::map<uint64_t, size_t> pinned;  // host allocations by address
    size_t limits[16] = {1024, 1 << 20, 8 << 20};
    void flush_printed();
    void report(const Result& fault);  // where the program's own output goes: the person sees it
    CUresult synchronize();
};

struct Context {  // primary or created: all contexts of a device share its memory and its queue
    Device* device;
    bool primary;
    unsigned flags;
};

// Live objects, so that a wrong handle is CUDA_ERROR_INVALID_HANDLE and not a crash.
class Handles {
  public:
    template <class T>
    T* add(T* object) {
        std::lock_guard lock(mutex_);
        live_.insert(object);
        return object;
    }
    template <class T>
    T* get(const void* handle) {
        std::lock_guard lock(mutex_);
        return live_.contains(handle) ? static_cast<T*>(const_cast<void*>(handle)) : nullptr;
    }
    bool remove(const void* handle) {
        std::lock_guard lock(mutex_);
        return live_.erase(handle) != 0;
    }

  private:
    std::mutex mutex_;
    std::unordered_set<const void*> live_;
};

struct Driver {
    std::vector<std::unique_ptr<Device>> devices;
    std::vector<std::unique_ptr<Context>> primaries;
    Handles contexts, streams, events, modules, functions, links;
};
Driver* driver();  // nullptr before cuInit

inline thread_local std::vector<Context*> context_stack;
inline Context* current_context() { return context_stack.empty() ? nullptr : context_stack.back(); }

// The device that a call works on, or the error that the call must return.
struct Here {
    Device* device = nullptr;
    CUresult error = CUDA_SUCCESS;
};
Here here();

#define GPUKERNEL_HERE(device)                                           \
    const ::gpukernel::simgpu::Here here_ = ::gpukernel::simgpu::here(); \
    if (here_.error != CUDA_SUCCESS) return here_.error;                 \
    ::gpukernel::simgpu::Device* const device = here_.device;            \
    (void)device

// nullptr, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are the device's own; false for a handle that is none.
bool stream_of(CUstream handle, Stream*& stream);
void note(Stream* stream, uint64_t ticket);

}  // namespace gpukernel::simgpu
