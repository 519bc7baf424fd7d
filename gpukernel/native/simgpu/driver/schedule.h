// The order of work: streams, each with its own, and the threads that carry it out.
//
// A stream is a queue whose pieces run one after another.  Between streams there is only the order that was
// asked for: a piece may wait for a place in another stream (an event), and the legacy default stream and the
// blocking streams of its context wait for each other (driver API, "Stream synchronization behavior").
// Whatever waits is submitted after what it waits for, so nothing here can deadlock on its own.  But a piece
// may also wait for a value in memory, which anybody may write or nobody: one thread looks at all of these.
//
// Everything else may overlap: kernels, copies and host functions, each stream on a thread of its own, since
// a kernel may well wait for what a copy brings.  Whoever waits works: a thread that synchronises runs what
// it waits for, where nobody else does yet, so a launch and a wait for it need no switch of threads.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace gpukernel::simgpu {

struct Device;
struct Context;
struct Stream;

using Clock = std::chrono::steady_clock;
using Work = std::function<CUresult()>;
using Condition = std::function<bool()>;

enum class Engine : uint8_t { kernels, copies, host_functions };

struct Place {  // behind so many pieces of a stream
    std::shared_ptr<Stream> stream;
    uint64_t number = 0;
    bool passed() const;
};

struct Stream : std::enable_shared_from_this<Stream> {
    Device* const device;
    Context* const context;                // for those who ask; it may be gone before the stream
    const std::shared_ptr<Stream> legacy;  // its context's default stream; null in that one
    const unsigned flags;
    const int priority;  // 0, or below: more urgent
    const unsigned long long id;

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
        std::shared_ptr<Clock::time_point> when = nullptr;  // gets the time
        std::vector<Place> after = {};
        Condition until = nullptr;
    };
    // All under the schedule's mutex, but `finished` may be read without.
    std::deque<Piece> pieces;
    uint64_t submitted = 0;
    std::atomic<uint64_t> finished{0};
    bool running = false, ready = false, watched = false;
    uint64_t stamp = 0;             // its place among those that are ready
    Place held_by;                  // what the first piece waits for
    std::vector<Stream*> holds;     // streams whose first piece waits for a place in this one
    uint64_t wake_at = UINT64_MAX;  // somebody sleeps until so many are finished
    std::condition_variable moved;
    std::shared_ptr<Stream> at_work;  // itself, as long as anything is unfinished
};

class Schedule {
  public:
    // Behind what the stream has, and behind what it must wait for.  A stream that is far behind makes the
    // caller wait.
    Place submit(Stream& stream, Engine engine, Work work);
    // The same, and done when this returns; or not done, where an earlier error lost the context.
    void perform(Stream& stream, const std::function<void()>& work);
    Place mark(Stream& stream, std::shared_ptr<Clock::time_point> when);
    void wait_for(Stream& stream, const Place& place);  // what comes behind waits for `place`
    void wait_until(Stream& stream, Condition condition);

    // What was submitted so far.  The legacy stream stands for all blocking ones of its context.
    bool idle(Stream& stream);
    void wait(const Place& place);
    void wait(Stream& stream);
    void wait_all(const Device& device, const Stream* group = nullptr);  // of one context, or of all

  private:
    using Lock = std::unique_lock<std::mutex>;
    void throttle(Stream& stream, Lock& lock);  // under mutex_, as all that follows
    Place add(Stream& stream, Stream::Piece piece);
    std::vector<Place> needs(const Stream& stream) const;
    void begin(Stream& stream);
    void finish(Stream& stream);
    void works(Device& device);
    void rests(Device& device);
    void advance(Stream& stream);
    bool is_met(const Stream& stream) const;  // its first piece's condition
    void look_at_conditions(Lock& lock);
    void take(Stream& stream);
    void run(Stream& stream, Lock& lock);
    bool has_room(const Stream& stream) const;
    void call_for_hands();
    void serve();

    std::mutex mutex_;
    std::map<std::pair<int, uint64_t>, Stream*> ready_;  // the most urgent first, then who came first
    std::unordered_set<Stream*> busy_;
    std::vector<std::shared_ptr<Stream>> to_advance_, watched_;
    std::chrono::microseconds look_again_{};
    bool looking_ = false;  // a thread does, from time to time
    uint64_t stamps_ = 0, waiting_ = 0;
    std::condition_variable called_;
    int threads_ = 0, starting_ = 0, resting_ = 0, waking_ = 0, dozing_ = 0;
};
Schedule& schedule();

// A host function must not call back into the driver.
extern thread_local bool inside_host_function;

}  // namespace gpukernel::simgpu
