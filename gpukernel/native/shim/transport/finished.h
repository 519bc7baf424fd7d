// What a program knows to be finished on its device, so that it need not ask.
//
// Requests are numbered in their order.  Once a wait for the device is over, everything up to it is finished;
// once a read or a wait in a stream is over, everything in that stream up to it is, and so is what the stream
// had waited for in others (cuStreamWaitEvent).  Requests that leave no work on the device do not change
// that. An event is finished where its record is.
//
// A stream whose work is finished may have a host function that runs in the program (modules/local_calls.h):
// then its later work waits at a gate, which is put into the stream before it.  The same holds for a function
// that the worker reports: only work of its stream has to wait for it, and neither the next function, whose
// turn is kept in the program, nor a wait for an event.  What comes after such a wait comes after the event's
// functions, too.
//
// A worker that has ended cannot be asked and is not: whoever answers from here looks at the connection
// first.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libcuda/entry_points.h"

namespace gpukernel::shim {

class Connection;
enum class Settles : uint8_t;

// Of one connection, under its mutex but for the atomics.
struct Finished {
    struct Recording {        // of an event
        uint64_t number = 0;  // of its request; 0: never recorded, or behind finished work alone
        uint64_t stream = 0;
        uint64_t call = 0;      // the host function that it comes after, as in Stream
        uint64_t other = 0;     // work that it comes after, as in Stream, of any stream where it is not known
        bool reported = false;  // the worker says when it is done
        std::chrono::steady_clock::time_point asked;  // when that, or whether it is done, was asked last
    };
    struct Join {         // with an event of another stream
        uint64_t number;  // of the request that waits for it
        Recording event;
    };
    struct Gate {                     // the worker may have had no room for it:
        uint64_t open = 0, call = 0;  // the functions that it waits for, as in Stream
        uint64_t errors = 0;          // answers that told of one by then; more do where it had none
    };
    struct Stream {
        bool blocks = false;      // waits for the legacy stream's work, which waits for its
        uint64_t work = 0;        // the newest request that may have left work in it
        uint64_t other = 0;       // the newest that may have left other work than a copy that cannot fail
        uint64_t changes = 0;     // the newest that may have left work in it that changes memory
        uint64_t passed = 0;      // every request in it up to this one is finished
        uint64_t call = 0;        // the newest host function run in the program that its work comes after
        uint64_t open = 0;        // the request of the newest one that the worker does not wait for
        int reports = 0;          // so many more of its events are reported (polls.cpp)
        Gate gate;                // the newest one in it
        std::vector<Join> joins;  // behind `passed`
    };

    uint64_t blocking = 0;          // the newest request that may have left work in a stream that blocks
    uint64_t anywhere = 0;          // the newest request that may have left work in any stream
    uint64_t changes = 0;           // the same, of work that changes memory
    uint64_t changed = 0;           // the newest request that may change memory, at once or by work
    uint64_t gone = 0;              // the newest end of a stream that may have left work
    uint64_t all = 0;               // every request up to this one is finished
    bool made_streams = false;      // there are or were others than the legacy stream
    uint64_t sure = 0;              // a queued request that cannot fail,
    uint64_t unsure = 0;            // and the newest that can,
    std::atomic<uint64_t> told{0};  // which an answer to a request from this one on has told of
    uint64_t calls = 0;             // host functions given to the program to run,
    std::atomic<uint64_t> run{0};   // and how many it has run, in their order
    std::atomic<int> given{0};      // functions that the worker was given to report, and are not over
    bool may_gate() const { return run < calls || given; }
    std::atomic<uint64_t> refused{0};  // the newest request of a function that had an error
    // Whether a wait may come after functions, or have an error of one to tell.
    bool may_be_behind() const { return may_gate() || refused > told; }
    // The legacy one (CU_STREAM_LEGACY), and those of the program that exist.
    std::unordered_map<uint64_t, Stream> streams{{1, {.blocks = true, .joins = {}}}};
    std::pair<uint64_t, Stream*> latest{};  // the one that was asked for last, as long as no stream ends
    std::unordered_map<uint64_t, Recording> events;    // of this program alone, that exist
    std::chrono::steady_clock::duration round_trip{};  // of the last question for an event (polls.cpp)
};

// Whether a call may leave work on the device that goes on when it returns.
bool leaves_work(uint16_t call);
// What a call may do to the device's memory: nothing, or something that is done when the worker has served
// it, or is left as work.
enum class Change : uint8_t { none, at_once, by_work };
Change changes_memory(uint16_t call);
// Which requests of which streams are finished once those of `stream` up to `number` are: by their streams,
// the newest ones.  Under the mutex; `call` becomes at least the host function that they come after.
std::unordered_map<uint64_t, uint64_t> finished_with(Connection& connection, uint64_t stream, uint64_t number,
                                                     uint64_t& call);
// Of the two numbers of the legacy stream, one (0 is also that of a synchronous copy, which waits for it).
inline uint64_t canonical(uint64_t stream) {
    return stream == 0 ? reinterpret_cast<uint64_t>(CU_STREAM_LEGACY) : stream;
}

// Before an event of the shim's own is recorded: it comes after the stream's host functions.
void gate_event(Connection& connection, uint64_t stream);
// Under the mutex, before a request and once it has begun: in one stream, or perhaps in any.
void gate_request(Connection& connection, uint16_t call, std::optional<uint64_t> stream);
void note_request(Connection& connection, uint16_t call, std::optional<uint64_t> stream);
void note_queued(Connection& connection);  // it will not be answered
void note_made_stream(Connection& connection, uint64_t stream, bool blocks);

// A wait for the device is over that began when `number` requests had been made; without the mutex.
void note_idle(Connection& connection, uint64_t number);
// The same for one stream.
void note_stream(Connection& connection, uint64_t stream, uint64_t number);
// A request of this number or a later one was answered.
void note_answer(Connection& connection, uint64_t number);
uint64_t requests_so_far(Connection& connection);

// Whether the device has nothing left to do, and the worker is there.
bool is_idle(Connection& connection);
// The same, and no error may be left to be told.
bool is_over(Connection& connection);
// The same of one stream, which exists.
bool is_done(Connection& connection, CUstream stream);

// Under the mutex: everything in a stream up to `number` is finished, said by a wait.
void note_passed(Connection& connection, uint64_t stream, uint64_t number);
// Under the mutex: takes note of what host functions have told (news.h).
void look_at_news(Connection& connection);
// Under the mutex: whether work that is put into a stream now comes after all that changes memory so far.
Settles settles(Connection& connection, uint64_t stream);
// Under the mutex: whether a read in a stream would wait for nothing and tell of no error.
bool may_tell(Connection& connection, uint64_t stream);

// Whether a stream takes functions that the worker does not wait for: one that no other stream waits for.
bool may_be_open(Connection& connection, uint64_t stream);
// Under the mutex: the request that has begun is one.
void note_open(Connection& connection, uint64_t stream);
// Under the mutex: the host function run in the program that a stream's next one comes after; 0: none.
uint64_t call_before_next(Connection& connection, uint64_t stream);
// --- under the mutex, for the other files of this folder ---
Finished::Stream* find_stream(Connection& connection, uint64_t stream);
Finished::Recording* find_event(Connection& connection, CUevent event);
bool has_run(const Connection& connection, uint64_t call);  // a host function
// Whether an event's work is finished on the device; the host function that it comes after may not have run.
bool passed(Connection& connection, const Finished::Recording& event);
// Everything in `stream` up to `number` is finished, and what it had waited for.
void pass(Connection& connection, uint64_t stream, uint64_t number);
// Whether the program may be told without a question that all is well; or, since this thread has queued
// nothing that may have failed, that what another one has submitted is done.
bool may_answer(Connection& connection);
bool may_answer_poll(Connection& connection);
// The request that has begun records an event.
void note_recorded(Connection& connection, CUevent event, uint64_t stream);
// Before an event is recorded that is not known here, without the mutex.
void gate_unknown_event(Connection& connection, CUevent event, CUstream stream);

// Has the program run a host function that is due in a stream, which waits for no other by itself: returns
// its number, which the stream's later work comes after; nothing where it may not be due.
std::optional<uint64_t> due_now(Connection& connection, uint64_t stream);

}  // namespace gpukernel::shim
