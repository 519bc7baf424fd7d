// Two rings of bytes in memory that both processes of one host map: the socket's place is taken by stores and
// loads, and by futexes on which either side sleeps.  The socket itself only tells that the other side is
// gone, and rings where somebody polls it instead of sleeping.
//
// The worker makes the memory and seals its size, so that a client cannot take pages away under the worker's
// hands.  Either side takes the other's positions for what a stranger says: a position that cannot be ends
// the connection.  What is read must be copied before it is believed, since the writer may still change it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "socket.h"

namespace gpukernel::wire {

constexpr size_t RING_BYTES = 1 << 20;  // in each direction; a power of two

// One direction.  Positions count bytes from the beginning and never wrap.
struct RingHead {
    alignas(64) std::atomic<uint64_t> written;
    std::atomic<uint32_t> cpu;  // on which the writer is or was, or MOVING
    alignas(64) std::atomic<uint64_t> read;
    alignas(64) std::atomic<uint32_t> reader_sleeps;  // futexes: awake, asleep, or polling the socket
    alignas(64) std::atomic<uint32_t> writer_sleeps;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(RingHead) == 256);

// One thread may read while another writes.
class Ring {
  public:
    // The worker's side: new memory, whose descriptor the shim gets.  The shim's: the memory it was given.
    static std::unique_ptr<Ring> make(int& descriptor);
    static std::unique_ptr<Ring> open(int descriptor);
    ~Ring();

    // All of it; false where the other side is gone or says what cannot be.
    bool read(const Socket& socket, void* data, size_t size);
    bool write(const Socket& socket, const void* data, size_t size);
    // What can be read without a copy, at least one byte; 0 where the other side is gone.
    size_t peek(const Socket& socket, const char*& at);
    void consumed(const Socket& socket, size_t size);
    size_t room();  // what can be written without waiting
    // Asks for a byte on the socket when there is something to read, without waiting for it; whether there is
    // already.
    bool expect(const Socket& socket);
    void rouse();  // whoever sleeps on this side, to look at the socket

  private:
    struct Waiter {  // the reader, or the writer
        int spins;   // before it sleeps
        int long_waits = 0, tries_after = 1;
        int met = 0;                   // waits in a row that spinning ended
        uint32_t here = 0, there = 0;  // the two sides' processors, as last seen
        int settling = 0;              // waits to come until a move of either is over
        int crowded = 0, apart = 0;    // waits in a row beside the other side; without it since the last step
        std::chrono::steady_clock::time_point next_step{};
        std::chrono::milliseconds rest{};
    };
    using Ready = bool (Ring::*)();
    Ring(void* memory, bool worker);
    // SIZE_MAX for nonsense.  The other side's positions are looked at when what was last seen does not do:
    // each look takes a line of memory from the other's cache.
    size_t readable();
    size_t room(size_t wanted);
    bool wait(const Socket& socket, std::atomic<uint32_t>& sleeps, Waiter& one, Ready ready);
    uint32_t tell_cpu();
    bool is_beside(const Waiter& one);
    bool look_aside(Waiter& one);
    void step_aside(Waiter& one);
    bool yield(const Waiter& one, Ready ready);
    bool spin(int spins, Ready ready);
    bool sleep(const Socket& socket, std::atomic<uint32_t>& sleeps, Ready ready);
    bool has_data() { return readable() != 0; }
    bool has_room() { return room(1) != 0; }
    void publish(const Socket& socket, size_t size);

    char* memory_;
    RingHead *in_, *out_;
    char *in_data_, *out_data_;
    uint64_t in_at_ = 0, out_at_ = 0;  // ours; the shared copies are only told
    uint64_t written_ = 0, read_ = 0;  // the other side's, as last seen
    Waiter reading_, writing_;
    const bool worker_;
};

}  // namespace gpukernel::wire
