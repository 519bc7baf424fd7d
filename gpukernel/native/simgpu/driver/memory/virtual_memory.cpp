// Physical memory and address ranges, each allocated apart (driver API chapter "Virtual Memory Management").
#include "libcuda/virtual_memory.h"

#include "simgpu/driver/state.h"

using namespace gpukernel::simgpu;
using gpukernel::libcuda::check_reservation;
using gpukernel::libcuda::device_of_handle;
using gpukernel::libcuda::device_of_property;
using gpukernel::libcuda::handle_of;
using gpukernel::libcuda::number_of_handle;

namespace {
using Access = VirtualMemory::Access;

// These calls need no context; addresses belong to the current one's device, else to the first.
Device* here_or_first() {
    return current_context() ? current_context()->device : driver()->devices.front().get();
}
VirtualMemory* virtual_memory_of(CUmemGenericAllocationHandle handle) {
    Device* device = device_of_handle<Device>(handle);
    return device ? &device->memory->virtual_memory() : nullptr;
}
bool granular(uint64_t n) { return n && n % VirtualMemory::GRANULARITY == 0; }
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
    if (CUresult error = device_of_property(prop, device); error != CUDA_SUCCESS) return error;
    *granularity = VirtualMemory::GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                     unsigned long long flags) {
    GPUKERNEL_INITIALISED();
    if (CUresult error = check_reservation(ptr, size, alignment, addr, flags); error != CUDA_SUCCESS)
        return error;
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
    if (CUresult error = device_of_property(prop, device); error != CUDA_SUCCESS) return error;
    auto made = device->memory->virtual_memory().create(size);
    if (!made) return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = handle_of(*device, *made);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
    GPUKERNEL_INITIALISED();
    VirtualMemory* memory = virtual_memory_of(handle);
    return memory && memory->release(number_of_handle(handle)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
    GPUKERNEL_INITIALISED();
    VirtualMemory* memory = virtual_memory_of(handle);
    if (!memory || flags || offset || !granular(size) || !granular(ptr)) return CUDA_ERROR_INVALID_VALUE;
    switch (memory->map(ptr, size, number_of_handle(handle))) {
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
        // Running kernels began with more access.
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

bool gpukernel::libcuda::can_share_by(const Device&, CUmemAllocationHandleType) {
    return false;  // the memory is this process's; a worker shares it among its programs
}

CUresult gpukernel::libcuda::check_physical(CUmemGenericAllocationHandle handle, CUmemAllocationHandleType&) {
    VirtualMemory* memory = virtual_memory_of(handle);
    return memory && memory->size_of(number_of_handle(handle)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
    GPUKERNEL_INITIALISED();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    Device* device = here_or_first();
    const uint64_t found = device->memory->virtual_memory().retain(reinterpret_cast<uint64_t>(addr));
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    *handle = handle_of(*device, found);
    return CUDA_SUCCESS;
}
