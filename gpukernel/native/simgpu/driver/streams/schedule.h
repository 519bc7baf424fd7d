// The scheduler of streams: it keeps the order of each stream, and its threads carry out the work.
//
// A stream is a queue whose pieces run one after another.  Between streams there is only the order that was
// asked for: a piece may wait for a position in another stream (an event), and the legacy default stream and
// the blocking streams of its context wait for each other (driver API, "Stream synchronization behavior").
// A piece is submitted after what it waits for, so the scheduler cannot deadlock on its own.  A piece may
// also wait for a value in memory, which any thread may write, or none: one thread polls all such values.
//
// Everything else may overlap: kernels, copies and host functions, each stream on a thread of its own, since
// a kernel may wait for what a copy brings.  A thread that synchronises runs the work that it waits for,
// where no other thread has begun it, so a launch and a wait for it need no switch of threads.
#pragma once

#include <cuda.h>
#include <xmmintrin.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "libcuda/library.h"

namespace gpukernel::simgpu {

struct Device;
using Context = CUctx_st;
struct Stream;

using Clock = std::chrono::steady_clock;
using Work = std::function<CUresult()>;
using Condition = std::function<bool()>;

enum class Engine : uint8_t { kernels, copies, host_functions };

struct StreamPosition {  // behind so many pieces of a stream
    std::shared_ptr<Stream> stream;
    uint64_t number = 0;
    bool passed() const;
};

// A program that shares the process with others (common/cancellation.h).
struct Submitter {
    std::atomic<bool> over{false};     // it is gone: its work is cancelled
    std::atomic<bool> cancel = false;  // the same, for its kernels
    // Pieces of its work that run; those in its own streams that must run even so.  Under the schedule's
    // mutex.
    int running = 0, due = 0;
    bool let_go = false;  // nothing ran when it was over, and none but pieces that are due will
};

struct Stream : std::enable_shared_from_this<Stream> {
    Device* const device;
    Context* const context;                // for cuStreamGetCtx; it may end before the stream
    const std::shared_ptr<Stream> legacy;  // its context's default stream; null in that one
    const unsigned flags;
    const int priority;  // 0, or below: more urgent
    const unsigned long long id;
    const std::shared_ptr<Submitter> program;  // whose thread made it, or none

    Stream(Device* device, Context* context, std::shared_ptr<Stream> legacy, unsigned flags, int priority);
    bool blocking() const { return !(flags & CU_STREAM_NON_BLOCKING); }
    const Stream* group() const { return legacy ? legacy.get() : this; }  // one for each context
    bool done(uint64_t number) const { return finished.load(std::memory_order_acquire) >= number; }

    std::shared_ptr<Stream> open;  // itself, until the program destroys it

  private:
    friend class Schedule;
    struct Piece {
        Work work;  // none: only a mark, or a wait
        Engine engine = Engine::copies;
        bool essential = false;                             // it runs though its program is gone
        std::shared_ptr<Clock::time_point> when = nullptr;  // gets the time
        std::vector<StreamPosition> after = {};
        Condition until = nullptr;
        std::shared_ptr<Submitter> program = nullptr;
    };
    // All under the schedule's mutex, but `finished` may be read without.
    std::deque<Piece> pieces;
    uint64_t submitted = 0;
    uint64_t awaited = 0;  // so many pieces, by the newest piece of its context's default stream that does
    std::atomic<uint64_t> finished{0};
    bool running = false, ready = false, watched = false;
    uint64_t stamp = 0;             // its rank among the streams that are ready
    StreamPosition blocked_by;      // what the first piece waits for
    std::vector<Stream*> blocks;    // streams whose first piece waits for a position in this one
    size_t busy_at = 0;             // its place among the busy ones, while it is at work
    uint64_t wake_at = UINT64_MAX;  // a thread sleeps until so many are finished
    std::condition_variable moved;
    std::shared_ptr<Stream> at_work;  // itself, as long as anything is unfinished
};

class Schedule {
  public:
    // Append work, behind what the stream has and what it must wait for.  The caller waits where a stream is
    // far behind.
    StreamPosition submit(Stream& stream, Engine engine, Work work, bool essential = false);
    // The same, and done when this returns; not done where an earlier error lost the context.
    void perform(Stream& stream, const std::function<void()>& work);
    StreamPosition mark(Stream& stream, std::shared_ptr<Clock::time_point> when);
    void wait_for(Stream& stream, const StreamPosition& position);  // what comes behind waits for `position`
    void wait_until(Stream& stream, Condition condition);

    // Wait for all that was submitted so far.  The legacy stream stands for all blocking ones of its context.
    bool idle(Stream& stream);
    void wait(const StreamPosition& position);
    void wait(Stream& stream);
    void wait_all(const Device& device, const Stream* group = nullptr);  // of one context, or of all

    // Programs that are gone (common/cancellation.h).
    // The one for which this thread submits to a stream.
    static std::shared_ptr<Submitter> program_of(const Stream& stream);
    void work_for(uint64_t program);
    void end(uint64_t program);

  private:
    // A program's thread and the one that runs its kernels take turns at the mutex, each for a fraction of a
    // microsecond: to sleep until the other lets go, and be woken, takes longer than many kernels.
    class Lock : public std::unique_lock<std::mutex> {
      public:
        explicit Lock(std::mutex& mutex) : unique_lock(mutex, std::defer_lock) { lock(); }
        void lock() {
            for (int spin = 0; spin < SPINS; ++spin, _mm_pause())
                if (try_lock()) return;
            unique_lock::lock();
        }

      private:
        static constexpr int SPINS = 100;  // some 3 µs
    };
    void throttle(Stream& stream, Lock& lock);  // under mutex_, as all that follows
    StreamPosition add(Stream& stream, Stream::Piece piece);
    std::vector<StreamPosition> needs(const Stream& stream) const;
    void begin(Stream& stream);
    void finish(Stream& stream);
    void begin_busy(Device& device);
    void end_busy(Device& device);
    bool runs_for_long() const;
    void advance(Stream& stream);
    bool is_met(const Stream& stream) const;  // its first piece's condition
    void poll_conditions(Lock& lock);
    void take(Stream& stream);
    void run(Stream& stream, Lock& lock);
    bool has_room(const Stream& stream) const;
    void drop(Stream& stream, Stream::Piece& piece, std::vector<Stream::Piece>& dropped);
    void begin_of(Submitter* program);
    void end_of(Submitter* program);
    void let_go(Submitter& program);
    static bool is_over();  // this thread's program is gone
    static bool in_vain();  // and nothing of it runs any more
    void wake_threads();
    void run_thread();

    std::mutex mutex_;
    std::map<std::pair<int, uint64_t>, Stream*> ready_;  // the most urgent first, then who came first
    std::vector<Stream*> busy_;                          // in no order
    std::vector<std::shared_ptr<Stream>> to_advance_, watched_;
    std::chrono::microseconds poll_interval_{};
    bool polling_ = false;  // a thread polls conditions
    uint64_t stamps_ = 0, waiting_ = 0;
    std::map<uint64_t, std::weak_ptr<Submitter>> programs_;
    std::condition_variable called_;
    int threads_ = 0, starting_ = 0, resting_ = 0, waking_ = 0, dozing_ = 0;
    int at_work_ = 0;          // pieces that threads carry out
    uint64_t last_begun_ = 0;  // the newest of them, by the processor's time-stamp counter
};
Schedule& schedule();

// What this thread does for the driver.  Every call reads it.
struct ThreadState {
    Submitter* program = nullptr;         // that it works for; none: nobody
    const Submitter* runs_for = nullptr;  // whose piece of work it runs
    bool in_host_function = false;        // which must not call back into the driver
};
extern GPUKERNEL_STATIC_THREAD_LOCAL ThreadState this_thread;
std::shared_ptr<Submitter> this_program();  // `this_thread.program`, to keep

// Whether what this thread does is cancelled: long work looks now and then.
bool cancelled();

}  // namespace gpukernel::simgpu
