#include "wire/channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gpukernel::wire {

bool Channel::read(void* data, size_t size) {
    if (ring_) return ring_->read(socket_, data, size);
    return tls_ ? tls_->read(socket_, data, size) : read_socket(static_cast<char*>(data), size);
}

bool Channel::read_socket(char* to, size_t size) {
    if (!ahead_) ahead_ = std::make_unique_for_overwrite<char[]>(AHEAD);
    while (size) {
        if (ahead_at_ == ahead_end_) {
            if (size >= AHEAD) return socket_.read(to, size);
            ahead_at_ = 0, ahead_end_ = socket_.read_some(ahead_.get(), AHEAD);
            if (!ahead_end_) return false;
        }
        const size_t there = std::min(size, ahead_end_ - ahead_at_);
        std::memcpy(to, ahead_.get() + ahead_at_, there);
        ahead_at_ += there, to += there, size -= there;
    }
    return true;
}

bool Channel::write(const void* head, size_t head_size, const void* tail, size_t tail_size) {
    if (tls_) return tls_->write(socket_, head, head_size, tail, tail_size);
    if (!ring_) return socket_.write(head, head_size, tail, tail_size);
    return ring_->write(socket_, head, head_size, tail, tail_size);
}

bool Channel::write_now(const void* data, size_t size) {
    if (ring_) return ring_->room() >= size && ring_->write(socket_, data, size);
    if (tls_) return tls_->write_now(socket_, data, size);
    return ::send(socket_.fd(), data, size, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

void Channel::give_up_after(int seconds) {
    socket_.timeout(seconds);
    if (ring_) ring_->give_up_at(std::chrono::steady_clock::now() + std::chrono::seconds(seconds));
}

bool Channel::expect() {
    if (ring_) return ring_->expect(socket_);
    if (tls_ ? tls_->has_data() : ahead_at_ < ahead_end_) return true;
    char byte;
    return ::recv(socket_.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;  // its end, too
}

bool Channel::offer_ring(const void* data, size_t size) {
    int descriptor;
    auto ring = Ring::make(descriptor);
    if (!ring) return false;
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof descriptor)] = {};
    iovec piece{const_cast<void*>(data), size};
    msghdr message{};
    message.msg_iov = &piece, message.msg_iovlen = 1;
    message.msg_control = room, message.msg_controllen = sizeof room;
    cmsghdr* control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET, control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(control), &descriptor, sizeof descriptor);
    const bool sent = ::sendmsg(socket_.fd(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
    ::close(descriptor);
    if (sent) ring_ = std::move(ring);
    return sent;
}

bool Channel::accept_ring(void* data, size_t size) {
    int descriptor = -1;
    for (char* at = static_cast<char*>(data); size;) {
        alignas(cmsghdr) char room[CMSG_SPACE(sizeof descriptor)] = {};
        iovec piece{at, size};
        msghdr message{};
        message.msg_iov = &piece, message.msg_iovlen = 1;
        message.msg_control = room, message.msg_controllen = sizeof room;
        const ssize_t got = ::recvmsg(socket_.fd(), &message, MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        for (cmsghdr* control = CMSG_FIRSTHDR(&message); control; control = CMSG_NXTHDR(&message, control))
            if (control->cmsg_level == SOL_SOCKET && control->cmsg_type == SCM_RIGHTS && descriptor < 0)
                std::memcpy(&descriptor, CMSG_DATA(control), sizeof descriptor);
        at += got, size -= got;
    }
    if (descriptor < 0) return true;
    ring_ = Ring::open(descriptor);
    ::close(descriptor);
    return ring_ != nullptr;
}

}  // namespace gpukernel::wire
