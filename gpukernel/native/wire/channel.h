// The carrier of frames: a socket, TLS on it, or, on one host, a ring of shared memory beside it.
#pragma once

#include <memory>

#include "wire/ring.h"
#include "wire/socket.h"
#include "wire/tls.h"

namespace gpukernel::wire {

// One end of a connection.  One thread may read while another writes.
class Channel {
  public:
    Channel() = default;
    explicit Channel(Socket socket, std::unique_ptr<Tls> tls = nullptr)
        : socket_(std::move(socket)), tls_(std::move(tls)) {}
    Socket& socket() { return socket_; }
    explicit operator bool() const { return static_cast<bool>(socket_); }
    bool shares_memory() const { return ring_ != nullptr; }
    // Bytes that both proofs of the handshake cover, so that neither is worth anything on another connection;
    // none without TLS.
    std::string_view binding() const { return tls_ ? tls_->binding() : std::string_view(); }
    // Why TLS has ended the connection; empty where it has not.
    std::string problem() const { return tls_ ? tls_->problem() : std::string(); }

    // Read and write all of it; false at the end of the stream or an error.
    bool read(void* data, size_t size);
    bool write(const void* head, size_t head_size, const void* tail = nullptr, size_t tail_size = 0);
    // Writes all of it without waiting; false where that is not possible: a part may have been written.
    bool write_now(const void* data, size_t size);

    // Lets reads and writes that come fail where one waits for longer than `seconds`, and all that wait then.
    void give_up_after(int seconds);

    // Shared memory only: returns how many bytes can be read at `at`, in place, and then consumes them.
    size_t peek(const char*& at) { return ring_->peek(socket_, at); }
    void consumed(size_t size) { ring_->consumed(socket_, size); }

    // Returns whether something can be read; if not, the socket becomes readable when something can.
    bool expect();

    void shut() { socket_.shut(), rouse(); }  // wakes the threads that read or write
    // Wakes the threads that sleep on shared memory, so that they notice that the other end is gone.
    void rouse() {
        if (ring_) ring_->rouse();
    }

    // Sends `data` with the descriptor of a new ring, and uses the ring from then on; unix sockets only.
    bool offer_ring(const void* data, size_t size);
    // Reads `size` bytes and, if a ring's descriptor comes with them, uses the ring from then on.  False at
    // the end of the stream or an error.
    bool accept_ring(void* data, size_t size);

  private:
    static constexpr size_t AHEAD = 8 << 10;
    bool read_socket(char* to, size_t size);

    Socket socket_;
    std::unique_ptr<Tls> tls_;
    std::unique_ptr<Ring> ring_;
    // Bytes read ahead: one system call reads many small frames.
    std::unique_ptr<char[]> ahead_;
    size_t ahead_at_ = 0, ahead_end_ = 0;
};

}  // namespace gpukernel::wire
