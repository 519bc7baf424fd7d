// Texture and surface objects.
#include <algorithm>

#include "cudart/runtime.h"

using namespace gpukernel::cudart;

namespace {

cudaError_t resource_of(const cudaResourceDesc& from, CUDA_RESOURCE_DESC& to) {
    to = {};
    switch (from.resType) {
        case cudaResourceTypeArray:
            to.resType = CU_RESOURCE_TYPE_ARRAY;
            to.res.array.hArray = reinterpret_cast<CUarray>(from.res.array.array);
            return cudaSuccess;
        case cudaResourceTypeMipmappedArray:
            to.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
            to.res.mipmap.hMipmappedArray = reinterpret_cast<CUmipmappedArray>(from.res.mipmap.mipmap);
            return cudaSuccess;
        case cudaResourceTypeLinear:
            to.resType = CU_RESOURCE_TYPE_LINEAR;
            to.res.linear.devPtr = reinterpret_cast<CUdeviceptr>(from.res.linear.devPtr);
            to.res.linear.sizeInBytes = from.res.linear.sizeInBytes;
            return format_of(from.res.linear.desc, to.res.linear.format, to.res.linear.numChannels)
                       ? cudaSuccess
                       : fail(cudaErrorInvalidChannelDescriptor);
        case cudaResourceTypePitch2D:
            to.resType = CU_RESOURCE_TYPE_PITCH2D;
            to.res.pitch2D.devPtr = reinterpret_cast<CUdeviceptr>(from.res.pitch2D.devPtr);
            to.res.pitch2D.width = from.res.pitch2D.width;
            to.res.pitch2D.height = from.res.pitch2D.height;
            to.res.pitch2D.pitchInBytes = from.res.pitch2D.pitchInBytes;
            return format_of(from.res.pitch2D.desc, to.res.pitch2D.format, to.res.pitch2D.numChannels)
                       ? cudaSuccess
                       : fail(cudaErrorInvalidChannelDescriptor);
        default:
            return fail(cudaErrorInvalidValue);
    }
}

cudaResourceDesc resource_of(const CUDA_RESOURCE_DESC& from) {
    cudaResourceDesc to{};
    to.resType = static_cast<cudaResourceType>(from.resType);
    switch (from.resType) {
        case CU_RESOURCE_TYPE_ARRAY:
            to.res.array.array = reinterpret_cast<cudaArray_t>(from.res.array.hArray);
            break;
        case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
            to.res.mipmap.mipmap = reinterpret_cast<cudaMipmappedArray_t>(from.res.mipmap.hMipmappedArray);
            break;
        case CU_RESOURCE_TYPE_LINEAR:
            to.res.linear.devPtr = reinterpret_cast<void*>(from.res.linear.devPtr);
            to.res.linear.desc = channels_of(from.res.linear.format, from.res.linear.numChannels);
            to.res.linear.sizeInBytes = from.res.linear.sizeInBytes;
            break;
        default:
            to.res.pitch2D.devPtr = reinterpret_cast<void*>(from.res.pitch2D.devPtr);
            to.res.pitch2D.desc = channels_of(from.res.pitch2D.format, from.res.pitch2D.numChannels);
            to.res.pitch2D.width = from.res.pitch2D.width;
            to.res.pitch2D.height = from.res.pitch2D.height;
            to.res.pitch2D.pitchInBytes = from.res.pitch2D.pitchInBytes;
    }
    return to;
}

// CUDA 11 has a second structure for the one field that it added later, with the same beginning.
#if MAJOR < 12
using Texture = cudaTextureDesc_v2;
#else
using Texture = cudaTextureDesc;
#endif

CUDA_TEXTURE_DESC texture_of(const Texture& from) {
    CUDA_TEXTURE_DESC to{};
    for (int i = 0; i < 3; ++i) to.addressMode[i] = static_cast<CUaddress_mode>(from.addressMode[i]);
    to.filterMode = static_cast<CUfilter_mode>(from.filterMode);
    to.flags = (from.readMode == cudaReadModeElementType ? CU_TRSF_READ_AS_INTEGER : 0) |
               (from.normalizedCoords ? CU_TRSF_NORMALIZED_COORDINATES : 0) | (from.sRGB ? CU_TRSF_SRGB : 0) |
               (from.disableTrilinearOptimization ? CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION : 0) |
               (from.seamlessCubemap ? CU_TRSF_SEAMLESS_CUBEMAP : 0);
    to.maxAnisotropy = from.maxAnisotropy;
    to.mipmapFilterMode = static_cast<CUfilter_mode>(from.mipmapFilterMode);
    to.mipmapLevelBias = from.mipmapLevelBias;
    to.minMipmapLevelClamp = from.minMipmapLevelClamp;
    to.maxMipmapLevelClamp = from.maxMipmapLevelClamp;
    std::copy_n(from.borderColor, 4, to.borderColor);
    return to;
}

Texture texture_of(const CUDA_TEXTURE_DESC& from) {
    Texture to{};
    for (int i = 0; i < 3; ++i) to.addressMode[i] = static_cast<cudaTextureAddressMode>(from.addressMode[i]);
    to.filterMode = static_cast<cudaTextureFilterMode>(from.filterMode);
    to.readMode =
        from.flags & CU_TRSF_READ_AS_INTEGER ? cudaReadModeElementType : cudaReadModeNormalizedFloat;
    to.normalizedCoords = !!(from.flags & CU_TRSF_NORMALIZED_COORDINATES);
    to.sRGB = !!(from.flags & CU_TRSF_SRGB);
    to.disableTrilinearOptimization = !!(from.flags & CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION);
    to.seamlessCubemap = !!(from.flags & CU_TRSF_SEAMLESS_CUBEMAP);
    to.maxAnisotropy = from.maxAnisotropy;
    to.mipmapFilterMode = static_cast<cudaTextureFilterMode>(from.mipmapFilterMode);
    to.mipmapLevelBias = from.mipmapLevelBias;
    to.minMipmapLevelClamp = from.minMipmapLevelClamp;
    to.maxMipmapLevelClamp = from.maxMipmapLevelClamp;
    std::copy_n(from.borderColor, 4, to.borderColor);
    return to;
}

CUDA_RESOURCE_VIEW_DESC view_of(const cudaResourceViewDesc& from) {
    CUDA_RESOURCE_VIEW_DESC to{};
    to.format = static_cast<CUresourceViewFormat>(from.format);
    to.width = from.width;
    to.height = from.height;
    to.depth = from.depth;
    to.firstMipmapLevel = from.firstMipmapLevel;
    to.lastMipmapLevel = from.lastMipmapLevel;
    to.firstLayer = from.firstLayer;
    to.lastLayer = from.lastLayer;
    return to;
}

// An element that a texture gives as it is has another type than one that it turns into a float.
cudaError_t create(cudaTextureObject_t* object, const cudaResourceDesc* resource, const Texture& texture,
                   const cudaResourceViewDesc* view) {
    if (!object || !resource) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUDA_RESOURCE_DESC what;
    if (cudaError_t error = resource_of(*resource, what)) return error;
    const CUDA_TEXTURE_DESC how = texture_of(texture);
    CUDA_RESOURCE_VIEW_DESC shown;
    if (view) shown = view_of(*view);
    CUtexObject created;
    if (CUresult result = driver::cuTexObjectCreate(&created, &what, &how, view ? &shown : nullptr))
        return done(result);
    *object = created;
    return cudaSuccess;
}

}  // namespace

API cudaError_t cudaCreateTextureObject(cudaTextureObject_t* object, const cudaResourceDesc* resource,
                                        const cudaTextureDesc* texture, const cudaResourceViewDesc* view) {
    if (!texture) return fail(cudaErrorInvalidValue);
#if MAJOR < 12
    Texture whole{};
    std::copy_n(reinterpret_cast<const char*>(texture), sizeof *texture, reinterpret_cast<char*>(&whole));
    whole.seamlessCubemap = 0;
    return create(object, resource, whole, view);
#else
    return create(object, resource, *texture, view);
#endif
}

#if MAJOR < 12
API cudaError_t cudaCreateTextureObject_v2(cudaTextureObject_t* object, const cudaResourceDesc* resource,
                                           const cudaTextureDesc_v2* texture,
                                           const cudaResourceViewDesc* view) {
    return texture ? create(object, resource, *texture, view) : fail(cudaErrorInvalidValue);
}
#endif

API cudaError_t cudaDestroyTextureObject(cudaTextureObject_t object) {
    if (CUresult result = enter()) return done(result);
    return done(driver::cuTexObjectDestroy(object));
}

API cudaError_t cudaGetTextureObjectResourceDesc(cudaResourceDesc* to, cudaTextureObject_t object) {
    if (!to) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUDA_RESOURCE_DESC found;
    if (CUresult result = driver::cuTexObjectGetResourceDesc(&found, object)) return done(result);
    *to = resource_of(found);
    return cudaSuccess;
}

API cudaError_t cudaGetTextureObjectTextureDesc(cudaTextureDesc* to, cudaTextureObject_t object) {
    if (!to) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUDA_TEXTURE_DESC found;
    if (CUresult result = driver::cuTexObjectGetTextureDesc(&found, object)) return done(result);
    const Texture whole = texture_of(found);
    std::copy_n(reinterpret_cast<const char*>(&whole), sizeof *to, reinterpret_cast<char*>(to));
    return cudaSuccess;
}

API cudaError_t cudaGetTextureObjectResourceViewDesc(cudaResourceViewDesc* to, cudaTextureObject_t object) {
    if (!to) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUDA_RESOURCE_VIEW_DESC found;
    if (CUresult result = driver::cuTexObjectGetResourceViewDesc(&found, object)) return done(result);
    *to = {};
    to->format = static_cast<cudaResourceViewFormat>(found.format);
    to->width = found.width;
    to->height = found.height;
    to->depth = found.depth;
    to->firstMipmapLevel = found.firstMipmapLevel;
    to->lastMipmapLevel = found.lastMipmapLevel;
    to->firstLayer = found.firstLayer;
    to->lastLayer = found.lastLayer;
    return cudaSuccess;
}

API cudaError_t cudaCreateSurfaceObject(cudaSurfaceObject_t* object, const cudaResourceDesc* resource) {
    if (!object || !resource) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUDA_RESOURCE_DESC what;
    if (cudaError_t error = resource_of(*resource, what)) return error;
    CUsurfObject created;
    if (CUresult result = driver::cuSurfObjectCreate(&created, &what)) return done(result);
    *object = created;
    return cudaSuccess;
}

API cudaError_t cudaDestroySurfaceObject(cudaSurfaceObject_t object) {
    if (CUresult result = enter()) return done(result);
    return done(driver::cuSurfObjectDestroy(object));
}

API cudaError_t cudaGetSurfaceObjectResourceDesc(cudaResourceDesc* to, cudaSurfaceObject_t object) {
    if (!to) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUDA_RESOURCE_DESC found;
    if (CUresult result = driver::cuSurfObjectGetResourceDesc(&found, object)) return done(result);
    *to = resource_of(found);
    return cudaSuccess;
}
