// Properties of a device, and how much of it is in use.
#include <cmath>
#include <cstring>

#include "common/uuid.h"
#include "nvml/answers.h"

using namespace gpukernel::nvml;
using Facts = gpukernel::wire::DeviceFacts;

// --- identity ---

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, unsigned int length) {
    return with_facts(device, [&](const Facts& facts) { return put_text(facts.name, name, length); });
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, unsigned int length) {
    return with_facts(device, [&](const Facts& facts) {
        return put_text(gpukernel::uuid_text(facts.uuid.bytes), uuid, length);
    });
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int* index) {
    return with_device(device, [&](const nvmlDevice_st& one) {
        if (!index) return NVML_ERROR_INVALID_ARGUMENT;
        *index = one.index;
        return NVML_SUCCESS;
    });
}
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int* minorNumber) {
    return nvmlDeviceGetIndex(device, minorNumber);
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t* type) {
    return with_facts(device, [&](const Facts& facts) {
        if (!type) return NVML_ERROR_INVALID_ARGUMENT;
        const std::string_view name = facts.name;
        *type = name.starts_with("Tesla")    ? NVML_BRAND_TESLA
                : name.starts_with("NVIDIA") ? NVML_BRAND_NVIDIA
                                             : NVML_BRAND_UNKNOWN;
        return NVML_SUCCESS;
    });
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor) {
    return with_facts(device, [&](const Facts& facts) {
        if (!major || !minor) return NVML_ERROR_INVALID_ARGUMENT;
        *major = facts.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
        *minor = facts.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
        return NVML_SUCCESS;
    });
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t* arch) {
    return with_facts(device, [&](const Facts& facts) {
        if (!arch) return NVML_ERROR_INVALID_ARGUMENT;
        const int major = facts.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
        const int minor = facts.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
        *arch = major == 6    ? NVML_DEVICE_ARCH_PASCAL
                : major == 7  ? (minor >= 5 ? NVML_DEVICE_ARCH_TURING : NVML_DEVICE_ARCH_VOLTA)
                : major == 8  ? (minor == 9 ? NVML_DEVICE_ARCH_ADA : NVML_DEVICE_ARCH_AMPERE)
                : major == 9  ? NVML_DEVICE_ARCH_HOPPER
                : major == 10 ? NVML_DEVICE_ARCH_BLACKWELL
                : major == 12 ? NVML_DEVICE_ARCH_BLACKWELL
                              : NVML_DEVICE_ARCH_UNKNOWN;
        return NVML_SUCCESS;
    });
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
    return with_facts(device, [&](const Facts& facts) {
        if (!pci) return NVML_ERROR_INVALID_ARGUMENT;
        *pci = {};
        pci->domain = facts.attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID];
        pci->bus = facts.attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID];
        pci->device = facts.attributes[CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID];
        pci->pciDeviceId = 0x10de;  // NVIDIA's; which board it is CUDA does not tell
        std::snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus & 0xff,
                      pci->device & 0xff);
        std::snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff,
                      pci->bus & 0xff, pci->device & 0xff);
        return NVML_SUCCESS;
    });
}
nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t* pci) {
    return nvmlDeviceGetPciInfo_v3(device, pci);
}
// The first version of the structure ends before busId, so its bytes are not ours to write.
nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t* pci) {
    nvmlPciInfo_t whole;
    nvmlReturn_t error = nvmlDeviceGetPciInfo_v3(device, &whole);
    if (!error && !pci) error = NVML_ERROR_INVALID_ARGUMENT;
    if (!error) std::memcpy(pci, &whole, offsetof(nvmlPciInfo_t, pciSubSystemId));
    return error;
}

nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int* numCores) {
    return with_facts(device, [&](const Facts& facts) {
        if (!numCores) return NVML_ERROR_INVALID_ARGUMENT;
        const int major = facts.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
        const int minor = facts.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
        // 32-bit floating-point lanes a multiprocessor: CUDA C++ Programming Guide, "Arithmetic
        // Instructions".
        const int lanes = major == 7 || (major == 8 && minor == 0) || (major == 6 && minor == 0) ? 64 : 128;
        *numCores = lanes * facts.attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT];
        return NVML_SUCCESS;
    });
}

nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int* busWidth) {
    return with_facts(device, [&](const Facts& facts) {
        if (!busWidth) return NVML_ERROR_INVALID_ARGUMENT;
        *busWidth = facts.attributes[CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH];
        return NVML_SUCCESS;
    });
}

// CUDA does not tell of the link: what boards of this compute capability have (NVIDIA's data sheets).
nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int* maxLinkGen) {
    return with_facts(device, [&](const Facts& facts) {
        if (!maxLinkGen) return NVML_ERROR_INVALID_ARGUMENT;
        const int major = facts.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
        *maxLinkGen = major < 8 ? 3 : major == 8 ? 4 : 5;
        return NVML_SUCCESS;
    });
}
nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int* currLinkGen) {
    return nvmlDeviceGetMaxPcieLinkGeneration(device, currLinkGen);
}
nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int* maxLinkWidth) {
    return always(device, maxLinkWidth, 16u);
}
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int* currLinkWidth) {
    return nvmlDeviceGetMaxPcieLinkWidth(device, currLinkWidth);
}

// --- modes: those of any slice ---

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, nvmlComputeMode_t* mode) {
    return always(device, mode, NVML_COMPUTEMODE_DEFAULT);
}
nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, nvmlEnableState_t* display) {
    return always(device, display, NVML_FEATURE_DISABLED);
}
nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, nvmlEnableState_t* isActive) {
    return always(device, isActive, NVML_FEATURE_DISABLED);
}
// The worker holds the context for as long as the lease lives.
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t* mode) {
    return always(device, mode, NVML_FEATURE_ENABLED);
}
nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned int* multiGpuBool) {
    return always(device, multiGpuBool, 0u);
}
nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int* isMigDevice) {
    return always(device, isMigDevice, 0u);
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int* count) {
    return always(device, count, 0u);
}

// A slice reaches no other device by NVLink, so it belongs to no fabric.
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t* gpuFabricInfo) {
    return with_device(device, [&](const nvmlDevice_st&) {
        if (!gpuFabricInfo) return NVML_ERROR_INVALID_ARGUMENT;
        *gpuFabricInfo = {};
        gpuFabricInfo->state = NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;
        return NVML_SUCCESS;
    });
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t* gpuFabricInfo) {
    return with_device(device, [&](const nvmlDevice_st&) {
        if (!gpuFabricInfo) return NVML_ERROR_INVALID_ARGUMENT;
        const unsigned version = gpuFabricInfo->version;
        if (version != nvmlGpuFabricInfo_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
        *gpuFabricInfo = {};
        gpuFabricInfo->version = version, gpuFabricInfo->state = NVML_GPU_FABRIC_STATE_NOT_SUPPORTED;
        return NVML_SUCCESS;
    });
}

// --- use ---

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
    return with_usage(device, [&](const Usage& usage) {
        if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
        *memory = {usage.memory_limit, usage.memory_limit - usage.memory_used, usage.memory_used};
        return NVML_SUCCESS;
    });
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
    return with_usage(device, [&](const Usage& usage) {
        if (!memory) return NVML_ERROR_INVALID_ARGUMENT;
        if (memory->version != nvmlMemory_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
        memory->total = usage.memory_limit, memory->reserved = 0;
        memory->free = usage.memory_limit - usage.memory_used, memory->used = usage.memory_used;
        return NVML_SUCCESS;
    });
}

// For how long memory was read or written, no worker can measure; it is told as 0.
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t* utilization) {
    return with_usage(device, [&](const Usage& usage) {
        if (!utilization) return NVML_ERROR_INVALID_ARGUMENT;
        *utilization = {static_cast<unsigned>(std::lround(100 * usage.gpu_share)), 0};
        return NVML_SUCCESS;
    });
}

// Each value says for itself that it is not supported.
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int valuesCount, nvmlFieldValue_t* values) {
    return with_device(device, [&](nvmlDevice_st&) {
        if (!values || valuesCount < 1) return NVML_ERROR_INVALID_ARGUMENT;
        for (int i = 0; i < valuesCount; ++i) values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        return NVML_SUCCESS;
    });
}
