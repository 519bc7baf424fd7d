// Modules and arrays: things whose device memory only the driver knows.
#pragma once

#include <algorithm>
#include <mutex>

#include "worker/session/session.h"

namespace gpukernel::worker {

// Makes such a thing, and charges what the device's account says that it took, at least `least` bytes.  Frees
// that end meanwhile would hide some of it: while any may, it is charged for all of them, until they are over
// and the account can be trusted (`Lease::correct`).
template <class Handle, class Make, class Destroy>
CUresult make_charged(Session& session, uint64_t least, const void* owner, Handle& handle, Make make,
                      Destroy destroy) {
    Lease& lease = session.lease();
    if (least > lease.memory_limit()) return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint64_t seen = lease.releases();; seen = lease.releases()) {
        std::unique_lock allocating(lease.allocation_mutex);
        lease.freed.settle();
        const uint64_t pending = lease.freed.pending();
        if (lease.reserve(least + pending)) {
            const auto before = lease.footprint.bytes();
            const CUresult result = make(&handle);
            const auto after = lease.footprint.bytes();
            lease.cancel(least + pending);  // the mutex keeps others from allocating meanwhile
            if (result != CUDA_SUCCESS) return result;
            const bool known = before && after;
            const uint64_t seen_of_it = known && *after > *before ? *after - *before : 0;
            const uint64_t most = known && *after + pending > *before ? *after + pending - *before : 0;
            const uint64_t bytes = std::max(least, most);
            if (lease.charge_module(handle, bytes, owner, bytes - std::max(least, seen_of_it)))
                return CUDA_SUCCESS;
            allocating.unlock();
            session.wait([&] { return destroy(handle); });  // the driver may wait for the device
        } else {
            allocating.unlock();
        }
        if (!session.wait_for_memory(seen)) return CUDA_ERROR_OUT_OF_MEMORY;
    }
}

// Has `load` load code of a module or library, and charges what the account says that it took to it.
template <class Load>
CUresult load_charged(Session& session, const void* module, Load load) {
    Lease& lease = session.lease();
    if (!lease.loads_lazily) return load();
    uint64_t seen;
    CUresult result;
    {
        std::lock_guard allocating(lease.allocation_mutex);
        lease.freed.settle();
        const uint64_t pending = lease.freed.pending();
        const auto before = lease.footprint.bytes();
        result = load();
        const auto after = lease.footprint.bytes();
        const bool known = before && after;
        const uint64_t least = known && *after > *before ? *after - *before : 0;
        const uint64_t most = known && *after + pending > *before ? *after + pending - *before : 0;
        seen = lease.releases();
        if (lease.grow_module(module, most, most - least)) return result;
    }
    for (; session.wait_for_memory(seen); seen = lease.releases())
        if (lease.grow_module(module, 0)) return result;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace gpukernel::worker
