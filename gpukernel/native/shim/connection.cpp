#include "connection.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "wire/hmac.h"

namespace gpukernel::shim {

namespace {
constexpr size_t QUEUE_BYTES = 48 << 10;  // a fuller queue is sent at once
constexpr auto QUEUE_TIME = std::chrono::microseconds(100);
constexpr int IDLE_ROUNDS = 200;  // then the flushing thread sleeps until it is called

std::string_view view(const uint8_t* data, size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}
}  // namespace

void complain(const std::string& sentence) {
    std::string line = "gpukernel: " + sentence + "\n";
    [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

bool Connection::open(const std::vector<std::string>& endpoints, const std::string& secret,
                      std::string& error) {
    error = "the lease names no worker";
    for (const std::string& endpoint : endpoints) {
        socket_ = wire::connect_to(endpoint, error);
        if (!socket_) continue;
        socket_.timeout(10);
        if (!shake_hands(secret, error)) {
            socket_ = {};
            continue;
        }
        socket_.timeout(0);
        alive_ = true;
        sigset_t all, before;  // signals belong to the program's own threads
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before);
        std::thread(&Connection::flush_in_time, this).detach();
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return true;
    }
    return false;
}

bool Connection::shake_hands(const std::string& secret, std::string& error) {
    using namespace wire;
    Challenge challenge;
    Proof proof{MAGIC, VERSION, {}, {}};
    Welcome welcome;
    error = "its worker does not speak this version of the protocol";
    if (!socket_.read(&challenge, sizeof challenge) || challenge.magic != MAGIC ||
        challenge.version != VERSION)
        return false;
    if (::getrandom(proof.nonce, sizeof proof.nonce, 0) != sizeof proof.nonce) return false;
    const auto theirs = view(challenge.nonce, NONCE), ours = view(proof.nonce, NONCE);
    Digest mac = hmac_sha256(secret, {"shim", theirs, ours});
    std::memcpy(proof.mac, mac.data(), MAC);
    if (!socket_.write(&proof, sizeof proof) || !socket_.read(&welcome, sizeof welcome) ||
        welcome.magic != MAGIC) {
        error = "its worker ended the connection";
        return false;
    }
    if (welcome.status != Admission::welcome) {
        error = welcome.status == Admission::full ? "too many programs use this slice"
                                                  : "its worker refused the lease's secret";
        return false;
    }
    if (!equal(hmac_sha256(secret, {"worker", ours, theirs}), welcome.mac)) {
        error = "what answers at its address is not its worker";
        return false;
    }
    return true;
}

bool Connection::flush() { return flush_with(nullptr, 0); }

bool Connection::flush_with(const void* data, size_t size) {
    if (!alive()) return false;
    ++flushes_;
    if (buffer_.empty() && !size) return true;
    const bool sent = socket_.write(buffer_.data(), buffer_.size(), data, size);
    buffer_.clear();
    if (!sent) lost("a call was sent");
    return sent;
}

bool Connection::read(void* data, size_t size) {
    if (alive() && socket_.read(data, size)) return true;
    lost("an answer was awaited");
    return false;
}

void Connection::lost(const char* while_doing) {
    if (!alive_.exchange(false)) return;
    // What the worker said before it closed may still be there to read.
    std::string reason;
    socket_.timeout(1);
    wire::FrameHeader header;
    while (socket_.read(&header, sizeof header) && header.length <= wire::COPY_PIECE + 64) {
        std::string body(header.length, 0);
        if (!socket_.read(body.data(), body.size())) break;
        if (header.call == wire::GOODBYE) reason = body;
    }
    goodbye(reason.empty() ? std::string("the worker of this slice ended while ") + while_doing : reason);
}

void Connection::goodbye(const std::string& reason) {
    alive_ = false;
    socket_.shut();
    std::string sentence = reason;
    while (!sentence.empty() && (sentence.back() == '.' || sentence.back() == '\n')) sentence.pop_back();
    complain(sentence +
             ". CUDA calls of this process fail from now on; restart the kernel or the program to get a "
             "fresh slice.");
}

void Connection::abandon() { ::close(socket_.fd()); }

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
