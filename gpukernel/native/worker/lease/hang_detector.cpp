#include "worker/lease/hang_detector.h"

#include <thread>

namespace gpukernel::worker {

void HangDetector::check() {
    std::lock_guard lock(mutex_);
    if (pending_) return;
    pending_ = true, since_ = Clock::now(), paused_before_ = lease_.time_slicing.paused_seconds();
    if (!started_) std::thread(&HangDetector::run, this).detach();
    started_ = true;
    requested_.notify_one();
}

std::optional<double> HangDetector::pending_seconds() const {
    std::lock_guard lock(mutex_);
    if (!pending_) return std::nullopt;
    return std::chrono::duration<double>(Clock::now() - since_).count();
}

double HangDetector::pending_seconds_at_work() const {
    const double pending = pending_seconds().value_or(0);
    std::lock_guard lock(mutex_);
    return pending - (lease_.time_slicing.paused_seconds() - paused_before_);
}

void HangDetector::run() {
    lease_.cuda.cuCtxSetCurrent(lease_.context);
    std::unique_lock lock(mutex_);
    for (;;) {
        requested_.wait(lock, [&] { return pending_; });
        lock.unlock();
        const CUresult result = lease_.cuda.cuCtxSynchronize();
        if (result != CUDA_SUCCESS) lease_.stray_error = result;
        lock.lock();
        pending_ = false;
    }
}

}  // namespace gpukernel::worker
