// Blocking stream sockets: unix and TCP, whole reads and writes, deadlines for the handshake.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <string>
#include <utility>

namespace gpukernel::wire {

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
    explicit operator bool() const { return fd_ >= 0; }

    bool read(void* data, size_t size);         // all of it; false at the end of the stream or an error
    size_t read_some(void* data, size_t most);  // what there is, at least one byte; 0 at the end or an error
    bool write(const void* data, size_t size);
    bool write(const void* head, size_t head_size, const void* tail,
               size_t tail_size);  // in one system call where it fits
    void timeout(int seconds);     // of every read and write; 0 for none
    void shut();                   // wakes whoever reads
    // Whether something that was written may still be lost with this side's end: TCP's reset overtakes what
    // has not arrived yet.
    bool on_its_way() const;

  private:
    bool much_comes();
    int fd_ = -1;
    int vain_ = 0, leave_out_ = 0;  // the last looks for much, and those to come
};

// "unix:/path" or "tcp:host:port"; an empty socket, and `error` says why, where nobody answers within
// `seconds`.
Socket connect_to(const std::string& endpoint, int seconds, std::string& error);
Socket listen_unix(const std::string& path, int mode, std::string& error);
Socket listen_tcp(const std::string& host, int& port, std::string& error);
void tune(const Socket& socket);  // no delay for small frames, room for large ones

}  // namespace gpukernel::wire
