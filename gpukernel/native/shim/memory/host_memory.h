// Pinned and registered host memory, which is ordinary memory of this process until the device reaches it.
#pragma once

#include <cstdint>
#include <optional>
#include <shared_mutex>

#include "shim/process.h"

namespace gpukernel::shim {

struct HostMemory {
    size_t bytes;
    uint64_t room;       // whole units, reserved for it; 0: the program's own memory,
    unsigned flags = 0;  // registered with these
};
// What contains `address` of what cuMemHostAlloc gave and cuMemHostRegister named, but for what kernels have
// used: that is managed memory.
std::optional<HostMemory> host_at(uint64_t address, uint64_t* begin = nullptr);
struct RegisteredMemory;
std::optional<RegisteredMemory> registered_at(uint64_t address);

// What of memory that is the program's, too, lies at an address on the device: nothing, more than there is,
// memory whose bytes are here, or memory that the device reaches.  Here are those of pinned memory that no
// kernel has used, and of what another device of the lease reaches.
enum class Pinned : uint8_t { none, beyond, here, reached };
Pinned pinned_at(const Connection& connection, CUdeviceptr address, uint64_t bytes);

// Shared by copies that write to host memory, which does not become managed memory meanwhile.
std::shared_lock<std::shared_mutex> write_to_host();

// Lets the device reach the pinned memory whose addresses are among a kernel's parameters.
CUresult map_parameters(const char* block, size_t bytes);
// The same for memory of which so many bytes are to be filled; the address of registered memory becomes the
// device's.
CUresult reach_host(const Connection& connection, CUdeviceptr& address, uint64_t bytes);
// The bytes from the first of so many rows to the end of the last; sizes that the worker will refuse are
// saturated.
uint64_t pitched_bytes(uint64_t pitch, uint64_t elements, uint64_t element, uint64_t rows);

}  // namespace gpukernel::shim
