#include "worker/session/early_reads.h"

#include <chrono>
#include <thread>

#include "worker/lease/lease.h"

namespace gpukernel::worker {

namespace {
constexpr size_t BYTES = wire::MOST_EARLY_BYTES;
constexpr std::chrono::microseconds PATIENCE(1000), PAUSE(20);
constexpr int QUICK = 20;  // looks without a pause between them
}  // namespace

void EarlyReads::prepare() {
    std::lock_guard lock(mutex_);
    if (memory_) return;
    HostCharge charge(lease_.host_memory);
    if (!charge.grow(BYTES + HostMemory::STREAM)) return;
    if (!stream_ && lease_.cuda.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) {
        stream_ = nullptr;
        return;
    }
    charge_ = std::move(charge);
    void* memory = nullptr;
    if (lease_.cuda.cuMemHostAlloc(&memory, BYTES, 0) == CUDA_SUCCESS) memory_ = static_cast<char*>(memory);
}

void EarlyReads::clear() {
    std::lock_guard lock(mutex_);
    if (stream_) {
        lease_.cuda.cuStreamSynchronize(stream_);
        lease_.cuda.cuStreamDestroy_v2(stream_);
    }
    if (memory_) lease_.cuda.cuMemFreeHost(memory_);
    stream_ = nullptr, memory_ = nullptr, busy_ = false;
    charge_.shrink(0);
}

std::unique_lock<std::mutex> EarlyReads::pause() {
    std::unique_lock lock(mutex_);
    if (busy_) lease_.cuda.cuStreamSynchronize(stream_);
    busy_ = false;
    return lock;
}

CUresult EarlyReads::wait() {
    const auto end = std::chrono::steady_clock::now() + PATIENCE;
    for (int looks = 0;; ++looks) {
        const CUresult result = lease_.cuda.cuStreamQuery(stream_);
        if (result != CUDA_ERROR_NOT_READY || std::chrono::steady_clock::now() > end) return result;
        if (looks < QUICK)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(PAUSE);
    }
}

CUresult EarlyReads::read(const std::vector<wire::EarlyRead>& reads, std::vector<char>& out) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || !memory_) return CUDA_SUCCESS;
    const auto error_of = [](CUresult result) {
        return result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
    };
    if (busy_) {
        const CUresult result = lease_.cuda.cuStreamQuery(stream_);
        if (result != CUDA_SUCCESS) return error_of(result);
        busy_ = false;
    }
    const CUresult rest = lease_.cuda.cuStreamQuery(nullptr);
    if (error_of(rest) != CUDA_SUCCESS) return rest;
    std::vector<bool> there;
    size_t at = 0;
    for (const auto& [address, bytes] : reads) {
        bool is_there = bytes && lease_.valid(address, bytes, true);
        if (is_there) {
            const CUresult result = lease_.cuda.cuMemcpyDtoHAsync_v2(memory_ + at, address, bytes, stream_);
            busy_ = true;
            is_there = result == CUDA_SUCCESS;
            // The program may have freed it since.
            if (!is_there && result != CUDA_ERROR_INVALID_VALUE) return result;
        }
        there.push_back(is_there);
        if (is_there) at += bytes;
    }
    if (const CUresult result = wait(); result != CUDA_SUCCESS) return error_of(result);
    busy_ = false;
    out.push_back(rest == CUDA_SUCCESS);
    at = 0;
    for (size_t i = 0; i < reads.size(); ++i) {
        out.push_back(there[i]);
        if (!there[i]) continue;
        out.insert(out.end(), memory_ + at, memory_ + at + reads[i].bytes);
        at += reads[i].bytes;
    }
    return CUDA_SUCCESS;
}

}  // namespace gpukernel::worker
