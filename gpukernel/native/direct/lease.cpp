// The slices of this process's lease, and the driver's device behind each.
#include <pthread.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "common/lease_file.h"
#include "common/uuid.h"
#include "direct/slice.h"

namespace gpukernel::direct {

namespace {
struct Joined {
    std::vector<std::unique_ptr<Slice>> slices;  // as the lease has them
    std::vector<Slice*> by_device;               // as the driver numbers its devices
};
std::mutex joining;
// Never destroyed: threads may be inside at exit.
std::atomic<Joined*> joined{nullptr};
std::atomic<bool> found_devices{false};

// A child that forks before its parent used CUDA takes a slot of its own; after that the driver refuses.
void in_forked_child() {
    joined = nullptr;
    found_devices = false;
}

// The driver sees the lease's devices only.  Numbers in CUDA_VISIBLE_DEVICES count the lease's devices, as
// they count a machine's; what is none ends the list, as the driver has it.
void show_devices(const Joined& lease) {
    std::string shown;
    const auto show = [&](const Slice& slice) {
        if (!shown.empty()) shown += ',';
        shown += uuid_text(slice.table().facts.uuid.bytes);
    };
    const char* wanted = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!wanted) {
        for (const auto& slice : lease.slices) show(*slice);
    } else {
        for (std::string rest = wanted; !rest.empty();) {
            const size_t comma = rest.find(',');
            std::string one = rest.substr(0, comma);
            rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
            one.erase(0, one.find_first_not_of(" \t"));
            one.erase(one.find_last_not_of(" \t") + 1);
            const Slice* found = nullptr;
            char* end = nullptr;
            const unsigned long number = std::strtoul(one.c_str(), &end, 10);
            if (!one.empty() && !*end && number < lease.slices.size()) found = lease.slices[number].get();
            if (one.size() > 4 && one.starts_with("GPU-"))
                for (const auto& slice : lease.slices)
                    if (uuid_text(slice->table().facts.uuid.bytes).starts_with(one)) found = slice.get();
            if (!found) break;
            show(*found);
        }
    }
    ::setenv("CUDA_VISIBLE_DEVICES", shown.c_str(), 1);
}

bool join(Joined& fresh, std::string& error) {
    if (!no_driver_because().empty()) {
        error = no_driver_because();
        return false;
    }
    wire::LeaseFile lease;
    error = "this process has no slice: start it with 'gpukernel run --direct'";
    if (!wire::find_lease(lease, error)) return false;
    constexpr std::string_view KIND = "direct:";
    for (const auto& endpoints : lease.devices) {
        if (endpoints.empty() || !endpoints[0].starts_with(KIND)) {
            error = "its slice is served by a worker, not directly; start it without the library in " +
                    std::string("native/direct");
            return false;
        }
        fresh.slices.push_back(std::make_unique<Slice>());
        if (!fresh.slices.back()->open(endpoints[0].substr(KIND.size()), error) ||
            !fresh.slices.back()->join(error))
            return false;
    }
    if (!fresh.slices.empty()) return true;
    error = "the lease has no devices";
    return false;
}
}  // namespace

CUresult join_lease() {
    if (joined.load(std::memory_order_acquire)) return CUDA_SUCCESS;
    std::lock_guard lock(joining);
    if (joined.load()) return CUDA_SUCCESS;
    static const int registered = ::pthread_atfork(nullptr, nullptr, in_forked_child);
    (void)registered;
    auto fresh = std::make_unique<Joined>();
    std::string error;
    if (!join(*fresh, error)) {
        static bool told = false;
        if (!std::exchange(told, true)) complain(error + ".");
        return CUDA_ERROR_NO_DEVICE;
    }
    show_devices(*fresh);
    joined = fresh.release();
    return CUDA_SUCCESS;
}

CUresult find_devices() {
    if (found_devices.load(std::memory_order_acquire)) return CUDA_SUCCESS;
    std::lock_guard lock(joining);
    if (found_devices.load()) return CUDA_SUCCESS;
    Inside inside;
    Joined& lease = *joined.load();
    int count = 0;
    if (CUresult error = real.cuDeviceGetCount(&count); error != CUDA_SUCCESS) return error;
    std::vector<Slice*> by_device;
    for (int ordinal = 0; ordinal < count; ++ordinal) {
        CUdevice device = ordinal;
        CUuuid uuid{};
        real.cuDeviceGet(&device, ordinal);
        real.cuDeviceGetUuid_v2(&uuid, device);
        Slice* found = nullptr;
        for (const auto& slice : lease.slices)
            if (std::memcmp(uuid.bytes, slice->table().facts.uuid.bytes, 16) == 0) found = slice.get();
        if (!found) {
            complain("the driver shows " + uuid_text(uuid.bytes) + ", of which this program holds no slice.");
            return CUDA_ERROR_NO_DEVICE;
        }
        by_device.push_back(found);
    }
    lease.by_device = std::move(by_device);
    found_devices.store(true, std::memory_order_release);
    return CUDA_SUCCESS;
}

Slice* slice_of(CUdevice device) {
    if (!found_devices.load(std::memory_order_acquire)) return nullptr;
    const auto& slices = joined.load(std::memory_order_relaxed)->by_device;
    return device >= 0 && device < int(slices.size()) ? slices[device] : nullptr;
}

Slice* current_slice() {
    if (!found_devices.load(std::memory_order_acquire)) return nullptr;
    const auto& slices = joined.load(std::memory_order_relaxed)->by_device;
    if (slices.size() == 1) return slices[0];
    CUdevice device;
    return real.cuCtxGetDevice(&device) == CUDA_SUCCESS ? slice_of(device) : nullptr;
}

}  // namespace gpukernel::direct
