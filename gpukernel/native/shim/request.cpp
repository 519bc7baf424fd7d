#include "request.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace gpukernel::shim {

namespace {
void print(const char* text,
           size_t size) {  // what device code printed, in order, where a local GPU's would go
    while (size) {
        ssize_t written = ::write(STDOUT_FILENO, text, size);
        if (written <= 0) return;
        text += written, size -= written;
    }
}

// Grows only as bytes really come: what a header says costs nothing.
bool read_all(Connection& connection, std::vector<char>& to, size_t size) {
    to.clear();
    while (to.size() < size) {
        const size_t got = to.size(), piece = std::min(size - got, std::max<size_t>(got, 64 << 10));
        to.resize(got + piece);
        if (!connection.read(to.data() + got, piece)) return false;
    }
    return true;
}
}  // namespace

Request::Request(Connection& connection, uint16_t call)
    : connection_(connection),
      call_(call),
      lock_(connection.mutex),
      start_(connection.buffer().size()),
      writer_(connection.buffer()) {
    put(wire::FrameHeader{0, call, 0});
}

bool Request::close(size_t extra) {
    std::vector<char>& buffer = connection_.buffer();
    const size_t size = buffer.size() - start_ - sizeof(wire::FrameHeader) + extra;
    if (size > wire::most_of(call_)) {  // the worker would end the connection
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
    connection_.queued();
    return CUDA_SUCCESS;
}

CUresult Request::queue_with(const void* data, size_t size) {
    if (!close(size)) return CUDA_ERROR_INVALID_VALUE;
    return connection_.flush_with(data, size) ? CUDA_SUCCESS : GONE;
}

CUresult Request::send() { return send_with(nullptr, 0); }

CUresult Request::send_with(const void* data, size_t size) {
    if (!close(size)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result =
        connection_.flush_with(data, size) ? receive(connection_, call_, nullptr, 0, answer_) : GONE;
    reader_ = wire::Reader(answer_.data(), answer_.size());
    return result;
}

CUresult Request::send_into(void* data, size_t size) {
    if (!close(0)) return CUDA_ERROR_INVALID_VALUE;
    return connection_.flush() ? receive(connection_, call_, data, size, answer_) : GONE;
}

void CopyToHost::ask(uint64_t source, uint64_t stream, size_t bytes) {
    struct {
        wire::FrameHeader header;
        uint64_t source, stream, bytes;
    } frame{{24, static_cast<uint16_t>(wire::Special::copy_to_host), 0}, source, stream, bytes};
    wire::Writer(connection_.buffer()).put(frame);
    connection_.flush();
}

CUresult CopyToHost::receive(void* data, size_t bytes) {
    std::vector<char> none;
    return Request::receive(connection_, static_cast<uint16_t>(wire::Special::copy_to_host), data, bytes,
                            none);
}

CUresult Request::receive(Connection& connection, uint16_t call, void* data, size_t size,
                          std::vector<char>& answer) {
    struct {
        wire::FrameHeader header;
        uint32_t result, printed;
    } head;
    if (!connection.read(&head.header, sizeof head.header)) return GONE;
    if (head.header.call == wire::GOODBYE && head.header.length <= wire::MAX_CALL) {
        std::string reason(head.header.length, 0);
        if (connection.read(reason.data(), reason.size())) connection.goodbye(reason);
        return GONE;
    }
    if (head.header.call != call || head.header.length < 8 || head.header.length > wire::MAX_BODY ||
        !connection.read(&head.result, 8))
        return connection.lost("an answer made no sense"), GONE;
    uint32_t left = head.header.length - 8;
    if (head.printed > left) return connection.lost("an answer made no sense"), GONE;
    if (head.printed) {
        std::vector<char> text;
        if (!read_all(connection, text, head.printed)) return GONE;
        print(text.data(), text.size());
        left -= head.printed;
    }
    const auto result = static_cast<CUresult>(head.result);
    if (data && result == CUDA_SUCCESS) {
        if (left != size) return connection.lost("an answer made no sense"), GONE;
        return connection.read(data, size) ? result : GONE;
    }
    return read_all(connection, answer, left) ? result : GONE;
}

}  // namespace gpukernel::shim
