// What shared memory costs on this machine at all: the baseline for what goes through a ring of it.  Run by
// benchmarks/data_path.py as a subject of benchmarks/interleaving.py: each line on standard input names a
// figure.
//
// Two processes that do not sleep meanwhile, and no protocol.  Exchange: seconds for 64 bytes there and back.
// Two copies: bytes per second from one buffer of 256 MiB into another process', through 1 MiB that both map;
// two copies, as it has to be.  Memcpy: the same buffers, one copy, one process.
#include <immintrin.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

namespace {
using Clock = std::chrono::steady_clock;
constexpr size_t BYTES = 256 << 20, RING = 1 << 20, PIECE = 16 << 10;
constexpr int EXCHANGES = 2000;

struct Shared {
    alignas(64) std::atomic<uint64_t> written, asked;
    alignas(64) std::atomic<uint64_t> read, answered;
    alignas(64) char word[64];
    alignas(4096) char ring[RING];
};

template <class Ready>
void until(Ready ready) {
    while (!ready()) _mm_pause();
}

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

char* buffer(size_t bytes, int kind) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::exit(1);
    std::memset(memory, 1, bytes);  // touched: no page fault is measured
    return static_cast<char*>(memory);
}

// Sleeps until a byte says what comes, so that it takes nothing from whatever else is measured.
void other_side(Shared& shared, int orders) {
    char* const to = buffer(BYTES, MAP_PRIVATE);
    for (char what; ::read(orders, &what, 1) == 1;) {
        if (what == 'e') {
            for (uint64_t i = 1; i <= EXCHANGES; ++i) {
                until([&] { return shared.asked.load(std::memory_order_acquire) == i; });
                shared.answered.store(i, std::memory_order_release);
            }
        } else {
            for (size_t at = 0; at < BYTES; at += PIECE) {
                until([&] { return shared.written.load(std::memory_order_acquire) > at; });
                std::memcpy(to + at, shared.ring + at % RING, PIECE);
                shared.read.store(at + PIECE, std::memory_order_release);
            }
        }
    }
    ::_exit(0);
}

double exchange(Shared& shared) {
    const auto start = Clock::now();
    for (uint64_t i = 1; i <= EXCHANGES; ++i) {
        std::memset(shared.word, static_cast<int>(i), sizeof shared.word);
        shared.asked.store(i, std::memory_order_release);
        until([&] { return shared.answered.load(std::memory_order_acquire) == i; });
    }
    return seconds_since(start) / EXCHANGES;
}

double copy(Shared& shared, const char* from) {
    const auto start = Clock::now();
    for (size_t at = 0; at < BYTES; at += PIECE) {
        until([&] { return at + PIECE - shared.read.load(std::memory_order_acquire) <= RING; });
        std::memcpy(shared.ring + at % RING, from + at, PIECE);
        shared.written.store(at + PIECE, std::memory_order_release);
    }
    until([&] { return shared.read.load(std::memory_order_acquire) == BYTES; });
    return BYTES / seconds_since(start);
}
}  // namespace

int main() {
    auto& shared = *new (buffer(sizeof(Shared), MAP_SHARED)) Shared{};
    int orders[2];
    if (::pipe(orders) != 0) return 1;
    const pid_t child = ::fork();
    if (child == 0) {
        ::close(orders[1]);
        other_side(shared, orders[0]);
    }
    char *const from = buffer(BYTES, MAP_PRIVATE), *const to = buffer(BYTES, MAP_PRIVATE);
    char line[64];
    while (std::fgets(line, sizeof line, stdin)) {
        const std::string figure(line, std::strcspn(line, "\n"));
        double found;
        if (figure == "memcpy") {
            const auto start = Clock::now();
            std::memcpy(to, from, BYTES);
            found = BYTES / seconds_since(start);
        } else {
            shared.written = shared.read = shared.asked = shared.answered = 0;
            if (::write(orders[1], figure == "exchange" ? "e" : "c", 1) != 1) return 1;
            ::usleep(2000);  // it is awake
            found = figure == "exchange" ? exchange(shared) : copy(shared, from);
        }
        std::printf("%.9g\n", found);
        std::fflush(stdout);
    }
    ::close(orders[1]);
    ::waitpid(child, nullptr, 0);
}
