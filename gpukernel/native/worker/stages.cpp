#include "stages.h"

#include <algorithm>

#include "wire/protocol.h"

namespace gpukernel::worker {

Stages::Stage* Stages::take() {
    std::unique_lock lock(mutex_);
    for (;;) {
        const auto free = std::find_if(stages_.begin(), stages_.end(), [&](const Stage& stage) {
            return !stage.taken && cuda_.cuEventQuery(stage.free) != CUDA_ERROR_NOT_READY;
        });
        if (free != stages_.end()) {
            free->taken = true;
            return &*free;
        }
        if (stages_.size() < MOST) {
            void* memory = nullptr;
            Stage fresh;
            if (cuda_.cuMemHostAlloc(&memory, wire::COPY_PIECE, 0) == CUDA_SUCCESS) {
                fresh.memory = static_cast<char*>(memory);
                if (cuda_.cuEventCreate(&fresh.free, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS)
                    return &stages_.emplace_back(fresh);
                cuda_.cuMemFreeHost(memory);
            }
        }
        const auto oldest =
            std::find_if(stages_.begin(), stages_.end(), [](const Stage& stage) { return !stage.taken; });
        if (oldest == stages_.end()) return nullptr;
        const CUevent event = oldest->free;
        lock.unlock();
        if (const CUresult error = cuda_.cuEventSynchronize(event); error != CUDA_SUCCESS) error_ = error;
        lock.lock();
    }
}

void Stages::give(Stage* stage, CUstream stream) {
    cuda_.cuEventRecord(stage->free, stream);
    give(stage);
}

void Stages::give(Stage* stage) {
    std::lock_guard lock(mutex_);
    stage->taken = false;
    const auto at = std::find_if(stages_.begin(), stages_.end(), [&](Stage& s) { return &s == stage; });
    stages_.splice(stages_.end(), stages_, at);
}

void Stages::clear() {
    std::lock_guard lock(mutex_);
    for (Stage& stage : stages_) {
        cuda_.cuEventDestroy_v2(stage.free);
        cuda_.cuMemFreeHost(stage.memory);
    }
    stages_.clear();
}

}  // namespace gpukernel::worker
