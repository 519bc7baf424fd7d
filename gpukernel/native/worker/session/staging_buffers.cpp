#include "worker/session/staging_buffers.h"

#include <algorithm>

#include "wire/protocol.h"

namespace gpukernel::worker {

StagingBuffers::StagingBuffer* StagingBuffers::take() {
    std::unique_lock lock(mutex_);
    for (;;) {
        const auto free = std::find_if(buffers_.begin(), buffers_.end(), [&](const StagingBuffer& buffer) {
            return !buffer.taken && cuda_.cuEventQuery(buffer.free) != CUDA_ERROR_NOT_READY;
        });
        if (free != buffers_.end()) {
            free->taken = true;
            return &*free;
        }
        if (buffers_.size() < MOST && book_.take(wire::COPY_PIECE)) {
            void* memory = nullptr;
            StagingBuffer fresh;
            if (cuda_.cuMemHostAlloc(&memory, wire::COPY_PIECE, 0) == CUDA_SUCCESS) {
                fresh.memory = static_cast<char*>(memory);
                if (cuda_.cuEventCreate(&fresh.free, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS)
                    return &buffers_.emplace_back(fresh);
                cuda_.cuMemFreeHost(memory);
            }
            book_.give_back(wire::COPY_PIECE);
        }
        const auto oldest = std::find_if(buffers_.begin(), buffers_.end(),
                                         [](const StagingBuffer& buffer) { return !buffer.taken; });
        if (oldest == buffers_.end()) return nullptr;
        const CUevent event = oldest->free;
        lock.unlock();
        if (const CUresult error = cuda_.cuEventSynchronize(event); error != CUDA_SUCCESS) error_ = error;
        lock.lock();
    }
}

void StagingBuffers::give(StagingBuffer* buffer, CUstream stream) {
    cuda_.cuEventRecord(buffer->free, stream);
    give(buffer);
}

void StagingBuffers::give(StagingBuffer* buffer) {
    std::lock_guard lock(mutex_);
    buffer->taken = false;
    const auto at =
        std::find_if(buffers_.begin(), buffers_.end(), [&](StagingBuffer& s) { return &s == buffer; });
    buffers_.splice(buffers_.end(), buffers_, at);
}

void StagingBuffers::clear() {
    std::lock_guard lock(mutex_);
    std::erase_if(buffers_, [&](StagingBuffer& buffer) {
        if (buffer.taken) return false;
        cuda_.cuEventDestroy_v2(buffer.free);
        cuda_.cuMemFreeHost(buffer.memory);
        book_.give_back(wire::COPY_PIECE);
        return true;
    });
}

}  // namespace gpukernel::worker
