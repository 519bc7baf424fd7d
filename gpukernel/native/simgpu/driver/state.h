// The state of the driver: devices, contexts, and the registers of live handles, which tell a `CUstream`,
// `CUevent`, `CUfunction` … from a stray pointer.
#pragma once

#include <cuda.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "libcuda/entry_points.h"
#include "libcuda/library.h"
#include "simgpu/driver/devices/models.h"
#include "simgpu/driver/modules/printed_text.h"
#include "simgpu/driver/streams/schedule.h"
#include "simgpu/driver/textures/texture_table.h"
#include "simgpu/engine.h"
#include "simgpu/host_memory.h"

namespace gpukernel::simgpu {

void log_line(const std::string& text);  // one line on stderr
CUresult code_of(Status status);
bool sticky(CUresult code);

struct Loaded {  // a module or a library: the same thing under two names
    HostShare share;
    std::unique_ptr<Module> image;
    struct Device* device = nullptr;
    std::vector<std::unique_ptr<struct Kernel>> functions;
    std::vector<std::shared_ptr<struct Reference>> references;  // to textures and surfaces (texture.cpp)
    std::mutex mutex;
    std::mutex reading;          // of a kernel that is used for the first time
    std::vector<uint64_t> code;  // of the device's memory, where modules are loaded lazily
    bool of_library = false;
};

// A CUfunction and a CUkernel.  Not "Function": that is what exec/machine.h calls a decoded one, and of two
// classes of one name in one library the linker keeps one destructor.
struct Kernel {
    Loaded* owner;
    const KernelInfo* info;
    int dynamic_shared_limit = 48 << 10;
    int carveout = -1;
    Dim3 cluster = info->cluster;  // what it must be launched with; zeros: whatever the launch says
    int cluster_must_be_set = info->explicit_cluster, large_clusters = 0, cluster_policy = 0;
    std::atomic<bool> known = false;  // all of `info` is, see `prepare`
};

struct Event {
    struct Device* device;
    unsigned flags;
    std::mutex mutex;
    bool recorded = false;
    StreamPosition position;  // passed when it is recorded
    std::shared_ptr<Clock::time_point> when;
};

struct Device : libcuda::Device {
    int index;
    int machine_index = 0;  // among the machine's devices, of which this process may see fewer
    bool listed = false;    // among the device's processes
    const Model* model;
    std::unique_ptr<DeviceMemory> memory;
    TextureTable textures;
    std::atomic<const ExecutionGate*> gate{nullptr};  // of its kernels
    // The schedule's: pieces of work of each Engine, and time with any, which is added up where somebody
    // asks.
    int running[3] = {}, working = 0;
    Clock::time_point busy_since{};
    std::atomic<uint64_t>* busy_nanoseconds = nullptr;  // before the first work
    std::mutex mutex;
    int retained = 0;                                        // of the primary context
    PrintedText printed;                                     // by kernels, until the next synchronisation
    std::map<uint64_t, size_t> pinned;                       // host allocations by address
    std::map<uint64_t, unsigned> mapped;                     // the flags of those that the device reaches
    size_t limits[CU_LIMIT_MAX] = {1024, 1 << 20, 8 << 20};  // by CUlimit
    void flush_printed();
    void report(const Result& fault);  // where the program's own output goes: the person sees it
    CUresult synchronize();            // waits for all that was submitted to any stream
    CUresult told();                   // after a wait: what kernels printed goes out, an error comes back
    void failed(CUresult error);       // of a piece of work
    CUresult sticky_error() const { return sticky_.load(std::memory_order_acquire); }
    CUresult take_error();  // the first error of finished work, told once unless it is sticky

  private:
    std::atomic<CUresult> sticky_{CUDA_SUCCESS}, pending_{CUDA_SUCCESS};
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

}  // namespace gpukernel::simgpu

// A context of the driver API, primary or created: all contexts of a device share its memory.
struct CUctx_st {
    gpukernel::simgpu::Device* device;
    bool primary;
    unsigned flags;
    std::shared_ptr<gpukernel::simgpu::Stream> legacy =
        std::make_shared<gpukernel::simgpu::Stream>(device, this, nullptr, 0, 0);
};

namespace gpukernel::simgpu {

struct Driver {
    std::vector<std::unique_ptr<Device>> devices;
    std::vector<std::unique_ptr<Context>> primaries;
    Handles contexts, streams, events, modules, functions, links, arrays, mipmaps, references;
};
Driver* driver();                    // nullptr before cuInit
Device* device_at(CUdevice number);  // nullptr for a number that is none, and before cuInit

using libcuda::context_stack;
inline Context* current_context() {
    const std::vector<CUcontext>& stack = context_stack();
    return stack.empty() ? nullptr : stack.back();
}

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

// nullptr and CU_STREAM_LEGACY are the current context's, CU_STREAM_PER_THREAD this thread's in it; false for
// a handle that is none.
bool stream_of(CUstream handle, Stream*& stream);

// Work of the host on memory: in the stream's order, or done when the call returns.  A null stream is the
// legacy one.  What is essential is done though its program is gone.
CUresult in_order(Device* device, Stream* stream, std::function<void()> work, bool essential = false);
CUresult wait_and(Device* device, Stream* stream, const std::function<void()>& work);
// By reference: a function's own copy would lie on the heap.
template <typename Call>
CUresult wait_and(Device* device, Stream* stream, const Call& work) {
    return wait_and(device, stream, std::function<void()>(std::cref(work)));
}

void drop_references(Loaded& loaded);                          // before its module goes
bool texture_limit(CUdevice_attribute attribute, int& value);  // the largest textures and surfaces

}  // namespace gpukernel::simgpu
