// Work of programs that are gone (common/cancellation.h).
//
// Their pieces keep their places in the streams, since other programs' pieces may stand behind them in a
// default stream, but lose their work.  Memory that such a piece gives back may be in use by a kernel that
// has not stopped yet: what the pieces wait for is let go only when nothing of the program runs any more.
#include "common/cancellation.h"

#include <algorithm>

#include "simgpu/driver/state.h"
#include "simgpu/in_vain.h"

namespace gpukernel::simgpu {

GPUKERNEL_STATIC_THREAD_LOCAL ThreadState this_thread;

namespace {
// What `this_thread.program` points to.
struct Kept {
    std::shared_ptr<Submitter> program;
    ~Kept() { this_thread.program = nullptr; }
};
thread_local Kept kept;
}  // namespace

// Most threads of a program of its own work for nobody: they do not look at `kept`, which is found by a call.
std::shared_ptr<Submitter> this_program() { return this_thread.program ? kept.program : nullptr; }

bool cancelled() {
    const ThreadState& mine = this_thread;
    const Submitter* const program = mine.runs_for ? mine.runs_for : mine.program;
    return program && program->over.load(std::memory_order_relaxed);
}

bool Schedule::is_over() { return this_thread.program && this_thread.program->over; }
bool Schedule::in_vain() { return is_over() && !this_thread.program->running && !this_thread.program->due; }

std::shared_ptr<Submitter> Schedule::program_of(const Stream& stream) {
    return stream.program ? stream.program : this_program();
}

void Schedule::begin_of(Submitter* program) {
    this_thread.runs_for = program;
    if (program) ++program->running;
}

void Schedule::end_of(Submitter* program) {
    this_thread.runs_for = nullptr;
    if (program && !--program->running && program->over) let_go(*program);
}

// Takes the work of a piece, whose destruction is the caller's.
void Schedule::drop(Stream& stream, Stream::Piece& piece, std::vector<Stream::Piece>& dropped) {
    if (&piece == &stream.pieces.front()) {
        if (stream.ready) take(stream);
        if (std::exchange(stream.watched, false)) std::erase(watched_, stream.shared_from_this());
    }
    dropped.emplace_back().work = std::exchange(piece.work, nullptr);
    dropped.back().until = std::exchange(piece.until, nullptr);
}

// Nothing of it runs any more: what is left of it waits for nothing, and its threads wait for nobody.
void Schedule::let_go(Submitter& program) {
    if (!std::exchange(program.let_go, true)) {
        std::vector<std::shared_ptr<Stream>> its;
        for (Stream* stream : busy_) {
            if (stream->blocked_by.stream && stream->pieces.front().program.get() == &program) {
                std::erase(stream->blocked_by.stream->blocks, stream);  // which may outlive it
                stream->blocked_by = {};
            }
            for (Stream::Piece& piece : stream->pieces)
                if (piece.program.get() == &program) piece.after.clear();
            its.push_back(stream->shared_from_this());
        }
        for (const std::shared_ptr<Stream>& stream : its) advance(*stream);
        wake_threads();
    } else if (program.due) {
        return;
    }
    // Whoever sleeps may do so for something that the program's work had to wait for.
    for (Stream* stream : busy_) stream->moved.notify_all();
}

void Schedule::work_for(uint64_t number) {
    gpukernel::simgpu::in_vain = nullptr;
    this_thread.program = nullptr;
    kept.program = nullptr;
    if (!number) return;
    Lock lock(mutex_);
    std::erase_if(programs_, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<Submitter>& known = programs_[number];
    kept.program = known.lock();
    if (!kept.program) known = kept.program = std::make_shared<Submitter>();
    this_thread.program = kept.program.get();
    gpukernel::simgpu::in_vain = &kept.program->over;
}

void Schedule::end(uint64_t number) {
    std::vector<Stream::Piece> dropped;  // destroyed without the lock
    Lock lock(mutex_);
    const auto known = programs_.find(number);
    const std::shared_ptr<Submitter> program = known == programs_.end() ? nullptr : known->second.lock();
    if (!program || program->over.exchange(true)) return;
    program->cancel = true;
    std::vector<std::shared_ptr<Stream>> its;
    for (Stream* stream : busy_) {
        bool any = false;
        for (Stream::Piece& piece : stream->pieces) {
            if (piece.program != program || piece.essential) continue;
            drop(*stream, piece, dropped);
            any = true;
        }
        if (any) its.push_back(stream->shared_from_this());
    }
    for (const std::shared_ptr<Stream>& stream : its) advance(*stream);
    if (!program->running) let_go(*program);
    wake_threads();
}

}  // namespace gpukernel::simgpu

using namespace gpukernel::simgpu;

extern "C" __attribute__((visibility("default"))) void gpukernel_work_for(uint64_t program) {
    schedule().work_for(program);
}
extern "C" __attribute__((visibility("default"))) void gpukernel_end_program(uint64_t program) {
    schedule().end(program);
}
static_assert(std::is_same_v<decltype(&gpukernel_work_for), gpukernel::WorkFor>);
static_assert(std::is_same_v<decltype(&gpukernel_end_program), gpukernel::EndProgram>);
