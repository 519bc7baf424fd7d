// Virtual memory management.  Physical memory is charged from cuMemCreate until its last handle is released
// and its last mapping has ended.
#include <memory>

#include "direct/charges.h"

using namespace gpukernel::direct;

namespace {
struct PhysicalMemory {
    Slice* slice;
    uint64_t bytes;
    ~PhysicalMemory() { slice->give_back(bytes); }
};
struct Handle {
    std::shared_ptr<PhysicalMemory> physical;
    int count = 1;
};

std::mutex mutex;
// An allocation lives here as long as it lives on the device: through its handle, or through its mappings.
auto& by_handle = *new std::map<CUmemGenericAllocationHandle, Handle>;
struct MappedRange {
    uint64_t bytes;
    std::shared_ptr<PhysicalMemory> physical;
};
auto& mapped = *new std::map<CUdeviceptr, MappedRange>;
}  // namespace

extern "C" CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                                const CUmemAllocationProp* prop, unsigned long long flags) {
    Slice* const slice = Inside::depth || !prop || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE
                             ? nullptr
                             : slice_of(prop->location.id);
    if (!slice) return real.cuMemCreate(handle, size, prop, flags);
    if (!slice->reserve(size)) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = real.cuMemCreate(handle, size, prop, flags);
    if (result != CUDA_SUCCESS) {
        slice->give_back(size);
        return result;
    }
    std::lock_guard lock(mutex);
    by_handle[*handle] = {std::shared_ptr<PhysicalMemory>(new PhysicalMemory{slice, size})};
    return result;
}

extern "C" CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    std::lock_guard lock(
        mutex);  // over the driver's call, or another thread's new handle could have this number
    const CUresult result = real.cuMemRelease(handle);
    const auto it = by_handle.find(handle);
    if (result == CUDA_SUCCESS && it != by_handle.end() && --it->second.count == 0) by_handle.erase(it);
    return result;
}

extern "C" CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                             unsigned long long flags) {
    std::lock_guard lock(mutex);
    const CUresult result = real.cuMemMap(ptr, size, offset, handle, flags);
    const auto it = by_handle.find(handle);
    if (result == CUDA_SUCCESS && it != by_handle.end()) mapped[ptr] = {size, it->second.physical};
    return result;
}

extern "C" CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    std::lock_guard lock(mutex);
    const CUresult result = real.cuMemUnmap(ptr, size);
    if (result == CUDA_SUCCESS) mapped.erase(mapped.lower_bound(ptr), mapped.lower_bound(ptr + size));
    return result;
}

extern "C" CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
    std::lock_guard lock(mutex);
    const CUresult result = real.cuMemRetainAllocationHandle(handle, addr);
    if (result != CUDA_SUCCESS) return result;
    const auto address = reinterpret_cast<CUdeviceptr>(addr);
    auto it = mapped.upper_bound(address);
    if (it == mapped.begin()) return result;
    --it;
    if (address - it->first >= it->second.bytes) return result;
    // The number may be the one it had, or another for the same memory.
    const auto known = by_handle.find(*handle);
    if (known != by_handle.end() && known->second.physical == it->second.physical)
        ++known->second.count;
    else
        by_handle[*handle] = {it->second.physical};
    return result;
}
