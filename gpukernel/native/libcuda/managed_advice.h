// Advice about a managed allocation (cuMemAdvise, cuMemPrefetchAsync), kept so that cuMemRangeGetAttribute
// can return it. It holds for the whole allocation, and nothing depends on it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "codegen/cuda_driver.h"

namespace gpukernel {

struct ManagedAdvice {
    using Location = CUmemLocation;
    bool read_mostly = false;
    Location preferred{CU_MEM_LOCATION_TYPE_INVALID, 0}, prefetched{CU_MEM_LOCATION_TYPE_INVALID, 0};
    std::vector<int> accessed_by;

    CUresult take(CUmem_advise advice, Location at) {
        const int device = number(at);
        switch (advice) {
            case CU_MEM_ADVISE_SET_READ_MOSTLY:
            case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
                read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
                return CUDA_SUCCESS;
            case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
                preferred = at;
                return CUDA_SUCCESS;
            case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
                preferred = {CU_MEM_LOCATION_TYPE_INVALID, 0};
                return CUDA_SUCCESS;
            case CU_MEM_ADVISE_SET_ACCESSED_BY:
            case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
                std::erase(accessed_by, device);
                if (advice == CU_MEM_ADVISE_SET_ACCESSED_BY) accessed_by.push_back(device);
                return CUDA_SUCCESS;
            default:
                return CUDA_ERROR_INVALID_VALUE;
        }
    }

    CUresult tell(void* data, size_t size, CUmem_range_attribute attribute) const {
        if (!data || !size || size % sizeof(int)) return CUDA_ERROR_INVALID_VALUE;
        std::vector<int> answer{0};
        switch (attribute) {
            case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
                answer = {read_mostly};
                break;
            case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
                answer = {number(preferred)};
                break;
            case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
                answer = {number(prefetched)};
                break;
            case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
                answer = accessed_by;
                answer.resize(size / sizeof(int), CU_DEVICE_INVALID);
                break;
            case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
                answer = {preferred.type};
                break;
            case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
                answer = {preferred.id};
                break;
            case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
                answer = {prefetched.type};
                break;
            case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
                answer = {prefetched.id};
                break;
            default:
                return CUDA_ERROR_INVALID_VALUE;
        }
        if (answer.size() * sizeof(int) != size) return CUDA_ERROR_INVALID_VALUE;
        std::memcpy(data, answer.data(), size);
        return CUDA_SUCCESS;
    }

    // The device's number, or the processor's, as the first versions of these calls have it.
    static int number(Location at) {
        return at.type == CU_MEM_LOCATION_TYPE_DEVICE    ? at.id
               : at.type == CU_MEM_LOCATION_TYPE_INVALID ? CU_DEVICE_INVALID
                                                         : CU_DEVICE_CPU;
    }
    static Location location(CUdevice device) {
        if (device == CU_DEVICE_CPU) return {CU_MEM_LOCATION_TYPE_HOST, 0};
        return {CU_MEM_LOCATION_TYPE_DEVICE, device};
    }
};

}  // namespace gpukernel
