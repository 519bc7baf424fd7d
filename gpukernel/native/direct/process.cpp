#include "direct/process.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include "common/uuid.h"
#include "direct/real.h"

namespace gpukernel::direct {

namespace {
struct ProcessStatus {
    char state = 0;  // 0: there is no such process
    uint64_t start = 0;
};

ProcessStatus status_of(int32_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string line;
    std::getline(file, line);
    const size_t name_end = line.rfind(')');  // the name may contain anything
    if (name_end == std::string::npos || name_end + 2 >= line.size()) return {};
    size_t at = name_end + 1;
    for (int field = 3; field < 22 && at != std::string::npos; ++field) at = line.find(' ', at + 1);
    if (at == std::string::npos) return {};
    return {line[name_end + 2], std::strtoull(line.c_str() + at + 1, nullptr, 10)};
}

uint64_t own_namespace() {
    struct stat status;
    return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// NVML's documented interface (nvmlDeviceGetComputeRunningProcesses_v3), as far as it is needed.
struct ProcessInfo {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance, compute_instance;
};

class Nvml {
  public:
    Nvml() {
        // The NVML that programs find by name shows the slice; the driver's own lies beside the driver.
        const std::string& driver = real_driver_path();
        const std::string folder = driver.substr(0, driver.rfind('/') + 1);
        void* library = ::dlopen((folder + "libnvidia-ml.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!library) return;
        const auto initialise = reinterpret_cast<int (*)()>(::dlsym(library, "nvmlInit_v2"));
        by_uuid_ = reinterpret_cast<decltype(by_uuid_)>(::dlsym(library, "nvmlDeviceGetHandleByUUID"));
        running_ =
            reinterpret_cast<decltype(running_)>(::dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3"));
        usable_ = initialise && by_uuid_ && running_ && initialise() == 0;
    }

    std::optional<uint64_t> bytes(const CUuuid& uuid) const {
        if (!usable_) return std::nullopt;
        void* device = nullptr;
        if (by_uuid_(uuid_text(uuid.bytes).c_str(), &device) != 0) return std::nullopt;
        std::vector<ProcessInfo> processes(256);
        unsigned count = processes.size();
        if (running_(device, &count, processes.data()) != 0) return std::nullopt;
        for (unsigned i = 0; i < count; ++i)
            if (processes[i].pid == unsigned(::getpid()) && processes[i].used_bytes != ~0ull)
                return processes[i].used_bytes;
        return std::nullopt;
    }

  private:
    int (*by_uuid_)(const char*, void**) = nullptr;
    int (*running_)(void*, unsigned*, ProcessInfo*) = nullptr;
    bool usable_ = false;
};
}  // namespace

ProcessIdentity this_process() { return {::getpid(), status_of(::getpid()).start, own_namespace()}; }

bool lives(const ProcessIdentity& process) {
    if (process.pid_namespace != own_namespace()) return true;
    if (::kill(process.pid, 0) != 0 && errno == ESRCH) return false;
    const ProcessStatus status = status_of(process.pid);
    if (!status.state) return true;  // hidden from other users
    // A zombie's memory went back when it died, whether its parent asked or not.
    return status.state != 'Z' && status.state != 'X' && status.start == process.start;
}

std::optional<uint64_t> bytes_by_nvml(const CUuuid& uuid) {
    static const auto& nvml = *new Nvml;
    static std::mutex& mutex = *new std::mutex;
    std::lock_guard lock(mutex);
    return nvml.bytes(uuid);
}

}  // namespace gpukernel::direct
