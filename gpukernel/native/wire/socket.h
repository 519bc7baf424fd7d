// Blocking stream sockets, unix and TCP: complete reads and writes, time limits for the handshake.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <string>
#include <utility>

namespace gpukernel::wire {

// An owned descriptor.
class Socket {
  public:
    Socket() = default;
    explicit Socket(int fd) : fd_(fd) {}
    Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Socket& operator=(Socket&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Socket();
    int fd() const { return fd_; }
    void blocking(bool on);
    explicit operator bool() const { return fd_ >= 0; }

    // Reads all of it; false at the end of the stream or an error.
    bool read(void* data, size_t size);
    // Reads what there is, at least one byte; 0 at the end of the stream or an error.
    size_t read_some(void* data, size_t most);
    // Reads up to `size` bytes, of which all are sure to come, and is woken seldom; 0 as above.
    size_t read_much(void* data, size_t size);
    // Writes all of it, in one system call where it fits.
    bool write(const void* data, size_t size);
    bool write(const void* head, size_t head_size, const void* tail, size_t tail_size);
    void timeout(int seconds);  // of every read and write; 0 for none
    void shut();                // both directions; wakes a thread that reads
    // Returns whether written data is unacknowledged: when this end closes, TCP's reset may overtake it.
    bool on_its_way() const;

  private:
    bool much_comes();
    int fd_ = -1;
    int vain_ = 0, leave_out_ = 0;  // back-off of `much_comes`
};

// Connects to "unix:/path", "tcp:host:port" or, for TLS to be spoken on it, "tls:host:port".  Returns an
// empty socket, and `error` says why, where nothing answers within `seconds`.
Socket connect_to(const std::string& endpoint, int seconds, std::string& error);
// Listen; empty, and `error` says why, where that fails.  Port 0 is replaced by the one that the system
// chose.
Socket listen_unix(const std::string& path, int mode, std::string& error);
Socket listen_tcp(const std::string& host, int& port, std::string& error);
// Sets TCP's options: no delay of small frames, keepalive, large buffers.
void tune(const Socket& socket);

}  // namespace gpukernel::wire
