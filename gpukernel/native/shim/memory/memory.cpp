// Copies between host and device; pointer attributes.
#include "shim/memory/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "libcuda/library.h"
#include "shim/graphs/capture.h"
#include "shim/graphs/memory.h"
#include "shim/managed/managed.h"
#include "shim/memory/devices.h"
#include "shim/modules/host_functions.h"
#include "shim/transport/copies.h"
#include "shim/transport/counters.h"
#include "shim/transport/request.h"

using namespace gpukernel::shim;
using gpukernel::wire::COPY_PIECE;
namespace wire = gpukernel::wire;

namespace {
constexpr size_t SMALL =
    16 << 10;  // a copy that is queued with the calls around it instead of being sent at once
}  // namespace

namespace gpukernel::shim {

CUresult write_to_device(Connection& connection, CUdeviceptr destination, const void* source, size_t bytes,
                         CUstream stream) {
    if (bytes && !source) return CUDA_ERROR_INVALID_VALUE;
    const char* from = static_cast<const char*>(source);
    const uint64_t of = stream_name(connection, stream);
    counters.bytes_to_device += bytes;
    for (size_t at = 0; at < bytes || at == 0;) {
        const size_t piece = std::min(bytes - at, COPY_PIECE);
        Request request(connection, wire::CopyToDeviceRequest{destination + at, of, {}});
        note_copy(connection, of, destination + at, piece);
        if (piece <= SMALL) request.bytes(from + at, piece);
        const CUresult result = piece <= SMALL ? request.queue() : request.queue_with(from + at, piece);
        if (result != CUDA_SUCCESS) return result;
        at += piece;
        if (!piece) break;
    }
    return CUDA_SUCCESS;
}

CUresult read_from_device(Connection& connection, void* destination, CUdeviceptr source, size_t bytes,
                          CUstream stream) {
    if (bytes && !destination) return CUDA_ERROR_INVALID_VALUE;
    char* to = static_cast<char*>(destination);
    counters.bytes_to_host += bytes;
    const uint64_t of = stream_name(connection, stream);
    if (bytes <= COPY_PIECE) {
        const DeviceRead read{source, of, bytes};
        if (take_read_ahead(connection, read, to)) return CUDA_SUCCESS;
        Request request(connection, wire::CopyToHostRequest{source, of, bytes});
        const uint64_t number = note_read(connection, read);
        const CUresult result = request.send_into(to, bytes);
        if (result == CUDA_SUCCESS) connection.foresight.over = number;
        return result;
    }
    // Pipelines the requests of AHEAD pieces, so that the worker sends the next piece while one is on its
    // way.  Half as many were a tenth slower over a socket; another thread's call comes after all of them.
    constexpr size_t AHEAD = 8;
    PendingAnswer pieces[AHEAD];
    FunctionsBefore before;
    CUresult first = CUDA_SUCCESS;
    size_t asked = 0, awaited = 0;  // pieces
    for (const size_t all = (bytes + COPY_PIECE - 1) / COPY_PIECE;;) {
        while (asked < all && asked - awaited < AHEAD && first == CUDA_SUCCESS) {
            const size_t from = asked * COPY_PIECE, piece = std::min(bytes - from, COPY_PIECE);
            PendingAnswer& answer = pieces[asked % AHEAD];
            answer = {static_cast<uint16_t>(wire::CustomCall::copy_to_host), to + from, piece};
            std::unique_lock lock(connection.mutex, std::defer_lock);
            if (asked == awaited)
                lock.lock();
            else if (!lock.try_lock())
                break;
            Request request(connection, wire::CopyToHostRequest{source + from, of, piece}, std::move(lock));
            if (!asked && connection.finished.may_be_behind()) before = functions_before(connection, request);
            if ((first = request.ask(answer)) == CUDA_SUCCESS) ++asked;
        }
        if (awaited == asked) return before.any ? come_after(connection, before, first) : first;
        const CUresult result = connection.await(pieces[awaited++ % AHEAD]);
        if (first == CUDA_SUCCESS) first = result;
    }
}

}  // namespace gpukernel::shim

namespace {
bool on_device(Connection& connection, CUdeviceptr address);

// Under unified addressing the host's side of a copy may be an address of the device, which is none here.
bool is_of_device(Connection& connection, const void* address, size_t bytes) {
    static const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    // The page that was the program's when this thread last asked: mincore costs as much as half a call.
    static thread_local uint64_t own = 0;
    const auto at = reinterpret_cast<uint64_t>(address);
    unsigned char resident;
    if (!at || !bytes || at / page == own) return false;
    if (::mincore(reinterpret_cast<void*>(at / page * page), 1, &resident) == 0) {
        own = at / page;
        return false;
    }
    return errno == ENOMEM && on_device(connection, at);
}

// A copy between two places of the program's memory, in the order of a stream.
CUresult within_host(void* to, const void* from, size_t bytes, CUstream stream) {
    if (bytes && (!to || !from)) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = cuStreamSynchronize(stream); error != CUDA_SUCCESS) return error;
    const std::shared_lock writes = write_to_host();
    std::memmove(to, from, bytes);
    return CUDA_SUCCESS;
}
CUresult to_host(Connection& connection, void* destination, CUdeviceptr source, size_t bytes,
                 CUstream stream);

// Pinned memory that no kernel has used may be given by its address on the device: its bytes are here.
CUresult to_device(Connection& connection, CUdeviceptr destination, const void* source, size_t bytes,
                   CUstream stream) {
    const Pinned target = pinned_at(connection, destination, bytes);
    if (target == Pinned::beyond) return CUDA_ERROR_INVALID_VALUE;
    if (target == Pinned::here) {
        void* const there = reinterpret_cast<void*>(destination);
        const auto from = reinterpret_cast<uint64_t>(source);
        return managed_at(from) == &connection || is_of_device(connection, source, bytes)
                   ? to_host(connection, there, from, bytes, stream)
                   : within_host(there, source, bytes, stream);
    }
    if (auto done =
            managed_copy(connection, destination, reinterpret_cast<uint64_t>(source), bytes, true, stream))
        return *done;
    if (is_of_device(connection, source, bytes))
        return copy_span(connection, {false, destination}, {false, reinterpret_cast<uint64_t>(source)}, bytes,
                         stream);
    return write_to_device(connection, destination, source, bytes, stream);
}
CUresult to_host(Connection& connection, void* destination, CUdeviceptr source, size_t bytes,
                 CUstream stream) {
    const Pinned from = pinned_at(connection, source, bytes);
    if (from == Pinned::beyond) return CUDA_ERROR_INVALID_VALUE;
    if (from == Pinned::here) {
        const void* const here = reinterpret_cast<const void*>(source);
        const auto to = reinterpret_cast<uint64_t>(destination);
        return managed_at(to) == &connection || is_of_device(connection, destination, bytes)
                   ? to_device(connection, to, here, bytes, stream)
                   : within_host(destination, here, bytes, stream);
    }
    const std::shared_lock writes = write_to_host();
    if (auto done =
            managed_copy(connection, reinterpret_cast<uint64_t>(destination), source, bytes, false, stream))
        return *done;
    if (is_of_device(connection, destination, bytes))
        return copy_span(connection, {false, reinterpret_cast<uint64_t>(destination)}, {false, source}, bytes,
                         stream);
    return read_from_device(connection, destination, source, bytes, stream);
}

bool on_device(Connection& connection, CUdeviceptr address) {
    if (host_at(address)) return false;
    if (is_managed(address) || is_graph_memory(address)) return true;  // which may not be mapped yet
    Request request(connection, wire::PointerAttributeRequest{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address});
    return request.send() == CUDA_SUCCESS &&
           request.answer<wire::PointerAttributeAnswer>().value == CU_MEMORYTYPE_DEVICE;
}

CUresult anywhere(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
    GPUKERNEL_CURRENT(connection);
    for (const CUdeviceptr each : {dst, src})
        if (pinned_at(*connection, each, bytes) == Pinned::beyond) return CUDA_ERROR_INVALID_VALUE;
    if (auto done = copy_between_devices(dst, src, bytes, stream)) return *done;
    const bool to = on_device(*connection, dst), from = on_device(*connection, src);
    if (!connection->alive()) return GONE;
    if (to && from) return cuMemcpyDtoDAsync(dst, src, bytes, stream);
    if (to) return to_device(*connection, dst, reinterpret_cast<void*>(src), bytes, stream);
    if (from) return to_host(*connection, reinterpret_cast<void*>(dst), src, bytes, stream);
    return within_host(reinterpret_cast<void*>(dst), reinterpret_cast<void*>(src), bytes, stream);
}

// After a synchronous copy registered memory holds what earlier kernels of the default stream wrote.
CUresult settled(CUresult result) {
    return result == CUDA_SUCCESS && has_mirrors() ? cuStreamSynchronize(nullptr) : result;
}

CUresult copy_now(const CUDA_MEMCPY3D* p) {
    GPUKERNEL_CURRENT(connection);
    if (capturing())
        if (Captured captured = captured_unsafe(*connection, true)) return *captured;
    return p ? settled(copy_pitched(*connection, *p, nullptr)) : CUDA_ERROR_INVALID_VALUE;
}
CUresult copy_later(CUstream stream, const CUDA_MEMCPY3D* p) {
    GPUKERNEL_CURRENT(connection);
    if (p && capturing())
        if (Captured captured = captured_copy(*connection, *p, stream)) return *captured;
    return p ? copy_pitched(*connection, *p, stream) : CUDA_ERROR_INVALID_VALUE;
}
}  // namespace

namespace gpukernel::shim {

CUDA_MEMCPY3D linear_copy(CUmemorytype to, uint64_t destination, CUmemorytype from, uint64_t source,
                          size_t bytes) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = from, copy.dstMemoryType = to;
    if (from == CU_MEMORYTYPE_HOST)
        copy.srcHost = reinterpret_cast<const void*>(source);
    else
        copy.srcDevice = source;
    if (to == CU_MEMORYTYPE_HOST)
        copy.dstHost = reinterpret_cast<void*>(destination);
    else
        copy.dstDevice = destination;
    copy.srcPitch = copy.dstPitch = copy.WidthInBytes = bytes;
    copy.srcHeight = copy.dstHeight = copy.Height = copy.Depth = 1;
    return copy;
}

CUDA_MEMCPY3D flat_copy(const CUDA_MEMCPY2D& p) {
    CUDA_MEMCPY3D copy{};
    copy.srcXInBytes = p.srcXInBytes, copy.srcY = p.srcY, copy.srcMemoryType = p.srcMemoryType;
    copy.srcHost = p.srcHost, copy.srcDevice = p.srcDevice, copy.srcArray = p.srcArray;
    copy.dstXInBytes = p.dstXInBytes, copy.dstY = p.dstY, copy.dstMemoryType = p.dstMemoryType;
    copy.dstHost = p.dstHost, copy.dstDevice = p.dstDevice, copy.dstArray = p.dstArray;
    copy.srcPitch = p.srcPitch, copy.dstPitch = p.dstPitch;
    copy.WidthInBytes = p.WidthInBytes, copy.Height = p.Height, copy.Depth = 1;
    return copy;
}

std::optional<CUresult> copy_pinned(Connection& connection, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                    CUstream stream) {
    const Pinned target = pinned_at(connection, to, bytes), source = pinned_at(connection, from, bytes);
    if (target == Pinned::beyond || source == Pinned::beyond) return CUDA_ERROR_INVALID_VALUE;
    if (target == Pinned::here) return to_host(connection, reinterpret_cast<void*>(to), from, bytes, stream);
    if (source == Pinned::here)
        return to_device(connection, to, reinterpret_cast<const void*>(from), bytes, stream);
    return std::nullopt;
}

CUresult copy_span(Connection& connection, CopyEnd to, CopyEnd from, size_t bytes, CUstream stream) {
    void *const there = reinterpret_cast<void*>(to.address), *const here =
                                                                 reinterpret_cast<void*>(from.address);
    if (to.host && from.host) return std::memmove(there, here, bytes), CUDA_SUCCESS;
    if (from.host) return to_device(connection, to.address, here, bytes, stream);
    if (to.host) return to_host(connection, there, from.address, bytes, stream);
    if (auto done = copy_pinned(connection, to.address, from.address, bytes, stream)) return *done;
    if (auto done = copy_here(connection, to.address, from.address, bytes, Ends::device)) return *done;
    const DeviceWork work(connection, stream, {{to.address, bytes, true}, {from.address, bytes, false}});
    const uint64_t of = stream_name(connection, stream);
    Request request(connection, wire::DriverCall::cuMemcpyDtoDAsync_v2, of);
    request.put<uint64_t>(to.address), request.put<uint64_t>(from.address), request.put<uint64_t>(bytes);
    request.put(of);
    return request.queue();
}

CUresult wait_for_default(Connection& connection) {
    Request request(connection, wire::DriverCall::cuStreamSynchronize);
    request.put<uint64_t>(0);
    return request.send();
}

CUresult resolve(Connection& connection, CUDA_MEMCPY3D& copy) {
    if (copy.srcMemoryType == CU_MEMORYTYPE_UNIFIED) {
        copy.srcMemoryType =
            on_device(connection, copy.srcDevice) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        if (copy.srcMemoryType == CU_MEMORYTYPE_HOST)
            copy.srcHost = reinterpret_cast<const void*>(copy.srcDevice);
    }
    if (copy.dstMemoryType == CU_MEMORYTYPE_UNIFIED) {
        copy.dstMemoryType =
            on_device(connection, copy.dstDevice) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        if (copy.dstMemoryType == CU_MEMORYTYPE_HOST) copy.dstHost = reinterpret_cast<void*>(copy.dstDevice);
    }
    return connection.alive() ? CUDA_SUCCESS : GONE;
}

}  // namespace gpukernel::shim

#define GPUKERNEL_CAPTURED(copy) \
    if (capturing())             \
        if (Captured captured = captured_copy(*connection, copy, hStream)) return *captured
#define GPUKERNEL_CAPTURED_NOW() \
    if (capturing())             \
        if (Captured captured = captured_unsafe(*connection, true)) return *captured

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount) {
    GPUKERNEL_CURRENT(connection);
    GPUKERNEL_CAPTURED_NOW();
    return settled(to_device(*connection, dstDevice, srcHost, ByteCount, nullptr));
}
CUresult CUDAAPI cuMemcpyHtoDAsync(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                                   CUstream hStream) {
    GPUKERNEL_CURRENT(connection);
    GPUKERNEL_CAPTURED(linear_copy(CU_MEMORYTYPE_DEVICE, dstDevice, CU_MEMORYTYPE_HOST,
                                   reinterpret_cast<uint64_t>(srcHost), ByteCount));
    return to_device(*connection, dstDevice, srcHost, ByteCount, hStream ? hStream : CU_STREAM_LEGACY);
}
CUresult CUDAAPI cuMemcpyDtoH(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
    GPUKERNEL_CURRENT(connection);
    GPUKERNEL_CAPTURED_NOW();
    return settled(to_host(*connection, dstHost, srcDevice, ByteCount, nullptr));
}
CUresult CUDAAPI cuMemcpyDtoHAsync(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
    GPUKERNEL_CURRENT(connection);
    GPUKERNEL_CAPTURED(linear_copy(CU_MEMORYTYPE_HOST, reinterpret_cast<uint64_t>(dstHost),
                                   CU_MEMORYTYPE_DEVICE, srcDevice, ByteCount));
    return to_host(*connection, dstHost, srcDevice, ByteCount, hStream);
}
CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
    GPUKERNEL_CURRENT(connection);
    GPUKERNEL_CAPTURED_NOW();
    CUresult error = anywhere(dst, src, ByteCount, nullptr);
    return error == CUDA_SUCCESS ? cuStreamSynchronize(nullptr) : error;
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
    GPUKERNEL_CURRENT(connection);
    GPUKERNEL_CAPTURED(linear_copy(CU_MEMORYTYPE_UNIFIED, dst, CU_MEMORYTYPE_UNIFIED, src, ByteCount));
    return anywhere(dst, src, ByteCount, hStream);
}
CUresult CUDAAPI cuMemcpy2D(const CUDA_MEMCPY2D* pCopy) {
    if (!pCopy) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_MEMCPY3D copy = flat_copy(*pCopy);
    return copy_now(&copy);
}
CUresult CUDAAPI cuMemcpy2DUnaligned(const CUDA_MEMCPY2D* pCopy) { return cuMemcpy2D(pCopy); }
CUresult CUDAAPI cuMemcpy2DAsync(const CUDA_MEMCPY2D* pCopy, CUstream hStream) {
    if (!pCopy) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_MEMCPY3D copy = flat_copy(*pCopy);
    return copy_later(hStream, &copy);
}
CUresult CUDAAPI cuMemcpy3D(const CUDA_MEMCPY3D* pCopy) { return copy_now(pCopy); }
CUresult CUDAAPI cuMemcpy3DAsync(const CUDA_MEMCPY3D* pCopy, CUstream hStream) {
    return copy_later(hStream, pCopy);
}

// Devices of a lease cannot access each other's memory, so copies between them go through this process.
CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                                   CUcontext srcContext, size_t ByteCount, CUstream hStream) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    const Context *there = context_of(dstContext), *here = context_of(srcContext);
    if (!there || !here) return CUDA_ERROR_INVALID_CONTEXT;
    Connection &to = there->device->connection, &from = here->device->connection;
    if (capturing()) {
        const CUDA_MEMCPY3D copy =
            linear_copy(CU_MEMORYTYPE_DEVICE, dstDevice, CU_MEMORYTYPE_DEVICE, srcDevice, ByteCount);
        if (Captured captured =
                &to == &from ? captured_copy(to, copy, hStream) : captured_refusal(from, hStream))
            return *captured;
    }
    const Device* of = device_named(hStream);
    if (of && &to == &from && &of->connection != &to) {  // another device's stream
        if (CUresult error = cuStreamSynchronize(hStream); error != CUDA_SUCCESS) return error;
        const CUresult error =
            cuMemcpyPeerAsync(dstDevice, dstContext, srcDevice, srcContext, ByteCount, nullptr);
        return error == CUDA_SUCCESS ? wait_for_default(to) : error;
    }
    if (&to == &from) {
        const CUstream order = hStream ? hStream : CU_STREAM_LEGACY;
        if (auto done = copy_pinned(to, dstDevice, srcDevice, ByteCount, order)) return *done;
        if (auto done = copy_here(to, dstDevice, srcDevice, ByteCount, Ends::device)) return *done;
        const DeviceWork work(to, hStream, {{dstDevice, ByteCount, true}, {srcDevice, ByteCount, false}});
        const uint64_t of = stream_name(to, hStream);
        Request request(to, wire::DriverCall::cuMemcpyDtoDAsync_v2);
        request.put<uint64_t>(dstDevice), request.put<uint64_t>(srcDevice), request.put<uint64_t>(ByteCount);
        request.put(of);
        return request.queue();
    }
    // The copy is in the stream's order: behind its work, and before what comes later.  The other device's
    // part waits for nothing but its own default stream.
    if (!of && !context_stack().empty()) of = context_stack().back()->device;
    const Connection* const ordered = of ? &of->connection : nullptr;
    const auto in = [&](const Connection& side) { return &side == ordered ? hStream : CUstream(nullptr); };
    std::vector<char> piece(std::min(ByteCount, 4 * COPY_PIECE));
    CUresult error = ordered == &from || !ordered ? CUDA_SUCCESS : cuStreamSynchronize(hStream);
    for (size_t at = 0; at < ByteCount && error == CUDA_SUCCESS;) {
        const size_t size = std::min(piece.size(), ByteCount - at);
        error = to_host(from, piece.data(), srcDevice + at, size, in(from));
        if (error == CUDA_SUCCESS) error = to_device(to, dstDevice + at, piece.data(), size, in(to));
        at += size;
    }
    if (error != CUDA_SUCCESS || ordered == &to) return error;
    return wait_for_default(to);
}
CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                              CUcontext srcContext, size_t ByteCount) {
    return cuMemcpyPeerAsync(dstDevice, dstContext, srcDevice, srcContext, ByteCount, nullptr);
}

// --- pointer attributes ---

namespace {
// To be told of it costs a program that registers memory for copies alone nothing.
CUresult registered_device_pointer(CUdeviceptr ptr, uint64_t& value) {
    const auto found = registered_at(ptr);
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    if (found->flags & CU_MEMHOSTREGISTER_DEVICEMAP) {
        CUdeviceptr address = 0;
        const CUresult error = gpukernel::libcuda::registered_pointer(reinterpret_cast<void*>(ptr), address);
        value = address;
        return error;
    }
    const auto first = mirrored_at(*context_stack().back()->device, found->address);
    if (!first) return CUDA_ERROR_INVALID_VALUE;
    value = *first + (ptr - found->address);
    return CUDA_SUCCESS;
}
}  // namespace

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    GPUKERNEL_CURRENT(connection);
    if (!data) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        return get_sync_memops(ptr, *static_cast<unsigned*>(data));
    if (auto done = managed_attribute(data, attribute, ptr)) return *done;
    // Who knows a block by its number must not find it under another allocation.
    if (attribute == CU_POINTER_ATTRIBUTE_BUFFER_ID) forget_spares(*connection);
    uint64_t value = 0;
    uint64_t begin;
    if (const auto host = host_at(ptr, &begin)) {
        switch (attribute) {
            case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
                value = CU_MEMORYTYPE_HOST;
                break;
            case CU_POINTER_ATTRIBUTE_HOST_POINTER:
                value = ptr;
                break;
            case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
                value = ptr;
                if (!host->room)
                    if (CUresult error = registered_device_pointer(ptr, value); error != CUDA_SUCCESS)
                        return error;
                break;
            case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
                value = begin;
                break;
            case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
                value = host->bytes;
                break;
            case CU_POINTER_ATTRIBUTE_MAPPED:
                value = host->room != 0 || host->flags & CU_MEMHOSTREGISTER_DEVICEMAP;
                break;
            default:
                break;
        }
    } else if (auto known = graph_memory_attribute(attribute, ptr)) {
        value = *known;
    } else if (attribute != CU_POINTER_ATTRIBUTE_CONTEXT &&
               attribute != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
        const bool never = (attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE &&
                            !worker_shares(*context_stack().back()->device)) ||
                           attribute == CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE ||
                           attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES;
        Request request(*connection, wire::PointerAttributeRequest{
                                         never ? CU_POINTER_ATTRIBUTE_MEMORY_TYPE : attribute, ptr});
        if (CUresult error = request.send(); error != CUDA_SUCCESS) return error;
        value = never ? 0 : request.answer<wire::PointerAttributeAnswer>().value;
    }
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            *static_cast<Context**>(data) = context_stack().back();
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            *static_cast<int*>(data) = context_stack().back()->device->index;
            break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        case CU_POINTER_ATTRIBUTE_MAPPED:
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
            *static_cast<unsigned*>(data) = static_cast<unsigned>(value);
            break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            *static_cast<uint64_t*>(data) = value;
            break;
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}
