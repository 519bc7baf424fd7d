#include "watch.h"

#include <thread>

namespace gpukernel::worker {

void Watch::ask() {
    std::lock_guard lock(mutex_);
    if (open_) return;
    open_ = true, since_ = Clock::now();
    if (!started_) std::thread(&Watch::answer, this).detach();
    started_ = true;
    asked_.notify_one();
}

std::optional<double> Watch::unanswered() const {
    std::lock_guard lock(mutex_);
    if (!open_) return std::nullopt;
    return std::chrono::duration<double>(Clock::now() - since_).count();
}

void Watch::answer() {
    lease_.cuda.cuCtxSetCurrent(lease_.context);
    std::unique_lock lock(mutex_);
    for (;;) {
        asked_.wait(lock, [&] { return open_; });
        lock.unlock();
        const CUresult result = lease_.cuda.cuCtxSynchronize();
        if (result != CUDA_SUCCESS) lease_.stray_error = result;
        lock.lock();
        open_ = false;
    }
}

}  // namespace gpukernel::worker
