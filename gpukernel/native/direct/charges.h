// The charges of this process by handle, so that exactly what was charged is given back.
#pragma once

#include <map>
#include <mutex>
#include <optional>

#include "direct/slice.h"

namespace gpukernel::direct {

struct Charge {
    Slice* slice;
    uint64_t bytes;
    CUcontext context;  // with whose end the memory goes
};

// Memory, arrays and modules by their handle.  A record is taken out before the driver is asked to free,
// since the driver may give the same address to another thread at once.
class ChargeLedger {
  public:
    void add(uint64_t handle, const Charge& charge) {
        std::lock_guard lock(mutex_);
        charges_[handle] = charge;
    }
    std::optional<Charge> take(uint64_t handle) {
        std::lock_guard lock(mutex_);
        const auto it = charges_.find(handle);
        if (it == charges_.end()) return std::nullopt;
        const Charge charge = it->second;
        charges_.erase(it);
        return charge;
    }
    template <class GiveBack>
    void forget(CUcontext context, GiveBack give_back) {
        std::lock_guard lock(mutex_);
        std::erase_if(charges_, [&](const auto& entry) {
            const bool gone = entry.second.context == context;
            if (gone) give_back(entry.second);
            return gone;
        });
    }

  private:
    std::mutex mutex_;
    std::map<uint64_t, Charge> charges_;
};

ChargeLedger& memory();   // device addresses
ChargeLedger& arrays();   // CUarray, CUmipmappedArray
ChargeLedger& modules();  // CUmodule, CUlibrary: what loading took beside what was asked for

template <class Handle>
uint64_t key(Handle handle) {
    return (uint64_t)handle;
}
inline CUcontext current_context() {
    CUcontext context = nullptr;
    real.cuCtxGetCurrent(&context);
    return context;
}

// Small allocations share pages; what NVIDIA's driver aligns them to is what they take at least.
inline uint64_t charged(uint64_t bytes) {
    return (bytes + 511) / 512 * 512 < bytes ? bytes : (bytes + 511) / 512 * 512;
}

// Asks the driver for memory of the current device that is charged first.
template <class Allocate, class Handle>
CUresult charge_for(ChargeLedger& ledger, uint64_t bytes, Handle* handle, Allocate allocate) {
    Slice* const slice = Inside::depth ? nullptr : current_slice();
    if (!slice) return allocate();
    if (!slice->reserve(charged(bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result;
    {
        Inside inside;
        result = allocate();
    }
    if (result == CUDA_SUCCESS)
        ledger.add(key(*handle), {slice, charged(bytes), current_context()});
    else
        slice->give_back(charged(bytes));
    return result;
}

template <class Handle, class Free>
CUresult free_charged(ChargeLedger& ledger, Handle handle, Free free) {
    if (Inside::depth) return free();
    const auto charge = ledger.take(key(handle));
    CUresult result;
    {
        Inside inside;
        result = free();
    }
    if (!charge) return result;
    if (result == CUDA_SUCCESS)
        charge->slice->give_back(charge->bytes);
    else
        ledger.add(key(handle), *charge);
    return result;
}

}  // namespace gpukernel::direct
