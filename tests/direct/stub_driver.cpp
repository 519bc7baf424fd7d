// Stands where NVIDIA's libcuda.so.1 would: what the simulated one lacks (pools that reserve in large pieces,
// virtual memory, arrays, export tables, functions newer than cuda.h), with books that a test can read.
// With -DSTUB_NVML it is the libnvidia-ml.so.1 beside it.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#define EXPORT extern "C" __attribute__((visibility("default")))
using u64 = unsigned long long;
constexpr u64 MIB = 1 << 20;

#ifdef STUB_NVML
// The context of the stub takes 20 MiB, of which nobody asks in bytes.
struct Info {
    unsigned pid;
    u64 used;
    unsigned gpu, compute;
};
EXPORT int nvmlInit_v2() { return 0; }
EXPORT int nvmlInitWithFlags(unsigned) { return 0; }
EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
    *device = const_cast<char*>("device");
    return std::strncmp(uuid, "GPU-", 4) == 0 ? 0 : 6;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, Info* infos) {
    void* driver = ::dlopen(std::getenv("GPUKERNEL_DRIVER"), RTLD_NOW | RTLD_NOLOAD);
    const auto bytes = reinterpret_cast<u64 (*)()>(::dlsym(driver, "stub_bytes"));
    if (*count < 2) return *count = 2, 7;  // the array is too small
    infos[0] = {1, 77 * MIB, 0, 0};
    infos[1] = {unsigned(::getpid()), bytes() + 20 * MIB, 0, 0};
    *count = 2;
    return 0;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned, void** device) {
    return nvmlDeviceGetHandleByUUID("GPU-", device);
}
EXPORT const char* nvmlErrorString(int) { return "an error"; }
// Two samples of process 1 the first time it is asked, and none later.
struct Sample {
    unsigned pid;
    u64 time;
    unsigned sm, memory, encoder, decoder;
};
EXPORT int nvmlDeviceGetProcessUtilization(void*, Sample* samples, unsigned* count, u64 since) {
    static bool told = false;
    if (told) return 6;  // not found
    if (*count < 2) return *count = 2, 7;
    told = true;
    *count = 2;
    samples[0] = {1, since + 500'000, 100, 0, 0, 0};
    samples[1] = {1, since + 1'000'000, 50, 0, 0, 0};
    return 0;
}
#else
namespace {
u64 held = 0, next = 0x1000000, current = 0;
std::map<u64, u64> blocks;                     // linear memory and arrays
std::map<u64, std::pair<u64, int> > physical;  // by handle: bytes, how often it is held (mapped or retained)
std::map<u64, u64> mapped;                     // address to handle
u64 pool_reserved = 0, pool_used = 0;
std::map<u64, u64> pool_blocks;

int allocate(u64* handle, u64 bytes) {
    *handle = next += 1 << 20;
    blocks[*handle] = bytes;
    held += bytes;
    return 0;
}
int release(u64 handle) {
    const auto it = blocks.find(handle);
    if (it == blocks.end()) return 1;
    held -= it->second;
    blocks.erase(it);
    return 0;
}
void drop(u64 handle) {
    auto& [bytes, users] = physical[handle];
    if (--users == 0) held -= bytes, physical.erase(handle);
}
}  // namespace

EXPORT u64 stub_bytes() { return held; }

EXPORT int cuInit(unsigned) { return 0; }
EXPORT int cuDriverGetVersion(int* version) { return *version = 13010, 0; }
EXPORT int cuDeviceGetCount(int* count) { return *count = 1, 0; }
EXPORT int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, ordinal ? 101 : 0; }
EXPORT int cuDeviceGetUuid_v2(unsigned char* uuid, int) {
    for (int i = 0; i < 16; ++i) uuid[i] = i;
    return 0;
}
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int) {
    return *value = attribute == 115, 0;  // memory pools are supported
}
EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = 1000 * MIB, 0; }
EXPORT int cuDevicePrimaryCtxRetain(u64* context, int) { return current = *context = 42, 0; }
EXPORT int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
EXPORT int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
    return *flags = 0, *active = 1, 0;
}
EXPORT int cuDevicePrimaryCtxReset_v2(int) {
    blocks.clear();
    return held = 0, 0;
}
EXPORT int cuCtxGetCurrent(u64* context) { return *context = current, 0; }
EXPORT int cuCtxSetCurrent(u64 context) { return current = context, 0; }
EXPORT int cuCtxGetDevice(int* device) { return *device = 0, 0; }
EXPORT int cuMemGetInfo_v2(size_t* free, size_t* total) {
    return *total = 1000 * MIB, *free = *total - held, 0;
}

EXPORT int cuMemAlloc_v2(u64* address, size_t bytes) { return allocate(address, bytes); }
EXPORT int cuMemFree_v2(u64 address) { return release(address); }
EXPORT int cuMemAllocManaged(u64* address, size_t bytes, unsigned) { return allocate(address, bytes); }
// Calls its own exported function, as a library may.
EXPORT int cuMemAllocPitch_v2(u64* address, size_t* pitch, size_t width, size_t height, unsigned) {
    *pitch = (width + 511) / 512 * 512;
    return cuMemAlloc_v2(address, *pitch * height);
}

struct Array3 {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
EXPORT int cuArray3DCreate_v2(u64* array, const Array3* a) {
    return allocate(array,
                    a->width * (a->height ? a->height : 1) * (a->depth ? a->depth : 1) * 4 * a->channels);
}
EXPORT int cuArrayDestroy(u64 array) { return release(array); }

// --- virtual memory ---
EXPORT int cuMemCreate(u64* handle, size_t size, const void*, u64) {
    *handle = next += 16;
    physical[*handle] = {size, 1};
    held += size;
    return 0;
}
EXPORT int cuMemRelease(u64 handle) { return drop(handle), 0; }
EXPORT int cuMemMap(u64 address, size_t, size_t, u64 handle, u64) {
    ++physical[handle].second;
    return mapped[address] = handle, 0;
}
EXPORT int cuMemUnmap(u64 address, size_t) {
    drop(mapped[address]);
    return mapped.erase(address), 0;
}
EXPORT int cuMemRetainAllocationHandle(u64* handle, u64 address) {
    *handle = mapped[address];
    return ++physical[*handle].second, 0;
}

// --- pools: reserved from the device in pieces of 32 MiB ---
EXPORT int cuDeviceGetMemPool(u64* pool, int) { return *pool = 7, 0; }
EXPORT int cuMemPoolGetAttribute(u64, int attribute, u64* value) {
    return *value = attribute == 5 ? pool_reserved : pool_used, 0;
}
EXPORT int cuMemPoolTrimTo(u64, size_t keep) {
    while (pool_reserved >= pool_used + 32 * MIB && pool_reserved >= keep + 32 * MIB)
        pool_reserved -= 32 * MIB, held -= 32 * MIB;
    return 0;
}
EXPORT int cuMemAllocAsync(u64* address, size_t bytes, void*) {
    for (; pool_reserved < pool_used + bytes; held += 32 * MIB) pool_reserved += 32 * MIB;
    *address = next += 1 << 20;
    pool_blocks[*address] = bytes;
    return pool_used += bytes, 0;
}
EXPORT int cuMemFreeAsync(u64 address, void*) {
    pool_used -= pool_blocks[address];
    return pool_blocks.erase(address), 0;
}
EXPORT int cuStreamSynchronize(void*) { return 0; }
EXPORT int cuStreamIsCapturing(void*, int* status) { return *status = 0, 0; }

// --- what programs that link the runtime statically ask ---
EXPORT int cuGetExportTable(const void** table, const unsigned char* id) {
    static const u64 secret[] = {16, 4711};
    *table = id[0] == 0x6b ? secret : nullptr;
    return *table ? 0 : 500;
}
namespace {
int newer_than_cuda_h(int x) { return x + 1; }
int not_the_exported_one(u64* address, size_t bytes) { return cuMemAlloc_v2(address, bytes); }
int third_version(u64*, size_t, int) { return 333; }
}  // namespace
EXPORT int cuGetProcAddress_v2(const char* symbol, void** function, int version, u64 flags, int* status) {
    *function = nullptr;
    if (!std::strcmp(symbol, "cuFromTheFuture"))
        *function = reinterpret_cast<void*>(newer_than_cuda_h);
    else if (!std::strcmp(symbol, "cuMemAlloc"))  // other pointers than dlsym gives
        *function = version >= 14000  ? reinterpret_cast<void*>(third_version)
                    : version >= 3020 ? reinterpret_cast<void*>(not_the_exported_one)
                                      : nullptr;
    else {
        const char* suffixes[] = {"_ptsz", "_ptds", "_v2", ""};
        for (int i = flags & 2 ? 0 : 2; i < 4 && !*function; ++i) {
            char name[128];
            std::snprintf(name, sizeof name, "%s%s", symbol, suffixes[i]);
            *function = ::dlsym(::dlopen(std::getenv("GPUKERNEL_DRIVER"), RTLD_NOW | RTLD_NOLOAD), name);
        }
    }
    if (status) *status = *function ? 0 : 1;
    return 0;
}
EXPORT int cuMemAllocAsync_ptsz(u64* address, size_t bytes, void* stream) {
    return cuMemAllocAsync(address, bytes, stream);
}
// Nine arguments, some in registers of floats: a jump leaves them all as they are.
EXPORT int cuMemcpy3D_v2(const void* a) { return a == reinterpret_cast<void*>(0x1234) ? 77 : 78; }
EXPORT int cuMemcpyPeerAsync(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f) {
    return a == 1 && b == 2 && c == 3 && d == 4 && e == 5 && f == 6 ? 55 : 56;
}
EXPORT int cuGraphAddKernelNode_v2(u64* a, u64 b, const u64* c, u64 d, const void* e) {
    return d == 4 ? 66 : 67;
}
#endif
