// The table of one slice in direct mode: a file of fixed layout that all programs of its lease on one device,
// NVML and the server's agent map.  gpukernel/remoting/direct_table.py has the same layout.
//
// No lock is held over it that a dead program would keep.  Each program writes only its own slot, and what is
// used is the sum over the slots.  A program that finds the slice full removes the slots of dead programs,
// under a lock of the kernel's (flock) that ends with its owner, and looks again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "wire/device_facts.h"

namespace gpukernel::wire {

struct alignas(64) ProgramSlot {
    std::atomic<int32_t> pid;  // 0: free
    uint32_t unused;
    std::atomic<uint64_t> start;  // /proc/PID/stat's, so that a new process of the same number is another
    std::atomic<uint64_t> pid_namespace;
    std::atomic<uint64_t> counted;   // bytes: what the program asked for
    std::atomic<uint64_t> overhead;  // bytes besides, as measured: contexts, modules
    std::atomic<uint64_t> launches;
    std::atomic<int64_t> last_launch;  // nanoseconds, CLOCK_MONOTONIC
    std::atomic<double> gpu_seconds;   // as the device measures it, from the agent
    char command[64];                  // the end is NUL
};
static_assert(sizeof(ProgramSlot) == 128);

struct SliceTable {
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
    char time_slicing_file[960];          // path of the file that common/time_slicing.h maps
    DeviceFacts facts;                    // of the whole device
    alignas(4096) ProgramSlot slots[SLOTS];
};
static_assert(offsetof(SliceTable, time_slicing_file) == 56 && offsetof(SliceTable, facts) == 1016 &&
              offsetof(SliceTable, slots) == 4096);
static_assert(sizeof(DeviceFacts) <= 4096 - 1016);

}  // namespace gpukernel::wire
