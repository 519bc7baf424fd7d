// What the rest of a machine sees of this process: which devices it may use, and what it takes of them.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "models.h"

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
struct Use {
    std::atomic<uint64_t> has_context, bytes, busy_nanoseconds;
};
constexpr int MOST_PLACES = 64;
// nullptr where nobody keeps such a list.
Use* list_this_process(int index);

}  // namespace gpukernel::simgpu
