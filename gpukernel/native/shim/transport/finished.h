// What a program knows to be finished on its device, so that it need not ask.
//
// Requests are numbered in their order.  Once a wait for the device is over, everything up to it is finished;
// requests that leave no work on the device do not change that.  The same holds for one stream after a read
// or a wait in it, and for an event that was recorded behind what is finished.
//
// A worker that has ended cannot be asked and is not: whoever answers from here looks at the connection
// first.
#pragma once

#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>

#include "libcuda/entry_points.h"

namespace gpukernel::shim {

class Connection;

// Of one connection, under its mutex.
struct Finished {
    struct Recording {
        uint64_t number = 0;  // of its request; 0: never recorded, or behind finished work alone
        uint64_t stream = 0;
    };

    uint64_t work = 0;                     // the newest request that may have left work on the device
    uint64_t all = 0;                      // every request up to this one is finished,
    uint64_t stream = 0, up_to = 0;        // and in this stream every one up to that one
    bool made_streams = false;             // there are or were others than the legacy stream
    uint64_t sure = 0;                     // a queued request that cannot fail,
    uint64_t unsure = 0;                   // and the newest that can,
    std::atomic<uint64_t> told{0};         // which an answer to a request from this one on has told of
    std::unordered_set<uint64_t> streams;  // of the program, that exist
    std::unordered_map<uint64_t, Recording> events;  // of this program alone, that exist
};

// Whether a call may leave work on the device that goes on when it returns.
bool leaves_work(uint16_t call);
// Of the two numbers of the legacy stream, one (0 is also that of a synchronous copy, which waits for it).
uint64_t canonical(uint64_t stream);

// Under the mutex: a request has begun, or is queued without an answer.
void note_request(Connection& connection, uint16_t call);
void note_queued(Connection& connection);

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

}  // namespace gpukernel::shim
