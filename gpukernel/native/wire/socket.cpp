#include "wire/socket.h"

#include <fcntl.h>
#include <immintrin.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace gpukernel::wire {

Socket::~Socket() {
    if (fd_ >= 0) ::close(fd_);
}

namespace {
constexpr size_t MUCH = 64 << 10;
constexpr int LOOKS = 200, PAUSES = 8;  // together some 50 µs
constexpr int MOST_RARELY = 64;
constexpr int BACKLOG = 512;  // connections that came while the listener was busy with others
}  // namespace

bool Socket::read(void* data, size_t size) {
    char* at = static_cast<char*>(data);
    while (size) {
        const size_t got = read_much(at, size);
        if (!got) return false;
        at += got, size -= got;
    }
    return true;
}

size_t Socket::read_much(void* data, size_t size) {
    for (;;) {
        const int how = size < MUCH ? 0 : much_comes() ? MSG_DONTWAIT : MSG_WAITALL;
        const ssize_t got = ::recv(fd_, data, size, how);
        if (got >= 0) return static_cast<size_t>(got);
        if (errno != EINTR) return 0;
    }
}

// Polls for some 50 µs until much data has come.  A thread that sleeps in a read is woken for every packet,
// and on one host each wake-up costs the sender an interrupt.  Where polling was in vain it is left out for a
// number of reads that doubles each time.
bool Socket::much_comes() {
    if (leave_out_ > 0) return --leave_out_, false;
    for (int look = 0; look < LOOKS; ++look) {
        int there = 0;
        if (::ioctl(fd_, FIONREAD, &there) != 0) break;
        if (static_cast<size_t>(there) >= MUCH) return vain_ = 0, true;
        for (int pause = 0; pause < PAUSES; ++pause) _mm_pause();
    }
    vain_ = std::min(MOST_RARELY, 2 * vain_ + 1), leave_out_ = vain_;
    return false;
}

size_t Socket::read_some(void* data, size_t most) {
    for (;;) {
        const ssize_t got = ::recv(fd_, data, most, 0);
        if (got >= 0) return static_cast<size_t>(got);
        if (errno != EINTR) return 0;
    }
}

bool Socket::write(const void* data, size_t size) { return write(data, size, nullptr, 0); }

bool Socket::write(const void* head, size_t head_size, const void* tail, size_t tail_size) {
    iovec pieces[2] = {{const_cast<void*>(head), head_size}, {const_cast<void*>(tail), tail_size}};
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = 2;
    while (pieces[0].iov_len || pieces[1].iov_len) {
        ssize_t sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        for (iovec& piece : pieces) {
            size_t part = std::min<size_t>(sent, piece.iov_len);
            piece.iov_base = static_cast<char*>(piece.iov_base) + part;
            piece.iov_len -= part, sent -= part;
        }
    }
    return true;
}

void Socket::timeout(int seconds) {
    timeval limit{seconds, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

void Socket::blocking(bool on) {
    const int flags = ::fcntl(fd_, F_GETFL);
    ::fcntl(fd_, F_SETFL, on ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

void Socket::shut() { ::shutdown(fd_, SHUT_RDWR); }

bool Socket::on_its_way() const {
    int domain = AF_UNIX, unacknowledged = 0;
    socklen_t size = sizeof domain;
    ::getsockopt(fd_, SOL_SOCKET, SO_DOMAIN, &domain, &size);
    return domain != AF_UNIX && ::ioctl(fd_, SIOCOUTQ, &unacknowledged) == 0 && unacknowledged > 0;
}

void tune(const Socket& socket) {
    int on = 1, room = 4 << 20, idle = 10, interval = 5, probes = 3;
    unsigned unanswered = 30000;  // ms: a cut network is an error, not a hang
    ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, sizeof unanswered);
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
}

namespace {
bool unix_address(const std::string& path, sockaddr_un& address, std::string& error) {
    address = {};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) {
        error = "the path " + path + " is too long for a socket (107 characters at most)";
        return false;
    }
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    return true;
}

// Within one host there is no network whose speed a congestion control would have to find out, and one that
// paces (BBR) sets a timer for every packet.  Reno does not pace, and every kernel has it for everybody.
// Before `connect` or `listen`: a socket that has begun to pace goes on.
void leave_unpaced(const Socket& socket, const sockaddr* address) {
    static constexpr char RENO[] = "reno";
    const auto* four = reinterpret_cast<const sockaddr_in*>(address);
    const auto* six = reinterpret_cast<const sockaddr_in6*>(address);
    const bool loopback = address->sa_family == AF_INET6
                              ? IN6_IS_ADDR_LOOPBACK(&six->sin6_addr)
                              : ntohl(four->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    if (loopback) ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_CONGESTION, RENO, sizeof RENO - 1);
}

// Why a connection was not made; the system's own words for a time that is over say something else.
std::string refusal(int seconds) {
    const int why = errno;
    return why == EAGAIN || why == EINPROGRESS || why == ETIMEDOUT
               ? "its worker's machine has not taken the connection for " + std::to_string(seconds) + " s"
               : std::strerror(why);
}

// A signal ends the call, but not the connecting, for which the next call waits again.
bool connect(const Socket& socket, const sockaddr* address, socklen_t size, int seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    while (::connect(socket.fd(), address, size) != 0) {
        if (errno != EINTR) return false;
        if (std::chrono::steady_clock::now() > end) return errno = ETIMEDOUT, false;
    }
    return true;
}

Socket connect_tcp(const std::string& host, const std::string& port, int seconds, std::string& error) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (int code = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found)) {
        error = ::gai_strerror(code);
        return {};
    }
    Socket result;
    for (addrinfo* one = found; one && !result; one = one->ai_next) {
        Socket socket(::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol));
        if (!socket) continue;
        socket.timeout(seconds);
        leave_unpaced(socket, one->ai_addr);
        if (connect(socket, one->ai_addr, one->ai_addrlen, seconds))
            result = std::move(socket);
        else
            error = refusal(seconds);
    }
    ::freeaddrinfo(found);
    return result;
}
}  // namespace

Socket connect_to(const std::string& endpoint, int seconds, std::string& error) {
    Socket socket;
    if (endpoint.starts_with("unix:")) {
        sockaddr_un address;
        if (!unix_address(endpoint.substr(5), address, error)) return {};
        socket = Socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        socket.timeout(seconds);
        if (!connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address, seconds)) {
            error = refusal(seconds);
            return {};
        }
    } else if (size_t colon = endpoint.rfind(':');
               (endpoint.starts_with("tcp:") || endpoint.starts_with("tls:")) && colon > 4) {
        socket = connect_tcp(endpoint.substr(4, colon - 4), endpoint.substr(colon + 1), seconds, error);
    } else {
        error = "'" + endpoint + "' is no endpoint";
    }
    if (socket) tune(socket);
    return socket;
}

Socket listen_unix(const std::string& path, int mode, std::string& error) {
    sockaddr_un address;
    if (!unix_address(path, address, error)) return {};
    ::unlink(path.c_str());
    Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const mode_t before = ::umask(0177);
    const bool bound = ::bind(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::umask(before);
    if (!bound || ::chmod(path.c_str(), mode) != 0 || ::listen(socket.fd(), BACKLOG) != 0) {
        error = path + ": " + std::strerror(errno);
        return {};
    }
    return socket;
}

Socket listen_tcp(const std::string& host, int& port, std::string& error) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    if (int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) {
        error = host + ": " + ::gai_strerror(code);
        return {};
    }
    Socket socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    leave_unpaced(socket, found->ai_addr);
    const bool bound =
        ::bind(socket.fd(), found->ai_addr, found->ai_addrlen) == 0 && ::listen(socket.fd(), BACKLOG) == 0;
    ::freeaddrinfo(found);
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    if (!bound || ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&name), &size) != 0) {
        error = host + ": " + std::strerror(errno);
        return {};
    }
    port = ntohs(name.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&name)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&name)->sin_port);
    return socket;
}

}  // namespace gpukernel::wire
