// Reads that come with the news of a host function.
//
// A program may wait for a function of its own that says that a step is computed, and then read a value: two
// round trips.  After the first time the worker is told with the function what will be read, and the bytes
// come with the news that the function is due.
//
// They are exact for this reason.  When a stream comes to the function, all work before it in that stream is
// finished, and what it had waited for in others.  The read is asked for only where that is all the work so
// far that changes the device's memory (finished.h).  So nothing changes it from then on but a request that
// is made after the function's, and the bytes are given only while there is none, whichever thread makes it.
// If the worker read later than the stream came there, it read the same.
//
// What is read is what was read before, at the same address.  TensorFlow copies its conditions to the device
// and reads them back, at an address of its own each time: after the first time that a program reads what it
// has just copied, the newest copy is expected, too, until several in a row were not read back.
//
// As with foresight.h nothing is given that another program may write, nor with managed memory; nor where the
// program's own read would wait for something, or would tell of an error or bring printed text.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shim/transport/foresight.h"
#include "shim/transport/news.h"

namespace gpukernel::shim {

// Of one connection; under its mutex.
struct EarlyReads {
    struct Expected {
        uint64_t stream;  // of the function
        wire::EarlyRead read;
        bool operator==(const Expected&) const = default;
    };
    std::vector<Expected>
        expected;  // what was read last is last: an allocator gives several addresses in turn
    std::pair<uint64_t, Expected> copied;  // the newest small copy to the device: its request, its stream
    int copies = 0;                        // so many more are expected, unless one is read back
    uint64_t settled = 0;                  // the newest function, by its request, that is due and settles,
    uint64_t stream = 0;                   // and its stream
    uint64_t read = 0;                     // the newest one with which something was read, which lies here:
    std::vector<std::pair<wire::EarlyRead, std::string>> here;
    std::atomic<bool> any{false};  // that anything does, which may be asked without the mutex
    bool used = true;              // by the program
    int in_vain = 0;               // how often it was not, one after the other
    int skipped = 0;               // functions with which nothing was asked for that reason
};

// Under the mutex, before the request of a host function: what to ask with it.
EarlyQuestion expect_reads(Connection& connection, uint64_t stream);
// Under the mutex: the request that has begun copies this to the device, in `stream`.
void note_small_copy(Connection& connection, uint64_t stream, const wire::EarlyRead& read);
// Under the mutex: the news of that function.
void note_function(Connection& connection, const News::Function& function);
// Gives what came early, if it is this and is still so; false where not.
bool take_early(Connection& connection, const DeviceRead& read, void* to);
// Under the mutex: a request has begun that reads this.
void learn_read(Connection& connection, const DeviceRead& read);

}  // namespace gpukernel::shim
