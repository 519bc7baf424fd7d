// Copies of boxes: rows of memory with a pitch, and parts of CUDA arrays, in whole pieces instead of row by
// row.
#include <algorithm>
#include <cstring>
#include <vector>

#include "counters.h"
#include "managed.h"
#include "memory.h"
#include "request.h"

namespace gpukernel::shim {

namespace {
using wire::BoxCopy;
using wire::BoxPlace;
using wire::COPY_PIECE;
using wire::Special;

struct Side {
    bool host, array;
    BoxPlace place;  // of host memory as of device memory
};

Side source_of(const CUDA_MEMCPY3D& p) {
    const bool host = p.srcMemoryType == CU_MEMORYTYPE_HOST, array = p.srcMemoryType == CU_MEMORYTYPE_ARRAY;
    return {host,
            array,
            {array ? reinterpret_cast<uint64_t>(p.srcArray) : 0,
             host ? reinterpret_cast<uint64_t>(p.srcHost) : p.srcDevice, p.srcPitch, p.srcHeight,
             p.srcXInBytes, p.srcY, p.srcZ}};
}
Side destination_of(const CUDA_MEMCPY3D& p) {
    const bool host = p.dstMemoryType == CU_MEMORYTYPE_HOST, array = p.dstMemoryType == CU_MEMORYTYPE_ARRAY;
    return {host,
            array,
            {array ? reinterpret_cast<uint64_t>(p.dstArray) : 0,
             host ? reinterpret_cast<uint64_t>(p.dstHost) : p.dstDevice, p.dstPitch, p.dstHeight,
             p.dstXInBytes, p.dstY, p.dstZ}};
}

// Memory by the address of the box's first byte; false for an array that is none, or rows that overlap.
bool settle(Side& side, const BoxCopy& box) {
    BoxPlace& p = side.place;
    if (side.array) return p.array != 0;
    if (!p.pitch) p.pitch = p.x + box.width;
    if (!p.rows) p.rows = p.y + box.height;
    if (p.pitch < box.width && (box.height > 1 || box.depth > 1)) return false;
    if (p.rows < box.height && box.depth > 1) return false;
    p.address += (p.z * p.rows + p.y) * p.pitch + p.x;
    p.x = p.y = p.z = 0;
    return p.address || !side.host;
}

bool one_span(const Side& side, const BoxCopy& box) {
    if (side.array) return false;
    return (box.height * box.depth == 1 || side.place.pitch == box.width) &&
           (box.depth == 1 || side.place.rows == box.height);
}

// Cuts a box into pieces that a frame can carry: slices, or rows, or parts of a row.
template <class Each>
CUresult in_pieces(const BoxCopy& box, Each each) {
    const uint64_t width = std::min<uint64_t>(box.width, COPY_PIECE);
    const uint64_t height = width < box.width ? 1 : std::clamp<uint64_t>(COPY_PIECE / width, 1, box.height);
    const uint64_t depth =
        height < box.height ? 1 : std::clamp<uint64_t>(COPY_PIECE / (width * height), 1, box.depth);
    for (uint64_t z = 0; z < box.depth; z += depth)
        for (uint64_t y = 0; y < box.height; y += height)
            for (uint64_t x = 0; x < box.width; x += width) {
                const BoxCopy piece{box.stream, std::min(width, box.width - x),
                                    std::min(height, box.height - y), std::min(depth, box.depth - z)};
                if (CUresult error = each(piece, x, y, z); error != CUDA_SUCCESS) return error;
            }
    return CUDA_SUCCESS;
}
BoxPlace moved(BoxPlace place, uint64_t x, uint64_t y, uint64_t z) {
    if (place.array)
        place.x += x, place.y += y, place.z += z;
    else
        place.address += (z * place.rows + y) * place.pitch + x;
    return place;
}

template <class Row>
void each_row(const BoxCopy& piece, const BoxPlace& host, Row row) {
    for (uint64_t z = 0; z < piece.depth; ++z)
        for (uint64_t y = 0; y < piece.height; ++y)
            row(reinterpret_cast<char*>(host.address + (z * host.rows + y) * host.pitch));
}

// Where one side is managed memory of another device.
CUresult by_rows(Connection& connection, const BoxCopy& box, const Side& from, const Side& to,
                 CUstream stream) {
    for (uint64_t z = 0; z < box.depth; ++z)
        for (uint64_t y = 0; y < box.height; ++y)
            if (CUresult error =
                    copy_span(connection, {to.host, moved(to.place, 0, y, z).address},
                              {from.host, moved(from.place, 0, y, z).address}, box.width, stream);
                error != CUDA_SUCCESS)
                return error;
    return CUDA_SUCCESS;
}

CUresult host_to_device(Connection& connection, const BoxCopy& box, const Side& from, const Side& to) {
    return in_pieces(box, [&](const BoxCopy& piece, uint64_t x, uint64_t y, uint64_t z) {
        const BoxPlace host = moved(from.place, x, y, z), there = moved(to.place, x, y, z);
        const size_t bytes = piece.width * piece.height * piece.depth;
        counters.bytes_to_device += bytes;
        Request request(connection, Special::box_to_device);
        request.put(piece), request.put(there);
        if (one_span({true, false, host}, piece))
            return request.queue_with(reinterpret_cast<const void*>(host.address), bytes);
        std::vector<char> packed;
        packed.reserve(bytes);
        each_row(piece, host, [&](const char* row) { packed.insert(packed.end(), row, row + piece.width); });
        return request.queue_with(packed.data(), bytes);
    });
}

CUresult device_to_host(Connection& connection, const BoxCopy& box, const Side& from, const Side& to) {
    std::vector<char> packed;
    return in_pieces(box, [&](const BoxCopy& piece, uint64_t x, uint64_t y, uint64_t z) {
        const BoxPlace there = moved(from.place, x, y, z), host = moved(to.place, x, y, z);
        const size_t bytes = piece.width * piece.height * piece.depth;
        const bool direct = one_span({true, false, host}, piece);
        packed.resize(direct ? 0 : bytes);
        counters.bytes_to_host += bytes;
        Request request(connection, Special::box_to_host);
        request.put(piece), request.put(there);
        CUresult result =
            request.send_into(direct ? reinterpret_cast<char*>(host.address) : packed.data(), bytes);
        const char* at = packed.data();
        if (result == CUDA_SUCCESS && !direct)
            each_row(piece, host, [&](char* row) {
                std::memcpy(row, at, piece.width);
                at += piece.width;
            });
        return result;
    });
}

// Of device memory; what the worker will find too much is cut to what there is.
Use use(const Side& side, const BoxCopy& box, bool writes) {
    uint64_t rows = 0, bytes = 0;
    if (side.host || side.array) return {0, 0, false};
    if (__builtin_mul_overflow(side.place.rows, box.depth - 1, &rows) ||
        __builtin_add_overflow(rows, box.height - 1, &rows) ||
        __builtin_mul_overflow(side.place.pitch, rows, &bytes) ||
        __builtin_add_overflow(bytes, box.width, &bytes))
        bytes = UINT64_MAX;
    return {side.place.address, bytes, writes};
}

bool whole(const BoxCopy& box) {
    uint64_t bytes;
    return !__builtin_mul_overflow(box.width, box.height, &bytes) &&
           !__builtin_mul_overflow(bytes, box.depth, &bytes) && bytes <= uint64_t{1} << 48;
}
}  // namespace

CUresult copy_box(Connection& connection, const CUDA_MEMCPY3D& asked, CUstream stream) {
    if (!asked.WidthInBytes || !asked.Height || !asked.Depth) return CUDA_SUCCESS;
    CUDA_MEMCPY3D copy = asked;
    if (CUresult error = resolve(connection, copy); error != CUDA_SUCCESS) return error;
    const BoxCopy box{stream_name(connection, stream), copy.WidthInBytes, copy.Height, copy.Depth};
    Side from = source_of(copy), to = destination_of(copy);
    if (!whole(box) || !settle(from, box) || !settle(to, box)) return CUDA_ERROR_INVALID_VALUE;
    for (Side* side : {&from, &to}) {  // managed memory is the device's, however it is named
        const Connection* owner = side->host ? managed_at(side->place.address) : nullptr;
        if (owner && owner != &connection && !from.array && !to.array)
            return by_rows(connection, box, from, to, stream);
        if (owner) side->host = false;
    }
    if (one_span(from, box) && one_span(to, box))
        return copy_span(connection, {to.host, to.place.address}, {from.host, from.place.address},
                         box.width * box.height * box.depth, stream);
    if (from.host && to.host) {
        for (uint64_t z = 0; z < box.depth; ++z)
            for (uint64_t y = 0; y < box.height; ++y)
                std::memmove(reinterpret_cast<void*>(moved(to.place, 0, y, z).address),
                             reinterpret_cast<void*>(moved(from.place, 0, y, z).address), box.width);
        return CUDA_SUCCESS;
    }
    const DeviceWork work(connection, stream, {use(to, box, true), use(from, box, false)});
    if (from.host) return host_to_device(connection, box, from, to);
    if (to.host) return device_to_host(connection, box, from, to);
    Request request(connection, Special::copy_box);
    request.put(box), request.put(from.place), request.put(to.place);
    return request.queue();
}

// Between devices that do not see each other's memory: in pieces, through the program.
CUresult copy_box_across(Connection& from, const CUDA_MEMCPY3D& source, Connection& to,
                         const CUDA_MEMCPY3D& destination) {
    const BoxCopy box{0, source.WidthInBytes, source.Height, source.Depth};
    if (!box.width || !box.height || !box.depth) return CUDA_SUCCESS;
    if (!whole(box)) return CUDA_ERROR_INVALID_VALUE;
    return in_pieces(box, [&](const BoxCopy& piece, uint64_t x, uint64_t y, uint64_t z) {
        std::vector<char> between(piece.width * piece.height * piece.depth);
        CUDA_MEMCPY3D out = source, in = destination;
        for (CUDA_MEMCPY3D* copy : {&out, &in}) {
            copy->WidthInBytes = piece.width, copy->Height = piece.height, copy->Depth = piece.depth;
            // What stands for "no gaps" does so for the whole box.
            if (!copy->srcPitch) copy->srcPitch = copy->srcXInBytes + box.width;
            if (!copy->srcHeight) copy->srcHeight = copy->srcY + box.height;
            if (!copy->dstPitch) copy->dstPitch = copy->dstXInBytes + box.width;
            if (!copy->dstHeight) copy->dstHeight = copy->dstY + box.height;
        }
        out.srcXInBytes += x, out.srcY += y, out.srcZ += z;
        in.dstXInBytes += x, in.dstY += y, in.dstZ += z;
        out.dstMemoryType = in.srcMemoryType = CU_MEMORYTYPE_HOST;
        out.dstHost = between.data(), in.srcHost = between.data();
        out.dstXInBytes = out.dstY = out.dstZ = in.srcXInBytes = in.srcY = in.srcZ = 0;
        out.dstPitch = in.srcPitch = piece.width, out.dstHeight = in.srcHeight = piece.height;
        CUresult error = copy_box(from, out, nullptr);
        return error == CUDA_SUCCESS ? copy_box(to, in, nullptr) : error;
    });
}

}  // namespace gpukernel::shim
