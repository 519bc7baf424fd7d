// Processes as the kernel knows them, and what NVML says of this one.
#pragma once

#include <cstdint>
#include <optional>

#include "real.h"

namespace gpukernel::direct {

struct Process {
    int32_t pid;
    uint64_t start;          // clock ticks since the machine started, from /proc/PID/stat
    uint64_t pid_namespace;  // the inode of /proc/PID/ns/pid
};
Process this_process();
// A process of another namespace counts as living: from here nobody can tell.
bool lives(const Process& process);

// What the device `uuid` holds for this process, contexts and modules included; nothing where there is no
// NVML beside the driver, or where it does not see this process (in some containers).
std::optional<uint64_t> bytes_by_nvml(const CUuuid& uuid);

}  // namespace gpukernel::direct
