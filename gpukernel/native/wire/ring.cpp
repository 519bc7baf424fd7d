#include "wire/ring.h"

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
#include <cstring>
#include <utility>

#include "wire/copy.h"

namespace gpukernel::wire {

namespace {
using Clock = std::chrono::steady_clock;
constexpr size_t HEAD_BYTES = 4096;
constexpr size_t BYTES = HEAD_BYTES + 2 * RING_BYTES;
// Published at once: the reader copies while the writer goes on, and the next piece comes while it spins.
constexpr size_t PIECE = 16 << 10;
// The writer hears of what was read when it is so much, or when the reader waits for more: that costs a fence
// and a cache line, and only a writer without room asks.
constexpr size_t UNTOLD = 4 << 10;
// One spin takes some 40 ns.  Longer spinning gains nothing where both sides run, and where more threads want
// to run than the machine has cores it keeps the other side from answering.
constexpr int MOST_SPINS = 600, LEAST_SPINS = 100;
constexpr auto WORTH_SPINNING = std::chrono::microseconds(60);
// A wait longer than this says nothing about how soon the other side answers a request.
constexpr auto IDLE = std::chrono::milliseconds(1);
// Where both sides sleep, waking takes so long that neither learns how soon the other would have answered. So
// now and then a side spins long enough to find both awake, with exponential back-off where that was in vain.
constexpr int TRY_SPINS = 7500, MOST_RARELY = 64;
// After so many answers in a row, a late one is more likely due to a timer tick or another process.
constexpr int STREAK = 256;
constexpr int MOST_YIELDS = 8;
// The worker migrates from a processor that it shares with its program; the program's threads are not ours to
// move.  A migration takes some 100 µs, so it must pay over a burst of calls, and where the machine has no
// processor to spare it is tried with exponential back-off.
constexpr int CROWDED_WAITS = 16, WORTH_MOVING = 256;
constexpr auto FIRST_REST = std::chrono::milliseconds(1), LONGEST_REST = std::chrono::milliseconds(64);
constexpr uint32_t MOVING = UINT32_MAX;
// A thread that has just migrated is slow at first; and if either side slept, the kernel would wake it on the
// other's processor again.
constexpr int SETTLING_WAITS = 256, SETTLING_SPINS = 8 * TRY_SPINS, LATE = 16;
enum Sleep : uint32_t { AWAKE, ASLEEP, POLLING };
// The end of the other process wakes no futex, so sleepers look at the socket now and then.  The worker's are
// also woken by the thread that watches its connections.
constexpr timespec LOOK_UP{0, 100'000'000}, WORKER_LOOKS_UP{5, 0};

void futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* limit = nullptr) {
    ::syscall(SYS_futex, &word, operation, value, limit, nullptr, 0);
}

bool hung_up(const Socket& socket) {
    pollfd watched{socket.fd(), POLLRDHUP, 0};
    return ::poll(&watched, 1, 0) > 0;  // a signal makes it an error, although it waits for nothing
}
}  // namespace

Ring::Ring(void* memory, bool worker)
    : memory_(static_cast<char*>(memory)), reading_{MOST_SPINS}, writing_{MOST_SPINS}, worker_(worker) {
    auto* heads = reinterpret_cast<RingHead*>(memory_);
    in_ = &heads[worker ? 0 : 1], out_ = &heads[worker ? 1 : 0];
    in_data_ = memory_ + HEAD_BYTES + (worker ? 0 : RING_BYTES);
    out_data_ = memory_ + HEAD_BYTES + (worker ? RING_BYTES : 0);
}

Ring::~Ring() {
    // The client may keep the descriptor for ever: the worker's memory goes back with the connection.
    if (worker_) ::madvise(memory_, BYTES, MADV_REMOVE);
    ::munmap(memory_, BYTES);
}

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

// Waits until `ready`; false where the other side is gone.  Spinning pays where the other side answers within
// the time that waking a sleeper takes, so the duration of the last waits decides how long the next one
// spins.
bool Ring::wait(const Socket& socket, std::atomic<uint32_t>& sleeps, Waiter& one, Ready ready) {
    if ((this->*ready)()) return true;
    const auto start = Clock::now();
    const bool tries = one.long_waits >= one.tries_after, patient = tries || one.met >= STREAK;
    const bool shared = compare_cpus(one);
    const int spins = one.settling ? SETTLING_SPINS : patient ? TRY_SPINS : one.spins;
    const bool met = (shared && yield(one, ready)) || (!shares_cpu(one) && spin(spins, ready));
    one.met = met ? std::min(one.met + 1, STREAK) : 0;
    if (met && !shared) one.apart = std::min(one.apart + 1, WORTH_MOVING);
    if (met && !shared && !tries && !one.settling) return true;
    if (tries) one.long_waits = 0;
    const bool there = met || sleep(socket, sleeps, ready);
    if (!met) sleeps.store(AWAKE, std::memory_order_relaxed);
    const auto took = Clock::now() - start;
    const bool soon = took < WORTH_SPINNING;
    one.crowded = shared && soon ? std::min(one.crowded + 1, CROWDED_WAITS) : 0;
    one.settling = std::max(0, one.settling - (soon ? 1 : LATE));
    if (took > IDLE || (met && !tries)) return there;
    if (tries) one.tries_after = met ? 1 : std::min(MOST_RARELY, one.tries_after * 2);
    one.spins = soon ? std::min(MOST_SPINS, one.spins * 4) : std::max(LEAST_SPINS, one.spins / 2);
    one.long_waits += !soon;
    return there;
}

// Stores only changes: the other side reads this cache line all the time while it spins.
uint32_t Ring::publish_cpu() {
    const auto here = static_cast<uint32_t>(::sched_getcpu());
    if (out_->cpu.load(std::memory_order_relaxed) != here) out_->cpu.store(here, std::memory_order_relaxed);
    return here;
}

// Returns whether the other side is on this processor, so that it cannot answer while this side spins.
bool Ring::shares_cpu(const Waiter& one) { return in_->cpu.load(std::memory_order_relaxed) == one.here; }

bool Ring::compare_cpus(Waiter& one) {
    one.here = publish_cpu();
    if (worker_ && shares_cpu(one) && one.crowded >= CROWDED_WAITS) migrate(one);
    const uint32_t there = in_->cpu.load(std::memory_order_relaxed);
    if (std::exchange(one.there, there) != there) one.settling = SETTLING_WAITS;
    return there == one.here;
}

bool Ring::yield(const Waiter& one, Ready ready) {
    for (int yields = 0; yields < MOST_YIELDS && shares_cpu(one); ++yields) {
        ::sched_yield();
        if ((this->*ready)()) return true;
    }
    return false;
}

bool Ring::spin(int spins, Ready ready) {
    for (int spin = 0; spin < spins; ++spin) {
        _mm_pause();
        if ((this->*ready)()) return true;
    }
    return false;
}

// Moves this thread to another processor.  The kernel wakes a sleeper on the waker's processor, on a virtual
// machine even where others are idle, because there it takes a halted processor for one that the host has
// taken away.  Two threads that answer each other would stay together.
void Ring::migrate(Waiter& one) {
    const auto now = Clock::now();
    if (now < one.next_migration) return;
    const bool anew = one.apart >= WORTH_MOVING || now > one.next_migration + LONGEST_REST;
    one.rest = anew ? FIRST_REST : std::min(one.rest * 2, LONGEST_REST);
    one.next_migration = now + one.rest, one.crowded = one.apart = 0;
    cpu_set_t all, others, found;
    if (::sched_getaffinity(0, sizeof all, &all) != 0) return;
    others = all;
    CPU_CLR(one.here, &others);
    if (!CPU_COUNT(&others)) return;
    out_->cpu.store(MOVING, std::memory_order_relaxed);
    if (::sched_setaffinity(0, sizeof others, &others) == 0) {
        // An affinity set by another process meanwhile stays.
        if (::sched_getaffinity(0, sizeof found, &found) == 0 && CPU_EQUAL(&found, &others))
            ::sched_setaffinity(0, sizeof all, &all);
        one.settling = SETTLING_WAITS;
    }
    one.here = publish_cpu();
}

bool Ring::sleep(const Socket& socket, std::atomic<uint32_t>& sleeps, Ready ready) {
    for (;;) {
        sleeps.store(ASLEEP, std::memory_order_seq_cst);
        if ((this->*ready)()) return true;
        // What it wrote before is still there.
        if (hung_up(socket) || Clock::now() >= gives_up_.load()) return (this->*ready)();
        futex(sleeps, FUTEX_WAIT, ASLEEP, worker_ ? &WORKER_LOOKS_UP : &LOOK_UP);
    }
}

void Ring::rouse() {
    for (auto* sleeps : {&in_->reader_sleeps, &out_->writer_sleeps}) {
        sleeps->store(AWAKE);  // a thread that is about to sleep does not
        futex(*sleeps, FUTEX_WAKE, 1);
    }
}

bool Ring::expect(const Socket& socket) {
    char bells[64];  // bytes of earlier waits, which came too late
    while (::recv(socket.fd(), bells, sizeof bells, MSG_DONTWAIT) > 0) {
    }
    tell(socket);
    in_->reader_sleeps.store(POLLING, std::memory_order_seq_cst);
    return has_data() || hung_up(socket);
}

namespace {
void wake(const Socket& socket, std::atomic<uint32_t>& sleeps) {
    // Either the sleeper sees the store that was just made, or this thread sees that it sleeps.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (sleeps.load(std::memory_order_relaxed) == AWAKE) return;
    const uint32_t slept = sleeps.exchange(AWAKE);
    if (slept == ASLEEP) futex(sleeps, FUTEX_WAKE, 1);
    if (slept == POLLING) ::send(socket.fd(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}
}  // namespace

void Ring::publish(const Socket& socket) {
    publish_cpu();
    out_->written.store(out_at_, std::memory_order_release);
    wake(socket, out_->reader_sleeps);
}

void Ring::consumed(const Socket& socket, size_t size) {
    in_at_ += size;
    if (in_at_ - told_ >= UNTOLD) tell(socket);
}

// Publishes what was read.
void Ring::tell(const Socket& socket) {
    if (told_ == in_at_) return;
    told_ = in_at_;
    in_->read.store(in_at_, std::memory_order_release);
    wake(socket, in_->writer_sleeps);
}

size_t Ring::peek(const Socket& socket, const char*& at) {
    if (!has_data()) {
        tell(socket);
        if (!wait(socket, in_->reader_sleeps, reading_, &Ring::has_data)) return 0;
    }
    const size_t there = readable();
    if (there == SIZE_MAX) return 0;
    const size_t offset = in_at_ % RING_BYTES;
    at = in_data_ + offset;
    return std::min(there, RING_BYTES - offset);
}

bool Ring::read(const Socket& socket, void* data, size_t size) {
    // Mostly it is small, and all there.
    const uint64_t there = written_ - in_at_, offset = in_at_ % RING_BYTES;
    if (size <= std::min(there, UNTOLD) && there <= RING_BYTES && size <= RING_BYTES - offset) {
        std::memcpy(data, in_data_ + offset, size);
        consumed(socket, size);
        return true;
    }
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
    return put(socket, data, size, false);
}

// A store that the other side spins on takes its cache line back first: two small pieces make one of them.
bool Ring::write(const Socket& socket, const void* head, size_t head_size, const void* tail,
                 size_t tail_size) {
    return put(socket, head, head_size, tail_size != 0) && put(socket, tail, tail_size, false);
}

// Writes `data`, and publishes it; the last piece of it not where there is `more` to come at once.
bool Ring::put(const Socket& socket, const void* data, size_t size, bool more) {
    for (const char* from = static_cast<const char*>(data); size;) {
        // The other side makes room only by reading what it sees.
        if (!has_room()) publish(socket);
        if (!wait(socket, out_->writer_sleeps, writing_, &Ring::has_room)) return false;
        const size_t space = room(std::min(size, PIECE)), offset = out_at_ % RING_BYTES;
        if (space == SIZE_MAX) return false;
        const size_t piece = std::min({space, RING_BYTES - offset, size, PIECE});
        copy(out_data_ + offset, from, piece);
        out_at_ += piece, from += piece, size -= piece;
        if (size || !more) publish(socket);
    }
    return true;
}

}  // namespace gpukernel::wire
