#include "shim/transport/request.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include "shim/managed/managed.h"
#include "shim/modules/host_functions.h"

namespace gpukernel::shim {

Request::Request(Connection& connection, uint16_t call, std::optional<uint64_t> stream)
    : connection_(connection), call_(call), lock_(connection.mutex), writer_(connection.buffer()) {
    begin(stream);
}
Request::Request(Connection& connection, uint16_t call, std::optional<uint64_t> stream,
                 std::unique_lock<std::mutex> lock)
    : connection_(connection), call_(call), lock_(std::move(lock)), writer_(connection.buffer()) {
    begin(stream);
}

inline void Request::begin(const std::optional<uint64_t>& stream) {
    Connection& connection = connection_;
    const uint16_t call = call_;
    open_ = true;
    connection.note_thread();
    if (connection.finished.may_gate()) gate_request(connection, call, stream);
    number_ = ++connection.foresight.requests;
    note_request(connection, call, stream);
    if (!connection.spares.kept.empty() && !leaves_memory_alone(call)) give_back_spares(connection);
    if (changes_kernels(call)) {
        connection.memo.answers.clear(), connection.memo.changed = number_;
        if (call != static_cast<uint16_t>(wire::DriverCall::cuFuncSetAttribute))
            connection.memo.settings.clear();
    }
    start_ = connection.buffer().size();
    put(wire::FrameHeader{0, call, 0});
}

bool Request::close(size_t extra) {
    std::vector<char>& buffer = connection_.buffer();
    const size_t size = buffer.size() - start_ - sizeof(wire::FrameHeader) + extra;
    if (size > wire::max_request(call_)) {  // the worker would end the connection
        buffer.resize(start_);
        return false;
    }
    const auto length = static_cast<uint32_t>(size);
    std::memcpy(buffer.data() + start_, &length, sizeof length);
    return true;
}

CUresult Request::queue() {
    if (!connection_.alive()) {
        connection_.buffer().clear();
        return GONE;
    }
    if (!close(0)) return CUDA_ERROR_INVALID_VALUE;
    note_queued(connection_);
    connection_.queued();
    return CUDA_SUCCESS;
}

CUresult Request::queue_with(const void* data, size_t size) {
    if (!close(size)) return CUDA_ERROR_INVALID_VALUE;
    note_queued(connection_);
    return connection_.flush_with(data, size) ? CUDA_SUCCESS : GONE;
}

CUresult Request::send() { return send_with(nullptr, 0); }

CUresult Request::send_with(const void* data, size_t size) {
    if (const CUresult deferred_error = connection_.deferred_error;
        deferred_error != CUDA_SUCCESS && !holds_managed()) {
        connection_.buffer().resize(start_);  // nothing is created whose handle no call would return
        connection_.deferred_error = CUDA_SUCCESS;
        return deferred_error;
    }
    PendingAnswer mine{call_, nullptr, 0, &answer_};
    const CUresult result = exchange(mine, data, size);
    reader_ = wire::Reader(answer_.data(), answer_.size());
    return result;
}

CUresult Request::send_into(void* data, size_t size) {
    PendingAnswer mine{call_, data, size};
    return exchange(mine);
}

CUresult Request::exchange(PendingAnswer& mine, const void* data, size_t size) {
    FunctionsBefore before;
    if (connection_.finished.may_be_behind()) before = functions_before(connection_, *this);
    if (const CUresult error = ask(mine, data, size); error != CUDA_SUCCESS) return error;
    lock_.unlock();  // other threads may make requests while this one waits
    open_ = false;
    const CUresult result = connection_.await(mine);
    note_answer(connection_, number_);
    return before.any ? come_after(connection_, before, result) : result;
}

CUresult Request::ask(PendingAnswer& answer, const void* data, size_t size) {
    if (CUresult error = number(answer, size); error != CUDA_SUCCESS) return error;
    connection_.flush_with(data, size);  // where that fails, the wait returns the error
    return CUDA_SUCCESS;
}

CUresult Request::number(PendingAnswer& answer, size_t size) {
    if (!close(size)) return CUDA_ERROR_INVALID_VALUE;
    if (!connection_.expect(answer)) {
        connection_.buffer().resize(start_);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    std::memcpy(connection_.buffer().data() + start_ + offsetof(wire::FrameHeader, number), &answer.number,
                sizeof answer.number);
    return CUDA_SUCCESS;
}

namespace {
struct DefaultStreams {  // of one thread
    std::vector<std::pair<Connection*, uint64_t>> streams;
    ~DefaultStreams() {
        if (!process()) return;
        for (auto [connection, name] : streams) {
            Request request(*connection, wire::DriverCall::cuStreamDestroy_v2);
            request.put(name);
            request.queue();
        }
    }
};
}  // namespace

uint64_t own_default_stream(Connection& connection) {
    thread_local DefaultStreams mine;
    for (auto [of, name] : mine.streams)
        if (of == &connection) return name;
    Request request(connection, wire::DriverCall::cuStreamCreate);
    const uint64_t name = request.name_handle();
    request.put<unsigned>(CU_STREAM_DEFAULT);
    note_made_stream(connection, name, true);
    request.queue();
    mine.streams.emplace_back(&connection, name);
    return name;
}

}  // namespace gpukernel::shim
