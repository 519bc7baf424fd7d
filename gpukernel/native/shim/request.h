// One request: written into the connection's queue, and answered or not.
#pragma once

#include <string_view>

#include "call_numbers.h"
#include "connection.h"
#include "page_faults.h"
#include "process.h"
#include "wire/body.h"

namespace gpukernel::shim {

class Request {
  public:
    Request(Connection& connection, wire::Call call) : Request(connection, static_cast<uint16_t>(call)) {}
    Request(Connection& connection, wire::Special call) : Request(connection, static_cast<uint16_t>(call)) {}
    Request(Connection& connection, wire::Special call, std::unique_lock<std::mutex> lock)
        : Request(connection, static_cast<uint16_t>(call), std::move(lock)) {}

    template <class T>
    void put(const T& value) {
        writer_.put(value);
    }
    void text(std::string_view text) { writer_.text(text); }
    void bytes(const void* data, size_t size) { writer_.bytes(data, size); }
    // This thread is in the middle of a request and cannot make another.
    static bool is_open() { return open_; }
    uint64_t name_handle() {
        uint64_t name = connection_.next_name();
        put(name);
        return name;
    }

    ~Request() {
        if (lock_.owns_lock()) open_ = false;
    }
    Request(const Request&) = delete;

    // What no frame can carry is CUDA_ERROR_INVALID_VALUE and is not sent.
    CUresult queue();                                    // done: nobody waits for it
    CUresult queue_with(const void* data, size_t size);  // user memory goes at the end of the body
    CUresult send_with(const void* data, size_t size);   // the same, and waits for the answer
    CUresult send();                                     // waits for the answer, whose outputs `get` reads
    // The answer's outputs go straight to `data`; for a copy of exactly `size` bytes.
    CUresult send_into(void* data, size_t size);

    template <class T>
    T get() {
        return reader_.get<T>();
    }
    std::string_view get_text() { return reader_.text(); }
    bool failed() const { return reader_.failed(); }  // `get` has read beyond the answer's end
    std::string_view rest() { return reader_.rest(); }

    // Asks without waiting: `answer` comes when somebody awaits it, and must stay until then.  Until it has
    // awaited what it asked for, a thread must wait for nothing else: whoever holds the connection may wait
    // for the worker, and the worker for its answer to be read.
    CUresult ask(Awaited& answer, const void* data = nullptr, size_t size = 0);

  private:
    Request(Connection& connection, uint16_t call)
        : Request(connection, call, std::unique_lock(connection.mutex)) {}
    Request(Connection& connection, uint16_t call, std::unique_lock<std::mutex> lock);
    bool close(size_t extra);
    CUresult exchange(Awaited& mine, const void* data = nullptr, size_t size = 0);

    static inline GPUKERNEL_HANDLER_LOCAL bool open_ = false;
    Connection& connection_;
    const uint16_t call_;
    std::unique_lock<std::mutex> lock_;
    size_t start_ = 0;
    wire::Writer writer_;
    std::vector<char> answer_;
    wire::Reader reader_{nullptr, 0};
};

// The number of a stream; for CU_STREAM_PER_THREAD that of one which is the calling thread's own.
uint64_t own_default_stream(Connection& connection);
inline uint64_t stream_name(Connection& connection, CUstream stream) {
    return stream == CU_STREAM_PER_THREAD ? own_default_stream(connection)
                                          : reinterpret_cast<uint64_t>(stream);
}

}  // namespace gpukernel::shim
