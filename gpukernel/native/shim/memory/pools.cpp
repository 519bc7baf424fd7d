// Memory pools (driver API chapter "Stream Ordered Memory Allocator").  All pools of a program share the
// lease's memory, which the worker manages as one pool; a pool is a handle with attributes of its own.
#include <map>
#include <memory>

#include "shim/transport/request.h"

using namespace gpukernel::shim;

namespace {
struct Pool {
    Device* device;
    bool always_there;  // the device's default pool: cannot be destroyed
    std::map<int, uint64_t> settings{{CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1},
                                     {CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 1},
                                     {CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1},
                                     {CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0}};
};

std::mutex pools_mutex;
std::map<const void*, std::unique_ptr<Pool>> pools;
std::map<const Device*, Pool*> default_pools, current_pools;

// Under pools_mutex:
Pool* make(Device* device, bool always_there) {
    auto pool = std::make_unique<Pool>(Pool{device, always_there});
    Pool* const made = pool.get();
    pools[made] = std::move(pool);
    return made;
}
Pool* default_pool(Device* device) {
    Pool*& pool = default_pools[device];
    if (!pool) pool = make(device, true);
    return pool;
}
Pool* find(CUmemoryPool handle) {
    auto it = pools.find(handle);
    return it == pools.end() ? nullptr : it->second.get();
}
}  // namespace

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* pool_out, CUdevice dev) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    Device* const device = device_at(dev);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (!pool_out) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(pools_mutex);
    *pool_out = reinterpret_cast<CUmemoryPool>(default_pool(device));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice dev) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    Device* const device = device_at(dev);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(pools_mutex);
    Pool* const current = current_pools[device];
    *pool = reinterpret_cast<CUmemoryPool>(current ? current : default_pool(device));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    Device* const device = device_at(dev);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard lock(pools_mutex);
    Pool* const found = find(pool);
    if (!found || found->device != device) return CUDA_ERROR_INVALID_VALUE;
    current_pools[device] = found;
    return CUDA_SUCCESS;
}

// --- pools by where their memory is (CUDA 13): here, on a device ---

namespace {
CUresult by_device(const CUmemLocation* location, CUmemAllocationType type) {
    if (!location) return CUDA_ERROR_INVALID_VALUE;
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED
               ? CUDA_SUCCESS
               : gpukernel::unsupported("a memory pool that is not on a device");
}
}  // namespace

extern "C" CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool_out, CUmemLocation* location,
                                           CUmemAllocationType type) {
    const CUresult error = by_device(location, type);
    return error == CUDA_SUCCESS ? cuDeviceGetDefaultMemPool(pool_out, location->id) : error;
}
extern "C" CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
    const CUresult error = by_device(location, type);
    return error == CUDA_SUCCESS ? cuDeviceGetMemPool(pool, location->id) : error;
}
extern "C" CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
    const CUresult error = by_device(location, type);
    return error == CUDA_SUCCESS ? cuDeviceSetMemPool(location->id, pool) : error;
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
    if (!pool || !poolProps || poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return gpukernel::unsupported("a memory pool that is not on a device");
    if (poolProps->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return gpukernel::unsupported("a memory pool that other processes share");
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    Device* const device = device_at(poolProps->location.id);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard lock(pools_mutex);
    *pool = reinterpret_cast<CUmemoryPool>(make(device, false));
    return CUDA_SUCCESS;
}

// Memory allocated from the pool stays valid until it is freed, as with NVIDIA's driver.
CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool) {
    std::lock_guard lock(pools_mutex);
    Pool* const found = find(pool);
    if (!found || found->always_there) return CUDA_ERROR_INVALID_VALUE;
    if (current_pools[found->device] == found) current_pools[found->device] = nullptr;
    pools.erase(found);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
    std::lock_guard lock(pools_mutex);
    return find(pool) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;  // nothing is held back
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
    std::lock_guard lock(pools_mutex);
    Pool* const found = find(pool);
    if (!found || !value) return CUDA_ERROR_INVALID_VALUE;
    if (attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH || attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
        return *static_cast<cuuint64_t*>(value) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    auto setting = found->settings.find(attr);
    if (setting == found->settings.end()) return CUDA_ERROR_INVALID_VALUE;
    setting->second = attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? *static_cast<cuuint64_t*>(value)
                                                                : *static_cast<int*>(value) != 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
    {
        std::lock_guard lock(pools_mutex);
        Pool* const found = find(pool);
        if (!found || !value) return CUDA_ERROR_INVALID_VALUE;
        if (auto setting = found->settings.find(attr); setting != found->settings.end()) {
            if (attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
                *static_cast<cuuint64_t*>(value) = setting->second;
            else
                *static_cast<int*>(value) = static_cast<int>(setting->second);
            return CUDA_SUCCESS;
        }
    }
    // All pools share the lease's memory, so its use is theirs.
    size_t free = 0, total = 0;
    CUresult error = cuMemGetInfo(&free, &total);
    if (error == CUDA_SUCCESS) *static_cast<cuuint64_t*>(value) = total - free;
    return error;
}

CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* map, size_t count) {
    std::lock_guard lock(pools_mutex);
    Pool* const found = find(pool);
    if (!found || (count && !map)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i)
        if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || map[i].location.id != found->device->index)
            return CUDA_ERROR_INVALID_DEVICE;  // devices of a lease do not see each other's memory
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool memPool, CUmemLocation* location) {
    std::lock_guard lock(pools_mutex);
    Pool* const found = find(memPool);
    if (!found || !flags || !location) return CUDA_ERROR_INVALID_VALUE;
    *flags = location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id == found->device->index
                 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                 : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                         CUstream hStream) {
    {
        std::lock_guard lock(pools_mutex);
        if (!find(pool)) return CUDA_ERROR_INVALID_VALUE;
    }
    return cuMemAllocAsync(dptr, bytesize, hStream);
}
