// Managed memory of a program that loads the simulated GPU itself, where device memory is host memory.
#pragma once

#include "simgpu/driver/state.h"

namespace gpukernel::simgpu {

bool is_managed(Device* device, uint64_t address);
void remember_managed(Device* device, uint64_t address, size_t bytes);
void forget_managed(Device* device, uint64_t address);  // its allocation ends

}  // namespace gpukernel::simgpu
