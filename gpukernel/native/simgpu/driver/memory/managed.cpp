#include "simgpu/driver/memory/managed.h"

#include "libcuda/managed_advice.h"

using namespace gpukernel::simgpu;
using gpukernel::ManagedAdvice;

namespace {
struct ManagedAllocation {
    Device* device;
    size_t bytes;
    ManagedAdvice advice;
};
std::mutex managed_mutex;
std::map<uint64_t, ManagedAllocation> managed;

// Under managed_mutex: the allocation that the range lies in.
ManagedAllocation* find(uint64_t address, size_t bytes) {
    auto it = managed.upper_bound(address);
    if (it == managed.begin()) return nullptr;
    --it;
    const uint64_t offset = address - it->first;
    return offset < it->second.bytes && bytes <= it->second.bytes - offset ? &it->second : nullptr;
}

bool exists(CUmemLocation at) {
    return at.type != CU_MEM_LOCATION_TYPE_DEVICE ||
           (at.id >= 0 && at.id < static_cast<int>(driver()->devices.size()));
}
}  // namespace

namespace gpukernel::simgpu {
bool is_managed(Device* device, uint64_t address) {
    std::lock_guard lock(managed_mutex);
    ManagedAllocation* found = find(address, 1);
    return found && found->device == device;
}
void remember_managed(Device* device, uint64_t address, size_t bytes) {
    std::lock_guard lock(managed_mutex);
    managed.try_emplace(address, ManagedAllocation{device, bytes, {}});
}
void forget_managed(Device* device, uint64_t address) {
    std::lock_guard lock(managed_mutex);
    auto it = managed.find(address);
    if (it != managed.end() && it->second.device == device) managed.erase(it);
}
}  // namespace gpukernel::simgpu

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
    GPUKERNEL_HERE(device);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
    CUresult error = cuMemAlloc(dptr, bytesize);
    if (error == CUDA_SUCCESS) remember_managed(device, *dptr, bytesize);
    return error;
}

CUresult CUDAAPI cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                                       unsigned int flags, CUstream hStream) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (!exists(location)) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard lock(managed_mutex);
    ManagedAllocation* found = find(devPtr, count);
    if (!found || !count || flags) return CUDA_ERROR_INVALID_VALUE;
    found->advice.prefetched = location;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                                CUmemLocation location) {
    GPUKERNEL_HERE(device);
    const bool of_reads =
        advice == CU_MEM_ADVISE_SET_READ_MOSTLY || advice == CU_MEM_ADVISE_UNSET_READ_MOSTLY;
    if (!of_reads && !exists(location)) return CUDA_ERROR_INVALID_DEVICE;
    std::lock_guard lock(managed_mutex);
    ManagedAllocation* found = find(devPtr, count);
    return found && count ? found->advice.take(advice, location) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemRangeGetAttribute(void* data, size_t dataSize, CUmem_range_attribute attribute,
                                        CUdeviceptr devPtr, size_t count) {
    GPUKERNEL_HERE(device);
    std::lock_guard lock(managed_mutex);
    ManagedAllocation* found = find(devPtr, count);
    return found && count ? found->advice.tell(data, dataSize, attribute) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length,
                                        unsigned int flags) {
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(hStream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
        return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard lock(managed_mutex);
    return find(dptr, length) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
