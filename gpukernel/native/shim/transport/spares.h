// Blocks of device memory that the program has freed and may ask for again.
//
// Frameworks without an allocator of their own free and allocate the same few sizes in every step, and
// cuMemAlloc waits for an address.  The worker keeps a small block that is freed, as one that nobody may use;
// where the program asks for that size again, it has the address at once.
//
// What is kept counts against the slice, so it is little, and goes back before anything that needs or counts
// memory is asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>

#include "libcuda/entry_points.h"

namespace gpukernel::shim {

class Connection;

// Of one connection, under its mutex.
struct Spares {
    static constexpr uint64_t MOST_BLOCK = 1 << 20;

    uint64_t most = 0;  // bytes that are kept; 0: none
    uint64_t bytes = 0;
    std::unordered_map<CUdeviceptr, uint64_t> used;  // small blocks of cuMemAlloc, and how much was asked for
    std::map<CUdeviceptr, uint64_t> blocks;          // all of cuMemAlloc that the program has, likewise
    std::multimap<uint64_t, CUdeviceptr> kept;       // by size
};

// Whether a call takes, counts or names no memory: for all others what is kept goes back first.
bool leaves_memory_alone(uint16_t call);
// Queues, before a request, that everything kept is freed.
void give_back_spares(Connection& connection);
// Without the mutex: so many bytes may be kept from now on; all blocks so far are not kept when they are
// freed.
void allow_spares(Connection& connection, uint64_t bytes);
void forget_spares(Connection& connection);

}  // namespace gpukernel::shim
