// Devices and their primary contexts.  As in the runtime, a call that needs a context uses the thread's
// current one, whoever made it, and else the primary context of the device that the thread chose.
#include <cstdio>
#include <mutex>

#include "cudart/runtime.h"

namespace gpukernel::cudart {

namespace {
thread_local int chosen = 0;
std::mutex mutex;
constexpr int DEVICES = 64;
CUcontext retained[DEVICES];

cudaError_t check(int device) {
    int count = 0;
    if (CUresult result = driver::cuDeviceGetCount(&count)) return done(result);
    return device >= 0 && device < count && device < DEVICES ? cudaSuccess : fail(cudaErrorInvalidDevice);
}
}  // namespace

CUresult initialise() {
    static std::atomic<bool> initialised{false};
    if (initialised.load(std::memory_order_acquire)) return CUDA_SUCCESS;
    const CUresult result = driver::cuInit(0);
    if (result == CUDA_SUCCESS) initialised.store(true, std::memory_order_release);
    return result;
}

CUresult primary_context(int device, CUcontext& context) {
    if (device < 0 || device >= DEVICES) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard lock(mutex);
    if (!retained[device]) {
        CUdevice handle;
        if (CUresult result = driver::cuDeviceGet(&handle, device)) return result;
        if (CUresult result = driver::cuDevicePrimaryCtxRetain(&retained[device], handle)) {
            retained[device] = nullptr;
            return result;
        }
    }
    context = retained[device];
    return CUDA_SUCCESS;
}

CUresult enter() {
    if (CUresult result = initialise()) return result;
    CUcontext context = nullptr;
    if (CUresult result = driver::cuCtxGetCurrent(&context)) return result;
    if (context) return CUDA_SUCCESS;
    if (CUresult result = primary_context(chosen, context)) return result;
    return driver::cuCtxSetCurrent(context);
}

int current_device() {
    CUcontext context = nullptr;
    CUdevice device;
    if (driver::cuCtxGetCurrent(&context) == CUDA_SUCCESS && context &&
        driver::cuCtxGetDevice_v2000(&device) == CUDA_SUCCESS)
        return device;
    return chosen;
}

}  // namespace gpukernel::cudart

using namespace gpukernel::cudart;

API cudaError_t cudaGetDeviceCount(int* count) {
    if (!count) return fail(cudaErrorInvalidValue);
    *count = 0;
    if (CUresult result = initialise()) return done(result);
    if (CUresult result = driver::cuDeviceGetCount(count)) return done(result);
    return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}

API cudaError_t cudaGetDevice(int* device) {
    if (!device) return fail(cudaErrorInvalidValue);
    if (CUresult result = initialise()) return done(result);
    *device = current_device();
    return cudaSuccess;
}

API cudaError_t cudaSetDevice(int device) {
    if (CUresult result = initialise()) return done(result);
    if (cudaError_t error = check(device)) return error;
    CUcontext context;
    if (CUresult result = primary_context(device, context)) return done(result);
    chosen = device;
    return done(driver::cuCtxSetCurrent(context));
}

#if MAJOR >= 12
API cudaError_t cudaInitDevice(int device, unsigned int device_flags, unsigned int flags) {
    if (CUresult result = initialise()) return done(result);
    if (cudaError_t error = check(device)) return error;
    if (flags & ~static_cast<unsigned>(cudaInitDeviceFlagsAreValid)) return fail(cudaErrorInvalidValue);
    if (flags & cudaInitDeviceFlagsAreValid)
        if (CUresult result = driver::cuDevicePrimaryCtxSetFlags(device, device_flags)) return done(result);
    CUcontext context;
    return done(primary_context(device, context));
}
#endif

API cudaError_t cudaSetDeviceFlags(unsigned int flags) {
    if (CUresult result = initialise()) return done(result);
    return done(driver::cuDevicePrimaryCtxSetFlags(current_device(), flags));
}

API cudaError_t cudaGetDeviceFlags(unsigned int* flags) {
    if (!flags) return fail(cudaErrorInvalidValue);
    if (CUresult result = initialise()) return done(result);
    int active;
    return done(driver::cuDevicePrimaryCtxGetState(current_device(), flags, &active));
}

API cudaError_t cudaDeviceReset(void) {
    if (CUresult result = initialise()) return done(result);
    const int device = current_device();
    int devices = 0;
    driver::cuDeviceGetCount(&devices);
    if (devices == 1) forget_images();  // else the driver loads them there again, and others keep theirs
    CUresult result;
    {
        std::lock_guard lock(mutex);
        driver::cuCtxSetCurrent(nullptr);
        if (retained[device]) driver::cuDevicePrimaryCtxRelease(device);
        retained[device] = nullptr;
        result = driver::cuDevicePrimaryCtxReset(device);
    }
    chosen = device;
    forget_errors();
    return done(result);
}

API cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
    if (CUresult result = initialise()) return done(result);
    return done(driver::cuDeviceGetPCIBusId(id, length, device));
}

API cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* id) {
    if (CUresult result = initialise()) return done(result);
    return done(driver::cuDeviceGetByPCIBusId(device, id));
}

API cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    if (CUresult result = initialise()) return done(result);
    if (!can) return fail(cudaErrorInvalidValue);
    if (cudaError_t error = check(device)) return error;
    if (cudaError_t error = check(peer)) return error;
    *can = 0;
    return device == peer ? cudaSuccess : done(driver::cuDeviceCanAccessPeer(can, device, peer));
}

API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
    if (CUresult result = enter()) return done(result);
    if (cudaError_t error = check(peer)) return error;
    CUcontext context;
    if (CUresult result = primary_context(peer, context)) return done(result);
    return done(driver::cuCtxEnablePeerAccess(context, flags));
}

API cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    if (CUresult result = enter()) return done(result);
    if (cudaError_t error = check(peer)) return error;
    CUcontext context;
    if (CUresult result = primary_context(peer, context)) return done(result);
    return done(driver::cuCtxDisablePeerAccess(context));
}

// Every device of a slice may be used; the order of preference is that of the lease.
API cudaError_t cudaSetValidDevices(int* devices, int length) {
    if (length < 0 || (length && !devices)) return fail(cudaErrorInvalidValue);
    if (CUresult result = initialise()) return done(result);
    for (int i = 0; i < length; ++i)
        if (cudaError_t error = check(devices[i])) return error;
    return length ? cudaSetDevice(devices[0]) : cudaSuccess;
}

// Shared memory has had one kind of bank since Maxwell; NVIDIA's runtime says so too.
API cudaError_t cudaDeviceGetSharedMemConfig(cudaSharedMemConfig* config) {
    if (!config) return fail(cudaErrorInvalidValue);
    *config = cudaSharedMemBankSizeFourByte;
    return cudaSuccess;
}
API cudaError_t cudaDeviceSetSharedMemConfig(cudaSharedMemConfig) { return cudaSuccess; }
API cudaError_t cudaFuncSetSharedMemConfig(const void*, cudaSharedMemConfig) { return cudaSuccess; }

API cudaError_t cudaRuntimeGetVersion(int* version) {
    if (!version) return fail(cudaErrorInvalidValue);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

// Without a driver its version is 0, and that is no error.
API cudaError_t cudaDriverGetVersion(int* version) {
    if (!version) return fail(cudaErrorInvalidValue);
    *version = 0;
    const CUresult result = driver::cuDriverGetVersion(version);
    return result == static_cast<CUresult>(cudaErrorInsufficientDriver) ? cudaSuccess : done(result);
}

// cuda_profiler_api.h declares these two.
API cudaError_t cudaProfilerStart(void) {
    if (CUresult result = enter()) return done(result);
    return done(driver::cuProfilerStart());
}
API cudaError_t cudaProfilerStop(void) {
    if (CUresult result = enter()) return done(result);
    return done(driver::cuProfilerStop());
}

#if MAJOR < 13
API cudaError_t cudaThreadSynchronize(void) { return cudaDeviceSynchronize(); }
API cudaError_t cudaThreadExit(void) { return cudaDeviceReset(); }
API cudaError_t cudaThreadGetLimit(size_t* value, cudaLimit limit) {
    return cudaDeviceGetLimit(value, limit);
}
API cudaError_t cudaThreadSetLimit(cudaLimit limit, size_t value) { return cudaDeviceSetLimit(limit, value); }
API cudaError_t cudaThreadGetCacheConfig(cudaFuncCache* config) { return cudaDeviceGetCacheConfig(config); }
API cudaError_t cudaThreadSetCacheConfig(cudaFuncCache config) { return cudaDeviceSetCacheConfig(config); }
#endif
