// CUDA arrays and mipmapped arrays, and the rows that a copy names in one (driver API chapter "Memory
// Management").  Copies of spans of arrays are in libcuda/arrays.cpp.
#include "simgpu/driver/memory/arrays.h"

#include <algorithm>
#include <bit>

using namespace gpukernel::simgpu;

namespace {
constexpr unsigned KNOWN_FLAGS = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |
                                 CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_DEPTH_TEXTURE |
                                 CUDA_ARRAY3D_COLOR_ATTACHMENT;
constexpr unsigned LACKING_FLAGS =
    CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE;

// The shapes that cuArray3DCreate describes, within the limits of compute capability 7.0.
bool possible(const CUDA_ARRAY3D_DESCRIPTOR& d) {
    const bool layered = d.Flags & CUDA_ARRAY3D_LAYERED, cube = d.Flags & CUDA_ARRAY3D_CUBEMAP;
    if (!d.Width) return false;
    if (cube)
        return d.Width == d.Height && d.Width <= 32768 &&
               (layered ? d.Depth && d.Depth % 6 == 0 && d.Depth <= 2046 : d.Depth == 6);
    if (layered) return d.Depth && d.Depth <= 2048 && d.Width <= 32768 && d.Height <= 32768;
    if (d.Depth) return d.Height && d.Width <= 16384 && d.Height <= 16384 && d.Depth <= 16384;
    return d.Height ? d.Width <= 131072 && d.Height <= 65536 : d.Width <= 131072;
}

CUresult check(const CUDA_ARRAY3D_DESCRIPTOR& d, size_t& texel) {
    TexelFormat format;
    if (d.Flags & LACKING_FLAGS) return gpukernel::unsupported("a sparse or deferred CUDA array");
    if (d.Flags & ~KNOWN_FLAGS || !possible(d)) return CUDA_ERROR_INVALID_VALUE;
    CUresult error = format_of(d.Format, d.NumChannels, format);
    texel = size_t{format.bytes} * format.channels;
    return error;
}

std::unique_ptr<Array> shaped(Device* device, const CUDA_ARRAY3D_DESCRIPTOR& d, size_t texel) {
    auto array = std::make_unique<Array>();
    array->device = device, array->shape = d;
    array->row = d.Width * texel, array->slice = array->row * array->rows();
    array->bytes = array->slice * array->slices();
    return array;
}
}  // namespace

namespace gpukernel::simgpu {

CUresult format_of(CUarray_format format, unsigned channels, TexelFormat& found) {
    const auto fixed = [&](ChannelFormat channel, uint32_t bytes, uint32_t count) {
        found = {channel, bytes, count, true};
        return CUDA_SUCCESS;
    };
    const auto free = [&](ChannelFormat channel, uint32_t bytes) {
        found = {channel, bytes, channels, false};
        return channels == 1 || channels == 2 || channels == 4 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    };
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
            return free(ChannelFormat::u8, 1);
        case CU_AD_FORMAT_UNSIGNED_INT16:
            return free(ChannelFormat::u16, 2);
        case CU_AD_FORMAT_UNSIGNED_INT32:
            return free(ChannelFormat::u32, 4);
        case CU_AD_FORMAT_SIGNED_INT8:
            return free(ChannelFormat::s8, 1);
        case CU_AD_FORMAT_SIGNED_INT16:
            return free(ChannelFormat::s16, 2);
        case CU_AD_FORMAT_SIGNED_INT32:
            return free(ChannelFormat::s32, 4);
        case CU_AD_FORMAT_HALF:
            return free(ChannelFormat::f16, 2);
        case CU_AD_FORMAT_FLOAT:
            return free(ChannelFormat::f32, 4);
        case CU_AD_FORMAT_UNORM_INT8X1:
            return fixed(ChannelFormat::u8, 1, 1);
        case CU_AD_FORMAT_UNORM_INT8X2:
            return fixed(ChannelFormat::u8, 1, 2);
        case CU_AD_FORMAT_UNORM_INT8X4:
            return fixed(ChannelFormat::u8, 1, 4);
        case CU_AD_FORMAT_UNORM_INT16X1:
            return fixed(ChannelFormat::u16, 2, 1);
        case CU_AD_FORMAT_UNORM_INT16X2:
            return fixed(ChannelFormat::u16, 2, 2);
        case CU_AD_FORMAT_UNORM_INT16X4:
            return fixed(ChannelFormat::u16, 2, 4);
        case CU_AD_FORMAT_SNORM_INT8X1:
            return fixed(ChannelFormat::s8, 1, 1);
        case CU_AD_FORMAT_SNORM_INT8X2:
            return fixed(ChannelFormat::s8, 1, 2);
        case CU_AD_FORMAT_SNORM_INT8X4:
            return fixed(ChannelFormat::s8, 1, 4);
        case CU_AD_FORMAT_SNORM_INT16X1:
            return fixed(ChannelFormat::s16, 2, 1);
        case CU_AD_FORMAT_SNORM_INT16X2:
            return fixed(ChannelFormat::s16, 2, 2);
        case CU_AD_FORMAT_SNORM_INT16X4:
            return fixed(ChannelFormat::s16, 2, 4);
        default:
            return format >= CU_AD_FORMAT_UNORM_INT_101010_2 && format <= CU_AD_FORMAT_SNORM_INT16X4
                       ? gpukernel::unsupported("a planar or compressed CUDA array")
                       : CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult rows_of(Device* device, CUarray handle, size_t x, size_t y, size_t z, size_t width, size_t height,
                 size_t depth, uint64_t& base, size_t& pitch, size_t& rows) {
    const Array* array = array_of(handle);
    if (!array || array->device != device) return CUDA_ERROR_INVALID_HANDLE;
    if (x > array->row || width > array->row - x || y > array->rows() || height > array->rows() - y ||
        z > array->slices() || depth > array->slices() - z || x % array->texel() || width % array->texel())
        return CUDA_ERROR_INVALID_VALUE;
    base = array->address + z * array->slice + y * array->row + x;
    pitch = array->row, rows = array->rows();
    return CUDA_SUCCESS;
}

}  // namespace gpukernel::simgpu

CUresult CUDAAPI cuArray3DCreate(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
    GPUKERNEL_HERE(device);
    if (!pHandle || !pAllocateArray) return CUDA_ERROR_INVALID_VALUE;
    size_t texel;
    if (CUresult error = check(*pAllocateArray, texel); error != CUDA_SUCCESS) return error;
    auto array = shaped(device, *pAllocateArray, texel);
    auto address = device->memory->allocate(array->bytes);
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    array->address = *address;
    *pHandle = reinterpret_cast<CUarray>(driver()->arrays.add(array.release()));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
    GPUKERNEL_HERE(device);
    const Array* array = array_of(hArray);
    if (!array) return CUDA_ERROR_INVALID_HANDLE;
    if (!pArrayDescriptor) return CUDA_ERROR_INVALID_VALUE;
    *pArrayDescriptor = array->shape;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArrayDestroy(CUarray hArray) {
    GPUKERNEL_HERE(device);
    Array* array = array_of(hArray);
    if (!array || array->of) return CUDA_ERROR_INVALID_HANDLE;
    CUresult error = array->device->synchronize();
    driver()->arrays.remove(array);
    array->device->memory->free(array->address);
    delete array;
    return error;
}

CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray* pHandle,
                                        const CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc,
                                        unsigned int numMipmapLevels) {
    GPUKERNEL_HERE(device);
    if (!pHandle || !pMipmappedArrayDesc || !numMipmapLevels) return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR shape = *pMipmappedArrayDesc;
    size_t texel;
    if (CUresult error = check(shape, texel); error != CUDA_SUCCESS) return error;
    const bool layers = shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    const size_t longest = std::max({shape.Width, shape.Height, layers ? 0 : shape.Depth});
    const auto most = static_cast<unsigned>(std::bit_width(longest));
    auto mipmap = std::make_unique<Mipmap>();
    mipmap->device = device, mipmap->shape = shape;
    size_t bytes = 0;
    for (unsigned n = 0; n < std::min(numMipmapLevels, most); ++n) {
        mipmap->levels.push_back(shaped(device, shape, texel));
        Array& level = *mipmap->levels.back();
        level.of = mipmap.get(), level.address = bytes;
        bytes += (level.bytes + 255) / 256 * 256;
        shape.Width = std::max<size_t>(1, shape.Width / 2);
        if (shape.Height) shape.Height = std::max<size_t>(1, shape.Height / 2);
        if (shape.Depth && !layers) shape.Depth = std::max<size_t>(1, shape.Depth / 2);
    }
    auto address = device->memory->allocate(bytes);
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    mipmap->address = *address;
    for (auto& level : mipmap->levels) {
        level->address += *address;
        driver()->arrays.add(level.get());
    }
    *pHandle = reinterpret_cast<CUmipmappedArray>(driver()->mipmaps.add(mipmap.release()));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMipmappedArrayGetLevel(CUarray* pLevelArray, CUmipmappedArray hMipmappedArray,
                                          unsigned int level) {
    GPUKERNEL_HERE(device);
    const Mipmap* mipmap = mipmap_of(hMipmappedArray);
    if (!mipmap) return CUDA_ERROR_INVALID_HANDLE;
    if (!pLevelArray || level >= mipmap->levels.size()) return CUDA_ERROR_INVALID_VALUE;
    *pLevelArray = reinterpret_cast<CUarray>(mipmap->levels[level].get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
    GPUKERNEL_HERE(device);
    Mipmap* mipmap = mipmap_of(hMipmappedArray);
    if (!mipmap) return CUDA_ERROR_INVALID_HANDLE;
    CUresult error = mipmap->device->synchronize();
    for (auto& level : mipmap->levels) driver()->arrays.remove(level.get());
    driver()->mipmaps.remove(mipmap);
    mipmap->device->memory->free(mipmap->address);
    delete mipmap;
    return error;
}

// Only arrays of deferred mapping have memory requirements, and none are made here.
CUresult CUDAAPI cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* memoryRequirements,
                                              CUarray array, CUdevice device_number) {
    GPUKERNEL_HERE(device);
    return array_of(array) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}
CUresult CUDAAPI cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS* memoryRequirements,
                                                       CUmipmappedArray mipmap, CUdevice device_number) {
    GPUKERNEL_HERE(device);
    return mipmap_of(mipmap) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}
CUresult CUDAAPI cuArrayGetPlane(CUarray* pPlaneArray, CUarray hArray, unsigned int planeIdx) {
    GPUKERNEL_HERE(device);
    return array_of(hArray) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;  // planar ones are none
}
