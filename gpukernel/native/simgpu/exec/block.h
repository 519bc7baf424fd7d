// One block on one thread: its warps, barriers and storage.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "simgpu/compiler/compiler.h"
#include "simgpu/exec/hopper/warpgroups.h"
#include "simgpu/exec/machine.h"
#include "simgpu/host_memory.h"
#include "simgpu/profile/session.h"

namespace gpukernel::simgpu {

struct FreeBytes {
    void operator()(char* p) const { std::free(p); }
};
[[noreturn]] inline void no_host_memory() {
    throw Fault{Status::out_of_memory, "the host has no memory for a simulated block"};
}
// Aligned storage that grows.  It is cleared when it is taken from the host, so that no kernel sees what else
// the process has had there; what a kernel leaves there the next one of the process may see, as on a GPU.
struct Storage {
    std::unique_ptr<char, FreeBytes> bytes;
    size_t size = 0;
    HostShare share;
    char* need(size_t n) {
        if (n > size) {
            bytes.reset();
            size = 0;
            const size_t wanted = (n + 4095) / 4096 * 4096;
            if (!share.grow(wanted)) no_host_memory();
            bytes.reset(static_cast<char*>(std::aligned_alloc(64, wanted)));
            if (!bytes) no_host_memory();
            std::memset(bytes.get(), 0, wanted);
            size = wanted;
        }
        return bytes.get();
    }
};

struct LaunchState {
    const Program* program;
    const Function* kernel;
    const Launch* launch;
    DeviceMemory* memory;
    int multiprocessors;
    const compiler::CompiledKernel* compiled = nullptr;  // from its begin on; none: the interpreter runs it
    compiler::Awaited* awaited = nullptr;                // code that may come while it runs
    std::atomic<bool> taken_over{false};                 // by such code, between two clusters
    profile::CountedLaunch* counted = nullptr;           // none: nobody counts what it does
    uint64_t stack_bytes;
    uint64_t shared_bytes;
    uint64_t workspace =
        0;  // of a cooperative launch: its size and its barrier, where CUDA's headers look for them
    std::vector<char> params;
    std::atomic<bool> stop{false};
    std::mutex fault_mutex;
    Fault fault{Status::ok, {}};
    const std::atomic<uint32_t>* gate_closed;
    std::atomic<bool> warned{false};  // of an access past an allocation's end
    bool must_rest() const { return gate_closed->load(std::memory_order_relaxed) != 0; }
    bool must_end() const {
        return stop.load(std::memory_order_relaxed) ||
               (launch->cancel && launch->cancel->load(std::memory_order_relaxed));
    }
    void rest() const;    // until the gate opens, or the launch stops
    void go_on() const {  // or throw, where another block failed or the launch was cancelled
        if (must_rest()) rest();
        if (stop.load(std::memory_order_relaxed)) throw Fault{Status::ok, {}};
        if (launch->cancel && launch->cancel->load(std::memory_order_relaxed))
            throw Fault{Status::trap, "the launch was cancelled"};
        if (launch->gate) launch->gate->running(launch->gate->argument);
    }
    uint64_t registers_of_a_warp() const { return (uint64_t{kernel->register_bytes} + 127) / 64 * 64; }
    uint64_t clusters() const { return launch->grid.volume() / launch->cluster.volume(); }
    uint32_t threads() const { return static_cast<uint32_t>(launch->block.volume()); }
};

struct Barrier {
    uint32_t arrived = 0, expected = 0;  // threads; expected 0: every living thread
    uint32_t votes_true = 0, votes = 0;
};

enum class SliceResult : uint8_t { ended, ran, stuck };

struct Cluster;
struct BlockState {
    LaunchState* launch = nullptr;
    const compiler::CompiledKernel* compiled = nullptr;  // none: the interpreter runs it
    profile::Watcher* watcher = nullptr;                 // none: nobody counts what it does
    Cluster* cluster = nullptr;
    uint32_t rank = 0;  // in its cluster
    uint32_t ctaid[3] = {};
    uint64_t linear = 0;
    HostShare share;  // of what follows, beside the storage
    std::vector<Warp> warps;
    Dim3 placed;  // the shape of a block by which their lanes have their places
    Storage registers, shared, local;
    size_t frame_bytes = 0;     // of frame_storage
    std::vector<Frame*> spare;  // frames of device functions
    std::vector<std::unique_ptr<Frame>> frames;
    std::vector<Storage> frame_storage;
    Barrier barriers[kBarriers];
    std::vector<Warpgroup> warpgroups;  // none until one multiplies
    Storage context;                    // of compiled code
    uint64_t context_age = 0;           // of what it keeps of allocations
    bool untouched = false;             // all warps are as compiled code begins them, and of that age
    std::exception_ptr fault;           // that a handler found when compiled code had called it
    uint32_t living = 0, turns = 0;
    bool prepared = false;

    // Once per launch, and again where code for it has come.
    void prepare(LaunchState& launch_state, const compiler::CompiledKernel* code, profile::Watcher* counts);
    void start(uint32_t x, uint32_t y, uint32_t z);  // all but its warps
    void start(Warp& warp);
    SliceResult run_slice();  // throws Fault
    Frame* make_frame(const Function& function);
    void release_barriers();
    [[noreturn]] void deadlock() const;
    size_t kept_bytes() const {
        return registers.size + shared.size + local.size + context.size + warps.capacity() * sizeof(Warp);
    }
};

// Blocks that run at the same time, reach each other's shared memory and have a barrier of their own (PTX ISA
// 2.2.2).  One thread turns them over.  Without clusters each block is one.
struct Cluster {
    std::vector<std::unique_ptr<BlockState>> blocks;  // by rank
    uint32_t arrived = 0, phase = 0;  // threads in this phase of the barrier; phases that have ended
    uint32_t living = 0;              // threads

    void prepare(LaunchState& launch_state, const compiler::CompiledKernel* code, profile::Watcher* counts);
    void start(uint64_t number);  // all but its warps
    void start_warps();
    bool run_slice();  // true: all its blocks have ended; throws Fault
    void meet() {
        if (arrived && arrived >= living) ++phase, arrived = 0;
    }
    // Those of a warp's lanes that have arrived in this very phase.
    uint32_t waiting(const Warp& warp) const { return warp.arrived & (phase & 1 ? warp.odd : ~warp.odd); }
};

// Lanes of a warp end.
void end_lanes(Warp& warp, uint32_t lanes);
// In the middle of a warp's work: rests where kernels must.
void pause(Warp& warp);
bool call_builtin(Warp& warp, const CallSite& site);
// Lets lanes go on that wait at different places for each other: at bar.warp.sync, or at shfl, vote, match,
// redux or elect with the same qualifiers and the same mask, as they may (PTX ISA 9.7.9.6, 9.7.13.2 and
// 9.7.13.9 to 9.7.13.15); false: none.
bool meet_apart(Warp& warp);
// The name as it stands in the source: C++ names demangled, without the tags that Numba's carry.
std::string readable(const std::string& name);
// "at k(int*), k.cu:12 (line 40 of its PTX) by thread (1,0,0) in block (2,0,0)"
std::string place(const Warp& warp, int lane, uint32_t ptx_line = 0);

}  // namespace gpukernel::simgpu
