// What a device is, as the driver tells it.
#pragma once

#include "driver.h"
#include "wire/device_facts.h"

namespace gpukernel::worker {

CUresult facts_of(const Driver& cuda, CUdevice device, wire::DeviceFacts& facts);

}  // namespace gpukernel::worker
