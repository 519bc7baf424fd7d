#include "worker/lease/footprint.h"

#include <dlfcn.h>
#include <unistd.h>

#include <vector>

#include "common/uuid.h"

namespace gpukernel::worker {

namespace {
// NVML's documented interface (nvmlDeviceGetComputeRunningProcesses_v3), declared here so that the worker
// does not need nvml.h.
struct ProcessInfo {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance, compute_instance;
};
constexpr int NVML_SUCCESS = 0;
using Initialise = int (*)();
using ByUuid = int (*)(const char*, void**);
using Running = int (*)(void*, unsigned*, ProcessInfo*);
}  // namespace

void Footprint::use_device(const Driver& cuda, CUdevice device) {
    cuda_ = &cuda;
    void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    auto initialise = reinterpret_cast<Initialise>(::dlsym(library, "nvmlInit_v2"));
    auto by_uuid = reinterpret_cast<ByUuid>(::dlsym(library, "nvmlDeviceGetHandleByUUID"));
    void* running = ::dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    CUuuid uuid{};
    if (!initialise || !by_uuid || !running || initialise() != NVML_SUCCESS ||
        cuda.cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS)
        return;
    if (by_uuid(uuid_text(uuid.bytes).c_str(), &nvml_device_) == NVML_SUCCESS)
        running_processes_ = running;
    else
        nvml_device_ = nullptr;
}

std::optional<uint64_t> Footprint::bytes() const {
    if (!nvml_device_) {
        size_t free = 0, total = 0;
        if (!cuda_ || cuda_->cuMemGetInfo_v2(&free, &total) != CUDA_SUCCESS) return std::nullopt;
        return total - free;
    }
    std::vector<ProcessInfo> processes(256);
    unsigned count = processes.size();
    if (reinterpret_cast<Running>(running_processes_)(nvml_device_, &count, processes.data()) != NVML_SUCCESS)
        return std::nullopt;
    for (unsigned i = 0; i < count; ++i)
        if (processes[i].pid == static_cast<unsigned>(::getpid()) && processes[i].used_bytes != ~0ull)
            return processes[i].used_bytes;
    return std::nullopt;
}

}  // namespace gpukernel::worker
