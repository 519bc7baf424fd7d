#include "shim/transport/foresight.h"

#include <cstring>

#include "shim/managed/managed.h"
#include "shim/modules/host_functions.h"
#include "shim/modules/local_calls.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

namespace {
uint64_t note_wait(Foresight& foresight) {
    foresight.stream = canonical(0);
    return foresight.waited = foresight.last = foresight.requests;
}
bool may_read_ahead(const Connection& connection) {
    return !connection.foresight.shares && !connection.has_several_threads();
}
}  // namespace

void share_memory(Connection& connection) {
    std::lock_guard lock(connection.mutex);
    connection.foresight.shares = true;
}

CUresult wait_and_read_ahead(Connection& connection) {
    Foresight& foresight = connection.foresight;
    std::vector<char> outputs, data;
    PendingAnswer wait{static_cast<uint16_t>(wire::DriverCall::cuCtxSynchronize), nullptr, 0, &outputs}, read;
    FunctionsBefore before;
    uint64_t number;
    bool asked = false;
    {
        Request request(connection, wire::DriverCall::cuCtxSynchronize);
        if (foresight.is_ahead.exchange(false)) foresight.expected.reset();  // the last one was for nothing
        if (!may_read_ahead(connection)) foresight.expected.reset();
        const auto expected = foresight.expected;
        if (connection.finished.may_be_behind()) before = functions_before(connection, request);
        const CUresult error = expected ? request.ask_with_next(wait) : request.ask(wait);
        if (error != CUDA_SUCCESS) return error;
        if (expected) {
            data.resize(expected->bytes);
            read = {static_cast<uint16_t>(wire::CustomCall::copy_to_host), data.data(), data.size()};
            // Next to it, so that an error of the read is its own, which nobody needs to hear of.
            Request next(connection,
                         wire::CopyToHostRequest{expected->address, expected->stream, expected->bytes},
                         request.hand_over());
            asked = next.ask(read) == CUDA_SUCCESS;
            if (!asked) connection.flush();
            number = note_wait(foresight);
        } else {
            number = note_wait(foresight);
        }
    }
    CUresult result = connection.await(wait);
    note_answer(connection, number);
    const bool there = asked && connection.await(read) == CUDA_SUCCESS && result == CUDA_SUCCESS;
    if (before.any) result = come_after(connection, before, result);
    if (result == CUDA_SUCCESS) note_idle(connection, number), foresight.over = number;
    if (asked) {
        std::lock_guard lock(connection.mutex);
        if (there && foresight.requests == number && may_read_ahead(connection))
            foresight.data = std::move(data), foresight.is_ahead = true;
        else if (!there)
            foresight.expected.reset();
    }
    return result;
}

bool take_read_ahead(Connection& connection, const DeviceRead& read, void* to) {
    Foresight& foresight = connection.foresight;
    if (take_early(connection, read, to)) return true;
    if (!foresight.is_ahead) return false;
    std::vector<char> data;
    {
        std::lock_guard lock(connection.mutex);
        // Where something was asked since, it is for nothing.
        if (foresight.requests != foresight.waited && foresight.is_ahead.exchange(false))
            foresight.expected.reset();
        if (!foresight.is_ahead || foresight.expected != read) return false;
        foresight.is_ahead = false;
        data.swap(foresight.data);
    }
    std::memcpy(to, data.data(), data.size());  // not under the mutex: a page fault may need it
    return true;
}

uint64_t note_read(Connection& connection, const DeviceRead& read) {
    Foresight& foresight = connection.foresight;
    learn_read(connection, read);
    if (foresight.waited == foresight.requests - 1 && foresight.waited && read.bytes <= Foresight::MOST)
        foresight.expected = read;
    foresight.last = foresight.requests, foresight.stream = canonical(read.stream);
    return foresight.requests;
}

std::optional<CUresult> foreseen_cuCtxSynchronize(Connection& connection) {
    wait_for_all_calls(connection);
    if (is_over(connection)) return has_managed() ? waited_here(connection) : CUDA_SUCCESS;
    if (has_managed()) return std::nullopt;
    {
        std::lock_guard lock(connection.mutex);
        if (connection.deferred_error != CUDA_SUCCESS) return std::nullopt;
    }
    return wait_and_read_ahead(connection);
}

}  // namespace gpukernel::shim
