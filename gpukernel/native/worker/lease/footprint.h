// The device memory that this process takes, by the driver's own account.  What a module takes can only be
// measured: by the difference before and after loading it.
#pragma once

#include <cstdint>
#include <optional>

#include "worker/server/driver.h"

namespace gpukernel::worker {

class Footprint {
  public:
    // Chooses the source of `bytes` for this device.
    void use_device(const Driver& cuda, CUdevice device);
    // NVML's figure for this process where NVML knows the device, which other processes use, too; else (the
    // simulated GPU) the driver's figure for the whole device.  Nothing where NVML does not see this process.
    std::optional<uint64_t> bytes() const;

  private:
    const Driver* cuda_ = nullptr;
    void* nvml_device_ = nullptr;
    void* running_processes_ = nullptr;
};

}  // namespace gpukernel::worker
