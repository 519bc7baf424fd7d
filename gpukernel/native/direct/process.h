// Processes as the Linux kernel knows them, and the memory of this one by NVML.
#pragma once

#include <cstdint>
#include <optional>

#include "direct/real.h"

namespace gpukernel::direct {

struct ProcessIdentity {
    int32_t pid;
    uint64_t start;          // clock ticks since the machine started, from /proc/PID/stat
    uint64_t pid_namespace;  // the inode of /proc/PID/ns/pid
};
ProcessIdentity this_process();
// A process of another namespace counts as living: from here nobody can tell.
bool lives(const ProcessIdentity& process);

// The bytes of this process on the device `uuid`, contexts and modules included; nothing where there is no
// NVML beside the driver, or where it does not see this process (in some containers).
std::optional<uint64_t> bytes_by_nvml(const CUuuid& uuid);

}  // namespace gpukernel::direct
