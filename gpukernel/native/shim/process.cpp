#include "shim/process.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <unordered_set>

#include "common/lease_file.h"
#include "common/memory_check.h"
#include "shim/memory/virtual_memory.h"
#include "shim/transport/counters.h"
#include "shim/transport/request.h"
#include "wire/lease_wait.h"

namespace gpukernel {

shim::Counters shim::counters;

// In this order: launches, bytes to the device, bytes to the host.
extern "C" __attribute__((visibility("default"))) void gpukernel_counters(uint64_t (&figures)[3]) {
    figures[0] = shim::counters.launches;
    figures[1] = shim::counters.bytes_to_device;
    figures[2] = shim::counters.bytes_to_host;
}

CUresult unsupported(const char* name) {
    static const bool debug = [] {
        const char* level = std::getenv("GPUKERNEL_LOG");
        return level && std::strcmp(level, "debug") == 0;
    }();
    if (debug) {
        static std::mutex mutex;
        static std::unordered_set<std::string> told;
        std::lock_guard lock(mutex);
        if (told.insert(name).second)
            shim::complain(std::string(name) + " is not supported over the network");
    }
    return CUDA_ERROR_NOT_SUPPORTED;
}

void runtime_gives_up() {
    shim::complain(
        "this program uses NVIDIA's CUDA runtime (nvcc links it in), which gives up now: it asks the driver "
        "for undocumented functions that a slice does not have; link the shared one (nvcc -cudart shared), "
        "run it with 'gpukernel run --direct' on the GPU's own machine, or use the driver API (Numba, "
        "PyCUDA, cuda.core): see “Which framework runs where” in docs/frameworks.md.");
}

namespace shim {

std::atomic<Process*> instance{nullptr};

namespace {
std::mutex initialising;
std::atomic<bool> forked{false};

// When cuInit left the queue; the clock's zero: it did not.  A cell that was interrupted makes its next calls
// at once, and those must fail, too; a later cell may wait again.
using Clock = std::chrono::steady_clock;
std::atomic<Clock::time_point> left_queue{Clock::time_point{}};
constexpr auto LEFT_FOR = std::chrono::seconds(1);

// Whether kernels' accesses are checked strictly: as somebody said, else as the environment says.
std::atomic<int> said_strict{-1};
bool strict_memory_check() {
    if (const int said = said_strict; said >= 0) return said != 0;
    const char* const word = std::getenv(MEMORY_CHECK_VARIABLE);
    const std::optional<bool> strict = strict_check(word);
    static std::atomic<bool> told{false};
    if (!strict && !told.exchange(true))
        complain(std::string(MEMORY_CHECK_VARIABLE) + "=" + word +
                 " is neither strict nor hardware: hardware it is.");
    return strict.value_or(false);
}

// Sends the worker this process's id and command line, which usage queries show, and how to check its
// kernels.
void introduce(Device& device) {
    std::string command(wire::MAX_COMMAND, 0);
    std::ifstream file("/proc/self/cmdline");
    command.resize(file.read(command.data(), command.size()).gcount());
    Request request(device.connection,
                    wire::IntroduceRequest{static_cast<uint32_t>(::getpid()), command,
                                           device.connection.key(), strict_memory_check()});
    request.queue();
}

// A program keeps a 256th of the slice, and 4 MiB at most, of what it frees.
void allow_spares_of(Device& device) {
    const bool may = device.facts.attributes[0] & wire::KEEPS_BLOCKS && !strict_memory_check();
    allow_spares(device.connection, may ? std::min<uint64_t>(4 << 20, device.facts.memory_bytes / 256) : 0);
}

bool learn(Device& device) {
    Request request(device.connection, wire::DeviceRequest{});
    if (request.send_into(&device.facts, sizeof device.facts) != CUDA_SUCCESS) return false;
    device.facts.name[sizeof device.facts.name - 1] = 0;
    device.facts.bus_id[sizeof device.facts.bus_id - 1] = 0;
    if (device.facts.keeps_images)
        device.connection.name_images({reinterpret_cast<const char*>(device.facts.image_salt), 32});
    if (worker_shares_physical(device)) {
        constexpr int BY_DESCRIPTOR = CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        device.facts.attributes[BY_DESCRIPTOR] = device.facts.known[BY_DESCRIPTOR] = 1;
    }
    device.connection.tells_of_streams = device.facts.attributes[0] & wire::TELLS_OF_STREAMS;
    if (device.facts.attributes[0] & wire::READS_MORE_EARLY)
        device.connection.most_early_bytes = wire::MOST_EARLY_BYTES;
    device.connection.tells_of_refusals = device.facts.attributes[0] & wire::TELLS_OF_REFUSALS;
    allow_spares_of(device);
    return true;
}

void in_forked_child() {
    // The socket is the parent's, and threads do not survive a fork.  CUDA cannot be used after fork; a child
    // whose parent never used it may initialise it.
    new (&initialising) std::mutex;  // the parent's thread may hold it, waiting in the queue
    Process* parents = instance.exchange(nullptr);
    if (!parents) return;
    forked = true;
    for (auto& device : parents->devices) device->connection.abandon();
}
}  // namespace

// Connects to each of the slice's devices; nullptr, and `error` says why, where one cannot be reached.
static std::unique_ptr<Process> connect(const wire::LeaseFile& lease, std::string& error) {
    auto fresh = std::make_unique<Process>();
    fresh->lease = lease.lease;
    // Libraries keep names, and what stands for a device: neither of this slice is an earlier one's.
    uint64_t names = 0;
    unsigned resets = 0;
    if (const Process* const before = instance.load())
        for (const auto& device : before->devices) {
            std::lock_guard lock(device->connection.mutex);
            names = std::max(names, device->connection.names());
            resets = std::max(resets, device->resets + 1);
        }
    for (const auto& endpoints : lease.devices) {
        auto device = std::make_unique<Device>();
        device->index = static_cast<int>(fresh->devices.size());
        device->connection.name_device(device->index, names);
        device->resets = resets;
        std::string reason;
        const bool open = device->connection.open(endpoints, lease.secret, reason);
        if (open) introduce(*device);
        if (!open || !learn(*device)) {
            error = "the slice cannot be reached: " + (open ? "its worker ended the connection" : reason);
            // A device that connected keeps its flushing thread, which refers to it.
            if (open) device.release();
            for (auto& one : fresh->devices) one.release();
            return nullptr;
        }
        device->primary = std::make_unique<Context>(device.get());
        fresh->devices.push_back(std::move(device));
    }
    if (fresh->devices.empty()) return error = "the lease names no device", nullptr;
    return fresh;
}

// Returns whether the slice of `current` was given back and the kernel has another now; then retires its
// connections.
static bool outdated(const Process& current, const wire::LeaseFile& now) {
    if (current.lease == now.lease) return false;
    for (const auto& device : current.devices) device->connection.retire();
    return true;
}

CUresult initialise() {
    if (forked) return CUDA_ERROR_NOT_INITIALIZED;
    std::lock_guard lock(initialising);
    static const int registered = ::pthread_atfork(nullptr, nullptr, in_forked_child);
    (void)registered;
    wire::LeaseFile lease;
    std::string error = "this process has no slice: start it with 'gpukernel run', or in a slice kernel";
    const bool live = wire::find_lease(lease, error);
    if (const Process* current = instance.load(); current && !(live && outdated(*current, lease)))
        return CUDA_SUCCESS;
    left_queue = Clock::time_point{};
    auto fresh = live ? connect(lease, error) : nullptr;
    if (!fresh && !lease.socket.empty()) {  // no slice yet, or it has ended since the file was written
        const wire::LeaseWait wait = wire::wait_for_lease(lease.socket, lease.kernel, error);
        if (wait == wire::LeaseWait::left) left_queue = Clock::now();
        lease = {};
        if (wait == wire::LeaseWait::granted && wire::find_lease(lease, error)) fresh = connect(lease, error);
    }
    if (fresh) {
        // Never destroyed: threads may be inside at exit, and may refer to an earlier slice's devices.
        instance.store(fresh.release());
        context_stack().clear();
        return CUDA_SUCCESS;
    }
    static std::string told;  // once, since some libraries call cuInit repeatedly
    if (std::exchange(told, error) != error) complain(error + ".");
    return CUDA_ERROR_NO_DEVICE;
}

Process* process_after_a_wait() {
    if (forked.load(std::memory_order_relaxed)) return nullptr;
    const Clock::time_point left = left_queue.load(std::memory_order_relaxed);
    if (left == Clock::time_point{} || Clock::now() - left < LEFT_FOR) return nullptr;
    initialise();
    return instance.load(std::memory_order_acquire);
}

Connection* current(CUresult& error) {
    if (!process()) {
        error = CUDA_ERROR_NOT_INITIALIZED;
        return nullptr;
    }
    if (calling_host) {  // a call might wait for the host function's own stream
        error = CUDA_ERROR_NOT_PERMITTED;
        return nullptr;
    }
    const std::vector<CUcontext>& stack = context_stack();
    if (stack.empty()) {
        error = CUDA_ERROR_INVALID_CONTEXT;
        return nullptr;
    }
    if (stack.back()->destroyed.load(std::memory_order_relaxed)) {
        error = CUDA_ERROR_CONTEXT_IS_DESTROYED;
        return nullptr;
    }
    return &stack.back()->device->connection;
}

Device* device_named(const void* handle) {
    const auto name = reinterpret_cast<uint64_t>(handle);
    const uint64_t index = name >> DEVICE_IN_NAME;
    if (!(name & wire::NAMED_BY_SHIM) || !process() || index >= process()->devices.size()) return nullptr;
    return process()->devices[index].get();
}

Connection* named_device(const void* handle, CUresult& error) {
    Device* const device = calling_host ? nullptr : device_named(handle);
    if (!device || (!context_stack().empty() && process()->devices.size() == 1)) return current(error);
    return &device->connection;
}

Connection* default_device(CUresult& error) {
    if (!context_stack().empty() || calling_host) return current(error);
    if (!process()) {
        error = CUDA_ERROR_NOT_INITIALIZED;
        return nullptr;
    }
    return &process()->devices.front()->connection;
}

Connection* of_device(CUdevice index, CUresult& error) {
    Connection* const connection = default_device(error);
    if (!connection || calling_host) return connection;
    Device* const device = device_at(index);
    if (!device) error = CUDA_ERROR_INVALID_DEVICE;
    return device ? &device->connection : nullptr;
}

}  // namespace shim

// Has kernels from now on checked strictly, or as hardware does; returns whether that has a meaning, which it
// has on simulated devices only.
extern "C" __attribute__((visibility("default"))) int gpukernel_memory_check(int strict) {
    shim::said_strict = strict != 0;
    shim::Process* const now = shim::instance.load();
    if (!now) return 1;
    bool simulated = false;
    for (auto& device : now->devices) {
        shim::introduce(*device);
        shim::allow_spares_of(*device);
        simulated |= std::string_view(device->facts.name).ends_with("(simulated)");
    }
    return simulated;
}

CUresult libcuda::initialised() { return shim::process() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }
CUresult libcuda::current_usable() {
    CUresult error = CUDA_SUCCESS;
    shim::current(error);
    return error;
}

}  // namespace gpukernel
