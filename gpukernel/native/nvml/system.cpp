// The library and the machine: beginning and end, versions, which devices there are.
#include <cuda_newest.h>

#include <algorithm>
#include <cstring>

#include "common/uuid.h"
#include "nvml/answers.h"

using namespace gpukernel::nvml;

nvmlReturn_t nvmlInit_v2(void) { return begin(); }
nvmlReturn_t nvmlInit(void) { return begin(); }
nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { return begin(); }
nvmlReturn_t nvmlShutdown(void) { return end(); }

const char* nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
        case NVML_SUCCESS:
            return "Success";
        case NVML_ERROR_UNINITIALIZED:
            return "Uninitialized";
        case NVML_ERROR_INVALID_ARGUMENT:
            return "Invalid Argument";
        case NVML_ERROR_NOT_SUPPORTED:
            return "Not Supported";
        case NVML_ERROR_NO_PERMISSION:
            return "Insufficient Permissions";
        case NVML_ERROR_NOT_FOUND:
            return "Not Found";
        case NVML_ERROR_INSUFFICIENT_SIZE:
            return "Insufficient Size";
        case NVML_ERROR_DRIVER_NOT_LOADED:
            return "This process has no slice";
        case NVML_ERROR_TIMEOUT:
            return "Timeout";
        case NVML_ERROR_LIBRARY_NOT_FOUND:
            return "NVML Shared Library Not Found";
        case NVML_ERROR_FUNCTION_NOT_FOUND:
            return "Function Not Found";
        case NVML_ERROR_GPU_IS_LOST:
            return "The worker of this slice does not answer";
        case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
            return "The worker of this slice is of another version";
        case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
            return "Argument version mismatch";
        default:
            return "Unknown Error";
    }
}

namespace {
// Questions about the system go to the first device's worker.
template <class Answer>
nvmlReturn_t with_first(Answer answer) {
    std::lock_guard lock(state_mutex);
    std::vector<nvmlDevice_t> all;
    if (nvmlReturn_t error = devices(all)) return error;
    if (all.empty()) return NVML_ERROR_GPU_NOT_FOUND;
    const gpukernel::wire::DeviceFacts* facts = nullptr;
    if (nvmlReturn_t error = all.front()->facts(facts)) return error;
    return answer(*facts);
}

// The first device of which `is` holds; one that does not answer is passed over.
template <class Is>
nvmlReturn_t find(nvmlDevice_t* device, Is is) {
    if (!device) return NVML_ERROR_INVALID_ARGUMENT;
    std::lock_guard lock(state_mutex);
    std::vector<nvmlDevice_t> all;
    if (nvmlReturn_t error = devices(all)) return error;
    for (nvmlDevice_t one : all) {
        const gpukernel::wire::DeviceFacts* facts = nullptr;
        if (one->facts(facts) != NVML_SUCCESS || !is(*facts)) continue;
        *device = one;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}
}  // namespace

nvmlReturn_t nvmlSystemGetDriverVersion(char* version, unsigned int length) {
    return with_first([&](const auto& facts) {
        return *facts.driver_name ? put_text(facts.driver_name, version, length) : NVML_ERROR_NOT_SUPPORTED;
    });
}

// The version of the header that this library follows.
nvmlReturn_t nvmlSystemGetNVMLVersion(char* version, unsigned int length) {
    return put_text("12.9.79", version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* cudaDriverVersion) {
    return with_first([&](const auto& facts) {
        if (!cudaDriverVersion) return NVML_ERROR_INVALID_ARGUMENT;
        *cudaDriverVersion = std::min<int>(facts.driver_version, GPUKERNEL_CUDA_VERSION);
        return NVML_SUCCESS;
    });
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int* cudaDriverVersion) {
    return nvmlSystemGetCudaDriverVersion(cudaDriverVersion);
}

nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char* name, unsigned int length) {
    std::lock_guard lock(state_mutex);
    if (!name || !length) return NVML_ERROR_INVALID_ARGUMENT;
    std::vector<nvmlDevice_t> all;
    if (nvmlReturn_t error = devices(all)) return error;
    for (nvmlDevice_t device : all) {
        Usage usage;
        if (device->usage(usage) != NVML_SUCCESS) continue;
        for (const SliceProcess& program : usage.programs) {
            if (program.pid != pid) continue;
            std::snprintf(name, length, "%s", program.command.c_str());  // up to its first NUL: the program
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlUnitGetCount(unsigned int* unitCount) {
    if (!unitCount) return NVML_ERROR_INVALID_ARGUMENT;
    *unitCount = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* deviceCount) {
    std::lock_guard lock(state_mutex);
    std::vector<nvmlDevice_t> all;
    if (nvmlReturn_t error = devices(all)) return error;
    if (!deviceCount) return NVML_ERROR_INVALID_ARGUMENT;
    *deviceCount = static_cast<unsigned>(all.size());
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCount(unsigned int* deviceCount) { return nvmlDeviceGetCount_v2(deviceCount); }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
    std::lock_guard lock(state_mutex);
    std::vector<nvmlDevice_t> all;
    if (nvmlReturn_t error = devices(all)) return error;
    if (!device || index >= all.size()) return NVML_ERROR_INVALID_ARGUMENT;
    *device = all[index];
    return NVML_SUCCESS;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t* device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
    if (!uuid) return NVML_ERROR_INVALID_ARGUMENT;
    return find(device, [&](const auto& facts) { return gpukernel::uuid_text(facts.uuid.bytes) == uuid; });
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* pciBusId, nvmlDevice_t* device) {
    unsigned domain, bus, number;
    if (!pciBusId || std::sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &number) != 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    return find(device, [&](const auto& facts) {
        const auto* of = facts.attributes;
        return of[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] == static_cast<int>(domain) &&
               of[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] == static_cast<int>(bus) &&
               of[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID] == static_cast<int>(number);
    });
}
nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* pciBusId, nvmlDevice_t* device) {
    return nvmlDeviceGetHandleByPciBusId_v2(pciBusId, device);
}
