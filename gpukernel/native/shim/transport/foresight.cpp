#include "shim/transport/foresight.h"

#include <cstring>

#include "shim/managed/managed.h"
#include "shim/modules/host_functions.h"
#include "shim/modules/local_calls.h"
#include "shim/transport/copies.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

namespace {
constexpr size_t MOST_FOLLOWERS = 64;
constexpr int PATIENCE = 16;  // after so many reads in a row that nobody used, few are asked for

uint64_t note_wait(Foresight& foresight, std::optional<uint64_t> stream) {
    foresight.of_device = !stream, foresight.may_follow = true;
    if (!stream) foresight.last = foresight.requests, foresight.stream = canonical(0);
    return foresight.waited = foresight.requests;
}
// A read that is the first one after a wait.
void note_follower(Foresight& foresight, const DeviceRead& read) {
    if (!foresight.may_follow) return;
    foresight.may_follow = false;
    if (foresight.followers.size() > MOST_FOLLOWERS) foresight.followers.clear();
    foresight.followers[foresight.follows] = read;
    foresight.follows = {foresight.follows.second, read.address};
    foresight.followers.try_emplace(foresight.follows, read);  // perhaps the same again
}
// What was read ahead is for nothing.
void forget_ahead(Foresight& foresight) {
    if (!foresight.is_ahead.exchange(false)) return;
    foresight.followers.erase(foresight.follows);
    ++foresight.in_vain;
}
Settles may_read_ahead(Connection& connection, std::optional<uint64_t> stream) {
    if (connection.foresight.shares) return Settles::no;
    if (!stream) return connection.has_several_threads() ? Settles::no : Settles::yes;
    if (has_managed() || connection.finished.may_be_behind()) return Settles::no;
    return settles(connection, canonical(*stream));
}
// Under the mutex: what to read with a wait that begins.  A read of no bytes asks whether the default stream
// has something left to do, where that alone is not known.
std::optional<DeviceRead> expected(Connection& connection, std::optional<uint64_t> stream) {
    Foresight& foresight = connection.foresight;
    forget_ahead(foresight);
    const auto found = foresight.followers.find(foresight.follows);
    if (found == foresight.followers.end()) return std::nullopt;
    const Settles settles = may_read_ahead(connection, stream);
    if (settles == Settles::no) {
        if (!stream) foresight.followers.erase(found);
        return std::nullopt;
    }
    DeviceRead read = found->second;
    if (stream && !in_a_block(connection, read.address, read.bytes)) return std::nullopt;
    // Each takes a thread of the worker as long as its wait does, and only the newest wait's is of use.
    if (foresight.is_asked) return std::nullopt;
    if (foresight.in_vain >= PATIENCE && ++foresight.skipped % PATIENCE) return std::nullopt;
    if (stream) read.stream = *stream;
    if (settles != Settles::yes) read.bytes = 0;
    return read;
}
// Whether nothing has changed since the wait.
bool holds(const Connection& connection) {
    const Foresight& foresight = connection.foresight;
    return foresight.of_device ? foresight.requests == foresight.waited
                               : connection.finished.changed <= foresight.waited && !foresight.shares;
}
// Next to the wait, so that an error of the read is its own, or of earlier work.
CUresult ask_next(Request& wait, Connection& connection, const DeviceRead& read, std::vector<char>& data,
                  PendingAnswer& answer) {
    if (read.bytes) {
        answer = {static_cast<uint16_t>(wire::CustomCall::copy_to_host), data.data(), data.size()};
        const wire::CopyToHostRequest message{read.address, read.stream, read.bytes};
        return Request(connection, message, wait.hand_over()).ask(answer);
    }
    answer = {static_cast<uint16_t>(wire::DriverCall::cuStreamQuery), nullptr, 0, &data};
    Request next(connection, wire::DriverCall::cuStreamQuery, 0, wait.hand_over());
    next.put<uint64_t>(0);
    return next.ask(answer);
}
}  // namespace

void share_memory(Connection& connection) {
    std::lock_guard lock(connection.mutex);
    connection.foresight.shares = true;
}

std::optional<CUresult> wait_and_read_ahead(Connection& connection, std::optional<uint64_t> stream) {
    Foresight& foresight = connection.foresight;
    {
        std::lock_guard lock(connection.mutex);
        if (connection.deferred_error != CUDA_SUCCESS) return std::nullopt;
    }
    const auto call = stream ? wire::DriverCall::cuStreamSynchronize : wire::DriverCall::cuCtxSynchronize;
    std::vector<char> outputs, data;
    PendingAnswer wait{static_cast<uint16_t>(call), nullptr, 0, &outputs}, read;
    FunctionsBefore before;
    std::optional<DeviceRead> ahead;
    uint64_t number;
    bool asked = false;
    {
        Request request(connection, call, stream);
        if (stream) request.put(*stream);
        ahead = expected(connection, stream);
        if (connection.finished.may_be_behind()) before = functions_before(connection, request);
        const CUresult error = ahead ? request.ask_with_next(wait) : request.ask(wait);
        if (error != CUDA_SUCCESS) return error;
        if (ahead) {
            data.resize(ahead->bytes);
            asked = foresight.is_asked = ask_next(request, connection, *ahead, data, read) == CUDA_SUCCESS;
            if (!asked) connection.flush();
        }
        number = note_wait(foresight, stream);
    }
    CUresult result = connection.await(wait);
    note_answer(connection, number);
    const CUresult came = asked ? connection.await(read) : CUDA_SUCCESS;
    if (stream && result == CUDA_SUCCESS && came != CUDA_ERROR_NOT_READY) result = came;
    const bool there = asked && came == CUDA_SUCCESS && result == CUDA_SUCCESS;
    if (before.any) result = come_after(connection, before, result);
    if (result == CUDA_SUCCESS) {
        stream ? note_stream(connection, *stream, number) : note_idle(connection, number);
        if (!stream) foresight.over = number;
    }
    if (asked) {
        std::lock_guard lock(connection.mutex);
        foresight.is_asked = false;
        if (!ahead->bytes) {
            if (there) note_passed(connection, 0, number);
        } else if (there && foresight.waited == number && holds(connection) &&
                   (stream || may_read_ahead(connection, stream) == Settles::yes))
            foresight.data = std::move(data), foresight.ahead = ahead, foresight.is_ahead = true;
        else if (there)
            ++foresight.in_vain;
        else
            foresight.followers.erase(foresight.follows);
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
        if (!foresight.is_ahead) return false;
        DeviceRead ahead = *foresight.ahead;
        if (!foresight.of_device) ahead.stream = read.stream;
        const bool may_tell_it = foresight.of_device || may_tell(connection, read.stream);
        // Where something was asked since, or something else is read, it is for nothing.
        if (!holds(connection) || ahead != read || !may_tell_it) {
            forget_ahead(foresight);
            return false;
        }
        foresight.is_ahead = false, foresight.in_vain = 0;
        note_follower(foresight, *foresight.ahead);
        data.swap(foresight.data);
    }
    std::memcpy(to, data.data(), data.size());  // not under the mutex: a page fault may need it
    return true;
}

uint64_t note_read(Connection& connection, const DeviceRead& read) {
    Foresight& foresight = connection.foresight;
    learn_read(connection, read);
    const bool follows = foresight.of_device ? foresight.waited == foresight.requests - 1
                                             : connection.finished.changed <= foresight.waited;
    if (follows && foresight.waited && read.bytes && read.bytes <= Foresight::MOST)
        note_follower(foresight, read);
    foresight.last = foresight.requests, foresight.stream = canonical(read.stream);
    return foresight.requests;
}

std::optional<CUresult> foreseen_cuCtxSynchronize(Connection& connection) {
    wait_for_all_calls(connection);
    if (is_over(connection)) return has_managed() ? waited_here(connection) : CUDA_SUCCESS;
    if (has_managed()) return std::nullopt;
    return wait_and_read_ahead(connection);
}

}  // namespace gpukernel::shim
