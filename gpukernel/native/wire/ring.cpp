#include "ring.h"

#include <fcntl.h>
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace gpukernel::wire {

namespace {
constexpr size_t HEAD_BYTES = 4096;
constexpr size_t BYTES = HEAD_BYTES + 2 * RING_BYTES;
constexpr size_t PIECE = 128 << 10;  // told at once, so that the reader begins while the writer goes on
// A turn takes some 40 ns.  Longer spinning gains nothing where both sides run, and where more wants to run
// than the machine has cores it keeps the other side from its answer.
constexpr int MOST_SPINS = 400, LEAST_SPINS = 20;
constexpr auto WORTH_SPINNING = std::chrono::microseconds(60);
}  // namespace

Ring::Ring(void* memory, bool worker)
    : memory_(static_cast<char*>(memory)), read_spins_(MOST_SPINS), write_spins_(MOST_SPINS) {
    auto* heads = reinterpret_cast<RingHead*>(memory_);
    in_ = &heads[worker ? 0 : 1], out_ = &heads[worker ? 1 : 0];
    in_data_ = memory_ + HEAD_BYTES + (worker ? 0 : RING_BYTES);
    out_data_ = memory_ + HEAD_BYTES + (worker ? RING_BYTES : 0);
}

Ring::~Ring() { ::munmap(memory_, BYTES); }

std::unique_ptr<Ring> Ring::make(int& descriptor) {
    descriptor = ::memfd_create("gpukernel-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (descriptor < 0) return nullptr;
    void* memory = MAP_FAILED;
    if (::ftruncate(descriptor, BYTES) == 0 &&
        ::fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        memory = ::mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory != MAP_FAILED) return std::unique_ptr<Ring>(new Ring(memory, true));
    ::close(descriptor);
    descriptor = -1;
    return nullptr;
}

std::unique_ptr<Ring> Ring::open(int descriptor) {
    struct stat found;
    if (::fstat(descriptor, &found) != 0 || found.st_size != BYTES) return nullptr;
    void* memory = ::mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED) return nullptr;
    return std::unique_ptr<Ring>(new Ring(memory, false));
}

size_t Ring::readable() const {
    const uint64_t there = in_->written.load(std::memory_order_acquire) - in_at_;
    return there <= RING_BYTES ? there : SIZE_MAX;
}

size_t Ring::room() const {
    const uint64_t taken = out_at_ - out_->read.load(std::memory_order_acquire);
    return taken <= RING_BYTES ? RING_BYTES - taken : SIZE_MAX;
}

// Until `ready`; false where the other side is gone.  Spinning pays where the other side answers within the
// time that waking a sleeper takes, so the last waits say how long the next one spins.
bool Ring::wait(const Socket& socket, std::atomic<uint32_t>& sleeps, int& spins,
                bool (Ring::*ready)() const) {
    if ((this->*ready)()) return true;
    const auto start = std::chrono::steady_clock::now();
    for (int spin = 0; spin < spins; ++spin) {
        _mm_pause();
        if ((this->*ready)()) return true;
    }
    const bool there = sleep(socket, sleeps, ready);
    sleeps.store(0, std::memory_order_relaxed);
    const bool soon = std::chrono::steady_clock::now() - start < WORTH_SPINNING;
    spins = soon ? std::min(MOST_SPINS, spins * 4) : std::max(LEAST_SPINS, spins / 2);
    return there;
}

bool Ring::sleep(const Socket& socket, std::atomic<uint32_t>& sleeps, bool (Ring::*ready)() const) {
    std::unique_lock lock(sleep_mutex_);
    for (;;) {
        sleeps.store(1, std::memory_order_seq_cst);
        if ((this->*ready)()) break;
        if (gone_) return false;
        if (listening_) {
            rung_.wait(lock);
            continue;
        }
        listening_ = true;
        lock.unlock();
        char bells[64];
        const ssize_t got = ::recv(socket.fd(), bells, sizeof bells, 0);
        const bool failed = got == 0 || (got < 0 && errno != EINTR);
        lock.lock();
        listening_ = false;
        gone_ = gone_ || failed;
        rung_.notify_all();  // it may be for the other, who listens from now on
    }
    return true;
}

bool Ring::expect(const Socket& socket) {
    std::lock_guard lock(sleep_mutex_);
    if (!listening_) {  // bytes that are left over from a wait that needed none of them
        char bells[64];
        ssize_t got;
        while ((got = ::recv(socket.fd(), bells, sizeof bells, MSG_DONTWAIT)) > 0) {
        }
        gone_ = gone_ || got == 0;
    }
    in_->reader_sleeps.store(1, std::memory_order_seq_cst);
    return has_data() || gone_;
}

namespace {
void wake(const Socket& socket, std::atomic<uint32_t>& sleeps) {
    // The store that was just made must be seen by a sleeper, or its sleeping by us.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleeps.load(std::memory_order_relaxed) && sleeps.exchange(0))
        ::send(socket.fd(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}
}  // namespace

void Ring::publish(const Socket& socket, size_t size) {
    out_at_ += size;
    out_->written.store(out_at_, std::memory_order_release);
    wake(socket, out_->reader_sleeps);
}

void Ring::consumed(const Socket& socket, size_t size) {
    in_at_ += size;
    in_->read.store(in_at_, std::memory_order_release);
    wake(socket, in_->writer_sleeps);
}

size_t Ring::peek(const Socket& socket, const char*& at) {
    if (!wait(socket, in_->reader_sleeps, read_spins_, &Ring::has_data)) return 0;
    const size_t there = readable();
    if (there == SIZE_MAX) return 0;
    const size_t offset = in_at_ % RING_BYTES;
    at = in_data_ + offset;
    return std::min(there, RING_BYTES - offset);
}

bool Ring::read(const Socket& socket, void* data, size_t size) {
    for (char* to = static_cast<char*>(data); size;) {
        const char* at;
        const size_t piece = std::min({peek(socket, at), size, PIECE});
        if (!piece) return false;
        std::memcpy(to, at, piece);
        consumed(socket, piece);
        to += piece, size -= piece;
    }
    return true;
}

bool Ring::write(const Socket& socket, const void* data, size_t size) {
    for (const char* from = static_cast<const char*>(data); size;) {
        if (!wait(socket, out_->writer_sleeps, write_spins_, &Ring::has_room)) return false;
        const size_t space = room(), offset = out_at_ % RING_BYTES;
        if (space == SIZE_MAX) return false;
        const size_t piece = std::min({space, RING_BYTES - offset, size, PIECE});
        std::memcpy(out_data_ + offset, from, piece);
        publish(socket, piece);
        from += piece, size -= piece;
    }
    return true;
}

}  // namespace gpukernel::wire
