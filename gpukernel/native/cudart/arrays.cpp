// CUDA arrays: their formats, allocation, and copies from and to them.
#include <algorithm>

#include "cudart/runtime.h"

namespace gpukernel::cudart {

namespace {
struct Normalized {
    cudaChannelFormatKind kind;
    CUarray_format format;
    unsigned channels;
};
constexpr Normalized NORMALIZED[] = {
    {cudaChannelFormatKindUnsignedNormalized8X1, CU_AD_FORMAT_UNORM_INT8X1, 1},
    {cudaChannelFormatKindUnsignedNormalized8X2, CU_AD_FORMAT_UNORM_INT8X2, 2},
    {cudaChannelFormatKindUnsignedNormalized8X4, CU_AD_FORMAT_UNORM_INT8X4, 4},
    {cudaChannelFormatKindUnsignedNormalized16X1, CU_AD_FORMAT_UNORM_INT16X1, 1},
    {cudaChannelFormatKindUnsignedNormalized16X2, CU_AD_FORMAT_UNORM_INT16X2, 2},
    {cudaChannelFormatKindUnsignedNormalized16X4, CU_AD_FORMAT_UNORM_INT16X4, 4},
    {cudaChannelFormatKindSignedNormalized8X1, CU_AD_FORMAT_SNORM_INT8X1, 1},
    {cudaChannelFormatKindSignedNormalized8X2, CU_AD_FORMAT_SNORM_INT8X2, 2},
    {cudaChannelFormatKindSignedNormalized8X4, CU_AD_FORMAT_SNORM_INT8X4, 4},
    {cudaChannelFormatKindSignedNormalized16X1, CU_AD_FORMAT_SNORM_INT16X1, 1},
    {cudaChannelFormatKindSignedNormalized16X2, CU_AD_FORMAT_SNORM_INT16X2, 2},
    {cudaChannelFormatKindSignedNormalized16X4, CU_AD_FORMAT_SNORM_INT16X4, 4},
};

int bits_of(CUarray_format format) {
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8:
        case CU_AD_FORMAT_UNORM_INT8X1:
        case CU_AD_FORMAT_UNORM_INT8X2:
        case CU_AD_FORMAT_UNORM_INT8X4:
        case CU_AD_FORMAT_SNORM_INT8X1:
        case CU_AD_FORMAT_SNORM_INT8X2:
        case CU_AD_FORMAT_SNORM_INT8X4:
            return 8;
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF:
        case CU_AD_FORMAT_UNORM_INT16X1:
        case CU_AD_FORMAT_UNORM_INT16X2:
        case CU_AD_FORMAT_UNORM_INT16X4:
        case CU_AD_FORMAT_SNORM_INT16X1:
        case CU_AD_FORMAT_SNORM_INT16X2:
        case CU_AD_FORMAT_SNORM_INT16X4:
            return 16;
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT:
            return 32;
        default:
            return 0;
    }
}
}  // namespace

bool format_of(const cudaChannelFormatDesc& from, CUarray_format& format, unsigned& channels) {
    for (const Normalized& each : NORMALIZED)
        if (each.kind == from.f) {
            format = each.format;
            channels = each.channels;
            return true;
        }
    channels = 0;
    for (int bits : {from.x, from.y, from.z, from.w}) {
        if (!bits) continue;
        if (bits != from.x) return false;
        ++channels;
    }
    const int which = from.x == 8 ? 0 : from.x == 16 ? 1 : from.x == 32 ? 2 : -1;
    if (which < 0 || !channels) return false;
    constexpr CUarray_format SIGNED[] = {CU_AD_FORMAT_SIGNED_INT8, CU_AD_FORMAT_SIGNED_INT16,
                                         CU_AD_FORMAT_SIGNED_INT32};
    constexpr CUarray_format UNSIGNED[] = {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_UNSIGNED_INT16,
                                           CU_AD_FORMAT_UNSIGNED_INT32};
    if (from.f == cudaChannelFormatKindSigned)
        format = SIGNED[which];
    else if (from.f == cudaChannelFormatKindUnsigned)
        format = UNSIGNED[which];
    else if (from.f == cudaChannelFormatKindFloat && which)
        format = which == 1 ? CU_AD_FORMAT_HALF : CU_AD_FORMAT_FLOAT;
    else
        return false;
    return true;
}

cudaChannelFormatDesc channels_of(CUarray_format format, unsigned channels) {
    cudaChannelFormatDesc to{};
    const int bits = bits_of(format);
    to.x = bits;
    to.y = channels > 1 ? bits : 0;
    to.z = channels > 2 ? bits : 0;
    to.w = channels > 3 ? bits : 0;
    to.f = cudaChannelFormatKindNone;
    if (!bits) return to;
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_UNSIGNED_INT32:
            to.f = cudaChannelFormatKindUnsigned;
            return to;
        case CU_AD_FORMAT_SIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT32:
            to.f = cudaChannelFormatKindSigned;
            return to;
        case CU_AD_FORMAT_HALF:
        case CU_AD_FORMAT_FLOAT:
            to.f = cudaChannelFormatKindFloat;
            return to;
        default:
            for (const Normalized& each : NORMALIZED)
                if (each.format == format) to.f = each.kind;
            return to;
    }
}

size_t element_bytes(CUarray_format format, unsigned channels) { return bits_of(format) / 8 * channels; }

namespace {
CUarray as_array(cudaArray_const_t array) { return reinterpret_cast<CUarray>(const_cast<cudaArray*>(array)); }

cudaError_t describe(const cudaChannelFormatDesc* channels, cudaExtent extent, unsigned flags,
                     CUDA_ARRAY3D_DESCRIPTOR& to) {
    if (!channels) return fail(cudaErrorInvalidValue);
    to = {};
    if (!format_of(*channels, to.Format, to.NumChannels)) return fail(cudaErrorInvalidChannelDescriptor);
    to.Width = extent.width;
    to.Height = extent.height;
    to.Depth = extent.depth;
    to.Flags = flags;  // the same bits in both APIs
    return done(enter());
}

// One side of a two-dimensional copy.
struct Side {
    cudaArray_const_t array;
    const void* pointer;
    size_t pitch, x, y;
};

CUDA_MEMCPY2D copy_of_rows(const Side& to, const Side& from, size_t width, size_t height,
                           cudaMemcpyKind kind) {
    CUDA_MEMCPY2D copy{};
    const bool from_host = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyHostToHost;
    const bool to_host = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyHostToHost;
    const CUmemorytype plain = kind == cudaMemcpyDefault ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_DEVICE;
    copy.srcMemoryType = from.array ? CU_MEMORYTYPE_ARRAY : from_host ? CU_MEMORYTYPE_HOST : plain;
    copy.srcArray = as_array(from.array);
    copy.srcHost = from.pointer;
    copy.srcDevice = reinterpret_cast<CUdeviceptr>(from.pointer);
    copy.srcPitch = from.pitch;
    copy.srcXInBytes = from.x;
    copy.srcY = from.y;
    copy.dstMemoryType = to.array ? CU_MEMORYTYPE_ARRAY : to_host ? CU_MEMORYTYPE_HOST : plain;
    copy.dstArray = as_array(to.array);
    copy.dstHost = const_cast<void*>(to.pointer);
    copy.dstDevice = reinterpret_cast<CUdeviceptr>(to.pointer);
    copy.dstPitch = to.pitch;
    copy.dstXInBytes = to.x;
    copy.dstY = to.y;
    copy.WidthInBytes = width;
    copy.Height = height;
    return copy;
}

enum class Wait { no, yes };

cudaError_t run(const CUDA_MEMCPY2D& copy, cudaMemcpyKind kind, Wait wait, CUstream stream = nullptr) {
    if (CUresult result = enter()) return done(result);
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) return fail(cudaErrorInvalidMemcpyDirection);
    if (!copy.WidthInBytes || !copy.Height) return cudaSuccess;
    if (wait == Wait::no) return done(driver::cuMemcpy2DAsync(&copy, stream));
    return done(on_default_stream([&] { return driver::cuMemcpy2DUnaligned(&copy); },
                                  [&](CUstream own) { return driver::cuMemcpy2DAsync(&copy, own); }));
}

// Copies `count` bytes that fill rows of the array from (x, y) on, one row after another, from or to bytes
// without gaps.
template <class Copy>
cudaError_t flowing(cudaArray_const_t array, size_t x, size_t y, size_t count, Copy copy) {
    if (CUresult result = enter()) return done(result);
    CUDA_ARRAY3D_DESCRIPTOR shape;
    if (CUresult result = driver::cuArray3DGetDescriptor(&shape, as_array(array))) return done(result);
    const size_t row = shape.Width * element_bytes(shape.Format, shape.NumChannels);
    if (!row || x >= row) return fail(cudaErrorInvalidValue);
    for (size_t before = 0; before < count;) {
        const size_t left = count - before;
        const size_t rows = x || left < row ? 1 : left / row;
        const size_t width = x || left < row ? std::min(left, row - x) : row;
        if (cudaError_t error = copy(before, x, y, width, rows)) return error;
        before += width * rows;
        y += rows;
        x = 0;
    }
    return cudaSuccess;
}

cudaError_t flow_to(cudaArray_t to, size_t x, size_t y, const void* from, size_t count, cudaMemcpyKind kind,
                    Wait wait, CUstream stream = nullptr) {
    return flowing(to, x, y, count, [=](size_t before, size_t at, size_t row, size_t width, size_t rows) {
        const Side plain{nullptr, static_cast<const char*>(from) + before, width, 0, 0};
        return run(copy_of_rows({to, nullptr, 0, at, row}, plain, width, rows, kind), kind, wait, stream);
    });
}

cudaError_t flow_from(void* to, cudaArray_const_t from, size_t x, size_t y, size_t count, cudaMemcpyKind kind,
                      Wait wait, CUstream stream = nullptr) {
    return flowing(from, x, y, count, [=](size_t before, size_t at, size_t row, size_t width, size_t rows) {
        const Side plain{nullptr, static_cast<char*>(to) + before, width, 0, 0};
        return run(copy_of_rows(plain, {from, nullptr, 0, at, row}, width, rows, kind), kind, wait, stream);
    });
}
}  // namespace

}  // namespace gpukernel::cudart

using namespace gpukernel::cudart;

API cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind f) {
    return {x, y, z, w, f};
}

API cudaError_t cudaMalloc3DArray(cudaArray_t* array, const cudaChannelFormatDesc* channels,
                                  cudaExtent extent, unsigned int flags) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    if (cudaError_t error = describe(channels, extent, flags, descriptor)) return error;
    return done(driver::cuArray3DCreate(reinterpret_cast<CUarray*>(array), &descriptor));
}

API cudaError_t cudaMallocArray(cudaArray_t* array, const cudaChannelFormatDesc* channels, size_t width,
                                size_t height, unsigned int flags) {
    return cudaMalloc3DArray(array, channels, {width, height, 0}, flags);
}

API cudaError_t cudaFreeArray(cudaArray_t array) {
    if (CUresult result = enter()) return done(result);
    return array ? done(driver::cuArrayDestroy(as_array(array))) : cudaSuccess;
}

API cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t* array, const cudaChannelFormatDesc* channels,
                                         cudaExtent extent, unsigned int levels, unsigned int flags) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    if (cudaError_t error = describe(channels, extent, flags, descriptor)) return error;
    return done(
        driver::cuMipmappedArrayCreate(reinterpret_cast<CUmipmappedArray*>(array), &descriptor, levels));
}

API cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t array) {
    if (CUresult result = enter()) return done(result);
    return array ? done(driver::cuMipmappedArrayDestroy(reinterpret_cast<CUmipmappedArray>(array)))
                 : cudaSuccess;
}

API cudaError_t cudaArrayGetInfo(cudaChannelFormatDesc* channels, cudaExtent* extent, unsigned int* flags,
                                 cudaArray_t array) {
    if (CUresult result = enter()) return done(result);
    CUDA_ARRAY3D_DESCRIPTOR found;
    if (CUresult result = driver::cuArray3DGetDescriptor(&found, as_array(array))) return done(result);
    if (channels) *channels = channels_of(found.Format, found.NumChannels);
    if (extent) *extent = {found.Width, found.Height, found.Depth};
    if (flags) *flags = found.Flags;
    return cudaSuccess;
}

API cudaError_t cudaGetChannelDesc(cudaChannelFormatDesc* channels, cudaArray_const_t array) {
    return cudaArrayGetInfo(channels, nullptr, nullptr, const_cast<cudaArray_t>(array));
}

API cudaError_t cudaMemcpy2DToArray(cudaArray_t to, size_t x, size_t y, const void* from, size_t pitch,
                                    size_t width, size_t height, cudaMemcpyKind kind) {
    const Side plain{nullptr, from, pitch, 0, 0};
    return run(copy_of_rows({to, nullptr, 0, x, y}, plain, width, height, kind), kind, Wait::yes);
}

API cudaError_t cudaMemcpy2DToArrayAsync(cudaArray_t to, size_t x, size_t y, const void* from, size_t pitch,
                                         size_t width, size_t height, cudaMemcpyKind kind,
                                         cudaStream_t stream) {
    const Side plain{nullptr, from, pitch, 0, 0};
    return run(copy_of_rows({to, nullptr, 0, x, y}, plain, width, height, kind), kind, Wait::no, stream);
}

API cudaError_t cudaMemcpy2DFromArray(void* to, size_t pitch, cudaArray_const_t from, size_t x, size_t y,
                                      size_t width, size_t height, cudaMemcpyKind kind) {
    const Side plain{nullptr, to, pitch, 0, 0};
    return run(copy_of_rows(plain, {from, nullptr, 0, x, y}, width, height, kind), kind, Wait::yes);
}

API cudaError_t cudaMemcpy2DFromArrayAsync(void* to, size_t pitch, cudaArray_const_t from, size_t x, size_t y,
                                           size_t width, size_t height, cudaMemcpyKind kind,
                                           cudaStream_t stream) {
    const Side plain{nullptr, to, pitch, 0, 0};
    return run(copy_of_rows(plain, {from, nullptr, 0, x, y}, width, height, kind), kind, Wait::no, stream);
}

API cudaError_t cudaMemcpy2DArrayToArray(cudaArray_t to, size_t to_x, size_t to_y, cudaArray_const_t from,
                                         size_t from_x, size_t from_y, size_t width, size_t height,
                                         cudaMemcpyKind kind) {
    return run(
        copy_of_rows({to, nullptr, 0, to_x, to_y}, {from, nullptr, 0, from_x, from_y}, width, height, kind),
        kind, Wait::yes);
}

API cudaError_t cudaMemcpyToArray(cudaArray_t to, size_t x, size_t y, const void* from, size_t count,
                                  cudaMemcpyKind kind) {
    return flow_to(to, x, y, from, count, kind, Wait::yes);
}

API cudaError_t cudaMemcpyToArrayAsync(cudaArray_t to, size_t x, size_t y, const void* from, size_t count,
                                       cudaMemcpyKind kind, cudaStream_t stream) {
    return flow_to(to, x, y, from, count, kind, Wait::no, stream);
}

API cudaError_t cudaMemcpyFromArray(void* to, cudaArray_const_t from, size_t x, size_t y, size_t count,
                                    cudaMemcpyKind kind) {
    return flow_from(to, from, x, y, count, kind, Wait::yes);
}

API cudaError_t cudaMemcpyFromArrayAsync(void* to, cudaArray_const_t from, size_t x, size_t y, size_t count,
                                         cudaMemcpyKind kind, cudaStream_t stream) {
    return flow_from(to, from, x, y, count, kind, Wait::no, stream);
}
