// This process as the rest of the machine sees it: the devices that it may use, and its use of them.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "simgpu/driver/devices/models.h"

namespace gpukernel::simgpu {

struct MachineDevice {  // a device of the machine
    int index;
    const Model* model;
};

CUuuid uuid_of(int index);

// The devices that CUDA_VISIBLE_DEVICES leaves, in its order, by the rules of the CUDA programming guide
// ("CUDA Environment Variables"): indices or the beginnings of UUIDs, up to the first that is neither.
std::vector<MachineDevice> visible(const std::vector<const Model*>& models);

// A line of the machine's list of processes, as NVIDIA's kernel module keeps one: in the directory that
// GPUKERNEL_SIMGPU_PROCESSES names, a file for each process, with these for each device of the machine.
struct ProcessUsage {
    std::atomic<uint64_t> has_context, bytes, busy_nanoseconds;
};
constexpr int MOST_DEVICES = 64;
// nullptr where nobody keeps such a list.
ProcessUsage* list_this_process(int index);

}  // namespace gpukernel::simgpu
