// Two ring buffers in memory that both processes of one host map.  Loads and stores replace the socket, and
// either side sleeps on futexes.  The socket itself only shows that the other side is gone, and wakes a side
// that polls it instead of sleeping.
//
// Guarantees: the worker makes the memory and seals its size, so that a client cannot truncate it while the
// worker uses it.  Neither side trusts the other's positions: an impossible position ends the connection.
// What is read must be copied before it is checked, since the writer may still change it.
//
// Waiting is adaptive spinning: a side spins as long as its last waits make an answer within that time
// likely, and sleeps otherwise.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "wire/socket.h"

namespace gpukernel::wire {

constexpr size_t RING_BYTES = 1 << 20;  // in each direction; a power of two

// The head of one direction.  Positions count bytes from the beginning and never wrap.
struct RingHead {
    alignas(64) std::atomic<uint64_t> written;
    std::atomic<uint32_t> cpu;  // the writer's last processor, or MOVING
    alignas(64) std::atomic<uint64_t> read;
    alignas(64) std::atomic<uint32_t> reader_sleeps;  // futexes: awake, asleep, or polling the socket
    alignas(64) std::atomic<uint32_t> writer_sleeps;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(RingHead) == 256);

// One side.  One thread may read while another writes.
class Ring {
  public:
    // The worker's side, in new memory whose descriptor the shim is sent; the shim's side, in that memory.
    // nullptr on an error.
    static std::unique_ptr<Ring> make(int& descriptor);
    static std::unique_ptr<Ring> open(int descriptor);
    ~Ring();

    // Read and write all of it; false where the other side is gone or its positions are impossible.
    bool read(const Socket& socket, void* data, size_t size);
    bool write(const Socket& socket, const void* data, size_t size);
    // The same of two pieces, which the other side sees together where they are small.
    bool write(const Socket& socket, const void* head, size_t head_size, const void* tail, size_t tail_size);
    // Returns how many bytes can be read in place at `at`, at least one; 0 where the other side is gone.
    size_t peek(const Socket& socket, const char*& at);
    void consumed(const Socket& socket, size_t size);
    size_t room();  // bytes that can be written without waiting
    // Has the other side send a byte on the socket when something can be read; returns whether it can
    // already.
    bool expect(const Socket& socket);
    void rouse();  // wakes the threads that sleep on this side, so that they look at the socket
    // From then on whoever has to wait takes the other side for gone.
    void give_up_at(std::chrono::steady_clock::time_point when) { gives_up_ = when; }

  private:
    // The adaptive spinning of the reader, or of the writer.
    struct Waiter {
        int spins;  // before it sleeps
        int long_waits = 0, tries_after = 1;
        int met = 0;                   // waits in a row that ended while spinning
        uint32_t here = 0, there = 0;  // the processors of this and the other side, as last seen
        int settling = 0;              // waits to come until a migration of either side is over
        int crowded = 0;               // waits in a row on the other side's processor
        int apart = 0;                 // waits on different processors since the last migration
        std::chrono::steady_clock::time_point next_migration{};
        std::chrono::milliseconds rest{};
    };
    using Ready = bool (Ring::*)();
    Ring(void* memory, bool worker);
    // SIZE_MAX for an impossible position.  The other side's positions are read only when those last seen do
    // not suffice: each read takes a cache line from the other side.
    size_t readable();
    size_t room(size_t wanted);
    bool wait(const Socket& socket, std::atomic<uint32_t>& sleeps, Waiter& one, Ready ready);
    uint32_t publish_cpu();
    bool shares_cpu(const Waiter& one);
    bool compare_cpus(Waiter& one);
    void migrate(Waiter& one);
    bool yield(const Waiter& one, Ready ready);
    bool spin(int spins, Ready ready);
    bool sleep(const Socket& socket, std::atomic<uint32_t>& sleeps, Ready ready);
    bool has_data() { return readable() != 0; }
    bool has_room() { return room(1) != 0; }
    bool put(const Socket& socket, const void* data, size_t size, bool more);
    void publish(const Socket& socket);
    void tell(const Socket& socket);

    char* memory_;
    RingHead *in_, *out_;
    char *in_data_, *out_data_;
    uint64_t in_at_ = 0, out_at_ = 0;  // this side's positions; the shared copies are only written
    uint64_t told_ = 0;                // up to there the writer knows what was read
    uint64_t written_ = 0, read_ = 0;  // the other side's positions, as last seen
    Waiter reading_, writing_;
    std::atomic<std::chrono::steady_clock::time_point> gives_up_{
        std::chrono::steady_clock::time_point::max()};
    const bool worker_;
};

}  // namespace gpukernel::wire
