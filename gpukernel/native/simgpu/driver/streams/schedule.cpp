#include "simgpu/driver/streams/schedule.h"

#include <sched.h>
#include <signal.h>
#include <x86intrin.h>

#include <algorithm>
#include <thread>

#include "simgpu/driver/state.h"

namespace gpukernel::simgpu {

namespace {
constexpr int MOST_RUNNING[] = {32, 2, 4};  // of each Engine, on one device
constexpr int MOST_THREADS = 48;
constexpr auto REST = std::chrono::seconds(1);  // then a thread goes, but for the last
constexpr auto DOZE = std::chrono::microseconds(50);
constexpr int MOST_DOZES = 20;
constexpr uint64_t LONG = 50'000;  // ticks, some 20 µs, after which a piece of work is no short one
constexpr auto LOOK_FIRST = std::chrono::microseconds(20), LOOK_RARELY = std::chrono::microseconds(1000);
constexpr uint64_t MOST_BEHIND = 1024;       // pieces that one stream may have waiting
constexpr uint64_t MOST_WAITING = 32 << 10;  // and all streams

std::atomic<unsigned long long> next_stream_id{1};
}  // namespace

Schedule& schedule() {
    static Schedule* const only = new Schedule;  // its threads may outlive main
    return *only;
}

Stream::Stream(Device* device, Context* context, std::shared_ptr<Stream> legacy, unsigned flags, int priority)
    : device(device),
      context(context),
      legacy(std::move(legacy)),
      flags(flags),
      priority(priority),
      id(next_stream_id++),
      program(this_program()) {}

bool StreamPosition::passed() const { return !stream || stream->done(number); }

// The positions in other streams that the next piece of `stream` must wait for.
std::vector<StreamPosition> Schedule::needs(const Stream& stream) const {
    std::vector<StreamPosition> after;
    if (!stream.legacy) {
        for (Stream* other : busy_)
            if (other != &stream && other->blocking() && other->group() == &stream)
                after.push_back({other->shared_from_this(), other->submitted});
    } else if (stream.blocking() && !stream.legacy->done(stream.legacy->submitted)) {
        after.push_back({stream.legacy, stream.legacy->submitted});
    }
    return after;
}

void Schedule::begin(Stream& stream) {
    ++stream.submitted, ++waiting_;
    if (stream.at_work) return;
    stream.at_work = stream.shared_from_this(), stream.busy_at = busy_.size();
    busy_.push_back(&stream);
}

void Schedule::begin_busy(Device& device) {
    ++at_work_, last_begun_ = __rdtsc();
    if (device.busy_nanoseconds && device.working++ == 0) device.busy_since = Clock::now();
}
void Schedule::end_busy(Device& device) {
    --at_work_;
    if (device.busy_nanoseconds && --device.working == 0)
        *device.busy_nanoseconds += std::chrono::nanoseconds(Clock::now() - device.busy_since).count();
}

// One more piece is done: streams that waited for it go on.
void Schedule::finish(Stream& stream) {
    const uint64_t now = stream.finished.load(std::memory_order_relaxed) + 1;
    stream.finished.store(now, std::memory_order_release);
    --waiting_;
    if (now >= stream.wake_at) stream.wake_at = UINT64_MAX, stream.moved.notify_all();
    for (Stream* blocked : stream.blocks) to_advance_.push_back(blocked->shared_from_this());
    stream.blocks.clear();
    if (now == stream.submitted) {
        busy_[stream.busy_at] = busy_.back(), busy_[stream.busy_at]->busy_at = stream.busy_at;
        busy_.pop_back();
        to_advance_.push_back(std::move(stream.at_work));  // a thread that is inside still has it
    }
}

// Finish pieces without work, and find out whether the first piece with work can run.
void Schedule::advance(Stream& first) {
    to_advance_.push_back(first.shared_from_this());
    while (!to_advance_.empty()) {
        const std::shared_ptr<Stream> stream = std::move(to_advance_.back());
        to_advance_.pop_back();
        while (!stream->running && !stream->ready && !stream->watched && !stream->pieces.empty()) {
            Stream::Piece& piece = stream->pieces.front();
            while (!piece.after.empty() && piece.after.back().passed()) piece.after.pop_back();
            stream->blocked_by = {};
            if (!piece.after.empty()) {
                stream->blocked_by = piece.after.back();
                std::vector<Stream*>& blocked = stream->blocked_by.stream->blocks;
                if (std::find(blocked.begin(), blocked.end(), stream.get()) == blocked.end())
                    blocked.push_back(stream.get());
                break;
            }
            if (piece.until && !is_met(*stream)) {
                stream->watched = true, poll_interval_ = LOOK_FIRST;
                watched_.push_back(stream);
                break;
            }
            if (piece.work) {
                stream->ready = true;
                stream->stamp = ++stamps_;
                ready_[{stream->priority, stream->stamp}] = stream.get();
                break;
            }
            if (piece.when) *piece.when = Clock::now();
            stream->pieces.pop_front();
            finish(*stream);
        }
    }
}

bool Schedule::is_met(const Stream& stream) const {
    return stream.device->sticky_error() != CUDA_SUCCESS || stream.pieces.front().until();
}

void Schedule::poll_conditions(Lock& lock) {
    polling_ = true;
    const auto pause = poll_interval_;
    lock.unlock();
    std::this_thread::sleep_for(pause);
    lock.lock();
    polling_ = false;
    poll_interval_ = std::min(2 * poll_interval_, LOOK_RARELY);
    for (const std::shared_ptr<Stream>& stream : std::vector(watched_)) {
        if (!is_met(*stream)) continue;
        std::erase(watched_, stream);
        stream->watched = false;
        stream->pieces.front().until = nullptr;  // a condition that was met stays met
        advance(*stream);
    }
    wake_threads();
}

void Schedule::take(Stream& stream) {
    ready_.erase({stream.priority, stream.stamp});
    stream.ready = false;
}

StreamPosition Schedule::add(Stream& stream, Stream::Piece piece) {
    // A position that an earlier piece of the default stream waits for is passed before this one's turn:
    // where many pieces wait for many streams, each position is kept once.
    for (StreamPosition& position : needs(stream)) {
        Stream& other = *position.stream;
        if (!stream.legacy && other.awaited == position.number) continue;
        if (!stream.legacy) other.awaited = position.number;
        piece.after.push_back(std::move(position));
    }
    begin(stream);
    piece.program = program_of(stream);
    if (Submitter* const its = piece.program.get()) {
        if (piece.essential && stream.program) ++its->due;
        if (its->over) {
            if (!piece.essential) piece.work = nullptr;
            piece.until = nullptr;
            if (its->let_go) piece.after.clear();
        }
    }
    stream.pieces.push_back(std::move(piece));
    StreamPosition position{stream.shared_from_this(), stream.submitted};
    if (stream.pieces.size() == 1 && !stream.running) advance(stream);
    return position;
}

// A thread that is far ahead waits for some of its work, because queued work takes memory.
void Schedule::throttle(Stream& stream, Lock& lock) {
    const uint64_t most = waiting_ < MOST_WAITING ? MOST_BEHIND : 1;
    while (!is_over() && !stream.done(stream.submitted - std::min(stream.submitted, most - 1))) {
        const StreamPosition position{stream.shared_from_this(), stream.submitted - most + 1};
        lock.unlock();
        wait(position);
        lock.lock();
    }
}

StreamPosition Schedule::submit(Stream& stream, Engine engine, Work work, bool essential) {
    Lock lock(mutex_);
    throttle(stream, lock);
    const bool due = essential || engine == Engine::host_functions;
    StreamPosition position = add(stream, {.work = std::move(work), .engine = engine, .essential = due});
    wake_threads();
    return position;
}

void Schedule::perform(Stream& stream, const std::function<void()>& work) {
    Lock lock(mutex_);
    const std::shared_ptr<Submitter> program = program_of(stream);
    if (program && program->over) return;
    if (!stream.running && stream.pieces.empty() && needs(stream).empty()) {
        const std::shared_ptr<Stream> kept = stream.shared_from_this();
        begin_of(program.get());
        begin(stream);
        stream.running = true;
        begin_busy(*stream.device);
        lock.unlock();
        if (stream.device->sticky_error() == CUDA_SUCCESS) work();
        lock.lock();
        end_busy(*stream.device);
        stream.running = false;
        finish(stream);
        advance(stream);
        end_of(program.get());
        wake_threads();
        return;
    }
    const StreamPosition position = add(stream, {.work = [&work] { return work(), CUDA_SUCCESS; }});
    lock.unlock();
    wait(position);
}

StreamPosition Schedule::mark(Stream& stream, std::shared_ptr<Clock::time_point> when) {
    Lock lock(mutex_);
    throttle(stream, lock);
    StreamPosition position = add(stream, {.when = std::move(when)});
    wake_threads();
    return position;
}

void Schedule::wait_for(Stream& stream, const StreamPosition& position) {
    Lock lock(mutex_);
    if (position.passed() && stream.legacy) return;  // what the legacy stream does all others wait for
    throttle(stream, lock);
    add(stream, {.after = {position}});
    wake_threads();
}

void Schedule::wait_until(Stream& stream, Condition condition) {
    Lock lock(mutex_);
    throttle(stream, lock);
    Stream::Piece piece;
    piece.until = std::move(condition);
    add(stream, std::move(piece));
    wake_threads();
}

bool Schedule::idle(Stream& stream) {
    Lock lock(mutex_);
    return stream.done(stream.submitted) && (stream.legacy || needs(stream).empty());
}

void Schedule::wait(const StreamPosition& position) {
    if (position.passed()) return;
    Lock lock(mutex_);
    while (!position.passed() && !in_vain()) {
        StreamPosition next = position;
        while (!next.stream->running && !next.stream->ready && !next.stream->watched)
            next = StreamPosition(next.stream->blocked_by);
        // It does not run another program's work, which may outlast its own.
        if (next.stream->ready && next.stream->pieces.front().program.get() == this_thread.program) {
            take(*next.stream);
            wake_threads();
            run(*next.stream, lock);
        } else {
            next.stream->wake_at = std::min(next.stream->wake_at, next.number);
            next.stream->moved.wait(lock);
        }
    }
    wake_threads();
}

void Schedule::wait(Stream& stream) {
    std::vector<StreamPosition> positions;
    {
        Lock lock(mutex_);
        if (!stream.legacy) positions = needs(stream);
        positions.push_back({stream.shared_from_this(), stream.submitted});
    }
    for (const StreamPosition& position : positions) wait(position);
}

void Schedule::wait_all(const Device& device, const Stream* group) {
    std::vector<StreamPosition> positions;
    {
        Lock lock(mutex_);
        for (Stream* stream : busy_)
            if (stream->device == &device && (!group || stream->group() == group))
                positions.push_back({stream->shared_from_this(), stream->submitted});
    }
    for (const StreamPosition& position : positions) wait(position);
}

// Run the first piece of a stream that is ready.
void Schedule::run(Stream& stream, Lock& lock) {
    const std::shared_ptr<Stream> kept = stream.shared_from_this();
    Stream::Piece piece = std::move(stream.pieces.front());
    stream.pieces.pop_front();
    stream.running = true;
    Device& device = *stream.device;
    int& running = device.running[static_cast<int>(piece.engine)];
    ++running;
    const std::shared_ptr<Submitter> program = piece.program;
    const bool due = piece.essential && stream.program;
    begin_of(program.get());
    begin_busy(device);
    lock.unlock();
    // Callbacks hear of errors, too.
    if (piece.engine == Engine::host_functions || device.sticky_error() == CUDA_SUCCESS)
        if (const CUresult error = piece.work(); error != CUDA_SUCCESS) device.failed(error);
    piece = {};
    lock.lock();
    --running;
    end_busy(device);
    stream.running = false;
    finish(stream);
    advance(stream);
    if (due) --program->due;
    end_of(program.get());
}

bool Schedule::has_room(const Stream& stream) const {
    const int engine = static_cast<int>(stream.pieces.front().engine);
    return stream.device->running[engine] < MOST_RUNNING[engine];
}

// A thread for each stream that could run and has none on its way, and one that looks at conditions.
void Schedule::wake_threads() {
    int wanted = 0;
    auto call_another = [&] {
        if (++wanted <= waking_ + starting_ + dozing_) return true;
        if (resting_ > waking_) {
            ++waking_;
            called_.notify_one();
            return true;
        }
        if (threads_ >= MOST_THREADS) return false;
        ++threads_, ++starting_;
        sigset_t all, before;  // signals belong to the program's own threads
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before);
        std::thread(&Schedule::run_thread, this).detach();
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return true;
    };
    if (!watched_.empty() && !polling_ && !call_another()) return;
    for (const auto& [urgency, stream] : ready_)
        if (has_room(*stream) && !call_another()) return;
}

bool Schedule::runs_for_long() const { return at_work_ && __rdtsc() - last_begun_ >= LONG; }

// Waking a thread takes longer than many kernels.  A thread that came too late, since the waiting thread had
// done the work, is likely to come too late again: for a while it looks for work by itself and is not woken.
// Where work takes longer than that it rests: each look would take the processor from a kernel's threads.
void Schedule::run_thread() {
    // Woken, it takes the processor from nobody: the thread that submits often has the next kernel already.
    const sched_param none{};
    ::sched_setscheduler(0, SCHED_BATCH, &none);
    Lock lock(mutex_);
    --starting_;
    for (int dozes = MOST_DOZES;;) {
        const auto next = std::find_if(ready_.begin(), ready_.end(),
                                       [this](const auto& entry) { return has_room(*entry.second); });
        if (next != ready_.end()) {
            Stream& stream = *next->second;
            take(stream);
            wake_threads();
            run(stream, lock);
            dozes = MOST_DOZES;
            continue;
        }
        if (!watched_.empty() && !polling_) {
            poll_conditions(lock);
            continue;
        }
        if (dozes < MOST_DOZES && !runs_for_long()) {
            ++dozes, ++dozing_;
            lock.unlock();
            std::this_thread::sleep_for(DOZE);
            lock.lock();
            --dozing_;
            continue;
        }
        auto called = [this] { return waking_ > 0; };
        ++resting_;
        if (threads_ == 1)
            called_.wait(lock, called);
        else
            called_.wait_for(lock, REST, called);
        --resting_;
        if (waking_ > 0) {
            --waking_;
            dozes = 0;
        } else if (threads_ > 1) {
            --threads_;
            return;
        }
    }
}

}  // namespace gpukernel::simgpu
