// The processes that use the slice.
#include <chrono>
#include <cmath>

#include "nvml/answers.h"

using namespace gpukernel::nvml;

namespace {
void put(nvmlProcessInfo_v1_t& info, const SliceProcess& program) { info = {program.pid, program.bytes}; }
void put(nvmlProcessInfo_v2_t& info, const SliceProcess& program) {
    info = {program.pid, program.bytes, 0xffffffff, 0xffffffff};  // in no MIG instance
}

template <class Info>
nvmlReturn_t list(nvmlDevice_t device, unsigned* count, Info* infos) {
    return with_usage(device, [&](const Usage& usage) {
        if (!count) return NVML_ERROR_INVALID_ARGUMENT;
        std::vector<SliceProcess> programs;
        for (const SliceProcess& program : usage.programs)
            if (program.pid) programs.push_back(program);
        const unsigned room = *count;
        *count = static_cast<unsigned>(programs.size());
        if (!programs.empty() && (!infos || room < programs.size())) return NVML_ERROR_INSUFFICIENT_SIZE;
        for (size_t i = 0; i < programs.size(); ++i) put(infos[i], programs[i]);
        return NVML_SUCCESS;
    });
}

nvmlReturn_t none(nvmlDevice_t device, unsigned* count) { return always(device, count, 0u); }
}  // namespace

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int* infoCount,
                                                  nvmlProcessInfo_v1_t* infos) {
    return list(device, infoCount, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* infoCount,
                                                     nvmlProcessInfo_v2_t* infos) {
    return list(device, infoCount, infos);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* infoCount,
                                                     nvmlProcessInfo_t* infos) {
    return list(device, infoCount, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned int* infoCount,
                                                   nvmlProcessInfo_v1_t*) {
    return none(device, infoCount);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned int* infoCount,
                                                      nvmlProcessInfo_v2_t*) {
    return none(device, infoCount);
}
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned int* infoCount,
                                                      nvmlProcessInfo_t*) {
    return none(device, infoCount);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned int* infoCount,
                                                     nvmlProcessInfo_v1_t*) {
    return none(device, infoCount);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned int* infoCount,
                                                        nvmlProcessInfo_v2_t*) {
    return none(device, infoCount);
}
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int* infoCount,
                                                        nvmlProcessInfo_t*) {
    return none(device, infoCount);
}

// GPU time is measured for the slice: it is a program's own where there is one program, and else nobody's.
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t* utilization,
                                             unsigned int* processSamplesCount,
                                             unsigned long long lastSeenTimeStamp) {
    return with_usage(device, [&](const Usage& usage) {
        if (!processSamplesCount) return NVML_ERROR_INVALID_ARGUMENT;
        const bool known = usage.programs.size() == 1 && usage.programs.front().pid;
        const unsigned room = *processSamplesCount;
        *processSamplesCount = known;
        if (!known) return NVML_ERROR_NOT_FOUND;
        if (!utilization || !room) return NVML_ERROR_INSUFFICIENT_SIZE;
        const auto now = std::chrono::duration_cast<std::chrono::microseconds>(
            std::chrono::system_clock::now().time_since_epoch());
        *utilization = {};
        utilization->pid = usage.programs.front().pid;
        utilization->timeStamp = static_cast<unsigned long long>(now.count());
        utilization->smUtil = static_cast<unsigned>(std::lround(100 * usage.gpu_share));
        return NVML_SUCCESS;
    });
}
