// How much of the device this process takes, by the driver's own account: what modules cost is not asked for
// by anybody, so it is measured.
#pragma once

#include <cstdint>
#include <optional>

#include "driver.h"

namespace gpukernel::worker {

class Footprint {
  public:
    void watch(const Driver& cuda, CUdevice device);
    // NVML's figure for this process where NVML knows the device, which other processes use too; where it
    // does not (the simulated GPU), what the driver says is taken.  Nothing where NVML does not see this
    // process.
    std::optional<uint64_t> bytes() const;

  private:
    const Driver* cuda_ = nullptr;
    void* nvml_device_ = nullptr;
    void* running_processes_ = nullptr;
};

}  // namespace gpukernel::worker
