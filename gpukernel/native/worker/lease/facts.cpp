#include "worker/lease/facts.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

namespace gpukernel::worker {

namespace {
// The driver's version: that of NVIDIA's kernel module, or gpukernel's own for the simulated GPU.
std::string driver_name(std::string_view device) {
    std::string name;
    if (device.ends_with("(simulated)")) return GPUKERNEL_VERSION;
    std::ifstream("/sys/module/nvidia/version") >> name;
    return name;
}
}  // namespace

CUresult facts_of(const Driver& cuda, CUdevice device, wire::DeviceFacts& facts) {
    CUresult result = cuda.cuDeviceGetName(facts.name, sizeof facts.name, device);
    if (result != CUDA_SUCCESS) return result;
    size_t bytes = 0;
    cuda.cuDeviceGetUuid_v2(&facts.uuid, device);
    cuda.cuDeviceTotalMem_v2(&bytes, device);
    facts.memory_bytes = bytes;
    cuda.cuDriverGetVersion(&facts.driver_version);
    cuda.cuDeviceGetPCIBusId(facts.bus_id, sizeof facts.bus_id, device);
    // The driver says which ones it has; it may be newer than the headers.
    for (int i = 1; i < static_cast<int>(std::size(facts.known)); ++i)
        facts.known[i] = cuda.cuDeviceGetAttribute(&facts.attributes[i], static_cast<CUdevice_attribute>(i),
                                                   device) == CUDA_SUCCESS;
    const std::string driver = driver_name(facts.name);
    std::memcpy(facts.driver_name, driver.data(), std::min(driver.size(), sizeof facts.driver_name - 1));
    return CUDA_SUCCESS;
}

}  // namespace gpukernel::worker
