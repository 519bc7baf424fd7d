// The handlers for CUDA arrays, which count towards the lease's cap, for textures and surfaces, which show
// only the lease's memory, and for pitched copies.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <optional>

#include "worker/lease/measured.h"

namespace gpukernel::worker {

namespace {
using wire::PitchedCopy;
using wire::PitchedPlace;

// Bytes of one texel; 0 for planar and compressed formats, whose texels have no size of their own.
uint64_t texel_bytes(CUarray_format format, uint64_t channels) {
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8:
            return channels;
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF:
            return 2 * channels;
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT:
            return 4 * channels;
        case CU_AD_FORMAT_UNORM_INT8X1:
        case CU_AD_FORMAT_SNORM_INT8X1:
            return 1;
        case CU_AD_FORMAT_UNORM_INT8X2:
        case CU_AD_FORMAT_SNORM_INT8X2:
        case CU_AD_FORMAT_UNORM_INT16X1:
        case CU_AD_FORMAT_SNORM_INT16X1:
            return 2;
        case CU_AD_FORMAT_UNORM_INT8X4:
        case CU_AD_FORMAT_SNORM_INT8X4:
        case CU_AD_FORMAT_UNORM_INT16X2:
        case CU_AD_FORMAT_SNORM_INT16X2:
            return 4;
        case CU_AD_FORMAT_UNORM_INT16X4:
        case CU_AD_FORMAT_SNORM_INT16X4:
            return 8;
        default:
            return 0;
    }
}

bool product(uint64_t& result, std::initializer_list<uint64_t> factors) {
    result = 1;
    for (uint64_t factor : factors)
        if (__builtin_mul_overflow(result, factor, &result)) return false;
    return true;
}

// The least bytes that an array takes, without the driver's padding; CUDA_ERROR_OUT_OF_MEMORY beyond 64 bits.
CUresult least_of(CUDA_ARRAY3D_DESCRIPTOR shape, unsigned levels, uint64_t& bytes) {
    // Memory that is mapped later, or in parts, could not be charged.
    if (shape.Flags &
        (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!shape.NumChannels || shape.NumChannels > 4 || !shape.Width) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t texel = texel_bytes(shape.Format, shape.NumChannels);
    if (!texel) return CUDA_ERROR_NOT_SUPPORTED;
    const bool layers = shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    bytes = 0;
    for (unsigned n = 0; n < std::min(levels, 64u); ++n) {
        uint64_t level;
        if (!product(level, {shape.Width, std::max<uint64_t>(shape.Height, 1),
                             std::max<uint64_t>(shape.Depth, 1), texel}) ||
            __builtin_add_overflow(bytes, level, &bytes))
            return CUDA_ERROR_OUT_OF_MEMORY;
        if (shape.Width <= 1 && shape.Height <= 1 && (layers || shape.Depth <= 1)) break;
        shape.Width = std::max<size_t>(shape.Width / 2, 1), shape.Height /= 2;
        if (!layers) shape.Depth /= 2;
    }
    return CUDA_SUCCESS;
}

// What counts is what the device gives for it, as for modules, and never less than the texels.
template <class Handle, class Make, class Destroy>
CUresult make(Session& session, Writer& out, Kind kind, uint64_t least, Make make, Destroy destroy) {
    if (session.kept_error() != CUDA_SUCCESS) return session.kept_error();
    if (least > session.lease().memory_limit()) return CUDA_ERROR_OUT_OF_MEMORY;
    Handle handle = nullptr;
    auto host = session.host_charge(HostMemory::ARRAY);
    if (!host) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = make_charged(session, charge(least), &session, handle, make, destroy);
    if (result == CUDA_SUCCESS) out.put(session.number_of(handle, kind, nullptr, std::move(*host)));
    return result;
}

template <class Handle, class Destroy>
CUresult destroy(Session& session, Reader& in, Kind kind, Destroy function) {
    const auto name = in.get<uint64_t>();
    Handle handle;
    if (!session.handle(name, kind, handle) || session.parent_of(name)) return CUDA_ERROR_INVALID_HANDLE;
    std::lock_guard allocating(session.lease().allocation_mutex);
    session.drop(name);
    CUresult result = function(handle);
    session.lease().refund_module(handle);
    return result;
}

uint64_t name_in(const void* handle) { return reinterpret_cast<uint64_t>(handle); }

bool rows_valid(const Lease& lease, CUdeviceptr at, uint64_t width, uint64_t height, uint64_t pitch) {
    uint64_t bytes;
    return width && height && pitch >= width && product(bytes, {pitch, height - 1}) &&
           !__builtin_add_overflow(bytes, width, &bytes) && lease.valid(at, bytes);
}

// As many of the bytes from an address on as are the lease's.
uint64_t reach(const Lease& lease, CUdeviceptr at, uint64_t bytes) {
    if (lease.valid(at, bytes)) return bytes;
    uint64_t reached = 0;
    for (uint64_t beyond = bytes; beyond - reached > 1;) {
        const uint64_t middle = reached + (beyond - reached) / 2;
        (lease.valid(at, middle) ? reached : beyond) = middle;
    }
    return reached;
}

// Replaces the program's handles in a description by the driver's.
CUresult translate(Session& session, const CUDA_RESOURCE_DESC& asked, CUDA_RESOURCE_DESC& real) {
    real = asked;
    if (asked.flags) return CUDA_ERROR_INVALID_VALUE;
    switch (asked.resType) {
        case CU_RESOURCE_TYPE_ARRAY:
            return session.handle(name_in(asked.res.array.hArray), Kind::array, real.res.array.hArray)
                       ? CUDA_SUCCESS
                       : CUDA_ERROR_INVALID_HANDLE;
        case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
            return session.handle(name_in(asked.res.mipmap.hMipmappedArray), Kind::mipmap,
                                  real.res.mipmap.hMipmappedArray)
                       ? CUDA_SUCCESS
                       : CUDA_ERROR_INVALID_HANDLE;
        case CU_RESOURCE_TYPE_LINEAR:
            // CUDA's driver takes one that is longer than the memory (a sample of NVIDIA's has that); here
            // what lies beyond is not part of it, and reads as zero.
            real.res.linear.sizeInBytes =
                reach(session.lease(), asked.res.linear.devPtr, asked.res.linear.sizeInBytes);
            return real.res.linear.sizeInBytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        case CU_RESOURCE_TYPE_PITCH2D: {
            const auto& p = asked.res.pitch2D;
            uint64_t width;
            return p.numChannels <= 4 && product(width, {p.width, texel_bytes(p.format, p.numChannels)}) &&
                           rows_valid(session.lease(), p.devPtr, width, p.height, p.pitchInBytes)
                       ? CUDA_SUCCESS
                       : CUDA_ERROR_INVALID_VALUE;
        }
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

template <class Objects>
const View* view_of(const Objects& objects, uint64_t object) {
    auto it = objects.find(object);
    return it == objects.end() ? nullptr : &it->second;
}

// --- pitched copies ---

using Bytes = std::optional<uint64_t>;
Bytes bytes_of(const PitchedCopy& extent) {
    uint64_t bytes;
    return product(bytes, {extent.width, extent.height, extent.depth}) ? Bytes(bytes) : std::nullopt;
}

struct Side {
    CUmemorytype type;
    CUdeviceptr address;
    CUarray array;
    uint64_t pitch, rows;
};

// Finds where one side of a copy lies: wholly in the lease's memory, or in an array, whose bounds the driver
// checks.
CUresult find(Session& session, const PitchedCopy& extent, const PitchedPlace& place, Side& side) {
    side = {CU_MEMORYTYPE_DEVICE, place.address, nullptr, std::max(place.pitch, extent.width),
            std::max(place.rows, extent.height)};
    if (place.array) {
        side.type = CU_MEMORYTYPE_ARRAY;
        return session.handle(place.array, Kind::array, side.array) ? CUDA_SUCCESS
                                                                    : CUDA_ERROR_INVALID_HANDLE;
    }
    // Overlapping rows would have no bound on their number, and so on the time that they take.
    if ((extent.height > 1 || extent.depth > 1) && place.pitch < extent.width)
        return CUDA_ERROR_INVALID_VALUE;
    if (extent.depth > 1 && place.rows < extent.height) return CUDA_ERROR_INVALID_VALUE;
    uint64_t rows, bytes;
    if (!product(rows, {extent.depth - 1, side.rows}) ||
        __builtin_add_overflow(rows, extent.height - 1, &rows) || !product(bytes, {rows, side.pitch}) ||
        __builtin_add_overflow(bytes, extent.width, &bytes) || !session.lease().valid(place.address, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUDA_MEMCPY3D described(const PitchedCopy& extent) {
    CUDA_MEMCPY3D copy{};
    copy.WidthInBytes = extent.width, copy.Height = extent.height, copy.Depth = extent.depth;
    return copy;
}
void set_source(CUDA_MEMCPY3D& copy, const Side& side, const PitchedPlace& place) {
    copy.srcMemoryType = side.type, copy.srcDevice = side.address, copy.srcArray = side.array;
    copy.srcPitch = side.pitch, copy.srcHeight = side.rows;
    if (side.array) copy.srcXInBytes = place.x, copy.srcY = place.y, copy.srcZ = place.z;
}
void set_destination(CUDA_MEMCPY3D& copy, const Side& side, const PitchedPlace& place) {
    copy.dstMemoryType = side.type, copy.dstDevice = side.address, copy.dstArray = side.array;
    copy.dstPitch = side.pitch, copy.dstHeight = side.rows;
    if (side.array) copy.dstXInBytes = place.x, copy.dstY = place.y, copy.dstZ = place.z;
}
}  // namespace

// --- copies ---

CUresult serve_copy_pitched(Session& session, Reader& in, Writer&) {
    const auto [extent, source, destination] = wire::CopyPitchedRequest::read(in);
    CUstream stream;
    if (!session.handle(extent.stream, Kind::stream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    if (!extent.width || !extent.height || !extent.depth) return CUDA_SUCCESS;
    Side from, to;
    if (CUresult error = find(session, extent, source, from); error != CUDA_SUCCESS) return error;
    if (CUresult error = find(session, extent, destination, to); error != CUDA_SUCCESS) return error;
    CUDA_MEMCPY3D copy = described(extent);
    set_source(copy, from, source), set_destination(copy, to, destination);
    return session.cuda().cuMemcpy3DAsync_v2(&copy, stream);
}

CUresult serve_pitched_to_device(Session& session, Reader& in, Writer&) {
    const auto [extent, destination, data] = wire::PitchedToDeviceRequest::read(in);
    CUstream stream;
    if (!session.handle(extent.stream, Kind::stream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (in.failed() || bytes_of(extent) != data.size()) return CUDA_ERROR_INVALID_VALUE;
    if (data.empty()) return CUDA_SUCCESS;
    Side to;
    if (CUresult error = find(session, extent, destination, to); error != CUDA_SUCCESS) return error;
    CUDA_MEMCPY3D copy = described(extent);
    copy.srcMemoryType = CU_MEMORYTYPE_HOST, copy.srcHost = data.data();
    copy.srcPitch = extent.width, copy.srcHeight = extent.height;
    set_destination(copy, to, destination);
    // The bytes are pageable memory of this process: the driver takes them before it returns.
    return stream ? session.cuda().cuMemcpy3DAsync_v2(&copy, stream) : session.cuda().cuMemcpy3D_v2(&copy);
}

CUresult serve_pitched_to_host(Session& session, Reader& in, Writer& out) {
    const auto [extent, source] = wire::PitchedToHostRequest::read(in);
    CUstream stream;
    if (!session.handle(extent.stream, Kind::stream, stream)) return CUDA_ERROR_INVALID_HANDLE;
    const Bytes bytes = bytes_of(extent);
    if (in.failed() || !bytes || *bytes > wire::COPY_PIECE) return CUDA_ERROR_INVALID_VALUE;
    if (!*bytes) return CUDA_SUCCESS;
    Side from;
    if (CUresult error = find(session, extent, source, from); error != CUDA_SUCCESS) return error;
    CUDA_MEMCPY3D copy = described(extent);
    set_source(copy, from, source);
    copy.dstMemoryType = CU_MEMORYTYPE_HOST, copy.dstHost = out.extend(*bytes);
    copy.dstPitch = extent.width, copy.dstHeight = extent.height;
    CUresult result;
    if (stream) {
        result = session.cuda().cuMemcpy3DAsync_v2(&copy, stream);
        if (result == CUDA_SUCCESS) result = session.cuda().cuStreamSynchronize(stream);
    } else {
        result = session.cuda().cuMemcpy3D_v2(&copy);
    }
    session.lease().finished();
    return result;
}

// --- arrays ---

CUresult serve_cuArray3DCreate_v2(Session& session, Reader& in, Writer& out) {
    const auto shape = in.get<CUDA_ARRAY3D_DESCRIPTOR>();
    uint64_t least;
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = least_of(shape, 1, least); error != CUDA_SUCCESS) return error;
    return make<CUarray>(
        session, out, Kind::array, least,
        [&](CUarray* array) { return session.cuda().cuArray3DCreate_v2(array, &shape); },
        session.cuda().cuArrayDestroy);
}
CUresult serve_cuArrayDestroy(Session& session, Reader& in, Writer&) {
    return destroy<CUarray>(session, in, Kind::array, session.cuda().cuArrayDestroy);
}

CUresult serve_cuMipmappedArrayCreate(Session& session, Reader& in, Writer& out) {
    const auto shape = in.get<CUDA_ARRAY3D_DESCRIPTOR>();
    const auto levels = in.get<unsigned>();
    uint64_t least;
    if (in.failed() || !levels) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = least_of(shape, levels, least); error != CUDA_SUCCESS) return error;
    return make<CUmipmappedArray>(
        session, out, Kind::mipmap, least,
        [&](CUmipmappedArray* mipmap) {
            return session.cuda().cuMipmappedArrayCreate(mipmap, &shape, levels);
        },
        session.cuda().cuMipmappedArrayDestroy);
}
CUresult serve_cuMipmappedArrayDestroy(Session& session, Reader& in, Writer&) {
    return destroy<CUmipmappedArray>(session, in, Kind::mipmap, session.cuda().cuMipmappedArrayDestroy);
}

// --- textures and surfaces ---

CUresult serve_cuTexObjectCreate(Session& session, Reader& in, Writer& out) {
    View view{in.get<CUDA_RESOURCE_DESC>(), in.get<CUDA_TEXTURE_DESC>(), {}, in.get<uint8_t>() != 0, {}};
    if (view.viewed) view.view = in.get<CUDA_RESOURCE_VIEW_DESC>();
    CUDA_RESOURCE_DESC real;
    if (in.failed()) return CUDA_ERROR_INVALID_VALUE;
    if (session.kept_error() != CUDA_SUCCESS) return session.kept_error();
    if (CUresult error = translate(session, view.resource, real); error != CUDA_SUCCESS) return error;
    CUtexObject object = 0;
    auto host = session.host_charge(HostMemory::TEXTURE);
    if (!host) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result =
        session.cuda().cuTexObjectCreate(&object, &real, &view.texture, view.viewed ? &view.view : nullptr);
    if (result == CUDA_SUCCESS)
        view.charge = std::move(*host), session.views.textures[object] = std::move(view), out.put(object);
    return result;
}
CUresult serve_cuTexObjectDestroy(Session& session, Reader& in, Writer&) {
    const auto object = in.get<CUtexObject>();
    if (!session.views.textures.erase(object)) return CUDA_ERROR_INVALID_HANDLE;
    return session.cuda().cuTexObjectDestroy(object);
}
CUresult serve_cuTexObjectGetResourceDesc(Session& session, Reader& in, Writer& out) {
    const View* view = view_of(session.views.textures, in.get<CUtexObject>());
    return view ? out.put(view->resource), CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult serve_cuTexObjectGetTextureDesc(Session& session, Reader& in, Writer& out) {
    const View* view = view_of(session.views.textures, in.get<CUtexObject>());
    return view ? out.put(view->texture), CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult serve_cuTexObjectGetResourceViewDesc(Session& session, Reader& in, Writer& out) {
    const View* view = view_of(session.views.textures, in.get<CUtexObject>());
    if (!view) return CUDA_ERROR_INVALID_HANDLE;
    return view->viewed ? out.put(view->view), CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult serve_cuSurfObjectCreate(Session& session, Reader& in, Writer& out) {
    View view{in.get<CUDA_RESOURCE_DESC>(), {}, {}, false, {}};
    CUDA_RESOURCE_DESC real;
    if (in.failed() || view.resource.resType != CU_RESOURCE_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
    if (session.kept_error() != CUDA_SUCCESS) return session.kept_error();
    if (CUresult error = translate(session, view.resource, real); error != CUDA_SUCCESS) return error;
    CUsurfObject object = 0;
    auto host = session.host_charge(HostMemory::TEXTURE);
    if (!host) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = session.cuda().cuSurfObjectCreate(&object, &real);
    if (result == CUDA_SUCCESS)
        view.charge = std::move(*host), session.views.surfaces[object] = std::move(view), out.put(object);
    return result;
}
CUresult serve_cuSurfObjectDestroy(Session& session, Reader& in, Writer&) {
    const auto object = in.get<CUsurfObject>();
    if (!session.views.surfaces.erase(object)) return CUDA_ERROR_INVALID_HANDLE;
    return session.cuda().cuSurfObjectDestroy(object);
}
CUresult serve_cuSurfObjectGetResourceDesc(Session& session, Reader& in, Writer& out) {
    const View* view = view_of(session.views.surfaces, in.get<CUsurfObject>());
    return view ? out.put(view->resource), CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// --- texture references ---

CUresult serve_cuTexRefSetArray(Session& session, Reader& in, Writer&) {
    const auto name = in.get<uint64_t>(), array_name = in.get<uint64_t>();
    const auto flags = in.get<unsigned>();
    CUtexref reference;
    CUarray array;
    if (in.failed() || !session.handle(name, Kind::texture_reference, reference) ||
        !session.handle(array_name, Kind::array, array))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = session.cuda().cuTexRefSetArray(reference, array, flags);
    if (result == CUDA_SUCCESS) session.views.arrays[name] = array_name;
    return result;
}
CUresult serve_set_border_color(Session& session, Reader& in, Writer&) {
    const auto request = wire::SetBorderColorRequest::read(in);
    float color[4];
    CUtexref reference;
    if (in.failed() || request.color.size() != sizeof color) return CUDA_ERROR_INVALID_VALUE;
    if (!session.handle(request.reference, Kind::texture_reference, reference))
        return CUDA_ERROR_INVALID_HANDLE;
    std::memcpy(color, request.color.data(), sizeof color);
    return session.cuda().cuTexRefSetBorderColor(reference, color);
}
CUresult serve_border_color(Session& session, Reader& in, Writer& out) {
    const auto request = wire::BorderColorRequest::read(in);
    float color[4];
    CUtexref reference;
    if (in.failed() || !session.handle(request.reference, Kind::texture_reference, reference))
        return CUDA_ERROR_INVALID_HANDLE;
    const CUresult result = session.cuda().cuTexRefGetBorderColor(color, reference);
    if (result == CUDA_SUCCESS)
        wire::BorderColorAnswer{{reinterpret_cast<const char*>(color), sizeof color}}.write(out);
    return result;
}
// The driver's own answer may be an array that is gone.
CUresult serve_cuTexRefGetArray(Session& session, Reader& in, Writer& out) {
    const auto name = in.get<uint64_t>();
    CUtexref reference;
    if (!session.handle(name, Kind::texture_reference, reference)) return CUDA_ERROR_INVALID_HANDLE;
    auto it = session.views.arrays.find(name);
    CUarray array;
    if (it == session.views.arrays.end() || !session.handle(it->second, Kind::array, array))
        return CUDA_ERROR_INVALID_VALUE;
    out.put(it->second);
    return CUDA_SUCCESS;
}
CUresult serve_cuTexRefSetAddress_v2(Session& session, Reader& in, Writer& out) {
    const auto name = in.get<uint64_t>();
    const auto address = in.get<CUdeviceptr>();
    const auto bytes = in.get<uint64_t>();
    CUtexref reference;
    if (!session.handle(name, Kind::texture_reference, reference)) return CUDA_ERROR_INVALID_HANDLE;
    if (in.failed() || !session.lease().valid(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    size_t offset = 0;
    CUresult result = session.cuda().cuTexRefSetAddress_v2(&offset, reference, address, bytes);
    if (result == CUDA_SUCCESS) session.views.arrays.erase(name), out.put(offset);
    return result;
}
CUresult serve_cuTexRefSetAddress2D_v3(Session& session, Reader& in, Writer&) {
    const auto name = in.get<uint64_t>();
    const auto shape = in.get<CUDA_ARRAY_DESCRIPTOR>();
    const auto address = in.get<CUdeviceptr>();
    const auto pitch = in.get<uint64_t>();
    CUtexref reference;
    uint64_t width;
    if (!session.handle(name, Kind::texture_reference, reference)) return CUDA_ERROR_INVALID_HANDLE;
    if (in.failed() || shape.NumChannels > 4 ||
        !product(width, {shape.Width, texel_bytes(shape.Format, shape.NumChannels)}) ||
        !rows_valid(session.lease(), address, width, shape.Height, pitch))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = session.cuda().cuTexRefSetAddress2D_v3(reference, &shape, address, pitch);
    if (result == CUDA_SUCCESS) session.views.arrays.erase(name);
    return result;
}

}  // namespace gpukernel::worker
