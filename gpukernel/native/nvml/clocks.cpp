// Clocks.  The device's highest are known.  Current clocks, temperature, power and fans belong to the device
// as a whole and are not told.
#include "nvml/answers.h"

using namespace gpukernel::nvml;

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int* clock) {
    return with_facts(device, [&](const gpukernel::wire::DeviceFacts& facts) {
        if (!clock) return NVML_ERROR_INVALID_ARGUMENT;
        const bool memory = type == NVML_CLOCK_MEM;
        if (!memory && type != NVML_CLOCK_GRAPHICS && type != NVML_CLOCK_SM) return NVML_ERROR_NOT_SUPPORTED;
        const int attribute = memory ? CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE : CU_DEVICE_ATTRIBUTE_CLOCK_RATE;
        if (!facts.known[attribute] || !facts.attributes[attribute]) return NVML_ERROR_NOT_SUPPORTED;
        *clock = static_cast<unsigned>(facts.attributes[attribute] / 1000);  // kHz to MHz
        return NVML_SUCCESS;
    });
}
