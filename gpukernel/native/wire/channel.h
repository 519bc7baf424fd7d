// What carries frames: a socket, or on one host a ring of shared memory beside it.
#pragma once

#include <memory>

#include "ring.h"
#include "socket.h"

namespace gpukernel::wire {

class Channel {
  public:
    Channel() = default;
    explicit Channel(Socket socket) : socket_(std::move(socket)) {}
    Socket& socket() { return socket_; }
    bool shares_memory() const { return ring_ != nullptr; }

    bool read(void* data, size_t size);  // all of it; false at the end or an error
    bool write(const void* head, size_t head_size, const void* tail = nullptr, size_t tail_size = 0);
    bool write_now(const void* data, size_t size);  // all of it without waiting, or false and maybe a part

    // Shared memory only: what has come, where it lies.
    size_t peek(const char*& at) { return ring_->peek(socket_, at); }
    void consumed(size_t size) { ring_->consumed(socket_, size); }

    // Whether something has come; where not, the socket can be polled for it.
    bool expect();

    void shut() { socket_.shut(), rouse(); }  // wakes whoever reads or writes
    // Whoever sleeps on shared memory, to see that the other side has gone.
    void rouse() {
        if (ring_) ring_->rouse();
    }

    // Passes the ring's descriptor along with `data`, and from then on uses the ring; the socket must be
    // unix.
    bool offer_ring(const void* data, size_t size);
    // Reads `size` bytes and the descriptor that may come with them; false at the end or an error.
    bool accept_ring(void* data, size_t size);

  private:
    static constexpr size_t AHEAD = 8 << 10;
    bool read_socket(char* to, size_t size);

    Socket socket_;
    std::unique_ptr<Ring> ring_;
    // What the socket gave beyond what was asked for: many small frames for one system call.
    std::unique_ptr<char[]> ahead_;
    size_t ahead_at_ = 0, ahead_end_ = 0;
};

}  // namespace gpukernel::wire
