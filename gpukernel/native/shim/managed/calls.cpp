// The driver calls about managed memory, and the hooks of those flagged `managed`, `uses-memory` or `waits`
// in codegen/calls.txt.
#include <cstring>

#include "shim/graphs/capture.h"
#include "shim/managed/pages.h"
#include "shim/memory/devices.h"
#include "shim/memory/host_memory.h"
#include "shim/memory/memory.h"
#include "shim/modules/host_functions.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

namespace {
struct Answer {  // of one attribute, and how many bytes of it the program gets
    uint64_t value = 0;
    size_t bytes = 0;  // 0: no such attribute
};
Answer attribute_of(const ManagedAllocation& a, CUpointer_attribute attribute, CUdeviceptr address) {
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            return {reinterpret_cast<uint64_t>(a.device->primary.get()), 8};
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return {a.host_flags ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE, 4};
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            return {address, 8};
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            return {a.offset + 1, 8};  // unique among all allocations so far
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            return {!a.host_flags, 4};
        case CU_POINTER_ATTRIBUTE_MAPPED:
            return {1, 4};
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            return {static_cast<uint64_t>(a.device->index), 4};
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return {a.address, 8};
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            return {a.bytes, 8};
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
            return {0, 4};
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            return {CU_MEM_HANDLE_TYPE_NONE, 8};
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            return {0, 8};
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
            return {CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE, 4};
        default:
            return {};
    }
}
// Of the device's address of registered memory, and of managed variables.
Answer attribute_of(const Mirror& m, CUpointer_attribute attribute, CUdeviceptr address) {
    const bool variable = m.library != 0;
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            return {reinterpret_cast<uint64_t>(m.device->primary.get()), 8};
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return {variable ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST, 4};
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            return {address, 8};
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            return {m.host + (address - m.address), 8};
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            return {variable, 4};
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
            return {0, 4};
        case CU_POINTER_ATTRIBUTE_MAPPED:
            return {1, 4};
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            return {static_cast<uint64_t>(m.device->index), 4};
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return {m.address, 8};
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            return {m.bytes, 8};
        default:
            return {};
    }
}
}  // namespace

std::optional<CUresult> managed_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
    if (!has_managed()) return std::nullopt;
    Answer answer;
    {
        ManagedLock lock(managed().mutex);
        const ManagedAllocation* a = managed().find(address);
        const Mirror* m = managed().find_mirror(address);
        if ((!a && !m) || (a && a->mapped)) return std::nullopt;
        if (a && address - a->address >= a->bytes) return CUDA_ERROR_INVALID_VALUE;
        answer = a ? attribute_of(*a, attribute, address) : attribute_of(*m, attribute, address);
    }
    if (!answer.bytes) return CUDA_ERROR_NOT_SUPPORTED;
    std::memcpy(data, &answer.value,
                answer.bytes);  // without the lock, since it may be managed memory itself
    return CUDA_SUCCESS;
}

// --- hooks of the calls of codegen/calls.txt ---

using Done = std::optional<CUresult>;

Done managed_cuMemFree_v2(Connection&, CUdeviceptr address) {
    ManagedLock lock(managed().mutex);
    if (managed().find_mirror(address)) return CUDA_ERROR_INVALID_VALUE;
    auto it = managed().allocations.find(address);
    if (it == managed().allocations.end()) return std::nullopt;
    const bool other = it->second->host_flags || it->second->mapped;
    return other ? CUDA_ERROR_INVALID_VALUE : release(*it->second);
}

Done managed_cuMemGetAddressRange_v2(Connection&, CUdeviceptr* base, size_t* size, CUdeviceptr address) {
    std::pair<CUdeviceptr, size_t> range;
    {
        ManagedLock lock(managed().mutex);
        const ManagedAllocation* a = managed().find(address, 1);
        const Mirror* m = managed().find_mirror(address);
        if ((!a && !m) || (a && a->mapped)) return std::nullopt;
        range = a ? std::pair{a->address, a->bytes} : std::pair{m->address, m->bytes};
    }
    if (base) *base = range.first;
    if (size) *size = range.second;
    return CUDA_SUCCESS;
}

DeviceWait managed_cuCtxSynchronize(Connection& c) { return {c, std::nullopt}; }
DeviceWait managed_cuStreamSynchronize(Connection& c, CUstream stream) { return {c, stream}; }
// What else tells a program that work is done.  Which work an event stands for is not known here.
DeviceWait managed_cuStreamQuery(Connection& c, CUstream stream) { return {c, stream}; }
DeviceWait managed_cuEventSynchronize(Connection& c, CUevent) { return DeviceWait(c); }
DeviceWait managed_cuEventQuery(Connection& c, CUevent) { return DeviceWait(c); }

// Copies that need no device, or two.
Done local_cuMemcpyDtoDAsync_v2(Connection& c, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                CUstream stream) {
    if (auto done = copy_pinned(c, to, from, bytes, stream ? stream : CU_STREAM_LEGACY)) return done;
    if (auto done = copy_between_devices(to, from, bytes, stream)) return done;
    return copy_here(c, to, from, bytes, Ends::device);
}
Done local_cuMemcpyDtoD_v2(Connection& c, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    if (auto done = copy_pinned(c, to, from, bytes, nullptr)) return done;
    if (auto done = copy_between_devices(to, from, bytes, nullptr)) return done;
    return copy_here(c, to, from, bytes, Ends::device);
}

// The memory that each call uses.
DeviceWork managed_cuMemcpyDtoD_v2(Connection& c, CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return {c, nullptr, {{to, bytes, true}, {from, bytes, false}}};
}
DeviceWork managed_cuMemcpyDtoDAsync_v2(Connection& c, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                        CUstream stream) {
    return {c, stream, {{to, bytes, true}, {from, bytes, false}}};
}
DeviceWork managed_cuMemsetD8_v2(Connection& c, CUdeviceptr to, unsigned char, size_t n) {
    return {c, nullptr, {{to, n, true}}};
}
DeviceWork managed_cuMemsetD16_v2(Connection& c, CUdeviceptr to, unsigned short, size_t n) {
    return {c, nullptr, {{to, pitched_bytes(0, n, 2, 1), true}}};
}
DeviceWork managed_cuMemsetD32_v2(Connection& c, CUdeviceptr to, unsigned, size_t n) {
    return {c, nullptr, {{to, pitched_bytes(0, n, 4, 1), true}}};
}
DeviceWork managed_cuMemsetD8Async(Connection& c, CUdeviceptr to, unsigned char, size_t n, CUstream stream) {
    return {c, stream, {{to, n, true}}};
}
DeviceWork managed_cuMemsetD16Async(Connection& c, CUdeviceptr to, unsigned short, size_t n,
                                    CUstream stream) {
    return {c, stream, {{to, pitched_bytes(0, n, 2, 1), true}}};
}
DeviceWork managed_cuMemsetD32Async(Connection& c, CUdeviceptr to, unsigned, size_t n, CUstream stream) {
    return {c, stream, {{to, pitched_bytes(0, n, 4, 1), true}}};
}
DeviceWork managed_cuMemsetD2D8_v2(Connection& c, CUdeviceptr to, size_t pitch, unsigned char, size_t width,
                                   size_t height) {
    return {c, nullptr, {{to, pitched_bytes(pitch, width, 1, height), true}}};
}
DeviceWork managed_cuMemsetD2D16_v2(Connection& c, CUdeviceptr to, size_t pitch, unsigned short, size_t width,
                                    size_t height) {
    return {c, nullptr, {{to, pitched_bytes(pitch, width, 2, height), true}}};
}
DeviceWork managed_cuMemsetD2D32_v2(Connection& c, CUdeviceptr to, size_t pitch, unsigned, size_t width,
                                    size_t height) {
    return {c, nullptr, {{to, pitched_bytes(pitch, width, 4, height), true}}};
}
DeviceWork managed_cuMemsetD2D8Async(Connection& c, CUdeviceptr to, size_t pitch, unsigned char, size_t width,
                                     size_t height, CUstream stream) {
    return {c, stream, {{to, pitched_bytes(pitch, width, 1, height), true}}};
}
DeviceWork managed_cuMemsetD2D16Async(Connection& c, CUdeviceptr to, size_t pitch, unsigned short,
                                      size_t width, size_t height, CUstream stream) {
    return {c, stream, {{to, pitched_bytes(pitch, width, 2, height), true}}};
}
DeviceWork managed_cuMemsetD2D32Async(Connection& c, CUdeviceptr to, size_t pitch, unsigned, size_t width,
                                      size_t height, CUstream stream) {
    return {c, stream, {{to, pitched_bytes(pitch, width, 4, height), true}}};
}

}  // namespace gpukernel::shim

using namespace gpukernel::shim;
using gpukernel::ManagedAdvice;

namespace {
CUmemLocation device_of(const ManagedAllocation& a) { return {CU_MEM_LOCATION_TYPE_DEVICE, a.device->index}; }
// Managed memory that is nothing else to the program.
ManagedAllocation* find_managed(CUdeviceptr address, uint64_t bytes) {
    ManagedAllocation* a = managed().find(address, bytes);
    return a && !a->host_flags && !a->mapped ? a : nullptr;
}
bool exists(CUmemLocation place) {
    return place.type == CU_MEM_LOCATION_TYPE_DEVICE ? device_at(place.id) != nullptr
                                                     : place.type != CU_MEM_LOCATION_TYPE_INVALID;
}
}  // namespace

namespace {
CUresult allocate_here(size_t bytes, std::optional<unsigned> host_flags, CUdeviceptr& address) {
    GPUKERNEL_CURRENT(connection);
    if (capturing())
        if (Captured captured = captured_unsafe(*connection, false)) return *captured;
    if (const CUresult error = before_managed(*connection); error != CUDA_SUCCESS) return error;
    ManagedLock lock(managed().mutex);
    const CUresult result = allocate(*context_stack().back()->device, bytes, address);
    if (result == CUDA_SUCCESS) managed().allocations[address]->host_flags = host_flags;
    return result;
}
}  // namespace

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!dptr || !bytesize || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    CUdeviceptr address = 0;
    const CUresult result = allocate_here(bytesize, std::nullopt, address);
    if (result == CUDA_SUCCESS) *dptr = address;  // which may itself be managed memory
    return result;
}

CUresult gpukernel::libcuda::allocate_mapped(void** pointer, size_t bytes, unsigned flags) {
    CUdeviceptr address = 0;
    const CUresult result = allocate_here(bytes, flags, address);
    if (result == CUDA_SUCCESS) *pointer = at(address);
    return result;
}
std::optional<unsigned> gpukernel::libcuda::mapped_flags(const void* pointer) {
    if (!has_managed()) return std::nullopt;
    ManagedLock lock(managed().mutex);
    const ManagedAllocation* a = managed().find(reinterpret_cast<CUdeviceptr>(pointer), 1);
    return a ? a->host_flags : std::nullopt;
}
CUresult gpukernel::shim::before_managed(Connection& connection) {
    return has_managed() ? CUDA_SUCCESS : finish_host_calls(connection);
}
CUresult gpukernel::shim::adopt_pinned(Device& device, CUdeviceptr address, uint64_t room, uint64_t bytes) {
    ManagedLock lock(managed().mutex);
    const CUresult result = adopt(device, address, room);
    if (result != CUDA_SUCCESS) return result;
    ManagedAllocation& a = *managed().allocations[address];
    a.host_flags = 0, a.bytes = bytes;
    return CUDA_SUCCESS;
}
std::optional<uint64_t> gpukernel::shim::bytes_from(CUdeviceptr address, const Connection*& owner) {
    if (!has_managed() || holds_managed()) return std::nullopt;
    ManagedLock lock(managed().mutex);
    if (const Mirror* m = managed().find_mirror(address); m && !m->library)
        return m->bytes - (address - m->address);
    const ManagedAllocation* a = managed().find(address);
    if (!a || a->mapped) return std::nullopt;
    owner = &a->connection();
    const uint64_t inside = address - a->address;
    return inside < a->bytes ? a->bytes - inside : 0;
}
std::optional<CUresult> gpukernel::shim::free_mapped(const void* pointer) {
    if (!has_managed()) return std::nullopt;
    ManagedLock lock(managed().mutex);
    auto it = managed().allocations.find(reinterpret_cast<CUdeviceptr>(pointer));
    if (it == managed().allocations.end() || !it->second->host_flags) return std::nullopt;
    return release(*it->second);
}

CUresult CUDAAPI cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                                       unsigned int flags, CUstream hStream) {
    GPUKERNEL_CURRENT(connection);
    if (capturing())
        if (Captured captured = captured_refusal(*connection, hStream)) return *captured;
    if (!exists(location)) return CUDA_ERROR_INVALID_DEVICE;
    const bool to_device = location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    Connection* owner;
    {
        ManagedLock lock(managed().mutex);
        ManagedAllocation* a = find_managed(devPtr, count);
        if (!a || !count || flags) return CUDA_ERROR_INVALID_VALUE;
        // No other device can access it.
        if (to_device && device_of(*a).id != location.id) return CUDA_ERROR_INVALID_DEVICE;
        a->advice.prefetched = location;
        Progress& progress = managed().progress[&a->connection()];
        a->wanted = !to_device;
        if (!to_device && progress.finished == progress.submitted) fetch_expected(a->connection());
        owner = &a->connection();
    }
    if (to_device) DeviceWork(*owner, hStream, {{devPtr, count, false}});
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                                CUmemLocation location) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    const bool no_place = advice == CU_MEM_ADVISE_SET_READ_MOSTLY ||
                          advice == CU_MEM_ADVISE_UNSET_READ_MOSTLY ||
                          advice == CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
    if (!no_place && !exists(location)) return CUDA_ERROR_INVALID_DEVICE;
    ManagedLock lock(managed().mutex);
    ManagedAllocation* a = find_managed(devPtr, count);
    return a && count ? a->advice.take(advice, location) : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemRangeGetAttribute(void* data, size_t dataSize, CUmem_range_attribute attribute,
                                        CUdeviceptr devPtr, size_t count) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    ManagedAdvice advice;
    {
        ManagedLock lock(managed().mutex);
        ManagedAllocation* a = find_managed(devPtr, count);
        if (!a || !count) return CUDA_ERROR_INVALID_VALUE;
        advice = a->advice;
    }
    return advice.tell(data, dataSize, attribute);
}

// Has no effect: an access here waits for the device, whatever stream the memory is attached to.
CUresult CUDAAPI cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length,
                                        unsigned int flags) {
    GPUKERNEL_CURRENT(connection);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
        return CUDA_ERROR_INVALID_VALUE;
    ManagedLock lock(managed().mutex);
    return find_managed(dptr, length) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
