// Maps of tensors for copies of boxes of them (driver API chapter "Tensor Map Object Management").
#include <cstring>

#include "libcuda/library.h"
#include "simgpu/driver/state.h"
#include "simgpu/tensor_map.h"

using namespace gpukernel::simgpu;

namespace {

bool element_of(CUtensorMapDataType type, TensorElement& element) {
    switch (type) {
#define GPUKERNEL_ELEMENT(name, e)       \
    case CU_TENSOR_MAP_DATA_TYPE_##name: \
        return element = TensorElement::e, true;
        GPUKERNEL_ELEMENT(UINT8, u8)
        GPUKERNEL_ELEMENT(UINT16, u16)
        GPUKERNEL_ELEMENT(UINT32, u32)
        GPUKERNEL_ELEMENT(INT32, s32)
        GPUKERNEL_ELEMENT(UINT64, u64)
        GPUKERNEL_ELEMENT(INT64, s64)
        GPUKERNEL_ELEMENT(FLOAT16, f16)
        GPUKERNEL_ELEMENT(FLOAT32, f32)
        GPUKERNEL_ELEMENT(FLOAT64, f64)
        GPUKERNEL_ELEMENT(BFLOAT16, bf16)
        GPUKERNEL_ELEMENT(FLOAT32_FTZ, f32_ftz)
        GPUKERNEL_ELEMENT(TFLOAT32, tf32)
        GPUKERNEL_ELEMENT(TFLOAT32_FTZ, tf32_ftz)
#undef GPUKERNEL_ELEMENT
        default:
            return false;
    }
}

bool aligned(const CUtensorMap* map) {
    return map && reinterpret_cast<uintptr_t>(map) % TensorMap::ALIGNMENT == 0;
}

CUresult checked(const TensorMap& map, CUtensorMap* to) {
    static_assert(sizeof *to == sizeof map);
    const TensorMapTrouble trouble = trouble_with(map);
    if (trouble.unsupported) return gpukernel::unsupported(trouble.why);
    if (trouble.why) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(to, &map, sizeof map);
    return CUDA_SUCCESS;
}

}  // namespace

CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType,
                                        cuuint32_t tensorRank, void* globalAddress,
                                        const cuuint64_t* globalDim, const cuuint64_t* globalStrides,
                                        const cuuint32_t* boxDim, const cuuint32_t* elementStrides,
                                        CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                        CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill) {
    GPUKERNEL_HERE(device);
    if (device->model->major < 9) return gpukernel::unsupported("tensor maps before compute capability 9.0");
    TensorElement element;
    if (!aligned(tensorMap) || !globalDim || !boxDim || !elementStrides || !tensorRank ||
        tensorRank > kMostTensorRank || (tensorRank > 1 && !globalStrides) ||
        !element_of(tensorDataType, element) || interleave > CU_TENSOR_MAP_INTERLEAVE_32B ||
        swizzle > CU_TENSOR_MAP_SWIZZLE_128B || l2Promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B ||
        oobFill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA)
        return CUDA_ERROR_INVALID_VALUE;
    TensorMap map{};
    map.mark = TensorMap::MARK;
    map.address = reinterpret_cast<uint64_t>(globalAddress);
    map.element = static_cast<uint8_t>(element);
    map.rank_less_one = static_cast<uint8_t>(tensorRank - 1);
    map.interleave = static_cast<uint8_t>(interleave);
    map.swizzle = static_cast<uint8_t>(swizzle);
    map.nan_outside = static_cast<uint8_t>(oobFill);
    for (uint32_t d = 0; d < tensorRank; ++d) {
        if (boxDim[d] > UINT16_MAX || elementStrides[d] > UINT8_MAX) return CUDA_ERROR_INVALID_VALUE;
        map.dimensions[d] = globalDim[d];
        map.box[d] = static_cast<uint16_t>(boxDim[d]);
        map.steps[d] = static_cast<uint8_t>(elementStrides[d]);
        if (d) map.strides[d - 1] = globalStrides[d - 1];
    }
    return checked(map, tensorMap);
}

CUresult CUDAAPI cuTensorMapReplaceAddress(CUtensorMap* tensorMap, void* globalAddress) {
    GPUKERNEL_HERE(device);
    if (!aligned(tensorMap)) return CUDA_ERROR_INVALID_VALUE;
    TensorMap map;
    std::memcpy(&map, tensorMap, sizeof map);
    if (map.mark != TensorMap::MARK) return CUDA_ERROR_INVALID_VALUE;
    map.address = reinterpret_cast<uint64_t>(globalAddress);
    return checked(map, tensorMap);
}
