// Runs one kernel over its grid.
#pragma once
#include "simgpu/exec/machine.h"

namespace gpukernel::simgpu {
Result run_kernel(const Program& program, const Function& kernel, const Launch& launch, DeviceMemory& memory,
                  int multiprocessors);
}
