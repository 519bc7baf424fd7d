#include "process.h"

#include <pthread.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <unordered_set>

#include "request.h"

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

struct LeaseFile {
    std::string secret, state, reason;
    std::vector<std::vector<std::string>> devices;
};

bool read_lease_file(const char* path, LeaseFile& lease, std::string& error) {
    std::ifstream file(path);
    if (!file) {
        error = std::string("the lease file ") + path + " cannot be read";
        return false;
    }
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string key;
        words >> key;
        if (key == "secret") words >> lease.secret;
        if (key == "state") words >> lease.state;
        if (key == "reason") std::getline(words >> std::ws, lease.reason);
        if (key == "device") {
            std::vector<std::string> endpoints;
            int number;
            words >> number;
            for (std::string endpoint; words >> endpoint;) endpoints.push_back(endpoint);
            lease.devices.push_back(std::move(endpoints));
        }
    }
    if (lease.state != "live") {
        error = lease.reason.empty() ? "the lease of this slice is not live" : lease.reason;
        return false;
    }
    return true;
}

bool learn(Device& device) {
    Request request(device.connection, wire::Special::device);
    if (request.send_into(&device.facts, sizeof device.facts) != CUDA_SUCCESS) return false;
    device.facts.name[sizeof device.facts.name - 1] = 0;
    device.facts.bus_id[sizeof device.facts.bus_id - 1] = 0;
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
    LeaseFile lease;
    std::string error = "this process has no slice: start it with 'gpukernel run', or in a slice kernel";
    auto fresh = std::make_unique<Process>();
    if (path && *path && read_lease_file(path, lease, error)) {
        for (const auto& endpoints : lease.devices) {
            auto device = std::make_unique<Device>();
            device->index = static_cast<int>(fresh->devices.size());
            if (!device->connection.open(endpoints, lease.secret, error)) {
                error = "the slice cannot be reached: " + error;
                break;
            }
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
    if (context_stack.empty()) {
        error = CUDA_ERROR_INVALID_CONTEXT;
        return nullptr;
    }
    return &context_stack.back()->device->connection;
}

Connection* default_device(CUresult& error) {
    if (!context_stack.empty()) return current(error);
    if (!process()) {
        error = CUDA_ERROR_NOT_INITIALIZED;
        return nullptr;
    }
    return &process()->devices.front()->connection;
}

}  // namespace shim
}  // namespace gpukernel
