// Physical memory and addresses apart (driver API chapter "Virtual Memory Management").
#include <bit>

#include "state.h"

using namespace gpukernel::simgpu;

namespace {
constexpr int DEVICE_SHIFT = 48;  // a handle says whose memory it is
constexpr uint64_t PAGE = 4096;

using Access = VirtualMemory::Access;

Device* device_at(int index) {
    return index >= 0 && index < static_cast<int>(driver()->devices.size()) ? driver()->devices[index].get()
                                                                            : nullptr;
}
// These calls need no context; addresses belong to the current one's device, else to the first.
Device* here_or_first() {
    return current_context() ? current_context()->device : driver()->devices.front().get();
}
VirtualMemory* memory_of(CUmemGenericAllocationHandle handle) {
    Device* device = device_at(static_cast<int>(handle >> DEVICE_SHIFT));
    return device ? &device->memory->virtual_memory() : nullptr;
}
uint64_t number(CUmemGenericAllocationHandle handle) { return handle & ((1ull << DEVICE_SHIFT) - 1); }
CUmemGenericAllocationHandle name(const Device& device, uint64_t number) {
    return static_cast<uint64_t>(device.index) << DEVICE_SHIFT | number;
}
bool granular(uint64_t n) { return n && n % VirtualMemory::GRANULARITY == 0; }

CUresult check(const CUmemAllocationProp* prop, Device*& device) {
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return prop->location.type == CU_MEM_LOCATION_TYPE_INVALID
                   ? CUDA_ERROR_INVALID_VALUE
                   : gpukernel::unsupported("cuMemCreate of host memory");
    if (prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return gpukernel::unsupported("memory that other processes share");
    device = device_at(prop->location.id);
    return device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
}  // namespace

#define GPUKERNEL_INITIALISED() \
    if (!driver()) return CUDA_ERROR_NOT_INITIALIZED

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                               CUmemAllocationGranularity_flags option) {
    GPUKERNEL_INITIALISED();
    Device* device = nullptr;
    if (!granularity ||
        (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = check(prop, device); error != CUDA_SUCCESS) return error;
    *granularity = VirtualMemory::GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                     unsigned long long flags) {
    GPUKERNEL_INITIALISED();
    if (!ptr || flags || !size || size % PAGE || addr % PAGE ||
        (alignment && !std::has_single_bit(alignment)))
        return CUDA_ERROR_INVALID_VALUE;
    auto address = here_or_first()->memory->virtual_memory().reserve(size, alignment, addr);
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    *ptr = *address;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    GPUKERNEL_INITIALISED();
    Device* device = here_or_first();
    if (device->memory->virtual_memory().used(ptr)) schedule().wait_all(*device);
    return device->memory->virtual_memory().free(ptr, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                             const CUmemAllocationProp* prop, unsigned long long flags) {
    GPUKERNEL_INITIALISED();
    Device* device = nullptr;
    if (!handle || flags || !granular(size)) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = check(prop, device); error != CUDA_SUCCESS) return error;
    auto made = device->memory->virtual_memory().create(size);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = name(*device, *made);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
    GPUKERNEL_INITIALISED();
    VirtualMemory* memory = memory_of(handle);
    return memory && memory->release(number(handle)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
    GPUKERNEL_INITIALISED();
    VirtualMemory* memory = memory_of(handle);
    if (!memory || flags || offset || !granular(size) || !granular(ptr)) return CUDA_ERROR_INVALID_VALUE;
    switch (memory->map(ptr, size, number(handle))) {
        case VirtualMemory::Outcome::done:
            return CUDA_SUCCESS;
        case VirtualMemory::Outcome::out_of_memory:
            return CUDA_ERROR_OUT_OF_MEMORY;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size) {
    GPUKERNEL_INITIALISED();
    Device* device = here_or_first();
    schedule().wait_all(*device);
    return device->memory->virtual_memory().unmap(ptr, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
    GPUKERNEL_INITIALISED();
    if (!desc || !count) return CUDA_ERROR_INVALID_VALUE;
    Device* device = here_or_first();
    for (size_t i = 0; i < count; ++i) {
        if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            return gpukernel::unsupported("access of the host to a device's memory");
        if (desc[i].location.id != device->index) return CUDA_ERROR_INVALID_DEVICE;  // there are no peers
        const auto flags = desc[i].flags;
        if (flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
            flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
        // What runs now began with more.
        if (flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) schedule().wait_all(*device);
        const Access access = flags == CU_MEM_ACCESS_FLAGS_PROT_NONE   ? Access::none
                              : flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? Access::read
                                                                       : Access::write;
        if (!device->memory->virtual_memory().set_access(ptr, size, access)) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
    GPUKERNEL_INITIALISED();
    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (!device_at(location->id)) return CUDA_ERROR_INVALID_DEVICE;
    Device* device = here_or_first();
    auto mapping = device->memory->virtual_memory().mapping(ptr);
    if (!mapping) return CUDA_ERROR_INVALID_VALUE;
    *flags = location->id != device->index || mapping->access == Access::none ? CU_MEM_ACCESS_FLAGS_PROT_NONE
             : mapping->access == Access::read ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                               : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                        CUmemGenericAllocationHandle handle) {
    GPUKERNEL_INITIALISED();
    VirtualMemory* memory = memory_of(handle);
    if (!prop || !memory || !memory->size_of(number(handle))) return CUDA_ERROR_INVALID_VALUE;
    *prop = {};
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop->location = {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(handle >> DEVICE_SHIFT)};
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
    GPUKERNEL_INITIALISED();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    Device* device = here_or_first();
    const uint64_t found = device->memory->virtual_memory().retain(reinterpret_cast<uint64_t>(addr));
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    *handle = name(*device, found);
    return CUDA_SUCCESS;
}
