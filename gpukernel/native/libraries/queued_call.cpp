#include "libraries/queued_call.h"

#include <array>
#include <limits>
#include <map>
#include <memory>
#include <mutex>

namespace gpukernel::libraries {

namespace {
// The worker tells a library's failures in cuBLAS's numbers.
int status_from_worker(int32_t status) {
    switch (status) {
        case 0:
            return 0;
        case 1:
            return STATUSES.not_initialized;
        case 3:
            return STATUSES.alloc_failed;
        case 7:
            return STATUSES.invalid_value;
        case 15:
            return STATUSES.not_supported;
        default:
            return STATUSES.execution_failed;
    }
}
// Sizes by the words that they were asked with.
struct Sizes {
    static constexpr size_t MOST = 4096;
    std::mutex mutex;
    std::map<std::vector<uint64_t>, std::array<uint64_t, 2>> known;
};
Sizes& sizes() {
    static Sizes* const only = new Sizes;  // threads may be inside at exit
    return *only;
}
}  // namespace

QueuedCall::QueuedCall(void* handle, uint32_t library, const char* name, uint32_t function)
    : handle_(handle_of(handle)), library_(library), function_(function), name_(name) {
    if (!handle_)
        status_ = STATUSES.not_initialized;
    else if (port()->current_device() != handle_->device)
        status_ = STATUSES.invalid_value;
    if (status_) return;
    words_.number(handle_->name);
    words_.number(static_cast<uint64_t>(handle_->pointer_mode) | static_cast<uint64_t>(handle_->mode) << 32);
}

void QueuedCall::scalar(const void* value, size_t bytes) {
    if (!value || !bytes)
        status_ = STATUSES.invalid_value;
    else if (handle_->pointer_mode == 0)
        words_.bytes(value, bytes);
    else
        device(value);
}

void QueuedCall::result(void* place, size_t bytes) {
    if (!place)
        status_ = STATUSES.invalid_value;
    else if (handle_->pointer_mode == 0)
        result_ = place, result_bytes_ = bytes;
    else
        device(place);
}

void QueuedCall::room(void* place, size_t bytes) {
    if (!place || room_count_ == MOST_ROOMS)
        status_ = STATUSES.invalid_value;
    else
        rooms_[room_count_++] = {place, bytes};
}

void QueuedCall::unknown(void* place, int64_t count) {
    if (place)
        std::fill_n(static_cast<double*>(place), std::max<int64_t>(count, 0),
                    handle_->simulated ? 0.0 : std::numeric_limits<double>::quiet_NaN());
}

PortCall QueuedCall::made() const {
    return {library_, function_, handle_->stream, words_.data(), words_.count()};
}

int QueuedCall::queue() {
    if (words_.full()) status_ = STATUSES.internal_error;
    if (status_) return status_;
    const PortCall call = made();
    bool captured = false;
    const CUresult result = port()->queue(&call, &captured);
    if (captured) handle_->captured = true;
    return status_of(result);
}

int QueuedCall::ask() { return result_ ? ask(result_, result_bytes_) : queue(); }

int QueuedCall::ask(void* place, size_t bytes) {
    if (status_) return status_;
    int32_t status = 0;
    size_t got = 0;
    const CUresult error = libraries::ask(made(), true, name_, status, place, bytes, got);
    if (error != CUDA_SUCCESS) return status_of(error);
    if (status) return status_from_worker(status);
    return got == bytes ? 0 : STATUSES.internal_error;
}

int QueuedCall::fill(const uint64_t* found) {
    for (size_t i = 0; i < room_count_; ++i) std::memcpy(rooms_[i].place, found + i, rooms_[i].bytes);
    return 0;
}

int QueuedCall::measure() {
    if (status_) return status_;
    static constexpr uint64_t least[MOST_ROOMS] = {LEAST_ROOM, 0};
    if (handle_->simulated) return fill(least);
    std::vector<uint64_t> key(words_.data() + 1, words_.data() + words_.count());
    for (size_t i = 0; i < key.size(); ++i)
        if (places_[i + 1]) key[i] = key[i] != 0;
    key.push_back(function_);
    {
        std::lock_guard lock(sizes().mutex);
        if (const auto it = sizes().known.find(key); it != sizes().known.end())
            return fill(it->second.data());
    }
    std::array<uint64_t, MOST_ROOMS> found{};
    int32_t status = 0;
    size_t got = 0;
    const CUresult error = libraries::ask(made(), false, name_, status, found.data(), sizeof found, got);
    if (error != CUDA_SUCCESS) return status_of(error);
    if (status) return status_from_worker(status);
    if (got < room_count_ * sizeof found[0]) return STATUSES.internal_error;
    std::lock_guard lock(sizes().mutex);
    if (sizes().known.size() < Sizes::MOST) sizes().known[key] = found;
    return fill(found.data());
}

int create_handle(void** handle, uint32_t library, const char* name, std::span<const uint64_t> more) {
    if (!handle) return STATUSES.invalid_value;
    *handle = nullptr;
    if (!port()) return STATUSES.not_initialized;
    const int device = port()->current_device();
    if (device < 0) return STATUSES.not_initialized;
    auto own = std::make_unique<StreamHandle>();
    own->device = device;
    own->name = port()->name();
    int32_t status = 0, answer[2] = {};
    size_t got = 0;
    Words words;
    words.number(own->name);
    for (const uint64_t word : more) words.number(word);
    const PortCall call{library, CREATE, nullptr, words.data(), words.count()};
    const CUresult error = libraries::ask(call, false, name, status, answer, sizeof answer, got);
    if (error != CUDA_SUCCESS)
        return status_of(error) == STATUSES.execution_failed ? STATUSES.not_initialized : status_of(error);
    if (status) return status_from_worker(status);
    own->version = answer[0], own->simulated = answer[1];
    *handle = keep_handle(own.release());
    return 0;
}

int destroy_handle(void* handle, uint32_t library) {
    const std::unique_ptr<StreamHandle> own(drop_handle(handle));
    if (!own) return STATUSES.not_initialized;
    // A graph's calls outlive the handle that they were captured with; the worker's ends with the program.
    if (own->captured || port()->current_device() != own->device) return 0;
    const PortCall call{library, DESTROY, CU_STREAM_PER_THREAD, &own->name, 1};
    bool captured;
    port()->queue(&call, &captured);
    return 0;
}

}  // namespace gpukernel::libraries
