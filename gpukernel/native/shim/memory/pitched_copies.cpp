// Pitched copies: rows of pitched memory and parts of CUDA arrays, sent in pieces of many rows.
#include <algorithm>
#include <cstring>
#include <vector>

#include "shim/managed/managed.h"
#include "shim/memory/devices.h"
#include "shim/memory/memory.h"
#include "shim/transport/counters.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

namespace {
using wire::COPY_PIECE;
using wire::PitchedCopy;
using wire::PitchedPlace;

struct Side {
    bool host, array;
    PitchedPlace place;  // of host memory as of device memory
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

// Normalises memory to the address of its first byte; false for no array, or rows that overlap.
bool settle(Side& side, const PitchedCopy& extent) {
    PitchedPlace& p = side.place;
    if (side.array) return p.array != 0;
    if (!p.pitch) p.pitch = p.x + extent.width;
    if (!p.rows) p.rows = p.y + extent.height;
    if (p.pitch < extent.width && (extent.height > 1 || extent.depth > 1)) return false;
    if (p.rows < extent.height && extent.depth > 1) return false;
    p.address += (p.z * p.rows + p.y) * p.pitch + p.x;
    p.x = p.y = p.z = 0;
    return p.address || !side.host;
}

bool one_span(const Side& side, const PitchedCopy& extent) {
    if (side.array) return false;
    return (extent.height * extent.depth == 1 || side.place.pitch == extent.width) &&
           (extent.depth == 1 || side.place.rows == extent.height);
}

// Cuts a copy into pieces that a frame can carry: slices, or rows, or parts of a row.
template <class Each>
CUresult in_pieces(const PitchedCopy& extent, Each each) {
    const uint64_t width = std::min<uint64_t>(extent.width, COPY_PIECE);
    const uint64_t height =
        width < extent.width ? 1 : std::clamp<uint64_t>(COPY_PIECE / width, 1, extent.height);
    const uint64_t depth =
        height < extent.height ? 1 : std::clamp<uint64_t>(COPY_PIECE / (width * height), 1, extent.depth);
    for (uint64_t z = 0; z < extent.depth; z += depth)
        for (uint64_t y = 0; y < extent.height; y += height)
            for (uint64_t x = 0; x < extent.width; x += width) {
                const PitchedCopy piece{extent.stream, std::min(width, extent.width - x),
                                        std::min(height, extent.height - y),
                                        std::min(depth, extent.depth - z)};
                if (CUresult error = each(piece, x, y, z); error != CUDA_SUCCESS) return error;
            }
    return CUDA_SUCCESS;
}
PitchedPlace moved(PitchedPlace place, uint64_t x, uint64_t y, uint64_t z) {
    if (place.array)
        place.x += x, place.y += y, place.z += z;
    else
        place.address += (z * place.rows + y) * place.pitch + x;
    return place;
}

template <class Row>
void each_row(const PitchedCopy& piece, const PitchedPlace& host, Row row) {
    for (uint64_t z = 0; z < piece.depth; ++z)
        for (uint64_t y = 0; y < piece.height; ++y)
            row(reinterpret_cast<char*>(host.address + (z * host.rows + y) * host.pitch));
}

// Copies row by row, where one side is managed memory of another device.
CUresult by_rows(Connection& connection, const PitchedCopy& extent, const Side& from, const Side& to,
                 CUstream stream) {
    for (uint64_t z = 0; z < extent.depth; ++z)
        for (uint64_t y = 0; y < extent.height; ++y)
            if (CUresult error =
                    copy_span(connection, {to.host, moved(to.place, 0, y, z).address},
                              {from.host, moved(from.place, 0, y, z).address}, extent.width, stream);
                error != CUDA_SUCCESS)
                return error;
    return CUDA_SUCCESS;
}

CUresult host_to_device(Connection& connection, const PitchedCopy& extent, const Side& from, const Side& to) {
    return in_pieces(extent, [&](const PitchedCopy& piece, uint64_t x, uint64_t y, uint64_t z) {
        const PitchedPlace host = moved(from.place, x, y, z), there = moved(to.place, x, y, z);
        const size_t bytes = piece.width * piece.height * piece.depth;
        counters.bytes_to_device += bytes;
        Request request(connection, wire::PitchedToDeviceRequest{piece, there, {}});
        if (one_span({true, false, host}, piece))
            return request.queue_with(reinterpret_cast<const void*>(host.address), bytes);
        std::vector<char> packed;
        packed.reserve(bytes);
        each_row(piece, host, [&](const char* row) { packed.insert(packed.end(), row, row + piece.width); });
        return request.queue_with(packed.data(), bytes);
    });
}

CUresult device_to_host(Connection& connection, const PitchedCopy& extent, const Side& from, const Side& to) {
    std::vector<char> packed;
    return in_pieces(extent, [&](const PitchedCopy& piece, uint64_t x, uint64_t y, uint64_t z) {
        const PitchedPlace there = moved(from.place, x, y, z), host = moved(to.place, x, y, z);
        const size_t bytes = piece.width * piece.height * piece.depth;
        const bool direct = one_span({true, false, host}, piece);
        packed.resize(direct ? 0 : bytes);
        counters.bytes_to_host += bytes;
        Request request(connection, wire::PitchedToHostRequest{piece, there});
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

// The device memory that one side uses; sizes that the worker will refuse are saturated.
MemoryUse use_of(const Side& side, const PitchedCopy& extent, bool writes) {
    uint64_t rows = 0, bytes = 0;
    if (side.host || side.array) return {0, 0, false};
    if (__builtin_mul_overflow(side.place.rows, extent.depth - 1, &rows) ||
        __builtin_add_overflow(rows, extent.height - 1, &rows) ||
        __builtin_mul_overflow(side.place.pitch, rows, &bytes) ||
        __builtin_add_overflow(bytes, extent.width, &bytes))
        bytes = UINT64_MAX;
    return {side.place.address, bytes, writes};
}

bool whole(const PitchedCopy& extent) {
    uint64_t bytes;
    return !__builtin_mul_overflow(extent.width, extent.height, &bytes) &&
           !__builtin_mul_overflow(bytes, extent.depth, &bytes) && bytes <= uint64_t{1} << 48;
}

// Makes the copy where an address of which the program does not say what it is is another device's.
std::optional<CUresult> copy_between_holders(Connection& connection, CUDA_MEMCPY3D copy, CUstream stream) {
    Connection *from = &connection, *to = &connection;
    const auto& devices = process()->devices;
    // A graph is launched on its stream's device, whichever is current.
    const auto current = std::find_if(devices.begin(), devices.end(),
                                      [&](const auto& each) { return &each->connection == &connection; });
    const auto find = [&](CUmemorytype& type, CUdeviceptr address, Connection*& of) {
        Device* const device =
            type == CU_MEMORYTYPE_UNIFIED && !host_at(address) ? holder(**current, address) : nullptr;
        if (!device || &device->connection == of) return;
        type = CU_MEMORYTYPE_DEVICE, of = &device->connection;
    };
    find(copy.srcMemoryType, copy.srcDevice, from), find(copy.dstMemoryType, copy.dstDevice, to);
    if (from == &connection && to == &connection) return std::nullopt;
    if (CUresult error = cuStreamSynchronize(stream); error != CUDA_SUCCESS) return error;
    const CUresult error = copy_pitched_across(*from, copy, *to, copy);
    return error == CUDA_SUCCESS ? wait_for_default(*to) : error;
}
}  // namespace

CUresult copy_pitched(Connection& connection, const CUDA_MEMCPY3D& asked, CUstream stream) {
    if (!asked.WidthInBytes || !asked.Height || !asked.Depth) return CUDA_SUCCESS;
    CUDA_MEMCPY3D copy = asked;
    if (several_devices())
        if (auto done = copy_between_holders(connection, asked, stream)) return *done;
    if (CUresult error = resolve(connection, copy); error != CUDA_SUCCESS) return error;
    const PitchedCopy extent{stream_name(connection, stream), copy.WidthInBytes, copy.Height, copy.Depth};
    Side from = source_of(copy), to = destination_of(copy);
    if (!whole(extent) || !settle(from, extent) || !settle(to, extent)) return CUDA_ERROR_INVALID_VALUE;
    const bool either[] = {asked.srcMemoryType == CU_MEMORYTYPE_UNIFIED,
                           asked.dstMemoryType == CU_MEMORYTYPE_UNIFIED};
    bool pinned = false;
    for (Side* side : {&from, &to}) {
        if (side->array || (side->host && !either[side == &to])) continue;
        const Pinned there = pinned_at(connection, side->place.address,
                                       use_of({false, false, side->place}, extent, false).bytes);
        if (there == Pinned::beyond) return CUDA_ERROR_INVALID_VALUE;
        if (there == Pinned::here) side->host = pinned = true;
    }
    if (pinned && from.host && to.host)  // which is no work of the device
        if (CUresult error = cuStreamSynchronize(stream); error != CUDA_SUCCESS) return error;
    for (Side* side : {&from, &to}) {  // managed memory counts as the device's, whatever type the caller gave
        const Connection* owner = side->host ? managed_at(side->place.address) : nullptr;
        if (owner && owner != &connection && !from.array && !to.array)
            return by_rows(connection, extent, from, to, stream);
        if (owner) side->host = false;
    }
    for (const Side& side : {from, to})
        if (side.host) bring_home(side.place.address, use_of(side, extent, false).bytes);
    if (one_span(from, extent) && one_span(to, extent))
        return copy_span(connection, {to.host, to.place.address}, {from.host, from.place.address},
                         extent.width * extent.height * extent.depth, stream);
    if (from.host && to.host) {
        for (uint64_t z = 0; z < extent.depth; ++z)
            for (uint64_t y = 0; y < extent.height; ++y)
                std::memmove(reinterpret_cast<void*>(moved(to.place, 0, y, z).address),
                             reinterpret_cast<void*>(moved(from.place, 0, y, z).address), extent.width);
        return CUDA_SUCCESS;
    }
    const DeviceWork work(connection, stream, {use_of(to, extent, true), use_of(from, extent, false)});
    if (from.host) return host_to_device(connection, extent, from, to);
    if (to.host) return device_to_host(connection, extent, from, to);
    Request request(connection, wire::CopyPitchedRequest{extent, from.place, to.place});
    return request.queue();
}

// Copies between devices of a lease, which cannot access each other's memory: in pieces, through this
// process.
CUresult copy_pitched_across(Connection& from, const CUDA_MEMCPY3D& source, Connection& to,
                             const CUDA_MEMCPY3D& destination) {
    const PitchedCopy extent{0, source.WidthInBytes, source.Height, source.Depth};
    if (!extent.width || !extent.height || !extent.depth) return CUDA_SUCCESS;
    if (!whole(extent)) return CUDA_ERROR_INVALID_VALUE;
    return in_pieces(extent, [&](const PitchedCopy& piece, uint64_t x, uint64_t y, uint64_t z) {
        std::vector<char> between(piece.width * piece.height * piece.depth);
        CUDA_MEMCPY3D out = source, in = destination;
        for (CUDA_MEMCPY3D* copy : {&out, &in}) {
            copy->WidthInBytes = piece.width, copy->Height = piece.height, copy->Depth = piece.depth;
            // A pitch or height of 0 means that of the whole copy, not of the piece.
            if (!copy->srcPitch) copy->srcPitch = copy->srcXInBytes + extent.width;
            if (!copy->srcHeight) copy->srcHeight = copy->srcY + extent.height;
            if (!copy->dstPitch) copy->dstPitch = copy->dstXInBytes + extent.width;
            if (!copy->dstHeight) copy->dstHeight = copy->dstY + extent.height;
        }
        out.srcXInBytes += x, out.srcY += y, out.srcZ += z;
        in.dstXInBytes += x, in.dstY += y, in.dstZ += z;
        out.dstMemoryType = in.srcMemoryType = CU_MEMORYTYPE_HOST;
        out.dstHost = between.data(), in.srcHost = between.data();
        out.dstXInBytes = out.dstY = out.dstZ = in.srcXInBytes = in.srcY = in.srcZ = 0;
        out.dstPitch = in.srcPitch = piece.width, out.dstHeight = in.srcHeight = piece.height;
        CUresult error = copy_pitched(from, out, nullptr);
        return error == CUDA_SUCCESS ? copy_pitched(to, in, nullptr) : error;
    });
}

}  // namespace gpukernel::shim
