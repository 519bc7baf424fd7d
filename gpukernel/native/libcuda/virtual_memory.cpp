#include "libcuda/virtual_memory.h"

#include <bit>

#include "libcuda/entry_points.h"

namespace gpukernel::libcuda {

CUresult check_property(const CUmemAllocationProp* prop, Device*& device) {
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type == CU_MEM_LOCATION_TYPE_INVALID)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return unsupported("cuMemCreate of host memory");
    device = device_at(prop->location.id);
    if (!device) return CUDA_ERROR_INVALID_DEVICE;
    if (prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
        !can_share_by(*device, prop->requestedHandleTypes))
        return unsupported("cuMemCreate of memory that other processes share by such a handle");
    return CUDA_SUCCESS;
}

CUresult check_reservation(const CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr wanted,
                           unsigned long long flags) {
    constexpr uint64_t PAGE = 4096;
    const bool valid = ptr && !flags && size && size % PAGE == 0 && wanted % PAGE == 0 &&
                       (!alignment || std::has_single_bit(alignment));
    return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace gpukernel::libcuda

using namespace gpukernel::libcuda;

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                        CUmemGenericAllocationHandle handle) {
    if (CUresult error = initialised(); error != CUDA_SUCCESS) return error;
    if (!prop) return CUDA_ERROR_INVALID_VALUE;
    CUmemAllocationHandleType shared_by = CU_MEM_HANDLE_TYPE_NONE;
    if (CUresult error = check_physical(handle, shared_by); error != CUDA_SUCCESS) return error;
    *prop = {};
    prop->requestedHandleTypes = shared_by;
    prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop->location = {CU_MEM_LOCATION_TYPE_DEVICE, number_of(*device_of_handle<Device>(handle))};
    return CUDA_SUCCESS;
}
