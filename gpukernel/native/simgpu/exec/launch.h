// Runs one kernel over its grid.
#pragma once
#include "machine.h"

namespace gpukernel::simgpu {
Result run_kernel(const Program& program, const Function& kernel, const Launch& launch, DeviceMemory& memory,
                  int multiprocessors);
}
