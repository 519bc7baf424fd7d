#include "simgpu/driver/state.h"

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
        case Status::illegal_instruction:
            return CUDA_ERROR_ILLEGAL_INSTRUCTION;
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
           code == CUDA_ERROR_ILLEGAL_INSTRUCTION || code == CUDA_ERROR_LAUNCH_FAILED ||
           code == CUDA_ERROR_ASSERT;
}

CUresult Device::take_error() {
    if (CUresult error = sticky_error(); error != CUDA_SUCCESS) return error;
    return pending_.exchange(CUDA_SUCCESS);
}

void Device::failed(CUresult error) {
    CUresult none = CUDA_SUCCESS;
    if (sticky(error)) sticky_.store(error);
    pending_.compare_exchange_strong(none, error);
}

void Device::flush_printed() { printed.write_to(STDOUT_FILENO); }

void Device::report(const Result& fault) {
    if (fault.message.empty()) return;
    // A failed assertion looks as it does on any GPU.
    const std::string line = (fault.status == Status::assertion ? "" : "gpukernel: ") + fault.message + "\n";
    printed.write_to(STDOUT_FILENO, line.size());
    for (size_t at = 0; at < line.size();) {
        const ssize_t written = ::write(STDOUT_FILENO, line.data() + at, line.size() - at);
        if (written <= 0) break;
        at += static_cast<size_t>(written);
    }
}

CUresult Device::told() {
    flush_printed();
    return take_error();
}

CUresult Device::synchronize() {
    schedule().wait_all(*this);
    return told();
}

Here here() {
    if (!driver()) return {nullptr, CUDA_ERROR_NOT_INITIALIZED};
    if (this_thread.in_host_function) return {nullptr, CUDA_ERROR_NOT_PERMITTED};
    Context* const context = current_context();
    if (!context) return {nullptr, CUDA_ERROR_INVALID_CONTEXT};
    return {context->device, context->device->sticky_error()};
}

namespace {
// This thread's own default stream in a context, which is told by its legacy stream.
Stream* per_thread_stream(Context* context) {
    thread_local std::vector<std::shared_ptr<Stream>> mine;
    for (const auto& stream : mine)
        if (stream->legacy == context->legacy) return stream.get();
    return mine.emplace_back(std::make_shared<Stream>(context->device, context, context->legacy, 0, 0)).get();
}
}  // namespace

bool stream_of(CUstream handle, Stream*& stream) {
    Context* const context = current_context();
    if (!context) return false;
    if (handle == nullptr || handle == CU_STREAM_LEGACY)
        stream = context->legacy.get();
    else if (handle == CU_STREAM_PER_THREAD)
        stream = per_thread_stream(context);
    else
        stream = driver()->streams.get<Stream>(handle);
    return stream != nullptr;
}

CUresult in_order(Device* device, Stream* stream, std::function<void()> work, bool essential) {
    schedule().submit(
        stream ? *stream : *current_context()->legacy, Engine::copies,
        [work = std::move(work)] { return work(), CUDA_SUCCESS; }, essential);
    return CUDA_SUCCESS;
}

CUresult wait_and(Device* device, Stream* stream, const std::function<void()>& work) {
    schedule().perform(stream ? *stream : *current_context()->legacy, work);
    return device->told();
}

}  // namespace gpukernel::simgpu

using namespace gpukernel::simgpu;

CUresult gpukernel::libcuda::initialised() { return driver() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }
CUresult gpukernel::libcuda::current_usable() {  // also where an earlier error lost the context
    const Here found = here();
    return found.device ? CUDA_SUCCESS : found.error;
}
