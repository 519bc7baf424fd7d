// Linear memory and arrays, charged to the slice, and the answer to cuMemGetInfo.
#include <algorithm>

#include "common/checked.h"
#include "direct/charges.h"

using namespace gpukernel::direct;

namespace gpukernel::direct {
ChargeLedger& memory() {
    static auto& ledger = *new ChargeLedger;
    return ledger;
}
ChargeLedger& arrays() {
    static auto& ledger = *new ChargeLedger;
    return ledger;
}
}  // namespace gpukernel::direct

namespace {
uint64_t times(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? ~0ull >> 1 : product;
}

// Bits of one element of one channel.  Compressed and planar formats are charged as CUDA's guide sizes them.
unsigned bits(CUarray_format format, unsigned channels) {
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF:
            return 16 * channels;
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT:
            return 32 * channels;
        case CU_AD_FORMAT_BC1_UNORM:
        case CU_AD_FORMAT_BC1_UNORM_SRGB:
        case CU_AD_FORMAT_BC4_UNORM:
        case CU_AD_FORMAT_BC4_SNORM:
            return 4;
        case CU_AD_FORMAT_BC2_UNORM:
        case CU_AD_FORMAT_BC2_UNORM_SRGB:
        case CU_AD_FORMAT_BC3_UNORM:
        case CU_AD_FORMAT_BC3_UNORM_SRGB:
        case CU_AD_FORMAT_BC5_UNORM:
        case CU_AD_FORMAT_BC5_SNORM:
        case CU_AD_FORMAT_BC6H_UF16:
        case CU_AD_FORMAT_BC6H_SF16:
        case CU_AD_FORMAT_BC7_UNORM:
        case CU_AD_FORMAT_BC7_UNORM_SRGB:
            return 8;
        case CU_AD_FORMAT_NV12:
            return 12;
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8:
            return 8 * channels;
        default:  // normalised and packed formats: at most so much
            return 16 * std::max(channels, 1u);
    }
}

uint64_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels) {
    // Of these the memory is mapped later, and charged where it is made (cuMemCreate).
    if (array.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) return 0;
    const bool layered = array.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    uint64_t sum = 0;
    for (unsigned level = 0; level < std::max(levels, 1u) && level < 32; ++level) {
        const auto side = [&](size_t length) { return std::max<uint64_t>(length >> level, 1); };
        const uint64_t depth = layered ? std::max<uint64_t>(array.Depth, 1) : side(array.Depth);
        const uint64_t elements = times(times(side(array.Width), side(array.Height)), depth);
        sum += times(elements, bits(array.Format, array.NumChannels)) / 8;
        if (sum >> 62) return sum;
    }
    return sum;
}
}  // namespace

// --- linear memory ---

extern "C" CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
    return charge_for(memory(), bytesize, dptr, [=] { return real.cuMemAlloc_v2(dptr, bytesize); });
}

extern "C" CUresult cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
    return charge_for(memory(), bytesize, dptr,
                      [=] { return real.cuMemAllocManaged(dptr, bytesize, flags); });
}

extern "C" CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                                       unsigned int ElementSizeBytes) {
    // Rows are padded to what the driver likes; it is known only afterwards.
    const uint64_t bytes = times(gpukernel::checked_round_up(WidthInBytes, 512).value_or(UINT64_MAX), Height);
    return charge_for(memory(), bytes, dptr, [=] {
        return real.cuMemAllocPitch_v2(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
    });
}

extern "C" CUresult cuMemFree_v2(CUdeviceptr dptr) {
    return free_charged(memory(), dptr, [=] { return real.cuMemFree_v2(dptr); });
}

// --- arrays ---

extern "C" CUresult cuArrayCreate_v2(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
    uint64_t bytes = 0;
    if (const auto* a = pAllocateArray)
        bytes = bytes_of({a->Width, a->Height, 0, a->Format, a->NumChannels, 0}, 1);
    return charge_for(arrays(), bytes, pHandle,
                      [=] { return real.cuArrayCreate_v2(pHandle, pAllocateArray); });
}

extern "C" CUresult cuArray3DCreate_v2(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
    const uint64_t bytes = pAllocateArray ? bytes_of(*pAllocateArray, 1) : 0;
    return charge_for(arrays(), bytes, pHandle,
                      [=] { return real.cuArray3DCreate_v2(pHandle, pAllocateArray); });
}

extern "C" CUresult cuArrayDestroy(CUarray hArray) {
    return free_charged(arrays(), hArray, [=] { return real.cuArrayDestroy(hArray); });
}

extern "C" CUresult cuMipmappedArrayCreate(CUmipmappedArray* pHandle,
                                           const CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc,
                                           unsigned int numMipmapLevels) {
    const uint64_t bytes = pMipmappedArrayDesc ? bytes_of(*pMipmappedArrayDesc, numMipmapLevels) : 0;
    return charge_for(arrays(), bytes, pHandle, [=] {
        return real.cuMipmappedArrayCreate(pHandle, pMipmappedArrayDesc, numMipmapLevels);
    });
}

extern "C" CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
    return free_charged(arrays(), hMipmappedArray,
                        [=] { return real.cuMipmappedArrayDestroy(hMipmappedArray); });
}

// --- how much there is ---

extern "C" CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
    const CUresult result = real.cuMemGetInfo_v2(free, total);
    Slice* const slice = Inside::depth || result != CUDA_SUCCESS ? nullptr : current_slice();
    if (!slice) return result;
    slice->tidy();
    const uint64_t limit = slice->limit(), used = std::min(slice->used(), limit);
    *free = std::min<uint64_t>(*free, limit - used);
    *total = limit;
    return CUDA_SUCCESS;
}

extern "C" CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
    const CUresult result = real.cuDeviceTotalMem_v2(bytes, dev);
    if (Slice* const slice = slice_of(dev); slice && result == CUDA_SUCCESS) *bytes = slice->limit();
    return result;
}
