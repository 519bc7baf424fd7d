// Initialisation, devices and contexts: all answered in this process.
#include <algorithm>
#include <cstring>

#include "graph_memory.h"
#include "managed.h"
#include "request.h"
#include "virtual_memory.h"

using namespace gpukernel::shim;

namespace gpukernel::shim {

Device* device_at(CUdevice index) {
    Process* p = process();
    return p && index >= 0 && index < static_cast<int>(p->devices.size()) ? p->devices[index].get() : nullptr;
}

Context* context_of(CUcontext handle) {
    if (Process* p = process())
        for (auto& device : p->devices)
            if (reinterpret_cast<CUcontext>(device->primary.get()) == handle) return device->primary.get();
    return nullptr;
}

}  // namespace gpukernel::shim

#define GPUKERNEL_DEVICE(variable, index)              \
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED; \
    Device* const variable = device_at(index);         \
    if (!variable) return CUDA_ERROR_INVALID_DEVICE

CUresult CUDAAPI cuInit(unsigned int Flags) { return Flags ? CUDA_ERROR_INVALID_VALUE : initialise(); }

CUresult CUDAAPI cuDriverGetVersion(int* driverVersion) {
    if (!driverVersion) return CUDA_ERROR_INVALID_VALUE;
    *driverVersion =
        process() ? std::min<int>(process()->devices[0]->facts.driver_version, CUDA_VERSION) : CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(process()->devices.size());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
    GPUKERNEL_DEVICE(found, ordinal);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = found->index;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char* name, int len, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!name || len < 1) return CUDA_ERROR_INVALID_VALUE;
    std::strncpy(name, device->facts.name, len - 1);
    name[len - 1] = 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    *uuid = device->facts.uuid;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) { return cuDeviceGetUuid_v2(uuid, dev); }

CUresult CUDAAPI cuDeviceTotalMem(size_t* bytes, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = device->facts.memory_bytes;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!pi || attrib < 0 || attrib >= 256 || !device->facts.known[attrib]) return CUDA_ERROR_INVALID_VALUE;
    *pi = device->facts.attributes[attrib];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
    *major = device->facts.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
    *minor = device->facts.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!pciBusId || len < 1) return CUDA_ERROR_INVALID_VALUE;
    std::strncpy(pciBusId, device->facts.bus_id, len - 1);
    pciBusId[len - 1] = 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice* dev, const char* pciBusId) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    gpukernel::BusPlace wanted, place;
    if (!dev || !gpukernel::bus_place(pciBusId, wanted)) return CUDA_ERROR_INVALID_VALUE;
    for (const auto& device : process()->devices)
        if (gpukernel::bus_place(device->facts.bus_id, place) && place == wanted)
            return *dev = device->index, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!canAccessPeer || !device_at(peerDev)) return CUDA_ERROR_INVALID_VALUE;
    *canAccessPeer = 0;
    return CUDA_SUCCESS;
}

// --- contexts: the worker owns one context for the lease; here it is only a name ---

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
    *pctx = reinterpret_cast<CUcontext>(device->primary.get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    std::lock_guard lock(device->connection.mutex);
    if (device->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    --device->retained;
    return CUDA_SUCCESS;
}

// Everything that this program has on the device ends; its pinned memory, which is its own, does not.
CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    return end_ranges(*device, [&] {
        return end_managed(device->connection, [&] {
            return end_graph_memory(*device, [&] {
                Request request(device->connection, gpukernel::wire::Special::reset);
                device->retained = 0;
                return request.send();
            });
        });
    });
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
    GPUKERNEL_DEVICE(device, dev);
    device->primary->flags = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
    GPUKERNEL_DEVICE(device, dev);
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    *flags = device->primary->flags;
    *active = device->retained > 0;
    return CUDA_SUCCESS;
}

// A created context is the lease's one context under the same handle: programs that make one each get along.
CUresult CUDAAPI cuCtxCreate(CUcontext* pctx, unsigned int flags, CUdevice dev) {
    CUresult error = cuDevicePrimaryCtxRetain(pctx, dev);
    return error == CUDA_SUCCESS ? cuCtxPushCurrent(*pctx) : error;
}

CUresult CUDAAPI cuCtxDestroy(CUcontext ctx) {
    Context* context = context_of(ctx);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context_stack.empty() && context_stack.back() == context) context_stack.pop_back();
    return cuDevicePrimaryCtxRelease(context->device->index);
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext ctx) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    Context* context = context_of(ctx);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack.push_back(context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext* pctx) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    if (context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (pctx) *pctx = reinterpret_cast<CUcontext>(context_stack.back());
    context_stack.pop_back();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!ctx) {
        if (!context_stack.empty()) context_stack.pop_back();
        return CUDA_SUCCESS;
    }
    Context* context = context_of(ctx);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (context_stack.empty())
        context_stack.push_back(context);
    else
        context_stack.back() = context;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* pctx) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    *pctx = context_stack.empty() ? nullptr : reinterpret_cast<CUcontext>(context_stack.back());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
    GPUKERNEL_CURRENT(connection);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = context_stack.back()->device->index;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetFlags(unsigned int* flags) {
    GPUKERNEL_CURRENT(connection);
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = context_stack.back()->flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetId(CUcontext ctx, unsigned long long* ctxId) {
    GPUKERNEL_CURRENT(connection);
    Context* context = ctx ? context_of(ctx) : context_stack.back();
    if (!context || !ctxId) return CUDA_ERROR_INVALID_CONTEXT;
    *ctxId = reinterpret_cast<unsigned long long>(context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext ctx, unsigned int* version) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache* pconfig) {
    GPUKERNEL_CURRENT(connection);
    if (!pconfig) return CUDA_ERROR_INVALID_VALUE;
    *pconfig = CU_FUNC_CACHE_PREFER_NONE;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache config) {
    GPUKERNEL_CURRENT(connection);
    return CUDA_SUCCESS;  // a preference
}
CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
    GPUKERNEL_CURRENT(connection);
    if (leastPriority) *leastPriority = 0;
    if (greatestPriority) *greatestPriority = 0;  // priorities end at the slice's edge
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuProfilerInitialize(const char* configFile, const char* outputFile,
                                      CUoutput_mode outputMode) {
    return CUDA_ERROR_NOT_SUPPORTED;  // as of CUDA 12
}
CUresult CUDAAPI cuProfilerStart(void) { return process() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }
CUresult CUDAAPI cuProfilerStop(void) { return process() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }
CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
    if (!mode) return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}
