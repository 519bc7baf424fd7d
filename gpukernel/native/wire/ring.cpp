#include "ring.h"

#include <fcntl.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "copy.h"

namespace gpukernel::wire {

namespace {
constexpr size_t HEAD_BYTES = 4096;
constexpr size_t BYTES = HEAD_BYTES + 2 * RING_BYTES;
// Told at once: the reader begins while the writer goes on, and the other's next piece comes while one spins.
constexpr size_t PIECE = 16 << 10;
// A turn takes some 40 ns.  Longer spinning gains nothing where both sides run, and where more wants to run
// than the machine has cores it keeps the other side from its answer.
constexpr int MOST_SPINS = 600, LEAST_SPINS = 100;
constexpr auto WORTH_SPINNING = std::chrono::microseconds(60);
// Such a wait says nothing of how soon the other side answers once there is something to answer.
constexpr auto IDLE = std::chrono::milliseconds(1);
// Where both sides sleep, waking takes so long that neither learns how soon the other would have answered:
// now and then one waits long enough to find them both awake, ever more rarely where that was in vain.
constexpr int TRY_SPINS = 7500, MOST_RARELY = 64;
constexpr int MOST_YIELDS = 8;
enum Sleep : uint32_t { AWAKE, ASLEEP, POLLING };
// The end of the other process wakes nobody on a futex.  The worker is roused by the thread that watches its
// connections.
constexpr timespec LOOK_UP{0, 100'000'000}, WORKER_LOOKS_UP{5, 0};

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* limit = nullptr) {
    ::syscall(SYS_futex, &word, operation, value, limit, nullptr, 0);
}

bool hung_up(const Socket& socket) {
    pollfd watched{socket.fd(), POLLRDHUP, 0};
    return ::poll(&watched, 1, 0) != 0;
}
}  // namespace

Ring::Ring(void* memory, bool worker)
    : memory_(static_cast<char*>(memory)), reading_{MOST_SPINS}, writing_{MOST_SPINS}, worker_(worker) {
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

size_t Ring::readable() {
    if (written_ == in_at_) written_ = in_->written.load(std::memory_order_acquire);
    const uint64_t there = written_ - in_at_;
    return there <= RING_BYTES ? there : SIZE_MAX;
}

size_t Ring::room(size_t wanted) {
    if (RING_BYTES - (out_at_ - read_) < wanted) read_ = out_->read.load(std::memory_order_acquire);
    const uint64_t taken = out_at_ - read_;
    return taken <= RING_BYTES ? RING_BYTES - taken : SIZE_MAX;
}
size_t Ring::room() { return room(RING_BYTES); }

// Until `ready`; false where the other side is gone.  Spinning pays where the other side answers within the
// time that waking a sleeper takes, so the last waits say how long the next one spins.
bool Ring::wait(const Socket& socket, std::atomic<uint32_t>& sleeps, Patience& patience, Ready ready) {
    if ((this->*ready)()) return true;
    const auto start = std::chrono::steady_clock::now();
    const bool tries = patience.long_waits >= patience.tries_after;
    const bool met = spin(tries ? TRY_SPINS : patience.spins, ready);
    if (met && !tries) return true;
    if (tries) patience.long_waits = 0;
    const bool there = met || sleep(socket, sleeps, ready);
    if (!met) sleeps.store(AWAKE, std::memory_order_relaxed);
    const auto took = std::chrono::steady_clock::now() - start;
    if (took > IDLE) return there;
    if (tries) patience.tries_after = met ? 1 : std::min(MOST_RARELY, patience.tries_after * 2);
    const bool soon = took < WORTH_SPINNING;
    patience.spins =
        soon ? std::min(MOST_SPINS, patience.spins * 4) : std::max(LEAST_SPINS, patience.spins / 2);
    patience.long_waits += !soon;
    return there;
}

// Only news: the other side looks at this line all the time while it spins.
uint32_t Ring::tell_cpu() {
    const auto here = static_cast<uint32_t>(::sched_getcpu());
    if (out_->cpu.load(std::memory_order_relaxed) != here) out_->cpu.store(here, std::memory_order_relaxed);
    return here;
}

bool Ring::spin(int spins, Ready ready) {
    const uint32_t here = tell_cpu();
    if (in_->cpu.load(std::memory_order_relaxed) == here) {
        // The other side cannot answer while this one spins.
        for (int yields = 0; yields < MOST_YIELDS; ++yields) {
            ::sched_yield();
            if ((this->*ready)()) return true;
        }
        return false;
    }
    for (int spin = 0; spin < spins; ++spin) {
        _mm_pause();
        if ((this->*ready)()) return true;
    }
    return false;
}

bool Ring::sleep(const Socket& socket, std::atomic<uint32_t>& sleeps, Ready ready) {
    for (;;) {
        sleeps.store(ASLEEP, std::memory_order_seq_cst);
        if ((this->*ready)()) return true;
        if (hung_up(socket)) return (this->*ready)();  // what it said before it went is still there
        futex(sleeps, FUTEX_WAIT, ASLEEP, worker_ ? &WORKER_LOOKS_UP : &LOOK_UP);
    }
}

void Ring::rouse() {
    for (auto* sleeps : {&in_->reader_sleeps, &out_->writer_sleeps}) {
        sleeps->store(AWAKE);  // who is about to sleep does not
        futex(*sleeps, FUTEX_WAKE, 1);
    }
}

bool Ring::expect(const Socket& socket) {
    char bells[64];  // what is left over from a wait that needed none of them
    while (::recv(socket.fd(), bells, sizeof bells, MSG_DONTWAIT) > 0) {
    }
    in_->reader_sleeps.store(POLLING, std::memory_order_seq_cst);
    return has_data() || hung_up(socket);
}

namespace {
void wake(const Socket& socket, std::atomic<uint32_t>& sleeps) {
    // The store that was just made must be seen by a sleeper, or its sleeping by us.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleeps.load(std::memory_order_relaxed) == AWAKE) return;
    const uint32_t slept = sleeps.exchange(AWAKE);
    if (slept == ASLEEP) futex(sleeps, FUTEX_WAKE, 1);
    if (slept == POLLING) ::send(socket.fd(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}
}  // namespace

void Ring::publish(const Socket& socket, size_t size) {
    out_at_ += size;
    tell_cpu();
    out_->written.store(out_at_, std::memory_order_release);
    wake(socket, out_->reader_sleeps);
}

void Ring::consumed(const Socket& socket, size_t size) {
    in_at_ += size;
    in_->read.store(in_at_, std::memory_order_release);
    wake(socket, in_->writer_sleeps);
}

size_t Ring::peek(const Socket& socket, const char*& at) {
    if (!wait(socket, in_->reader_sleeps, reading_, &Ring::has_data)) return 0;
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
        copy(to, at, piece);
        consumed(socket, piece);
        to += piece, size -= piece;
    }
    return true;
}

bool Ring::write(const Socket& socket, const void* data, size_t size) {
    for (const char* from = static_cast<const char*>(data); size;) {
        if (!wait(socket, out_->writer_sleeps, writing_, &Ring::has_room)) return false;
        const size_t space = room(std::min(size, PIECE)), offset = out_at_ % RING_BYTES;
        if (space == SIZE_MAX) return false;
        const size_t piece = std::min({space, RING_BYTES - offset, size, PIECE});
        copy(out_data_ + offset, from, piece);
        publish(socket, piece);
        from += piece, size -= piece;
    }
    return true;
}

}  // namespace gpukernel::wire
