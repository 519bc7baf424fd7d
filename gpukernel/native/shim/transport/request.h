// One request, written into the connection's queue, and its answer.
#pragma once

#include <cstring>
#include <optional>
#include <string_view>

#include "calls.h"
#include "libcuda/library.h"
#include "shim/managed/page_faults.h"
#include "shim/process.h"
#include "shim/transport/connection.h"
#include "wire/body.h"

namespace gpukernel::shim {

// From its construction to `queue` or `send` it holds the connection's mutex.
class Request {
  public:
    // Of one stream's work it may be all that it keeps waiting.
    Request(Connection& connection, wire::DriverCall call, std::optional<uint64_t> stream = std::nullopt)
        : Request(connection, static_cast<uint16_t>(call), stream) {}
    Request(Connection& connection, wire::DriverCall call, std::optional<uint64_t> stream,
            std::unique_lock<std::mutex> lock)
        : Request(connection, static_cast<uint16_t>(call), stream, std::move(lock)) {}
    // A custom call, with its message written; bulk data may follow.
    template <class Message>
        requires requires { Message::call; }
    Request(Connection& connection, const Message& message)
        : Request(connection, static_cast<uint16_t>(Message::call), stream_in(message)) {
        message.write(writer_);
    }
    template <class Message>
        requires requires { Message::call; }
    Request(Connection& connection, const Message& message, std::unique_lock<std::mutex> lock)
        : Request(connection, static_cast<uint16_t>(Message::call), stream_in(message), std::move(lock)) {
        message.write(writer_);
    }

    template <class T>
    void put(const T& value) {
        writer_.put(value);
    }
    void text(std::string_view text) { writer_.text(text); }
    void bytes(const void* data, size_t size) { writer_.bytes(data, size); }
    // Whether this thread is in the middle of a request and so cannot make another.
    static bool is_open() { return open_; }
    uint64_t number() const { return number_; }  // among the connection's requests
    uint16_t call() const { return call_; }
    // What has been put into it.
    const char* body() const { return connection_.buffer().data() + start_ + sizeof(wire::FrameHeader); }
    uint64_t name_handle() {
        uint64_t name = connection_.next_name();
        put(name);
        return name;
    }

    ~Request() {
        if (lock_.owns_lock()) open_ = false;
    }
    Request(const Request&) = delete;

    // Complete the request; one that is too large for a frame returns CUDA_ERROR_INVALID_VALUE and is not
    // sent.
    CUresult queue();                                    // without an answer
    CUresult queue_with(const void* data, size_t size);  // the same; user memory ends the body
    CUresult send();                                    // waits for the answer, which `get` or `answer` reads
    CUresult send_with(const void* data, size_t size);  // the same; user memory ends the body
    // Waits for the answer, whose outputs of exactly `size` bytes are received into `data`.
    CUresult send_into(void* data, size_t size);

    template <class T>
    T get() {
        return reader_.get<T>();
    }
    // The outputs of a custom call; `failed` where there are fewer.
    template <class Answer>
    Answer answer() {
        return Answer::read(reader_);
    }
    bool failed() const { return reader_.failed(); }  // more was read than the answer has

    // Sends without waiting: `answer` is received when a thread awaits answers, and must live until then.
    // Until then this thread must wait for nothing else: the thread that holds the connection may wait for
    // the worker, and the worker for its answer to be read.
    CUresult ask(PendingAnswer& answer, const void* data = nullptr, size_t size = 0);
    // The same without sending, which the next request does: it gets the connection's mutex.
    CUresult ask_with_next(PendingAnswer& answer) { return number(answer, 0); }
    std::unique_lock<std::mutex> hand_over() {
        open_ = false;
        return std::move(lock_);
    }

  private:
    Request(Connection& connection, uint16_t call, std::optional<uint64_t> stream);
    Request(Connection& connection, uint16_t call, std::optional<uint64_t> stream,
            std::unique_lock<std::mutex> lock);
    template <class Message>
    static std::optional<uint64_t> stream_in(const Message& message) {
        if constexpr (requires { message.stream; })
            return message.stream;
        else if constexpr (requires { message.launch.stream; })
            return message.launch.stream;
        else if constexpr (requires { message.extent.stream; })
            return message.extent.stream;
        else
            return std::nullopt;
    }
    void begin(const std::optional<uint64_t>& stream);
    bool close(size_t extra);
    CUresult number(PendingAnswer& answer, size_t size);  // of the request, by which its answer is known
    CUresult exchange(PendingAnswer& mine, const void* data = nullptr, size_t size = 0);

    static inline GPUKERNEL_STATIC_THREAD_LOCAL bool open_ = false;
    Connection& connection_;
    const uint16_t call_;
    std::unique_lock<std::mutex> lock_;
    size_t start_ = 0;
    uint64_t number_ = 0;  // of the connection's requests
    wire::Writer writer_;
    std::vector<char> answer_;
    wire::Reader reader_{nullptr, 0};
};

// Appends a request without an answer, before another begins; under the connection's mutex.
template <class Write>
void append_request(Connection& connection, uint16_t call, Write write) {
    std::vector<char>& buffer = connection.buffer();
    const size_t start = buffer.size();
    wire::Writer writer(buffer);
    writer.put(wire::FrameHeader{0, call, 0});
    write(writer);
    const auto length = static_cast<uint32_t>(buffer.size() - start - sizeof(wire::FrameHeader));
    std::memcpy(buffer.data() + start, &length, sizeof length);
}

// The number of a stream; for CU_STREAM_PER_THREAD, of a stream that is made for the calling thread.
uint64_t own_default_stream(Connection& connection);
inline uint64_t stream_name(Connection& connection, CUstream stream) {
    return stream == CU_STREAM_PER_THREAD ? own_default_stream(connection)
                                          : reinterpret_cast<uint64_t>(stream);
}

}  // namespace gpukernel::shim
