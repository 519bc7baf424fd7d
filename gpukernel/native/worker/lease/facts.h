// The facts of a device, read from the driver.
#pragma once

#include "wire/device_facts.h"
#include "worker/server/driver.h"

namespace gpukernel::worker {

// Fills `facts` but for the fields about images.
CUresult facts_of(const Driver& cuda, CUdevice device, wire::DeviceFacts& facts);

}  // namespace gpukernel::worker
