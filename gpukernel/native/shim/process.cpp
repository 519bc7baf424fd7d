#include "process.h"

#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <unordered_set>

#include "request.h"
#include "wire/lease_file.h"

namespace gpukernel {

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

namespace shim {

thread_local std::vector<Context*> context_stack;

namespace {
std::mutex initialising;
std::atomic<Process*> instance{nullptr};
std::atomic<bool> forked{false};

// Tells the worker who this is, for those who ask what runs on the slice.
void introduce(Device& device) {
    std::string command(wire::MAX_COMMAND, 0);
    std::ifstream file("/proc/self/cmdline");
    command.resize(file.read(command.data(), command.size()).gcount());
    Request request(device.connection, wire::Special::introduce);
    request.put<uint32_t>(::getpid());
    request.text(command);
    request.put(device.connection.key());
    request.queue();
}

bool learn(Device& device) {
    Request request(device.connection, wire::Special::device);
    if (request.send_into(&device.facts, sizeof device.facts) != CUDA_SUCCESS) return false;
    device.facts.name[sizeof device.facts.name - 1] = 0;
    device.facts.bus_id[sizeof device.facts.bus_id - 1] = 0;
    if (device.facts.keeps_images)
        device.connection.name_images({reinterpret_cast<const char*>(device.facts.image_salt), 32});
    return true;
}

void in_forked_child() {
    // The socket is the parent's and threads are gone.  CUDA cannot be used after fork; a child that never
    // used it may start anew.
    Process* parents = instance.load();
    if (!parents) return;
    forked = true;
    for (auto& device : parents->devices) device->connection.abandon();
}
}  // namespace

CUresult initialise() {
    if (forked) return CUDA_ERROR_NOT_INITIALIZED;
    if (process()) return CUDA_SUCCESS;
    std::lock_guard lock(initialising);
    if (process()) return CUDA_SUCCESS;
    static const int registered = ::pthread_atfork(nullptr, nullptr, in_forked_child);
    (void)registered;
    const char* path = std::getenv("GPUKERNEL_LEASE_FILE");
    wire::LeaseFile lease;
    std::string error = "this process has no slice: start it with 'gpukernel run', or in a slice kernel";
    auto fresh = std::make_unique<Process>();
    if (path && *path && wire::read_lease_file(path, lease, error)) {
        for (const auto& endpoints : lease.devices) {
            auto device = std::make_unique<Device>();
            device->index = static_cast<int>(fresh->devices.size());
            if (!device->connection.open(endpoints, lease.secret, error)) {
                error = "the slice cannot be reached: " + error;
                break;
            }
            introduce(*device);
            if (!learn(*device)) return GONE;
            device->primary = std::make_unique<Context>(Context{device.get()});
            fresh->devices.push_back(std::move(device));
        }
        if (!lease.devices.empty() && fresh->devices.size() == lease.devices.size()) {
            instance.store(
                fresh.release());  // for as long as the process lives: threads may be inside at exit
            return CUDA_SUCCESS;
        }
    }
    static bool told = false;
    if (!std::exchange(told, true)) complain(error + ".");
    // A device that connected keeps its flushing thread, which refers to it.
    for (auto& device : fresh->devices) device.release();
    return CUDA_ERROR_NO_DEVICE;
}

Process* process() {
    return forked.load(std::memory_order_relaxed) ? nullptr : instance.load(std::memory_order_acquire);
}

Connection* current(CUresult& error) {
    if (!process()) {
        error = CUDA_ERROR_NOT_INITIALIZED;
        return nullptr;
    }
    if (calling_host) {  // what it asked for might wait for its stream
        error = CUDA_ERROR_NOT_PERMITTED;
        return nullptr;
    }
    if (context_stack.empty()) {
        error = CUDA_ERROR_INVALID_CONTEXT;
        return nullptr;
    }
    return &context_stack.back()->device->connection;
}

Connection* default_device(CUresult& error) {
    if (!context_stack.empty() || calling_host) return current(error);
    if (!process()) {
        error = CUDA_ERROR_NOT_INITIALIZED;
        return nullptr;
    }
    return &process()->devices.front()->connection;
}

}  // namespace shim
}  // namespace gpukernel
