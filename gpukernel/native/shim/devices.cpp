// Initialisation, devices and contexts; this process answers all of them itself.
#include <cuda_newest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "shim/frameworks.h"
#include "shim/graphs/capture.h"
#include "shim/graphs/graphs.h"
#include "shim/graphs/memory.h"
#include "shim/managed/managed.h"
#include "shim/memory/memory.h"
#include "shim/memory/virtual_memory.h"
#include "shim/modules/libraries.h"
#include "shim/transport/request.h"

using namespace gpukernel::shim;

namespace gpukernel::shim {

Device* device_at(CUdevice number) {
    Process* p = process();
    return p && number >= 0 && number < static_cast<int>(p->devices.size()) ? p->devices[number].get()
                                                                            : nullptr;
}

namespace {
// The contexts that the program created.  Those that it has destroyed stay: other threads may have them
// current, and are told so.
struct Created {
    std::mutex mutex;
    std::unordered_map<CUcontext, std::unique_ptr<Context>> contexts;
};
Created& created() {
    static Created* const instance = new Created;
    return *instance;
}
Context* created_context(CUcontext handle) {
    std::lock_guard lock(created().mutex);
    const auto it = created().contexts.find(handle);
    if (it == created().contexts.end() || it->second->destroyed) return nullptr;
    Context* const context = it->second.get();
    return device_at(context->device->index) == context->device ? context : nullptr;  // of this slice
}
}  // namespace

Context* context_of(CUcontext handle) {
    Process* const p = process();
    if (!p) return nullptr;
    for (auto& device : p->devices)
        if (device->primary.get() == handle) return handle;
    return created_context(handle);
}

}  // namespace gpukernel::shim

namespace gpukernel::libcuda {

namespace {
const shim::Device& mine(const Device& device) { return static_cast<const shim::Device&>(device); }
}  // namespace

int device_count() { return static_cast<int>(shim::process()->devices.size()); }
Device* device_at(CUdevice number) { return shim::device_at(number); }
CUdevice number_of(const Device& device) { return mine(device).index; }
std::string name_of(const Device& device) { return mine(device).facts.name; }
CUuuid uuid_of(const Device& device) { return mine(device).facts.uuid; }
uint64_t total_memory(const Device& device) { return mine(device).facts.memory_bytes; }
std::string bus_id_of(const Device& device) { return mine(device).facts.bus_id; }
bool attribute_of(const Device& device, CUdevice_attribute attribute, int& value) {
    const wire::DeviceFacts& facts = mine(device).facts;
    const int number = attribute;  // programs ask for any, also for those that the enumeration lacks
    if (number < 0 || number >= 256 || !facts.known[number]) return false;
    value = facts.attributes[number];
    return true;
}

bool is_context(CUcontext handle) { return shim::context_of(handle) != nullptr; }
Device& device_of(CUcontext context) { return *context->device; }
unsigned& flags_of(CUcontext context) { return context->flags; }
PrimaryContext primary_context(Device& device) {
    shim::Device& its = static_cast<shim::Device&>(device);
    return {its.primary.get(), its.connection.mutex, its.retained};
}

}  // namespace gpukernel::libcuda

CUresult CUDAAPI cuInit(unsigned int Flags) {
    if (Flags) return CUDA_ERROR_INVALID_VALUE;
    tell_frameworks();
    return initialise();
}

CUresult CUDAAPI cuDriverGetVersion(int* driverVersion) {
    if (!driverVersion) return CUDA_ERROR_INVALID_VALUE;
    // The driver's own, as far as this library has its functions.
    *driverVersion = GPUKERNEL_CUDA_VERSION;
    if (process()) *driverVersion = std::min(process()->devices[0]->facts.driver_version, *driverVersion);
    return CUDA_SUCCESS;
}

// --- contexts: each is a name for the one that the worker has for the lease ---

CUresult CUDAAPI cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attrib, CUdevice srcDevice,
                                         CUdevice dstDevice) {
    int can = 0;
    CUresult error = cuDeviceCanAccessPeer(&can, srcDevice, dstDevice);
    if (error == CUDA_SUCCESS && (!value || srcDevice == dstDevice)) error = CUDA_ERROR_INVALID_VALUE;
    if (error == CUDA_SUCCESS) *value = 0;
    return error;
}
CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
    return process() ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED : CUDA_ERROR_NOT_INITIALIZED;
}
CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peerContext) {
    return process() ? CUDA_ERROR_PEER_ACCESS_NOT_ENABLED : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    if (!device->connection.alive()) return GONE;
    std::lock_guard lock(device->connection.mutex);
    ++device->retained;
    *pctx = device->primary.get();
    return CUDA_SUCCESS;
}

// Releases everything that this program has on the device, but not its pinned memory, which is its own.
CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    CUresult earlier = CUDA_SUCCESS;
    const auto reset = [&] {
        Request request(device->connection, gpukernel::wire::ResetRequest{});
        return request.send();
    };
    const CUresult result = end_ranges(*device, [&] {
        return end_managed(device->connection, [&] {
            return end_graph_memory(*device, [&] {
                forget_spares(device->connection);
                device->retained = 0;
                forget_opened(device->connection);
                forget_exports(*device);
                forget_conditions(device->connection);
                const CUresult first = reset();
                if (first == CUDA_SUCCESS || first == GONE) return first;
                earlier = first;  // perhaps of an asynchronous call, and then all has ended
                return reset();
            });
        });
    });
    forget_names(device->connection);
    return result == CUDA_SUCCESS ? earlier : result;
}

CUresult CUDAAPI cuCtxCreate(CUcontext* pctx, unsigned int flags, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!pctx || (flags & ~unsigned{CU_CTX_FLAGS_MASK})) return CUDA_ERROR_INVALID_VALUE;
    if (!device->connection.alive()) return GONE;
    auto context = std::make_unique<Context>(device, flags);
    *pctx = context.get();
    {
        std::lock_guard lock(created().mutex);
        created().contexts.emplace(*pctx, std::move(context));
    }
    return cuCtxPushCurrent(*pctx);
}

// What was made in the context stays until the program frees it or ends; work that uses it is waited for.
CUresult CUDAAPI cuCtxDestroy(CUcontext ctx) {
    if (CUresult error = gpukernel::libcuda::initialised(); error != CUDA_SUCCESS) return error;
    Context* const context = created_context(ctx);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;  // a primary one is released
    CUresult result = CUDA_SUCCESS;
    if (!capturing()) {
        context_stack().push_back(context);
        result = cuCtxSynchronize();
        context_stack().pop_back();
    }
    {
        std::lock_guard lock(created().mutex);
        if (context->destroyed.exchange(true)) return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!context_stack().empty() && context_stack().back() == context) context_stack().pop_back();
    return result;
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
    GPUKERNEL_CURRENT(connection);
    if (leastPriority) *leastPriority = 0;
    if (greatestPriority) *greatestPriority = 0;  // priorities end at the slice's edge
    return CUDA_SUCCESS;
}
