#include "worker/session/host_functions.h"

#include <algorithm>
#include <iterator>

#include "worker/session/session.h"

namespace gpukernel::worker {

namespace {
constexpr size_t MOST = 1 << 16;  // host functions of a program that are outstanding
// Runs of numbers that are kept beside one for each function that is outstanding, which a program needs that
// counts as it should.
constexpr size_t MOST_RUNS = 1024;
}  // namespace

struct HostFunctions::Gate {
    std::shared_ptr<HostFunctions> of;  // the driver may call back after the program has gone
    uint64_t number;
};

// The gate is a callback and not a host function of the driver, because callbacks are called after an error,
// too, and the program must learn of that.
CUresult HostFunctions::add_gate(Driver& cuda, const CUstream* stream, uint64_t number,
                                 std::vector<wire::EarlyRead> reads) {
    if (const CUresult error = charge(number, false, std::move(reads)); error != CUDA_SUCCESS) return error;
    const CUresult result = stream ? add_callback(cuda, *stream, number) : CUDA_ERROR_INVALID_HANDLE;
    if (result != CUDA_SUCCESS) {  // the program still waits for a report of it
        std::lock_guard lock(mutex_);
        reached_.emplace_back(number, result);
        change(number, &State::passed, true);
        changed_.notify_all();
    }
    return result;
}

void HostFunctions::add_report(Driver& cuda, CUstream stream, uint64_t number,
                               std::vector<wire::EarlyRead> reads) {
    if (charge(number, true, std::move(reads)) != CUDA_SUCCESS ||
        add_callback(cuda, stream, number) == CUDA_SUCCESS)
        return;
    std::lock_guard lock(mutex_);
    reached_.emplace_back(number, CUDA_ERROR_INVALID_VALUE);
    change(number, &State::passed, true);
    changed_.notify_all();
}

CUresult HostFunctions::charge(uint64_t number, bool report, std::vector<wire::EarlyRead> reads) {
    std::lock_guard lock(mutex_);
    if (over_ || gates_.contains(number)) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t beyond = number & wire::GATE ? HostMemory::GATES_BEYOND : 0;
    if (gates_.size() >= MOST + beyond / HostMemory::HOST_FUNCTION ||
        !book_.take(HostMemory::HOST_FUNCTION, beyond)) {
        refuse(number);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    charged_ += HostMemory::HOST_FUNCTION;
    State& state = gates_[number];
    state.shut = !report, state.report = report;
    state.reads = std::move(reads), state.launches = program_.lease().launches;
    return CUDA_SUCCESS;
}

// Runs of numbers that follow each other are one: between two of them is one that is outstanding, whose room
// is charged.
void HostFunctions::refuse(uint64_t number) {
    changed_.notify_all();
    auto next = refused_.upper_bound(number);
    const auto before = next == refused_.begin() ? refused_.end() : std::prev(next);
    const bool joins = next != refused_.end() && next->first == number + 1;
    if (before != refused_.end() && before->second + 1 >= number) {
        before->second = joins ? next->second : std::max(before->second, number);
        if (joins) refused_.erase(next);
    } else if (joins) {
        const uint64_t last = next->second;
        refused_.emplace_hint(refused_.erase(next), number, last);
    } else if (refused_.size() < gates_.size() + MOST_RUNS) {
        refused_.emplace_hint(next, number, number);
    }
}

CUresult HostFunctions::add_callback(Driver& cuda, CUstream stream, uint64_t number) {
    auto gate = std::make_unique<Gate>(Gate{shared_from_this(), number});
    const CUresult result = cuda.cuStreamAddCallback(stream, on_reached, gate.get(), 0);
    if (result == CUDA_SUCCESS) gate.release();
    return result;
}

void CUDA_CB HostFunctions::on_reached(CUstream, CUresult status, void* data) {
    const std::unique_ptr<Gate> gate(static_cast<Gate*>(data));
    gate->of->wait_at_gate(gate->number, status);
}

void HostFunctions::wait_at_gate(uint64_t number, CUresult status) {
    std::unique_lock lock(mutex_);
    reached_.emplace_back(number, status);
    changed_.notify_all();
    changed_.wait(lock, [&] { return over_ || !gates_.at(number).shut; });
    change(number, &State::passed, true);
}

void HostFunctions::change(uint64_t number, bool State::* what, bool to) {
    const auto gate = gates_.find(number);
    if (gate == gates_.end()) return;
    State& state = gate->second;
    state.*what = to;
    if (state.shut || !state.reported || !state.passed) return;
    gates_.erase(gate);
    charged_ -= HostMemory::HOST_FUNCTION;
    book_.give_back(HostMemory::HOST_FUNCTION);
}

bool HostFunctions::next(Reached& reached) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return over_ || !refused_.empty() || !reached_.empty(); });
    if (over_) return false;
    if (const auto first = refused_.begin(); first != refused_.end()) {
        const auto [number, last] = *first;
        refused_.erase(first);
        if (number != last) refused_.emplace_hint(refused_.begin(), number + 1, last);
        reached = {number, CUDA_ERROR_OUT_OF_MEMORY, {}, 0, false};
        return true;
    }
    const auto [number, status] = reached_.front();
    reached_.pop_front();
    State& state = gates_.at(number);
    reached = {number, status, std::move(state.reads), state.launches, state.report};
    change(number, &State::reported, true);
    return true;
}

// What the program has to be told comes with the answer to its own read.
std::vector<char> HostFunctions::read_early(const Reached& reached) {
    if ((reached.reads.empty() && !reached.report) || reached.status != CUDA_SUCCESS) return {};
    Lease* lease;
    {
        std::lock_guard lock(mutex_);
        if (over_ || program_.has_to_tell()) return {};
        lease = &program_.lease();
        if (reached.reads.empty()) return {0};  // nothing is said of the default stream
    }
    std::vector<char> early;
    const CUresult error = lease->early_reads.read(reached.reads, early);
    std::lock_guard lock(mutex_);
    if (over_) return {};
    if (error != CUDA_SUCCESS) program_.keep(error);
    if (early.empty() || program_.has_to_tell()) return {};
    if (lease->launches == reached.launches) lease->finished();
    return early;
}

void HostFunctions::done(uint64_t number) {
    std::lock_guard lock(mutex_);
    change(number, &State::shut, false);
    changed_.notify_all();
}

void HostFunctions::end() {
    std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
}

}  // namespace gpukernel::worker
