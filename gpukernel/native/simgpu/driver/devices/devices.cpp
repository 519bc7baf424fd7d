// Initialisation, and what each simulated device is (driver API chapters "Initialization", "Device
// Management").
#include <cuda_newest.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "simgpu/driver/devices/machine.h"
#include "simgpu/driver/state.h"
#include "simgpu/exec/processor.h"

using namespace gpukernel::simgpu;

namespace {
std::atomic<Driver*> instance{nullptr};
std::mutex init_mutex;

std::atomic<bool> forked{false};

// As on a GPU: contexts do not pass to a child, and a process that has them cannot begin anew.
void in_forked_child() {
    if (instance.exchange(nullptr)) forked = true;
}
}  // namespace

namespace gpukernel {
CUresult unsupported(const char* name) {
    static std::mutex mutex;
    static std::unordered_set<std::string> told;
    std::lock_guard lock(mutex);
    if (told.insert(name).second) simgpu::log_line(std::string(name) + " is not supported");
    return CUDA_ERROR_NOT_SUPPORTED;
}

void runtime_gives_up() {
    simgpu::log_line(
        "NVIDIA's CUDA runtime gives up now: it asks the driver for undocumented functions, which the "
        "simulated GPU does not have; use the driver API (Numba, PyCUDA, cuda.core)");
}
namespace simgpu {
Driver* driver() { return instance.load(std::memory_order_acquire); }
Device* device_at(CUdevice number) {
    Driver* d = driver();
    return d && number >= 0 && number < static_cast<int>(d->devices.size()) ? d->devices[number].get()
                                                                            : nullptr;
}
}  // namespace simgpu

namespace libcuda {
namespace {
const simgpu::Device& mine(const Device& device) { return static_cast<const simgpu::Device&>(device); }
}  // namespace

int device_count() { return static_cast<int>(driver()->devices.size()); }
Device* device_at(CUdevice number) { return simgpu::device_at(number); }
CUdevice number_of(const Device& device) { return mine(device).index; }
std::string name_of(const Device& device) { return std::string(mine(device).model->name); }
CUuuid uuid_of(const Device& device) { return simgpu::uuid_of(mine(device).machine_index); }
uint64_t total_memory(const Device& device) { return mine(device).memory->capacity(); }
std::string bus_id_of(const Device& device) {
    char text[16];
    std::snprintf(text, sizeof text, "0000:%02X:00.0", mine(device).machine_index + 1);
    return text;
}
}  // namespace libcuda
}  // namespace gpukernel

CUresult CUDAAPI cuInit(unsigned int Flags) {
    if (Flags) return CUDA_ERROR_INVALID_VALUE;
    if (forked) return CUDA_ERROR_NOT_INITIALIZED;
    if (driver()) return CUDA_SUCCESS;
    std::lock_guard lock(init_mutex);
    if (driver()) return CUDA_SUCCESS;
    static const int registered = pthread_atfork(nullptr, nullptr, in_forked_child);
    (void)registered;
    // A wish for less than this build has is met by the oldest that it has; a processor that lacks it cannot.
    if (oldest_level() > processor_level() || wanted_level() < 2) {
        log_line("this simulated GPU was built for processors of x86-64-v" + std::to_string(oldest_level()) +
                 " and newer, and may use v" + std::to_string(wanted_level()) +
                 " here; install a package of gpukernel, or build it on this machine");
        return CUDA_ERROR_NO_DEVICE;
    }
    const char* specification = std::getenv("GPUKERNEL_SIMGPU");
    std::string unknown;
    std::vector<const Model*> models =
        models_from(specification && *specification ? specification : "v100", unknown);
    if (models.empty()) {
        log_line("GPUKERNEL_SIMGPU names '" + unknown +
                 "'; known are v100, v100-16gb, t4, a100, a100-80gb, h100, h200, b200, rtx5090, each as "
                 "MODEL or MODEL:COUNT");
        return CUDA_ERROR_NO_DEVICE;
    }
    const std::vector<MachineDevice> visible_devices = visible(models);
    if (visible_devices.empty()) return CUDA_ERROR_NO_DEVICE;
    auto* fresh = new Driver;  // lives as long as the process: threads may still be inside at exit
    for (const auto& [index, model] : visible_devices) {
        auto device = std::make_unique<Device>();
        device->machine_index = index;
        device->index = static_cast<int>(fresh->devices.size());
        device->model = model;
        device->memory = make_device_memory(model->memory_bytes);
        auto primary = std::unique_ptr<Context>(new Context{device.get(), true, 0});
        fresh->contexts.add(primary.get());
        fresh->primaries.push_back(std::move(primary));
        fresh->devices.push_back(std::move(device));
    }
    instance.store(fresh, std::memory_order_release);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDriverGetVersion(int* driverVersion) {
    if (!driverVersion) return CUDA_ERROR_INVALID_VALUE;
    // A driver serves all devices of its machine: the oldest says.  Before cuInit it is what this library
    // knows.
    *driverVersion = GPUKERNEL_CUDA_VERSION;
    if (driver())
        for (const auto& device : driver()->devices)
            *driverVersion = std::min(*driverVersion, device->model->driver_version);
    return CUDA_SUCCESS;
}
