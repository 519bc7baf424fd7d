// Initialisation, devices, contexts (driver API chapters "Initialization", "Device Management", "Context
// Management").
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "cuda_driver.h"
#include "entry_points.h"
#include "machine.h"
#include "state.h"

using namespace gpukernel::simgpu;

namespace {
std::atomic<Driver*> instance{nullptr};
std::mutex init_mutex;

Device* device_at(CUdevice index) {
    Driver* d = driver();
    return d && index >= 0 && index < static_cast<int>(d->devices.size()) ? d->devices[index].get() : nullptr;
}

#define GPUKERNEL_DEVICE(variable, index)             \
    if (!driver()) return CUDA_ERROR_NOT_INITIALIZED; \
    Device* const variable = device_at(index);        \
    if (!variable) return CUDA_ERROR_INVALID_DEVICE

int attribute_of(const Device& device, CUdevice_attribute attribute, bool& known) {
    const Model& m = *device.model;
    known = true;
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
            return 1024;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
            return 1024;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
            return 1024;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
            return 64;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
            return 2147483647;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
            return 65535;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
            return 65535;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
            return 48 << 10;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
            return m.shared_per_block_optin;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
            return m.shared_per_multiprocessor;
        case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK:
            return m.major >= 8 ? 1024 : 0;
        case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY:
            return 64 << 10;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
            return 32;
        case CU_DEVICE_ATTRIBUTE_MAX_PITCH:
            return 2147483647;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
            return 65536;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
            return 65536;
        case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
            return m.clock_khz;
        case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
            return m.memory_clock_khz;
        case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH:
            return m.bus_bits;
        case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE:
            return m.l2_bytes;
        case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
            return 512;
        case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT:
            return 32;
        case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT:
            return 512;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
            return m.multiprocessors;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
            return m.threads_per_multiprocessor;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
            return m.blocks_per_multiprocessor;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
            return m.major;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
            return m.minor;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
            return CU_COMPUTEMODE_DEFAULT;
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
        case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
        case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
            return 1;
        case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
            return m.major >= 9;
        case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
            return 2;
        case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
            return device.place + 1;
        case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
            return m.minor == 5 ? 32 : 2;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
            return 1;
        case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
            return 1;
        default:
            if (int value; texture_limit(attribute, value)) return value;
            known = attribute > 0 && attribute < CU_DEVICE_ATTRIBUTE_MAX;  // everything that is lacking
            return 0;
    }
}

std::atomic<bool> forked{false};

// As on a GPU: contexts do not pass to a child, and a process that has them cannot begin anew.
void in_forked_child() {
    if (instance.exchange(nullptr)) forked = true;
}

// From its first context on a process is one of the device's.
void be_listed(Device* device) {
    std::lock_guard lock(device->mutex);
    if (device->listed) return;
    device->listed = true;
    if (Use* use = list_this_process(device->place)) {
        use->has_context = 1;
        device->memory->tell(use->bytes);
        device->busy_nanoseconds = &use->busy_nanoseconds;
    }
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
namespace simgpu {
Driver* driver() { return instance.load(std::memory_order_acquire); }
}  // namespace simgpu
}  // namespace gpukernel

CUresult CUDAAPI cuInit(unsigned int Flags) {
    if (Flags) return CUDA_ERROR_INVALID_VALUE;
    if (forked) return CUDA_ERROR_NOT_INITIALIZED;
    if (driver()) return CUDA_SUCCESS;
    std::lock_guard lock(init_mutex);
    if (driver()) return CUDA_SUCCESS;
    static const int registered = pthread_atfork(nullptr, nullptr, in_forked_child);
    (void)registered;
    const char* specification = std::getenv("GPUKERNEL_SIMGPU");
    std::string unknown;
    std::vector<const Model*> models =
        models_from(specification && *specification ? specification : "v100", unknown);
    if (models.empty()) {
        log_line(
            "GPUKERNEL_SIMGPU names '" + unknown +
            "'; known are v100, v100-16gb, t4, a100, a100-80gb, h100, h200, each as MODEL or MODEL:COUNT");
        return CUDA_ERROR_NO_DEVICE;
    }
    const std::vector<MachineDevice> places = visible(models);
    if (places.empty()) return CUDA_ERROR_NO_DEVICE;
    auto* fresh = new Driver;  // lives as long as the process: threads may still be inside at exit
    for (const auto& [place, model] : places) {
        auto device = std::make_unique<Device>();
        device->place = place;
        device->index = static_cast<int>(fresh->devices.size());
        device->model = model;
        device->memory = make_device_memory(model->memory_bytes);
        auto primary = std::make_unique<Context>(device.get(), true, 0);
        fresh->contexts.add(primary.get());
        fresh->primaries.push_back(std::move(primary));
        fresh->devices.push_back(std::move(device));
    }
    instance.store(fresh, std::memory_order_release);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDriverGetVersion(int* driverVersion) {
    if (!driverVersion) return CUDA_ERROR_INVALID_VALUE;
    *driverVersion = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
    if (!driver()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(driver()->devices.size());
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
    std::string text(device->model->name);
    std::strncpy(name, text.c_str(), len - 1);
    name[len - 1] = 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!uuid) return CUDA_ERROR_INVALID_VALUE;
    *uuid = uuid_of(device->place);
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) { return cuDeviceGetUuid_v2(uuid, dev); }

CUresult CUDAAPI cuDeviceTotalMem(size_t* bytes, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!bytes) return CUDA_ERROR_INVALID_VALUE;
    *bytes = device->memory->capacity();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    bool known = false;
    if (!pi) return CUDA_ERROR_INVALID_VALUE;
    int value = attribute_of(*device, attrib, known);
    if (!known) return CUDA_ERROR_INVALID_VALUE;
    *pi = value;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
    *major = device->model->major, *minor = device->model->minor;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!pciBusId || len < 13) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(pciBusId, len, "0000:%02X:00.0", device->place + 1);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice* dev, const char* pciBusId) {
    if (!driver()) return CUDA_ERROR_NOT_INITIALIZED;
    gpukernel::BusPlace wanted;
    if (!dev || !gpukernel::bus_place(pciBusId, wanted)) return CUDA_ERROR_INVALID_VALUE;
    for (const auto& device : driver()->devices)
        if (gpukernel::BusPlace{0, static_cast<unsigned>(device->index) + 1, 0} == wanted)
            return *dev = device->index, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!canAccessPeer || !device_at(peerDev)) return CUDA_ERROR_INVALID_VALUE;
    *canAccessPeer = 0;
    return CUDA_SUCCESS;
}

// --- contexts ---

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    be_listed(device);
    std::lock_guard lock(device->mutex);
    ++device->retained;
    *pctx = reinterpret_cast<CUcontext>(driver()->primaries[dev].get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    std::lock_guard lock(device->mutex);
    if (device->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    --device->retained;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    return device->synchronize();
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
    GPUKERNEL_DEVICE(device, dev);
    driver()->primaries[device->index]->flags = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
    GPUKERNEL_DEVICE(device, dev);
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    *flags = driver()->primaries[device->index]->flags;
    *active = device->retained > 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxCreate(CUcontext* pctx, unsigned int flags, CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    be_listed(device);
    auto* context = driver()->contexts.add(new Context{device, false, flags});
    context_stack.push_back(context);
    *pctx = reinterpret_cast<CUcontext>(context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxDestroy(CUcontext ctx) {
    auto* context = driver() ? driver()->contexts.get<Context>(ctx) : nullptr;
    if (!context || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    schedule().wait_all(*context->device, context->legacy.get());
    context->device->told();
    driver()->contexts.remove(context);
    if (current_context() == context) context_stack.pop_back();
    delete context;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext ctx) {
    auto* context = driver() ? driver()->contexts.get<Context>(ctx) : nullptr;
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack.push_back(context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext* pctx) {
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (pctx) *pctx = reinterpret_cast<CUcontext>(context_stack.back());
    context_stack.pop_back();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx) {
    if (!driver()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!ctx) {
        if (!context_stack.empty()) context_stack.pop_back();
        return CUDA_SUCCESS;
    }
    auto* context = driver()->contexts.get<Context>(ctx);
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (context_stack.empty()) context_stack.push_back(context);
    context_stack.back() = context;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* pctx) {
    if (!driver()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    *pctx = reinterpret_cast<CUcontext>(current_context());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
    if (!driver()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!current_context()) return CUDA_ERROR_INVALID_CONTEXT;
    *device = current_context()->device->index;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetFlags(unsigned int* flags) {
    GPUKERNEL_HERE(device);
    *flags = current_context()->flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetId(CUcontext ctx, unsigned long long* ctxId) {
    if (!driver()) return CUDA_ERROR_NOT_INITIALIZED;
    auto* context = ctx ? driver()->contexts.get<Context>(ctx) : current_context();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    *ctxId = reinterpret_cast<unsigned long long>(context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext ctx, unsigned int* version) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void) {
    GPUKERNEL_HERE(device);
    schedule().wait_all(*device, current_context()->legacy.get());
    return device->told();
}

CUresult CUDAAPI cuCtxGetLimit(size_t* pvalue, CUlimit limit) {
    GPUKERNEL_HERE(device);
    if (!pvalue) return CUDA_ERROR_INVALID_VALUE;
    if (limit < 0 || limit >= CU_LIMIT_MAX || limit >= 16) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *pvalue = device->limits[limit];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
    GPUKERNEL_HERE(device);
    if (limit < 0 || limit >= CU_LIMIT_MAX || limit >= 16) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    device->limits[limit] = value;
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE) device->memory->limit_heap(value);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache* pconfig) {
    GPUKERNEL_HERE(device);
    *pconfig = CU_FUNC_CACHE_PREFER_NONE;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache config) { return here().error; }

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
    GPUKERNEL_HERE(device);
    if (leastPriority) *leastPriority = 0;
    if (greatestPriority) *greatestPriority = -5;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuProfilerInitialize(const char* configFile, const char* outputFile,
                                      CUoutput_mode outputMode) {
    return CUDA_ERROR_NOT_SUPPORTED;  // as of CUDA 12
}
CUresult CUDAAPI cuProfilerStart(void) { return here().error; }
CUresult CUDAAPI cuProfilerStop(void) { return here().error; }
