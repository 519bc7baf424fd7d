// Copies between host and device; pinned host memory, which is ordinary memory of this process; pointer
// attributes.
#include "shim/memory/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "libcuda/library.h"
#include "shim/graphs/capture.h"
#include "shim/graphs/memory.h"
#include "shim/managed/managed.h"
#include "shim/memory/devices.h"
#include "shim/memory/virtual_memory.h"
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

std::mutex host_mutex;
struct HostMemory {
    size_t bytes;
    uint64_t room;       // whole units, reserved for it; 0: the program's own memory,
    unsigned flags = 0;  // registered with these
};
// What cuMemHostAlloc gave and cuMemHostRegister named, but for what kernels have used: that is managed
// memory.
std::map<uint64_t, HostMemory> host_memory;
std::atomic<size_t> allocated{0};  // how many of them cuMemHostAlloc gave
// Shared by copies that write to host memory, which does not become managed memory meanwhile.
std::shared_mutex writing;

std::map<uint64_t, HostMemory>::iterator host_memory_at(uint64_t address) {  // under host_mutex
    auto it = host_memory.upper_bound(address);
    if (it == host_memory.begin()) return host_memory.end();
    --it;
    return address - it->first < it->second.bytes ? it : host_memory.end();
}
// The registered memory that contains `address`.
std::optional<RegisteredMemory> registered_at(uint64_t address) {
    std::lock_guard lock(host_mutex);
    const auto it = host_memory_at(address);
    if (it == host_memory.end() || it->second.room) return std::nullopt;
    return RegisteredMemory{it->first, it->second.bytes, it->second.flags};
}
std::optional<HostMemory> host_at(uint64_t address) {
    std::lock_guard lock(host_mutex);
    const auto it = host_memory_at(address);
    return it == host_memory.end() ? std::nullopt : std::optional(it->second);
}
bool is_host(uint64_t address) { return host_at(address).has_value(); }

CUresult map_here(uint64_t address) {
    if (!allocated) return CUDA_SUCCESS;
    if (const auto found = host_at(address); !found || !found->room) return CUDA_SUCCESS;
    GPUKERNEL_CURRENT(connection);
    if (CUresult error = before_managed(*connection); error != CUDA_SUCCESS) return error;
    std::lock_guard none_writes(writing);
    std::lock_guard lock(host_mutex);
    const auto it = host_memory_at(address);
    if (it == host_memory.end() || !it->second.room) return CUDA_SUCCESS;  // another thread was first
    const CUresult error = adopt_pinned(*context_stack().back()->device, it->first, it->second.room);
    if (error == CUDA_ERROR_OUT_OF_MEMORY)
        complain("pinned memory that a kernel uses counts against the slice, which has no room for these " +
                 std::to_string(it->second.room >> 20) + " MiB.");
    if (error != CUDA_SUCCESS) return error;
    host_memory.erase(it);
    --allocated;
    return CUDA_SUCCESS;
}

}  // namespace

namespace gpukernel::shim {

CUresult map_parameters(const char* block, size_t bytes) {
    if (!allocated) return CUDA_SUCCESS;
    for (size_t i = 0; i + sizeof(uint64_t) <= bytes; i += sizeof(uint64_t)) {
        uint64_t word;
        std::memcpy(&word, block + i, sizeof word);
        if (word - QUIET_FROM >= QUIET_BYTES) continue;
        if (CUresult error = map_here(word); error != CUDA_SUCCESS) return error;
    }
    return CUDA_SUCCESS;
}

CUresult reach_host(CUdeviceptr& address) {
    const auto found = host_at(address);
    if (!found) return CUDA_SUCCESS;
    if (found->room) return map_here(address);
    if (found->flags & CU_MEMHOSTREGISTER_READ_ONLY) return CUDA_ERROR_INVALID_VALUE;
    return libcuda::registered_pointer(reinterpret_cast<void*>(address), address);
}

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

CUresult to_device(Connection& connection, CUdeviceptr destination, const void* source, size_t bytes,
                   CUstream stream) {
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
    const std::shared_lock writes =
        allocated ? std::shared_lock(writing) : std::shared_lock<std::shared_mutex>();
    if (auto done =
            managed_copy(connection, reinterpret_cast<uint64_t>(destination), source, bytes, false, stream))
        return *done;
    if (is_of_device(connection, destination, bytes))
        return copy_span(connection, {false, reinterpret_cast<uint64_t>(destination)}, {false, source}, bytes,
                         stream);
    return read_from_device(connection, destination, source, bytes, stream);
}

bool on_device(Connection& connection, CUdeviceptr address) {
    if (is_host(address)) return false;
    if (is_managed(address) || is_graph_memory(address)) return true;  // which may not be mapped yet
    Request request(connection, wire::PointerAttributeRequest{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address});
    return request.send() == CUDA_SUCCESS &&
           request.answer<wire::PointerAttributeAnswer>().value == CU_MEMORYTYPE_DEVICE;
}

CUresult anywhere(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
    GPUKERNEL_CURRENT(connection);
    if (auto done = copy_between_devices(dst, src, bytes, stream)) return *done;
    const bool to = on_device(*connection, dst), from = on_device(*connection, src);
    if (!connection->alive()) return GONE;
    if (to && from) return cuMemcpyDtoDAsync(dst, src, bytes, stream);
    if (to) return to_device(*connection, dst, reinterpret_cast<void*>(src), bytes, stream);
    if (from) return to_host(*connection, reinterpret_cast<void*>(dst), src, bytes, stream);
    if (CUresult error = cuStreamSynchronize(stream); error != CUDA_SUCCESS) return error;
    std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<void*>(src), bytes);
    return CUDA_SUCCESS;
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

CUresult copy_span(Connection& connection, CopyEnd to, CopyEnd from, size_t bytes, CUstream stream) {
    void *const there = reinterpret_cast<void*>(to.address), *const here =
                                                                 reinterpret_cast<void*>(from.address);
    if (to.host && from.host) return std::memmove(there, here, bytes), CUDA_SUCCESS;
    if (from.host) return to_device(connection, to.address, here, bytes, stream);
    if (to.host) return to_host(connection, there, from.address, bytes, stream);
    if (auto done = copy_here(connection, to.address, from.address, bytes, Ends::device)) return *done;
    const DeviceWork work(connection, stream, {{to.address, bytes, true}, {from.address, bytes, false}});
    const uint64_t of = stream_name(connection, stream);
    Request request(connection, wire::DriverCall::cuMemcpyDtoDAsync_v2, of);
    request.put<uint64_t>(to.address), request.put<uint64_t>(from.address), request.put<uint64_t>(bytes);
    request.put(of);
    return request.queue();
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
    if (&to == &from) {
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
    const Device* of = device_named(hStream);
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
    Request arrived(to, wire::DriverCall::cuStreamSynchronize);
    arrived.put<uint64_t>(0);
    return arrived.send();
}
CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                              CUcontext srcContext, size_t ByteCount) {
    return cuMemcpyPeerAsync(dstDevice, dstContext, srcDevice, srcContext, ByteCount, nullptr);
}

// --- host memory ---

CUresult gpukernel::libcuda::host_memory_usable() { return initialised(); }
CUresult gpukernel::libcuda::allocate_pinned(void** pointer, size_t bytes) {
    constexpr uint64_t UNIT = 2 << 20;
    if (bytes > SIZE_MAX - UNIT) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t room = (bytes + UNIT - 1) / UNIT * UNIT;
    const CUdeviceptr address = reserve_here(room);
    void* const memory = reinterpret_cast<void*>(address);
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    if (::mprotect(memory, room, PROT_READ | PROT_WRITE) != 0) {
        free_here(address, room);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (bytes < UNIT) ::madvise(memory, room, MADV_NOHUGEPAGE);
    {
        std::lock_guard lock(host_mutex);
        host_memory[address] = {bytes, room};
        ++allocated;
    }
    *pointer = memory;
    return CUDA_SUCCESS;
}
CUresult gpukernel::libcuda::map_pinned(const void* pointer) {
    return map_here(reinterpret_cast<uint64_t>(pointer));
}
CUresult gpukernel::libcuda::registered_pointer(const void* pointer, CUdeviceptr& address) {
    GPUKERNEL_CURRENT(connection);
    const auto inside = reinterpret_cast<uint64_t>(pointer);
    const auto found = registered_at(inside);
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    if (capturing())
        if (Captured captured = captured_unsafe(*connection, false)) return *captured;
    CUdeviceptr first = 0;
    const CUresult error = mirror(*context_stack().back()->device, *found, first);
    if (error == CUDA_ERROR_OUT_OF_MEMORY)
        complain(
            "registered memory that a kernel uses counts against the slice, which has no room for these " +
            std::to_string(found->bytes >> 20) + " MiB.");
    if (error == CUDA_SUCCESS) address = first + (inside - found->address);
    return error;
}
bool gpukernel::libcuda::is_pinned(const void* pointer) {
    return is_host(reinterpret_cast<uint64_t>(pointer));
}

CUresult CUDAAPI cuMemFreeHost(void* p) {
    GPUKERNEL_CURRENT(connection);
    if (!p) return CUDA_SUCCESS;
    if (auto done = free_mapped(p)) return *done;
    std::lock_guard lock(host_mutex);
    const auto it = host_memory.find(reinterpret_cast<uint64_t>(p));
    if (it == host_memory.end() || !it->second.room) return CUDA_ERROR_INVALID_VALUE;
    free_here(it->first,
              it->second.room);  // no copy reads it, since copies send their bytes before they return
    host_memory.erase(it);
    --allocated;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostRegister(void* p, size_t bytesize, unsigned int Flags) {
    GPUKERNEL_CURRENT(connection);
    constexpr unsigned known =
        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    const auto start = reinterpret_cast<uint64_t>(p);
    if (Flags & CU_MEMHOSTREGISTER_IOMEMORY)
        return gpukernel::unsupported("memory of another device (CU_MEMHOSTREGISTER_IOMEMORY)");
    if (!p || !bytesize || (Flags & ~known) || bytesize > UINT64_MAX - start) return CUDA_ERROR_INVALID_VALUE;
    if (gpukernel::libcuda::mapped_flags(p)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    std::lock_guard lock(host_mutex);
    auto next = host_memory.lower_bound(start);
    if ((next != host_memory.end() && next->first - start < bytesize) ||
        (next != host_memory.begin() && start - std::prev(next)->first < std::prev(next)->second.bytes))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;  // a part of it is enough
    host_memory.emplace(start, HostMemory{bytesize, 0, Flags});
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostUnregister(void* p) {
    GPUKERNEL_CURRENT(connection);
    const auto start = reinterpret_cast<uint64_t>(p);
    if (!is_host(start)) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (const auto found = registered_at(start); !found || found->address != start)
        return CUDA_ERROR_INVALID_VALUE;
    end_mirrors(start);
    std::lock_guard lock(host_mutex);
    host_memory.erase(start);
    return CUDA_SUCCESS;
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
    if (const auto host = host_at(ptr)) {
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
