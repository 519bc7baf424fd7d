// One request: written into the connection's queue, and answered or not.
#pragma once

#include <string_view>

#include "call_numbers.h"
#include "connection.h"
#include "process.h"
#include "wire/body.h"

namespace gpukernel::shim {

class Request {
  public:
    Request(Connection& connection, wire::Call call) : Request(connection, static_cast<uint16_t>(call)) {}
    Request(Connection& connection, wire::Special call) : Request(connection, static_cast<uint16_t>(call)) {}

    template <class T>
    void put(const T& value) {
        writer_.put(value);
    }
    void text(std::string_view text) { writer_.text(text); }
    void bytes(const void* data, size_t size) { writer_.bytes(data, size); }
    uint64_t name_handle() {
        uint64_t name = connection_.next_name();
        put(name);
        return name;
    }

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

  private:
    friend class CopyToHost;
    Request(Connection& connection, uint16_t call);
    bool close(size_t extra);
    static CUresult receive(Connection& connection, uint16_t call, void* data, size_t size,
                            std::vector<char>& answer);

    Connection& connection_;
    const uint16_t call_;
    std::unique_lock<std::mutex> lock_;
    size_t start_;
    wire::Writer writer_;
    std::vector<char> answer_;
    wire::Reader reader_{nullptr, 0};
};

// A large copy: several pieces asked for before the first has come.  Holds the connection throughout.
class CopyToHost {
  public:
    explicit CopyToHost(Connection& connection) : connection_(connection), lock_(connection.mutex) {}
    void ask(uint64_t source, uint64_t stream, size_t bytes);
    CUresult receive(void* data, size_t bytes);

  private:
    Connection& connection_;
    std::unique_lock<std::mutex> lock_;
};

}  // namespace gpukernel::shim
