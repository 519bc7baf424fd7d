// What the thread of the host functions has heard, until a thread that has the connection's mutex looks.
//
// That thread must not wait for the mutex: who has it may wait until the worker takes what is sent, and the
// worker for the function.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "wire/protocol.h"

namespace gpukernel::shim {

class Connection;

// Whether the work of a stream comes after all that changes the device's memory so far.
enum class Settles : uint8_t { no, but_for_the_default_stream, yes };

// What is asked with a host function (early_reads.h).
struct EarlyQuestion {
    Settles settles = Settles::no;
    std::vector<wire::EarlyRead> reads;
    bool counts = false;  // there are others than the newest copy, which is expected but so often
};

struct News {
    struct Function {  // that is due
        uint64_t request, stream;
        EarlyQuestion question;
        std::string early;  // what the worker sent with it
    };
    static constexpr size_t MOST = 8;

    std::mutex mutex;
    std::atomic<bool> any{false};
    std::unordered_map<uint64_t, uint64_t> passed;  // by stream: its requests up to this one are finished
    std::deque<Function> functions;                 // the newest of those that may matter
};

// Without the connection's mutex.
void tell_passed(Connection& connection, uint64_t stream, uint64_t request);
void tell_function(Connection& connection, News::Function function);

}  // namespace gpukernel::shim
