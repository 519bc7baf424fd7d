// One slice of direct mode, shared by all programs of its lease on one device and the server's agent: a file
// of fixed layout that each maps.  gpukernel/remoting/direct.py has the same layout.
//
// Nobody holds a lock over it that a dead program would keep: each program writes only its own slot, and what
// is used is the sum over the slots.  Who finds the slice full removes the slots of dead programs (under a
// lock of the kernel's, flock, which ends with its owner) and looks again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "wire/device_facts.h"

namespace gpukernel::direct {

struct alignas(64) Slot {
    std::atomic<int32_t> pid;  // 0: free
    uint32_t unused;
    std::atomic<uint64_t> start;  // /proc/PID/stat's, so that a new process of the same number is another
    std::atomic<uint64_t> pid_namespace;
    std::atomic<uint64_t> counted;   // bytes: what the program asked for
    std::atomic<uint64_t> overhead;  // bytes beside it, as measured: contexts, modules
    std::atomic<uint64_t> launches;
    std::atomic<int64_t> last_launch;  // nanoseconds, CLOCK_MONOTONIC
    std::atomic<double> gpu_seconds;   // by the device's own account, from the agent
    char command[64];                  // the end is NUL
};
static_assert(sizeof(Slot) == 128);

struct Table {
    static constexpr uint64_t MAGIC = 0x746365'7269'644b47;
    static constexpr uint32_t VERSION = 1;
    static constexpr unsigned SLOTS = 256;

    uint64_t magic;
    uint32_t version;
    std::atomic<uint32_t> ended;  // the lease is over: nothing is granted any more
    std::atomic<uint64_t> limit;  // bytes
    std::atomic<double> weight;
    std::atomic<uint64_t> peak;           // bytes, of the sum over the slots
    std::atomic<uint64_t> past_launches;  // of slots that were freed
    std::atomic<uint32_t> used_slots;     // those above were never taken
    std::atomic<float> gpu_share;         // 0 to 1, lately, from the agent
    char turns[960];                      // the file by which the device's programs take turns
    wire::DeviceFacts facts;              // of the whole device
    alignas(4096) Slot slots[SLOTS];
};
static_assert(offsetof(Table, turns) == 56 && offsetof(Table, facts) == 1016 &&
              offsetof(Table, slots) == 4096);
static_assert(sizeof(wire::DeviceFacts) <= 4096 - 1016);

}  // namespace gpukernel::direct
