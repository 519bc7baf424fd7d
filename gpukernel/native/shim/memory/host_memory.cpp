// Pinned and registered host memory: what there is of it, and how it becomes memory that the device reaches.
#include "shim/memory/host_memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "libcuda/library.h"
#include "shim/graphs/capture.h"
#include "shim/managed/managed.h"
#include "shim/memory/virtual_memory.h"

using namespace gpukernel::shim;

namespace {
std::mutex host_mutex;
std::map<uint64_t, HostMemory> host_memory;
std::atomic<size_t> allocated{0};  // how many of them cuMemHostAlloc gave
std::shared_mutex writing;

std::map<uint64_t, HostMemory>::iterator host_memory_at(uint64_t address) {  // under host_mutex
    auto it = host_memory.upper_bound(address);
    if (it == host_memory.begin()) return host_memory.end();
    --it;
    return address - it->first < it->second.bytes ? it : host_memory.end();
}
CUresult map_here(uint64_t address) {
    if (!allocated) return CUDA_SUCCESS;
    if (const auto found = host_at(address); !found || !found->room) return CUDA_SUCCESS;
    GPUKERNEL_CURRENT(connection);
    if (CUresult error = before_managed(*connection); error != CUDA_SUCCESS) return error;
    std::lock_guard none_writes(writing);
    std::lock_guard lock(host_mutex);
    const auto it = host_memory_at(address);
    if (it == host_memory.end() || !it->second.room) return CUDA_SUCCESS;  // another thread was first
    const CUresult error =
        adopt_pinned(*context_stack().back()->device, it->first, it->second.room, it->second.bytes);
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

std::optional<RegisteredMemory> registered_at(uint64_t address) {
    std::lock_guard lock(host_mutex);
    const auto it = host_memory_at(address);
    if (it == host_memory.end() || it->second.room) return std::nullopt;
    return RegisteredMemory{it->first, it->second.bytes, it->second.flags};
}
std::optional<HostMemory> host_at(uint64_t address, uint64_t* begin) {
    std::lock_guard lock(host_mutex);
    const auto it = host_memory_at(address);
    if (it == host_memory.end()) return std::nullopt;
    if (begin) *begin = it->first;
    return it->second;
}

Pinned pinned_at(const Connection& connection, CUdeviceptr address, uint64_t bytes) {
    if (allocated && address - QUIET_FROM < QUIET_BYTES) {
        std::lock_guard lock(host_mutex);
        const auto it = host_memory_at(address);
        if (it != host_memory.end() && it->second.room)
            return bytes <= it->second.bytes - (address - it->first) ? Pinned::here : Pinned::beyond;
    }
    const Connection* owner = nullptr;
    const auto left = bytes_from(address, owner);
    if (!left) return Pinned::none;
    if (bytes > *left) return Pinned::beyond;
    return owner && owner != &connection ? Pinned::here : Pinned::reached;
}

std::shared_lock<std::shared_mutex> write_to_host() {
    return allocated ? std::shared_lock(writing) : std::shared_lock<std::shared_mutex>();
}

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

CUresult reach_host(const Connection& connection, CUdeviceptr& address, uint64_t bytes) {
    if (pinned_at(connection, address, bytes) == Pinned::beyond) return CUDA_ERROR_INVALID_VALUE;
    const auto found = registered_at(address);
    if (!found) return map_here(address);
    if (found->flags & CU_MEMHOSTREGISTER_READ_ONLY || bytes > found->bytes - (address - found->address))
        return CUDA_ERROR_INVALID_VALUE;
    return libcuda::registered_pointer(reinterpret_cast<void*>(address), address);
}

uint64_t pitched_bytes(uint64_t pitch, uint64_t elements, uint64_t element, uint64_t rows) {
    uint64_t width = 0, bytes = 0;
    if (!rows || !elements) return 0;
    return __builtin_mul_overflow(elements, element, &width) ||
                   __builtin_mul_overflow(pitch, rows - 1, &bytes) ||
                   __builtin_add_overflow(bytes, width, &bytes)
               ? UINT64_MAX
               : bytes;
}

}  // namespace gpukernel::shim

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
    return host_at(reinterpret_cast<uint64_t>(pointer)).has_value();
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
    if (!host_at(start)) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (const auto found = registered_at(start); !found || found->address != start)
        return CUDA_ERROR_INVALID_VALUE;
    end_mirrors(start);
    std::lock_guard lock(host_mutex);
    host_memory.erase(start);
    return CUDA_SUCCESS;
}
