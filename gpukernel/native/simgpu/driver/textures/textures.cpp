// Texture and surface objects, and the references that modules declare (driver API chapters "Texture Object
// Management", "Surface Object Management", "Texture Reference Management").
#include <algorithm>
#include <cstring>

#include "simgpu/driver/memory/arrays.h"
#include "simgpu/driver/modules/launch.h"

using namespace gpukernel::simgpu;

namespace {

constexpr uint64_t ALIGNMENT = 256;  // of device memory under a texture: that of every allocation
std::atomic<uint64_t> next_object{1};

struct Described {  // for the Get calls
    Device* device;
    bool surface;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC texture;
    CUDA_RESOURCE_VIEW_DESC view;
    bool viewed;
};
std::mutex objects_mutex;
std::unordered_map<uint64_t, Described> objects;

TextureLevel level_of(const Array& a) {
    return {a.address,
            static_cast<uint32_t>(a.shape.Width),
            static_cast<uint32_t>(a.rows()),
            static_cast<uint32_t>(a.slices()),
            a.row,
            a.slice};
}

CUresult take_format(Texture& t, CUarray_format name, unsigned channels) {
    TexelFormat format;
    CUresult error = format_of(name, channels, format);
    if (error != CUDA_SUCCESS) return error;
    t.channel = format.channel, t.channels = format.channels;
    t.texel_bytes = format.bytes * format.channels;
    t.normalized_values = format.normalized;
    return CUDA_SUCCESS;
}

CUresult take_shape(Texture& t, const CUDA_ARRAY3D_DESCRIPTOR& shape) {
    t.layered = shape.Flags & CUDA_ARRAY3D_LAYERED, t.cube = shape.Flags & CUDA_ARRAY3D_CUBEMAP;
    return take_format(t, shape.Format, shape.NumChannels);
}

CUresult take_linear(Device* device, Texture& t, CUdeviceptr at, CUarray_format format, unsigned channels,
                     size_t bytes) {
    if (CUresult error = take_format(t, format, channels); error != CUDA_SUCCESS) return error;
    const size_t width = bytes / t.texel_bytes;
    if (!width || width > 1u << 28 || at % ALIGNMENT || !device->memory->valid(at, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    t.levels = {{at, static_cast<uint32_t>(width), 1, 1, bytes, bytes}};
    t.linear_memory = true;
    return CUDA_SUCCESS;
}

CUresult take_pitched(Device* device, Texture& t, CUdeviceptr at, CUarray_format format, unsigned channels,
                      size_t width, size_t height, size_t pitch) {
    if (CUresult error = take_format(t, format, channels); error != CUDA_SUCCESS) return error;
    if (!width || !height || width > 131072 || height > 65000 || at % ALIGNMENT || pitch % 32 ||
        pitch < width * t.texel_bytes || pitch > 1u << 30 ||
        !device->memory->valid(at, (height - 1) * pitch + width * t.texel_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    t.levels = {{at, static_cast<uint32_t>(width), static_cast<uint32_t>(height), 1, pitch, pitch * height}};
    return CUDA_SUCCESS;
}

CUresult take_resource(Device* device, Texture& t, const CUDA_RESOURCE_DESC& r) {
    if (r.flags) return CUDA_ERROR_INVALID_VALUE;
    switch (r.resType) {
        case CU_RESOURCE_TYPE_ARRAY: {
            const Array* array = array_of(r.res.array.hArray);
            if (!array || array->device != device) return CUDA_ERROR_INVALID_HANDLE;
            t.levels = {level_of(*array)};
            return take_shape(t, array->shape);
        }
        case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
            const Mipmap* mipmap = mipmap_of(r.res.mipmap.hMipmappedArray);
            if (!mipmap || mipmap->device != device) return CUDA_ERROR_INVALID_HANDLE;
            for (const auto& level : mipmap->levels) t.levels.push_back(level_of(*level));
            return take_shape(t, mipmap->shape);
        }
        case CU_RESOURCE_TYPE_LINEAR: {
            const auto& l = r.res.linear;
            return take_linear(device, t, l.devPtr, l.format, l.numChannels, l.sizeInBytes);
        }
        case CU_RESOURCE_TYPE_PITCH2D: {
            const auto& p = r.res.pitch2D;
            return take_pitched(device, t, p.devPtr, p.format, p.numChannels, p.width, p.height,
                                p.pitchInBytes);
        }
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult take_sampler(Texture& t, const CUDA_TEXTURE_DESC& d) {
    for (int i = 0; i < 3; ++i) {
        if (d.addressMode[i] < CU_TR_ADDRESS_MODE_WRAP || d.addressMode[i] > CU_TR_ADDRESS_MODE_BORDER)
            return CUDA_ERROR_INVALID_VALUE;
        t.addressing[i] = static_cast<Addressing>(d.addressMode[i]);
    }
    const unsigned known = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |
                           CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION | CU_TRSF_SEAMLESS_CUBEMAP;
    if (d.flags & ~known ||
        (d.filterMode != CU_TR_FILTER_MODE_POINT && d.filterMode != CU_TR_FILTER_MODE_LINEAR))
        return CUDA_ERROR_INVALID_VALUE;
    t.normalized_coordinates = d.flags & CU_TRSF_NORMALIZED_COORDINATES;
    const bool small = t.channel == ChannelFormat::u8 || t.channel == ChannelFormat::s8 ||
                       t.channel == ChannelFormat::u16 || t.channel == ChannelFormat::s16;
    t.normalized_values |= small && !(d.flags & CU_TRSF_READ_AS_INTEGER);
    t.filter = d.filterMode == CU_TR_FILTER_MODE_LINEAR;
    t.filter_levels = d.mipmapFilterMode == CU_TR_FILTER_MODE_LINEAR;
    t.srgb = d.flags & CU_TRSF_SRGB, t.seamless = d.flags & CU_TRSF_SEAMLESS_CUBEMAP;
    std::copy(d.borderColor, d.borderColor + 4, t.border);
    t.level_bias = d.mipmapLevelBias;
    t.least_level = d.minMipmapLevelClamp, t.most_level = d.maxMipmapLevelClamp;
    return CUDA_SUCCESS;
}

struct ViewFormat {
    CUarray_format format;
    unsigned channels;
};
// CUresourceViewFormat counts kinds of three: 1, 2 and 4 channels.
bool format_of_view(CUresourceViewFormat view, ViewFormat& found) {
    constexpr CUarray_format formats[] = {CU_AD_FORMAT_UNSIGNED_INT8,  CU_AD_FORMAT_SIGNED_INT8,
                                          CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_SIGNED_INT16,
                                          CU_AD_FORMAT_UNSIGNED_INT32, CU_AD_FORMAT_SIGNED_INT32,
                                          CU_AD_FORMAT_HALF,           CU_AD_FORMAT_FLOAT};
    const int n = static_cast<int>(view) - CU_RES_VIEW_FORMAT_UINT_1X8;
    if (n < 0 || view > CU_RES_VIEW_FORMAT_FLOAT_4X32) return false;
    found = {formats[n / 3], 1u << n % 3};
    return true;
}

// Some of the levels and layers, and perhaps their texels as another format of the same size.
CUresult take_view(Texture& t, const CUDA_RESOURCE_VIEW_DESC& v) {
    if (t.linear_memory) return CUDA_ERROR_INVALID_VALUE;
    if (v.lastMipmapLevel < v.firstMipmapLevel || v.lastMipmapLevel >= t.levels.size())
        return CUDA_ERROR_INVALID_VALUE;
    t.levels.erase(t.levels.begin() + v.lastMipmapLevel + 1, t.levels.end());
    t.levels.erase(t.levels.begin(), t.levels.begin() + v.firstMipmapLevel);
    if (v.format != CU_RES_VIEW_FORMAT_NONE) {
        ViewFormat view;
        const uint32_t bytes = t.texel_bytes;
        if (!format_of_view(v.format, view)) return gpukernel::unsupported("a view in a compressed format");
        if (CUresult error = take_format(t, view.format, view.channels); error != CUDA_SUCCESS) return error;
        if (t.texel_bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
    }
    const TextureLevel& first = t.levels[0];
    if ((v.width && v.width != first.width) || (v.height && v.height != first.height))
        return CUDA_ERROR_INVALID_VALUE;
    if (!t.layered) return CUDA_SUCCESS;
    if (v.lastLayer < v.firstLayer || v.lastLayer >= first.depth) return CUDA_ERROR_INVALID_VALUE;
    const uint32_t layers = v.lastLayer - v.firstLayer + 1;
    if (t.cube && layers % 6) return CUDA_ERROR_INVALID_VALUE;
    for (TextureLevel& level : t.levels) level.address += v.firstLayer * level.slice, level.depth = layers;
    return CUDA_SUCCESS;
}

uint64_t add(Device* device, Texture&& texture, const Described& described) {
    const uint64_t number = next_object++;
    device->textures.set(number, std::make_shared<const Texture>(std::move(texture)));
    std::lock_guard lock(objects_mutex);
    objects[number] = described;
    return number;
}

CUresult described(uint64_t object, bool surface, const std::function<CUresult(const Described&)>& use) {
    GPUKERNEL_HERE(device);
    std::lock_guard lock(objects_mutex);
    auto it = objects.find(object);
    if (it == objects.end() || it->second.surface != surface) return CUDA_ERROR_INVALID_HANDLE;
    return use(it->second);
}

CUresult destroy(uint64_t object, bool surface) {
    CUresult error = described(object, surface, [&](const Described& d) {
        d.device->textures.set(object, nullptr);  // launches already submitted keep it
        return CUDA_SUCCESS;
    });
    if (error != CUDA_SUCCESS) return error;
    std::lock_guard lock(objects_mutex);
    objects.erase(object);
    return CUDA_SUCCESS;
}

template <class T>
CUresult tell(T* out, const T& value) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = value;
    return CUDA_SUCCESS;
}
}  // namespace

CUresult CUDAAPI cuTexObjectCreate(CUtexObject* pTexObject, const CUDA_RESOURCE_DESC* pResDesc,
                                   const CUDA_TEXTURE_DESC* pTexDesc,
                                   const CUDA_RESOURCE_VIEW_DESC* pResViewDesc) {
    GPUKERNEL_HERE(device);
    if (!pTexObject || !pResDesc || !pTexDesc) return CUDA_ERROR_INVALID_VALUE;
    Texture texture;
    CUresult error = take_resource(device, texture, *pResDesc);
    if (error == CUDA_SUCCESS && pResViewDesc) error = take_view(texture, *pResViewDesc);
    if (error == CUDA_SUCCESS) error = take_sampler(texture, *pTexDesc);
    if (error != CUDA_SUCCESS) return error;
    *pTexObject = add(device, std::move(texture),
                      {device, false, *pResDesc, *pTexDesc,
                       pResViewDesc ? *pResViewDesc : CUDA_RESOURCE_VIEW_DESC{}, pResViewDesc != nullptr});
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuTexObjectDestroy(CUtexObject texObject) { return destroy(texObject, false); }
CUresult CUDAAPI cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* pResDesc, CUtexObject texObject) {
    return described(texObject, false, [&](const Described& d) { return tell(pResDesc, d.resource); });
}
CUresult CUDAAPI cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* pTexDesc, CUtexObject texObject) {
    return described(texObject, false, [&](const Described& d) { return tell(pTexDesc, d.texture); });
}
CUresult CUDAAPI cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* pResViewDesc,
                                                CUtexObject texObject) {
    return described(texObject, false, [&](const Described& d) {
        return d.viewed ? tell(pResViewDesc, d.view) : CUDA_ERROR_INVALID_VALUE;
    });
}

CUresult CUDAAPI cuSurfObjectCreate(CUsurfObject* pSurfObject, const CUDA_RESOURCE_DESC* pResDesc) {
    GPUKERNEL_HERE(device);
    if (!pSurfObject || !pResDesc || pResDesc->resType != CU_RESOURCE_TYPE_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    const Array* array = array_of(pResDesc->res.array.hArray);
    if (!array) return CUDA_ERROR_INVALID_HANDLE;
    if (!(array->shape.Flags & CUDA_ARRAY3D_SURFACE_LDST)) return CUDA_ERROR_INVALID_VALUE;
    Texture texture;
    if (CUresult error = take_resource(device, texture, *pResDesc); error != CUDA_SUCCESS) return error;
    texture.surface = true;
    *pSurfObject = add(device, std::move(texture), {device, true, *pResDesc, {}, {}, false});
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuSurfObjectDestroy(CUsurfObject surfObject) { return destroy(surfObject, true); }
CUresult CUDAAPI cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* pResDesc, CUsurfObject surfObject) {
    return described(surfObject, true, [&](const Described& d) { return tell(pResDesc, d.resource); });
}

CUresult CUDAAPI cuDeviceGetTexture1DLinearMaxWidth(size_t* maxWidthInElements, CUarray_format format,
                                                    unsigned numChannels, CUdevice dev) {
    TexelFormat found;
    if (!maxWidthInElements) return CUDA_ERROR_INVALID_VALUE;
    CUresult error = format_of(format, numChannels, found);
    if (error == CUDA_SUCCESS) *maxWidthInElements = 1u << 28;
    return error;
}

namespace gpukernel::simgpu {
bool texture_limit(CUdevice_attribute attribute, int& value) {  // those of compute capability 7.0
    static constexpr std::pair<CUdevice_attribute, int> limits[] = {
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, 131072},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS, 2048},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH, 1 << 28},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, 131072},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, 65536},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS, 2048},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH, 131072},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, 65000},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH, 2097120},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, 16384},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, 16384},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, 16384},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE, 8192},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE, 8192},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS, 2046},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS, 2048},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH, 131072},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT, 65536},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS, 2048},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH, 16384},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT, 16384},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH, 16384},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH, 32768},
        {CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS, 2046},
    };
    for (auto [known, most] : limits)
        if (known == attribute) return value = most, true;
    return false;
}
}  // namespace gpukernel::simgpu

// --- references: each change of their settings makes their texture anew ---

namespace gpukernel::simgpu {
struct Reference {
    Device* device;
    uint64_t address;  // what instructions name it by
    bool surface;
    CUDA_RESOURCE_DESC resource{};
    CUDA_TEXTURE_DESC sampler{};
    bool bound = false;
    CUarray_format format = CU_AD_FORMAT_FLOAT;
    int channels = 1;
};
}  // namespace gpukernel::simgpu

namespace {
CUresult bind(Reference& r) {
    if (!r.bound) return CUDA_SUCCESS;
    Texture texture;
    CUresult error = take_resource(r.device, texture, r.resource);
    if (error == CUDA_SUCCESS && !r.surface) error = take_sampler(texture, r.sampler);
    if (error != CUDA_SUCCESS) return error;
    texture.surface = r.surface;
    r.device->textures.set(r.address, std::make_shared<const Texture>(std::move(texture)));
    return CUDA_SUCCESS;
}

template <class Change>
CUresult change(const void* handle, bool surface, Change with) {
    GPUKERNEL_HERE(device);
    auto* reference = driver()->references.get<Reference>(handle);
    if (!reference || reference->surface != surface) return CUDA_ERROR_INVALID_HANDLE;
    Reference changed = *reference;
    if (CUresult error = with(changed); error != CUDA_SUCCESS) return error;
    if (CUresult error = bind(changed); error != CUDA_SUCCESS) return error;
    *reference = changed;
    return CUDA_SUCCESS;
}
template <class Ask>
CUresult ask(const void* handle, Ask question) {
    GPUKERNEL_HERE(device);
    const auto* reference = driver()->references.get<Reference>(handle);
    return reference && !reference->surface ? question(*reference) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult reference_named(void* handle, const char* name, bool surface, void** found) {
    GPUKERNEL_HERE(device);
    auto* loaded = module_of(handle);
    if (!loaded) return CUDA_ERROR_INVALID_HANDLE;
    if (!name || !found) return CUDA_ERROR_INVALID_VALUE;
    const auto& declared =
        surface ? loaded->image->surface_references() : loaded->image->texture_references();
    for (const GlobalInfo& each : declared) {
        if (each.name != name) continue;
        std::lock_guard lock(loaded->mutex);
        for (const auto& known : loaded->references)
            if (known->address == each.address) return *found = known.get(), CUDA_SUCCESS;
        auto fresh = std::make_shared<Reference>();
        fresh->device = loaded->device, fresh->address = each.address, fresh->surface = surface;
        fresh->sampler.flags = 0;
        for (auto& mode : fresh->sampler.addressMode) mode = CU_TR_ADDRESS_MODE_CLAMP;
        fresh->sampler.maxMipmapLevelClamp = 1000;
        *found = driver()->references.add(fresh.get());
        loaded->references.push_back(std::move(fresh));
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult set_array(Reference& r, CUarray array) {
    r.resource = {};
    r.resource.resType = CU_RESOURCE_TYPE_ARRAY, r.resource.res.array.hArray = array;
    r.bound = true;
    if (const Array* known = array_of(array))
        r.format = known->shape.Format, r.channels = known->shape.NumChannels;
    return CUDA_SUCCESS;
}
}  // namespace

namespace gpukernel::simgpu {
void drop_references(Loaded& loaded) {
    for (const auto& reference : loaded.references) {
        driver()->references.remove(reference.get());
        reference->device->textures.set(reference->address, nullptr);
    }
}
}  // namespace gpukernel::simgpu

CUresult CUDAAPI cuModuleGetTexRef(CUtexref* pTexRef, CUmodule hmod, const char* name) {
    return reference_named(hmod, name, false, reinterpret_cast<void**>(pTexRef));
}
CUresult CUDAAPI cuModuleGetSurfRef(CUsurfref* pSurfRef, CUmodule hmod, const char* name) {
    return reference_named(hmod, name, true, reinterpret_cast<void**>(pSurfRef));
}

CUresult CUDAAPI cuTexRefSetArray(CUtexref hTexRef, CUarray hArray, unsigned int Flags) {
    return change(hTexRef, false, [&](Reference& r) {
        return Flags == CU_TRSA_OVERRIDE_FORMAT ? set_array(r, hArray) : CUDA_ERROR_INVALID_VALUE;
    });
}
CUresult CUDAAPI cuTexRefSetMipmappedArray(CUtexref hTexRef, CUmipmappedArray hMipmappedArray,
                                           unsigned int Flags) {
    return change(hTexRef, false, [&](Reference& r) {
        r.resource = {};
        r.resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
        r.resource.res.mipmap.hMipmappedArray = hMipmappedArray;
        r.bound = true;
        return CUDA_SUCCESS;
    });
}
CUresult CUDAAPI cuTexRefSetAddress(size_t* ByteOffset, CUtexref hTexRef, CUdeviceptr dptr, size_t bytes) {
    return change(hTexRef, false, [&](Reference& r) {
        const size_t offset =
            dptr % ALIGNMENT;  // the texture begins at an aligned address; kernels add the rest
        if (offset && !ByteOffset) return CUDA_ERROR_INVALID_VALUE;
        if (ByteOffset) *ByteOffset = offset;
        r.resource = {};
        r.resource.resType = CU_RESOURCE_TYPE_LINEAR;
        r.resource.res.linear = {dptr - offset, r.format, static_cast<unsigned>(r.channels), bytes + offset};
        r.bound = true;
        return CUDA_SUCCESS;
    });
}
CUresult CUDAAPI cuTexRefSetAddress2D(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR* desc, CUdeviceptr dptr,
                                      size_t Pitch) {
    return change(hTexRef, false, [&](Reference& r) {
        if (!desc) return CUDA_ERROR_INVALID_VALUE;
        r.format = desc->Format, r.channels = static_cast<int>(desc->NumChannels);
        r.resource = {};
        r.resource.resType = CU_RESOURCE_TYPE_PITCH2D;
        r.resource.res.pitch2D = {dptr, desc->Format, desc->NumChannels, desc->Width, desc->Height, Pitch};
        r.bound = true;
        return CUDA_SUCCESS;
    });
}
CUresult CUDAAPI cuTexRefSetFormat(CUtexref hTexRef, CUarray_format fmt, int NumPackedComponents) {
    return change(hTexRef, false, [&](Reference& r) {
        TexelFormat found;
        CUresult error = format_of(fmt, static_cast<unsigned>(NumPackedComponents), found);
        r.format = fmt, r.channels = NumPackedComponents;
        if (r.bound && r.resource.resType == CU_RESOURCE_TYPE_LINEAR)
            r.resource.res.linear.format = fmt, r.resource.res.linear.numChannels = found.channels;
        return error;
    });
}
CUresult CUDAAPI cuTexRefSetAddressMode(CUtexref hTexRef, int dim, CUaddress_mode am) {
    return change(hTexRef, false, [&](Reference& r) {
        if (dim < 0 || dim > 2 || am < CU_TR_ADDRESS_MODE_WRAP || am > CU_TR_ADDRESS_MODE_BORDER)
            return CUDA_ERROR_INVALID_VALUE;
        r.sampler.addressMode[dim] = am;
        return CUDA_SUCCESS;
    });
}
CUresult CUDAAPI cuTexRefSetFilterMode(CUtexref hTexRef, CUfilter_mode fm) {
    return change(hTexRef, false, [&](Reference& r) {
        if (fm != CU_TR_FILTER_MODE_POINT && fm != CU_TR_FILTER_MODE_LINEAR) return CUDA_ERROR_INVALID_VALUE;
        r.sampler.filterMode = fm;
        return CUDA_SUCCESS;
    });
}
CUresult CUDAAPI cuTexRefSetMipmapFilterMode(CUtexref hTexRef, CUfilter_mode fm) {
    return change(hTexRef, false,
                  [&](Reference& r) { return r.sampler.mipmapFilterMode = fm, CUDA_SUCCESS; });
}
CUresult CUDAAPI cuTexRefSetMipmapLevelBias(CUtexref hTexRef, float bias) {
    return change(hTexRef, false,
                  [&](Reference& r) { return r.sampler.mipmapLevelBias = bias, CUDA_SUCCESS; });
}
CUresult CUDAAPI cuTexRefSetMipmapLevelClamp(CUtexref hTexRef, float minMipmapLevelClamp,
                                             float maxMipmapLevelClamp) {
    return change(hTexRef, false, [&](Reference& r) {
        r.sampler.minMipmapLevelClamp = minMipmapLevelClamp,
        r.sampler.maxMipmapLevelClamp = maxMipmapLevelClamp;
        return CUDA_SUCCESS;
    });
}
CUresult CUDAAPI cuTexRefSetMaxAnisotropy(CUtexref hTexRef, unsigned int maxAniso) {
    return change(hTexRef, false,
                  [&](Reference& r) { return r.sampler.maxAnisotropy = maxAniso, CUDA_SUCCESS; });
}
CUresult CUDAAPI cuTexRefSetBorderColor(CUtexref hTexRef, float* pBorderColor) {
    return change(hTexRef, false, [&](Reference& r) {
        if (!pBorderColor) return CUDA_ERROR_INVALID_VALUE;
        std::copy(pBorderColor, pBorderColor + 4, r.sampler.borderColor);
        return CUDA_SUCCESS;
    });
}
CUresult CUDAAPI cuTexRefSetFlags(CUtexref hTexRef, unsigned int Flags) {
    return change(hTexRef, false, [&](Reference& r) { return r.sampler.flags = Flags, CUDA_SUCCESS; });
}

CUresult CUDAAPI cuTexRefGetAddress(CUdeviceptr* pdptr, CUtexref hTexRef) {
    return ask(hTexRef, [&](const Reference& r) {
        if (!r.bound) return CUDA_ERROR_INVALID_VALUE;
        if (r.resource.resType == CU_RESOURCE_TYPE_LINEAR) return tell(pdptr, r.resource.res.linear.devPtr);
        if (r.resource.resType == CU_RESOURCE_TYPE_PITCH2D) return tell(pdptr, r.resource.res.pitch2D.devPtr);
        return CUDA_ERROR_INVALID_VALUE;
    });
}
CUresult CUDAAPI cuTexRefGetArray(CUarray* phArray, CUtexref hTexRef) {
    return ask(hTexRef, [&](const Reference& r) {
        return r.bound && r.resource.resType == CU_RESOURCE_TYPE_ARRAY
                   ? tell(phArray, r.resource.res.array.hArray)
                   : CUDA_ERROR_INVALID_VALUE;
    });
}
CUresult CUDAAPI cuTexRefGetAddressMode(CUaddress_mode* pam, CUtexref hTexRef, int dim) {
    return ask(hTexRef, [&](const Reference& r) {
        return dim < 0 || dim > 2 ? CUDA_ERROR_INVALID_VALUE : tell(pam, r.sampler.addressMode[dim]);
    });
}
CUresult CUDAAPI cuTexRefGetFilterMode(CUfilter_mode* pfm, CUtexref hTexRef) {
    return ask(hTexRef, [&](const Reference& r) { return tell(pfm, r.sampler.filterMode); });
}
CUresult CUDAAPI cuTexRefGetFormat(CUarray_format* pFormat, int* pNumChannels, CUtexref hTexRef) {
    return ask(hTexRef, [&](const Reference& r) {
        if (pNumChannels) *pNumChannels = r.channels;
        return tell(pFormat, r.format);
    });
}
CUresult CUDAAPI cuTexRefGetMipmapFilterMode(CUfilter_mode* pfm, CUtexref hTexRef) {
    return ask(hTexRef, [&](const Reference& r) { return tell(pfm, r.sampler.mipmapFilterMode); });
}
CUresult CUDAAPI cuTexRefGetMipmapLevelBias(float* pbias, CUtexref hTexRef) {
    return ask(hTexRef, [&](const Reference& r) { return tell(pbias, r.sampler.mipmapLevelBias); });
}
CUresult CUDAAPI cuTexRefGetMipmapLevelClamp(float* pminMipmapLevelClamp, float* pmaxMipmapLevelClamp,
                                             CUtexref hTexRef) {
    return ask(hTexRef, [&](const Reference& r) {
        if (pmaxMipmapLevelClamp) *pmaxMipmapLevelClamp = r.sampler.maxMipmapLevelClamp;
        return tell(pminMipmapLevelClamp, r.sampler.minMipmapLevelClamp);
    });
}
CUresult CUDAAPI cuTexRefGetMaxAnisotropy(int* pmaxAniso, CUtexref hTexRef) {
    return ask(hTexRef, [&](const Reference& r) {
        return tell(pmaxAniso, static_cast<int>(r.sampler.maxAnisotropy));
    });
}
CUresult CUDAAPI cuTexRefGetBorderColor(float* pBorderColor, CUtexref hTexRef) {
    return ask(hTexRef, [&](const Reference& r) {
        if (!pBorderColor) return CUDA_ERROR_INVALID_VALUE;
        std::copy(r.sampler.borderColor, r.sampler.borderColor + 4, pBorderColor);
        return CUDA_SUCCESS;
    });
}
CUresult CUDAAPI cuTexRefGetFlags(unsigned int* pFlags, CUtexref hTexRef) {
    return ask(hTexRef, [&](const Reference& r) { return tell(pFlags, r.sampler.flags); });
}

CUresult CUDAAPI cuSurfRefSetArray(CUsurfref hSurfRef, CUarray hArray, unsigned int Flags) {
    return change(hSurfRef, true, [&](Reference& r) {
        const Array* array = array_of(hArray);
        if (!array) return CUDA_ERROR_INVALID_HANDLE;
        if (Flags || !(array->shape.Flags & CUDA_ARRAY3D_SURFACE_LDST)) return CUDA_ERROR_INVALID_VALUE;
        return set_array(r, hArray);
    });
}
