#include "connection.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "wire/handshake.h"

namespace gpukernel::shim {

namespace {
constexpr size_t QUEUE_BYTES = 48 << 10;  // a fuller queue is sent at once
constexpr auto QUEUE_TIME = std::chrono::microseconds(100);
constexpr int IDLE_ROUNDS = 200;  // then the flushing thread sleeps until it is called
constexpr int CONNECT_SECONDS = 10;
}  // namespace

void complain(const std::string& sentence) {
    std::string line = "gpukernel: " + sentence + "\n";
    [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

bool Connection::open(const std::vector<std::string>& endpoints, const std::string& secret,
                      std::string& error) {
    for (size_t i = 0; i < endpoints.size(); ++i) {
        wire::Socket socket = wire::connect_to_worker({endpoints[i]}, secret, CONNECT_SECONDS, error);
        if (!socket) continue;
        channel_ = wire::Channel(std::move(socket));
        if (endpoints[i].starts_with("unix:") && !share_memory()) {
            error = "its worker ended the connection";
            continue;
        }
        channel_.socket().timeout(0);
        alive_ = true;
        sigset_t all, before;  // signals belong to the program's own threads
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before);
        std::thread(&Connection::flush_in_time, this).detach();
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return true;
    }
    if (endpoints.empty()) error = "the lease names no worker";
    return false;
}

// One host: the ring instead of the socket, unless GPUKERNEL_SHARED_MEMORY=0.
bool Connection::share_memory() {
    const char* wanted = std::getenv("GPUKERNEL_SHARED_MEMORY");
    if (wanted && std::strcmp(wanted, "0") == 0) return true;
    const wire::FrameHeader ask{0, static_cast<uint16_t>(wire::Special::share_memory), 0};
    struct {
        wire::FrameHeader header;
        uint32_t result, printed;
    } answer;
    return channel_.write(&ask, sizeof ask) && channel_.accept_ring(&answer, sizeof answer) &&
           answer.header.length == 8 && answer.printed == 0;
}

bool Connection::flush() { return flush_with(nullptr, 0); }

bool Connection::flush_with(const void* data, size_t size) {
    if (!alive()) return false;
    ++flushes_;
    if (buffer_.empty() && !size) return true;
    const bool sent = channel_.write(buffer_.data(), buffer_.size(), data, size);
    buffer_.clear();
    if (!sent) lost("a call was sent");
    return sent;
}

bool Connection::read(void* data, size_t size) {
    if (alive() && channel_.read(data, size)) return true;
    lost("an answer was awaited");
    return false;
}

void Connection::lost(const char* while_doing) {
    if (!alive_.exchange(false)) return;
    // What the worker said before it closed may still be there to read.
    std::string reason;
    channel_.socket().timeout(1);
    wire::FrameHeader header;
    while (channel_.read(&header, sizeof header) && header.length <= wire::COPY_PIECE + 64) {
        std::string body(header.length, 0);
        if (!channel_.read(body.data(), body.size())) break;
        if (header.call == wire::GOODBYE) reason = body;
    }
    goodbye(reason.empty() ? std::string("the worker of this slice ended while ") + while_doing : reason);
}

void Connection::goodbye(const std::string& reason) {
    alive_ = false;
    channel_.socket().shut();
    std::string sentence = reason;
    while (!sentence.empty() && (sentence.back() == '.' || sentence.back() == '\n')) sentence.pop_back();
    complain(sentence +
             ". CUDA calls of this process fail from now on; restart the kernel or the program to get a "
             "fresh slice.");
}

void Connection::retire() {
    if (alive_.exchange(false)) channel_.socket().shut();
}

void Connection::abandon() { ::close(channel_.socket().fd()); }

void Connection::queued() {
    if (buffer_.size() >= QUEUE_BYTES) {
        flush();
    } else if (parked_.load(std::memory_order_relaxed)) {
        parked_ = false;
        wake_.notify_one();
    }
}

// Sends what has been queued for a while, so that a program that launches and then does something else sees
// its work begin.
void Connection::flush_in_time() {
    std::unique_lock lock(mutex);
    for (int idle = 0; alive();) {
        if (idle >= IDLE_ROUNDS) {
            parked_ = true;
            wake_.wait(lock, [&] { return !parked_ || !alive(); });
            idle = 0;
        }
        const uint64_t before = flushes_;
        lock.unlock();
        std::this_thread::sleep_for(QUEUE_TIME);
        lock.lock();
        if (buffer_.empty())
            ++idle;
        else if (idle = 0; flushes_ == before)
            flush();
    }
}

}  // namespace gpukernel::shim
