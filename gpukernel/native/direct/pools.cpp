// Stream-ordered allocation.  A pool takes from others what it has reserved from the device, used or not, so
// it is charged by the driver's own figure of that.
#include "direct/charges.h"

using namespace gpukernel::direct;

namespace {
bool capturing(CUstream stream, bool per_thread) {
    auto status = CU_STREAM_CAPTURE_STATUS_NONE;
    const auto ask = per_thread ? real.cuStreamIsCapturing_ptsz : real.cuStreamIsCapturing;
    return ask(stream, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

uint64_t figure(CUmemoryPool pool, CUmemPool_attribute attribute) {
    cuuint64_t bytes = 0;
    real.cuMemPoolGetAttribute(pool, attribute, &bytes);
    return bytes;
}

CUmemoryPool pool_of_current_device() {
    CUdevice device;
    CUmemoryPool pool = nullptr;
    int has_pools = 0;
    if (real.cuCtxGetDevice(&device) != CUDA_SUCCESS ||
        real.cuDeviceGetAttribute(&has_pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device) !=
            CUDA_SUCCESS ||
        !has_pools || real.cuDeviceGetMemPool(&pool, device) != CUDA_SUCCESS)
        return nullptr;
    return pool;
}

bool tells_figures(CUmemoryPool pool) {
    cuuint64_t bytes = 0;
    return real.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes) == CUDA_SUCCESS;
}

template <class Allocate, class Free>
CUresult allocate_from(Slice& slice, CUmemoryPool pool, uint64_t bytes, CUdeviceptr* address,
                       Allocate allocate, Free free) {
    {
        std::lock_guard lock(slice.pools_mutex);
        slice.pools.try_emplace(pool, 0);
    }
    for (bool last_try : {false, true}) {
        slice.settle_pools();
        const uint64_t reserved = figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        const uint64_t used = figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
        const uint64_t there = reserved - std::min(used, reserved);
        const uint64_t more = bytes > there ? bytes - there : 0;
        if (more && !slice.reserve(more)) {
            if (last_try) return CUDA_ERROR_OUT_OF_MEMORY;
            // What the pools keep for later may be what is lacking.
            std::lock_guard lock(slice.pools_mutex);
            for (const auto& entry : slice.pools) real.cuMemPoolTrimTo(entry.first, 0);
            continue;
        }
        const CUresult result = allocate();
        slice.give_back(more);
        slice.settle_pools();  // now it is the pool's
        if (result != CUDA_SUCCESS) return result;
        if (slice.used() <= slice.limit()) return CUDA_SUCCESS;
        // The driver reserves in large pieces; this one was too large.
        if (free(*address)) real.cuMemPoolTrimTo(pool, reserved);
        slice.settle_pools();
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

template <class Allocate, class Free>
CUresult pooled(CUmemoryPool pool, uint64_t bytes, CUdeviceptr* address, CUstream stream, bool per_thread,
                Allocate allocate, Free free) {
    Slice* const slice = Inside::depth ? nullptr : current_slice();
    if (!slice || capturing(stream, per_thread)) return allocate();
    if (!pool) pool = pool_of_current_device();
    // A driver without pools, or one that does not tell: each allocation by itself.
    if (!pool || !tells_figures(pool)) return charge_for(memory(), bytes, address, allocate);
    Inside inside;
    return allocate_from(*slice, pool, bytes, address, allocate, free);
}

template <class Free>
CUresult free_pooled(CUdeviceptr address, Free free) {
    if (!Inside::depth)
        if (Slice* const slice = current_slice()) slice->pools_changed = true;
    return free_charged(memory(), address, free);
}

// Memory goes back to the device when the stream has come to its free: at a wait for it.
CUresult waited(CUresult result) {
    if (Inside::depth) return result;
    if (Slice* const slice = current_slice(); slice && slice->pools_changed.load(std::memory_order_relaxed))
        slice->settle_pools();
    return result;
}
}  // namespace

extern "C" CUresult cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
    return pooled(
        nullptr, bytesize, dptr, hStream, false,
        [=] { return real.cuMemAllocAsync(dptr, bytesize, hStream); },
        [=](CUdeviceptr p) {
            return real.cuMemFreeAsync(p, hStream) == CUDA_SUCCESS &&
                   real.cuStreamSynchronize(hStream) == CUDA_SUCCESS;
        });
}
extern "C" CUresult cuMemAllocAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUstream hStream) {
    return pooled(
        nullptr, bytesize, dptr, hStream, true,
        [=] { return real.cuMemAllocAsync_ptsz(dptr, bytesize, hStream); },
        [=](CUdeviceptr p) {
            return real.cuMemFreeAsync_ptsz(p, hStream) == CUDA_SUCCESS &&
                   real.cuStreamSynchronize_ptsz(hStream) == CUDA_SUCCESS;
        });
}
extern "C" CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                            CUstream hStream) {
    return pooled(
        pool, bytesize, dptr, hStream, false,
        [=] { return real.cuMemAllocFromPoolAsync(dptr, bytesize, pool, hStream); },
        [=](CUdeviceptr p) {
            return real.cuMemFreeAsync(p, hStream) == CUDA_SUCCESS &&
                   real.cuStreamSynchronize(hStream) == CUDA_SUCCESS;
        });
}
extern "C" CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                                 CUstream hStream) {
    return pooled(
        pool, bytesize, dptr, hStream, true,
        [=] { return real.cuMemAllocFromPoolAsync_ptsz(dptr, bytesize, pool, hStream); },
        [=](CUdeviceptr p) {
            return real.cuMemFreeAsync_ptsz(p, hStream) == CUDA_SUCCESS &&
                   real.cuStreamSynchronize_ptsz(hStream) == CUDA_SUCCESS;
        });
}
extern "C" CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
    return free_pooled(dptr, [=] { return real.cuMemFreeAsync(dptr, hStream); });
}
extern "C" CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream hStream) {
    return free_pooled(dptr, [=] { return real.cuMemFreeAsync_ptsz(dptr, hStream); });
}

extern "C" CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
    const CUresult result = real.cuMemPoolTrimTo(pool, minBytesToKeep);
    if (Slice* const slice = Inside::depth ? nullptr : current_slice()) slice->settle_pools();
    return result;
}

extern "C" CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    // Its memory goes when the last allocation goes; until then the agent's measuring tells.
    const CUresult result = real.cuMemPoolDestroy(pool);
    if (result != CUDA_SUCCESS || Inside::depth) return result;
    for (CUdevice device = 0; Slice* const slice = slice_of(device); ++device) {
        std::lock_guard lock(slice->pools_mutex);
        if (const auto it = slice->pools.find(pool); it != slice->pools.end()) {
            slice->give_back(it->second);
            slice->pools.erase(it);
        }
    }
    return result;
}

extern "C" CUresult cuStreamSynchronize(CUstream hStream) {
    return waited(real.cuStreamSynchronize(hStream));
}
extern "C" CUresult cuStreamSynchronize_ptsz(CUstream hStream) {
    return waited(real.cuStreamSynchronize_ptsz(hStream));
}
extern "C" CUresult cuCtxSynchronize(void) { return waited(real.cuCtxSynchronize()); }
extern "C" CUresult cuCtxSynchronize_v2(CUcontext ctx) { return waited(real.cuCtxSynchronize_v2(ctx)); }
