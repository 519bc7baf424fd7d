#include "state.h"

#include <unistd.h>

#include <cstdio>

namespace gpukernel::simgpu {

void log_line(const std::string& text) {
    std::fprintf(stderr, "gpukernel simulated GPU: %s\n", text.c_str());
}

CUresult code_of(Status status) {
    switch (status) {
        case Status::ok:
            return CUDA_SUCCESS;
        case Status::invalid_ptx:
            return CUDA_ERROR_INVALID_PTX;
        case Status::unsupported:
            return CUDA_ERROR_NOT_SUPPORTED;
        case Status::illegal_address:
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        case Status::misaligned_address:
            return CUDA_ERROR_MISALIGNED_ADDRESS;
        case Status::illegal_barrier:
            return CUDA_ERROR_LAUNCH_FAILED;
        case Status::trap:
            return CUDA_ERROR_LAUNCH_FAILED;
        case Status::assertion:
            return CUDA_ERROR_ASSERT;
        case Status::invalid_launch:
            return CUDA_ERROR_INVALID_VALUE;
        case Status::out_of_memory:
            return CUDA_ERROR_OUT_OF_MEMORY;
        case Status::not_found:
            return CUDA_ERROR_INVALID_PTX;
    }
    return CUDA_ERROR_UNKNOWN;
}

bool sticky(CUresult code) {
    return code == CUDA_ERROR_ILLEGAL_ADDRESS || code == CUDA_ERROR_MISALIGNED_ADDRESS ||
           code == CUDA_ERROR_LAUNCH_FAILED || code == CUDA_ERROR_ASSERT;
}

Queue::~Queue() {
    {
        std::lock_guard lock(queue_mutex_);
        stopping_ = true;
    }
    arrived_.notify_all();
    if (thread_.joinable()) thread_.join();
}

uint64_t Queue::submit(std::function<CUresult()> work) {
    // Whoever is far ahead works off some of it: what waits takes memory, and staged copies take much of it.
    if (const uint64_t before = last(); before >= MOST_WAITING && !inside()) wait(before - MOST_WAITING + 1);
    uint64_t ticket;
    bool wake;
    {
        std::lock_guard lock(queue_mutex_);
        work_.push_back(std::move(work));
        ticket = submitted_.fetch_add(1) + 1;
        wake = work_.size() == 1;
        if (!started_) {
            started_ = true;
            thread_ = std::thread(&Queue::background, this);
        }
    }
    if (wake) arrived_.notify_one();
    return ticket;
}

void Queue::run_one() {  // under run_mutex_
    std::function<CUresult()> work;
    {
        std::lock_guard lock(queue_mutex_);
        if (work_.empty()) return;
        work = std::move(work_.front());
        work_.pop_front();
    }
    if (sticky_.load() == CUDA_SUCCESS) {
        std::atomic<uint64_t>* const busy = busy_.load(std::memory_order_relaxed);
        const auto began = busy ? Clock::now() : Clock::time_point{};
        runner_.store(std::this_thread::get_id());
        CUresult result = work();
        runner_.store({});
        if (busy) *busy += std::chrono::nanoseconds(Clock::now() - began).count();
        CUresult none = CUDA_SUCCESS;
        if (result != CUDA_SUCCESS) {
            if (sticky(result)) sticky_.store(result);
            pending_.compare_exchange_strong(none, result);
        }
    }
    work = nullptr;
    finished_.fetch_add(1, std::memory_order_release);
}

void Queue::background() {
    for (;;) {
        {
            std::unique_lock lock(queue_mutex_);
            arrived_.wait(lock, [&] { return stopping_ || !work_.empty(); });
            if (stopping_) return;
        }
        std::lock_guard running(run_mutex_);
        run_one();
    }
}

void Queue::wait(uint64_t ticket) {
    while (!done(ticket)) {
        std::lock_guard running(run_mutex_);
        if (!done(ticket)) run_one();
    }
}

void Queue::wait_all() { wait(last()); }

CUresult Queue::take_error() {
    if (CUresult error = sticky_.load(); error != CUDA_SUCCESS) return error;
    return pending_.exchange(CUDA_SUCCESS);
}

void Device::flush_printed() {
    std::string text;
    {
        std::lock_guard lock(print_mutex);
        text.swap(printed);
    }
    for (size_t at = 0; at < text.size();) {
        ssize_t written = ::write(STDOUT_FILENO, text.data() + at, text.size() - at);
        if (written <= 0) break;
        at += written;
    }
}

void Device::report(const Result& fault) {
    if (fault.message.empty()) return;
    {
        std::lock_guard lock(print_mutex);
        // A failed assertion looks as it does on any GPU.
        printed += (fault.status == Status::assertion ? "" : "gpukernel: ") + fault.message + "\n";
    }
    flush_printed();
}

CUresult Device::synchronize() {
    queue.wait_all();
    flush_printed();
    return queue.take_error();
}

Here here() {
    if (!driver()) return {nullptr, CUDA_ERROR_NOT_INITIALIZED};
    Context* context = current_context();
    if (!context) return {nullptr, CUDA_ERROR_INVALID_CONTEXT};
    if (context->device->queue.inside()) return {nullptr, CUDA_ERROR_NOT_PERMITTED};  // from a host function
    return {context->device, context->device->queue.sticky_error()};
}

bool stream_of(CUstream handle, Stream*& stream) {
    stream = nullptr;
    if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) return true;
    stream = driver()->streams.get<Stream>(handle);
    return stream != nullptr;
}

void note(Stream* stream, uint64_t ticket) {
    if (stream) stream->last.store(ticket, std::memory_order_release);
}

}  // namespace gpukernel::simgpu
