#include "shim/transport/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "common/memory_check.h"
#include "shim/transport/request.h"
#include "shim/transport/threads.h"
#include "wire/handshake.h"

namespace gpukernel::shim {

namespace {
constexpr size_t QUEUE_BYTES = 48 << 10;  // a fuller queue is sent at once
constexpr auto QUEUE_TIME = std::chrono::microseconds(100);
constexpr int IDLE_ROUNDS = 4;  // then the flushing thread sleeps until a request is queued
constexpr int CONNECT_SECONDS = 10;
constexpr int GOODBYE_SECONDS = 1;  // for what a worker may say at the end
}  // namespace

void complain(const std::string& sentence) {
    std::string line = "gpukernel: " + sentence + "\n";
    [[maybe_unused]] ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

bool Connection::open(const std::vector<std::string>& endpoints, const std::string& secret,
                      std::string& error) {
    for (size_t i = 0; i < endpoints.size(); ++i) {
        wire::Channel channel = wire::connect_to_worker({endpoints[i]}, secret, CONNECT_SECONDS, error);
        if (!channel) continue;
        channel_ = std::move(channel);
        if (endpoints[i].starts_with("unix:") && !share_memory(error)) continue;
        channel_.socket().timeout(0);
        endpoint_ = endpoints[i], secret_ = secret;
        if (::getrandom(&key_, sizeof key_, 0) != sizeof key_) key_ = 0;
        alive_ = true;
        if (start_thread([this] { flush_in_time(); })) return true;
        alive_ = false;
        error = "the system gives this program no more threads";
    }
    if (endpoints.empty()) error = "the lease names no worker";
    return false;
}

// Asks for shared memory on one host, unless GPUKERNEL_SHARED_MEMORY=0.
bool Connection::share_memory(std::string& error) {
    const char* wanted = std::getenv("GPUKERNEL_SHARED_MEMORY");
    if (wanted && std::strcmp(wanted, "0") == 0) return true;
    const std::vector<char> ask = wire::frame_of(wire::ShareMemoryRequest{});
    struct {
        wire::FrameHeader header;
        wire::AnswerHead head;
    } answer;
    error = "its worker ended the connection";
    channel_.write(ask.data(),
                   ask.size());  // a worker that says why it ends the connection may have closed it
    // What it says may have come with the welcome, and been read with it.
    if (!channel_.accept_ring(&answer, sizeof answer) && !channel_.read(&answer, sizeof answer)) return false;
    if (answer.header.call == wire::GOODBYE && answer.header.length >= sizeof answer.head &&
        answer.header.length <= wire::MAX_CALL) {
        std::string reason(answer.header.length, 0);
        std::memcpy(reason.data(), &answer.head, sizeof answer.head);
        if (channel_.read(reason.data() + sizeof answer.head, reason.size() - sizeof answer.head))
            error = reason;
        return false;
    }
    return answer.header.length == sizeof answer.head && answer.head.printed == 0;
}

bool Connection::flush() { return flush_with(nullptr, 0); }

bool Connection::flush_with(const void* data, size_t size) {
    if (!alive()) return false;
    ++flushes_;
    if (buffer_.empty() && !size) return true;
    const bool sent = channel_.write(buffer_.data(), buffer_.size(), data, size);
    buffer_.clear();
    if (!sent) lost_while_sending();
    return sent;
}

wire::Channel Connection::open_another(std::string& error) const {
    wire::Channel channel = wire::connect_to_worker({endpoint_}, secret_, CONNECT_SECONDS, error);
    if (channel) channel.socket().timeout(0);
    return channel;
}

// Has the worker serve requests while another one waits, from the second thread on.  If a thread waits right
// now, the worker does not read this connection before that wait ends, so `attend` goes over another one.
void Connection::note_thread(const void* thread) {
    if (!only_thread_) {
        only_thread_ = thread;
        return;
    }
    several_threads_ = true;
    const std::vector<char> frame = wire::frame_of(wire::AttendRequest{key_});
    bool somebody_waits;
    {
        std::lock_guard lock(answers_mutex_);
        somebody_waits =
            std::any_of(awaited_.begin(), awaited_.end(), [](PendingAnswer* one) { return one; });
    }
    if (somebody_waits) {
        std::string error;
        wire::Channel other = open_another(error);
        if (other && other.write(frame.data(), frame.size())) return;
    }
    wire::Writer(buffer_).bytes(frame.data(), frame.size());
}

// --- answers ---

bool Connection::expect(PendingAnswer& answer) {
    std::lock_guard lock(answers_mutex_);
    auto free = std::find(awaited_.begin(), awaited_.end(), nullptr);
    if (free == awaited_.end()) {
        if (awaited_.size() > UINT16_MAX) return false;
        free = awaited_.insert(free, nullptr);
    }
    *free = &answer;
    answer.number = static_cast<uint16_t>(free - awaited_.begin());
    return true;
}

void Connection::forget(PendingAnswer& answer) {
    if (answer.number < awaited_.size() && awaited_[answer.number] == &answer)
        awaited_[answer.number] = nullptr;
}

CUresult Connection::await(PendingAnswer& answer) {
    std::unique_lock lock(answers_mutex_);
    while (!answer.done) {
        if (reading_) {  // another thread reads, for this one, too
            ++sleepers_;
            answered_.wait(lock);
            --sleepers_;
            continue;
        }
        if (!alive()) {
            forget(answer);
            return GONE;
        }
        reading_ = true;
        lock.unlock();
        CUresult result;
        reads_answers = true;
        PendingAnswer* const whose = read_answer(answer, result);
        reads_answers = false;
        lock.lock();
        if (whose) {
            forget(*whose);
            whose->result = result;
            whose->done = true;
        }
        reading_ = false;
        if (sleepers_) answered_.notify_all();
    }
    return answer.result;
}

namespace {
void write_all(int file, std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(file, text.data(), text.size());
        if (written <= 0) return;
        text.remove_prefix(static_cast<size_t>(written));
    }
}
void print(std::string_view text) {  // what device code printed, in order, where a local GPU's would go
    while (text.starts_with(WARNING)) {
        const size_t line = std::min(text.find('\n'), text.size() - 1) + 1;
        write_all(STDERR_FILENO, text.substr(0, line));
        text.remove_prefix(line);
    }
    write_all(STDOUT_FILENO, text);
}
}  // namespace

PendingAnswer* Connection::read_answer(PendingAnswer& mine, CUresult& result) {
    const auto senseless = [this] {
        lost("an answer made no sense");
        return nullptr;
    };
    // Grows only as bytes really come: a false length costs no memory.
    auto read_all = [this](std::vector<char>& to, size_t size) {
        to.clear();
        while (to.size() < size) {
            const size_t got = to.size(), piece = std::min(size - got, std::max<size_t>(got, 64 << 10));
            to.resize(got + piece);
            if (!read(to.data() + got, piece)) return false;
        }
        return true;
    };
    struct {
        wire::FrameHeader header;
        wire::AnswerHead answer;
    } head;
    if (!read(&head.header, sizeof head.header)) return nullptr;
    if (head.header.call == wire::GOODBYE && head.header.length <= wire::MAX_CALL) {
        std::string reason(head.header.length, 0);
        if (read(reason.data(), reason.size())) goodbye(reason);
        return nullptr;
    }
    PendingAnswer* whose = nullptr;
    if (head.header.number == mine.number) {
        whose = &mine;
    } else {
        std::lock_guard lock(answers_mutex_);
        if (head.header.number < awaited_.size()) whose = awaited_[head.header.number];
    }
    if (!whose || head.header.call != whose->call || head.header.length < sizeof head.answer ||
        head.header.length > wire::MAX_BODY || !read(&head.answer, sizeof head.answer))
        return senseless();
    uint32_t left = head.header.length - sizeof head.answer;
    if (head.answer.printed > left) return senseless();
    if (head.answer.printed) {
        std::vector<char> text;
        if (!read_all(text, head.answer.printed)) return nullptr;
        print({text.data(), text.size()});
        left -= head.answer.printed;
    }
    result = static_cast<CUresult>(head.answer.result);
    if (whose->data && result == CUDA_SUCCESS) {
        if (left != whose->size) return senseless();
        if (!read(whose->data, left)) return nullptr;
    } else {
        std::vector<char> nobody_asked;
        if (!read_all(whose->outputs ? *whose->outputs : nobody_asked, left)) return nullptr;
    }
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) ++errors;
    return whose;
}

bool Connection::read(void* data, size_t size) {
    if (alive() && channel_.read(data, size)) return true;
    lost("an answer was awaited");
    return false;
}

void Connection::lost(const char* while_doing) {
    if (!alive_.exchange(false)) return;
    // The worker's GOODBYE may still be there to read, or on its way from a worker that is well.
    std::string reason;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(GOODBYE_SECONDS);
    channel_.give_up_after(GOODBYE_SECONDS);
    wire::FrameHeader header;
    while (std::chrono::steady_clock::now() < end && channel_.read(&header, sizeof header) &&
           header.length <= wire::COPY_PIECE + 64) {
        std::string body(header.length, 0);
        if (!channel_.read(body.data(), body.size())) break;
        if (header.call == wire::GOODBYE) reason = body;
    }
    if (const std::string problem = channel_.problem(); reason.empty() && !problem.empty())
        reason = "the connection to the worker of this slice is not safe: " + problem;
    goodbye(reason.empty() ? std::string("the worker of this slice ended while ") + while_doing : reason);
}

// Waits for the thread that reads, which finds the end, too; only one thread may read.
void Connection::lost_while_sending() {
    std::unique_lock lock(answers_mutex_);
    ++sleepers_;
    answered_.wait(lock, [&] { return !reading_; });
    --sleepers_;
    reading_ = true;
    lock.unlock();
    lost("a call was sent");
    lock.lock();
    reading_ = false;
    if (sleepers_) answered_.notify_all();
}

void Connection::goodbye(const std::string& reason) {
    alive_ = false;
    channel_.shut();
    std::string sentence = reason;
    while (!sentence.empty() && (sentence.back() == '.' || sentence.back() == '\n')) sentence.pop_back();
    complain(sentence +
             ". CUDA calls of this process fail from now on; restart the kernel or the program to get a "
             "fresh slice.");
}

bool Connection::is_there() {
    pollfd socket{channel_.socket().fd(), POLLIN | POLLRDHUP, 0};
    return alive() && ::poll(&socket, 1, 0) == 0;
}

void Connection::retire() {
    if (alive_.exchange(false)) channel_.shut();
}

void Connection::abandon() {
    ::close(channel_.socket().fd());
    for (const int other : others)
        if (other >= 0) ::close(other);
}

void Connection::queued() {
    if (buffer_.size() >= QUEUE_BYTES) {
        flush();
    } else if (parked_.load(std::memory_order_relaxed)) {
        parked_ = false;
        wake_.notify_one();
    }
}

// Sends what has been queued for QUEUE_TIME, so that work begins where a program launches and then does
// something else.
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
