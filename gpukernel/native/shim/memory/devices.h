// Copies between addresses of several devices, of which the program does not say which they are of.
#pragma once

#include <optional>

#include "shim/process.h"

namespace gpukernel::shim {

// Makes the copy where an address is of another device than the current one; nothing where neither is.  To
// know it takes a round trip, in programs with several devices.
std::optional<CUresult> copy_between_devices(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);

// The device that has memory at an address, in programs with several; nullptr where none has.  Of an address
// that two have the current one's is meant.
Device* holder(Device& current, CUdeviceptr address);

}  // namespace gpukernel::shim
