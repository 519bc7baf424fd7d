// Host functions of one program (cuLaunchHostFunc, cuStreamAddCallback).  The program runs them; the worker
// keeps their order in its streams.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "wire/protocol.h"
#include "worker/lease/host_memory.h"
#include "worker/server/driver.h"

namespace gpukernel::worker {

class Session;

// A stream that comes to a function's place stops at a gate: a driver callback that reports the function to
// the program, over another connection than the one whose requests may wait for that stream.  The gate opens
// when the program has run the function, or is gone.  A program may open it before: then the stream's coming
// is reported, and the stream goes on.
//
// What there is no room for is an error of its request, and the program is told its number, too, as that of
// a gate that was reached.  There is room for GATES_BEYOND bytes of places with the bit wire::GATE where
// there is none for functions: without them work would come before functions that were taken.
class HostFunctions : public std::enable_shared_from_this<HostFunctions> {
  public:
    HostFunctions(Session& program, HostMemory& book) : program_(program), book_(book) {}
    ~HostFunctions() { book_.give_back(charged_); }
    // Puts the gate of function `number` into `stream`; nullptr: the stream does not exist.
    CUresult add_gate(Driver& cuda, const CUstream* stream, uint64_t number,
                      std::vector<wire::EarlyRead> reads);
    // Has a stream's coming to this place reported, and nothing else, where there is room.
    void add_report(Driver& cuda, CUstream stream, uint64_t number, std::vector<wire::EarlyRead> reads);
    struct Reached {
        uint64_t number;
        CUresult status;
        std::vector<wire::EarlyRead> reads;
        uint64_t launches;  // of the lease, when the gate was put there
        bool report;
    };
    // Waits for the next gate that a stream comes to; false where the program is gone.
    bool next(Reached& reached);
    // Makes its reads, and returns what comes of them with the news (wire::EarlyRead).
    std::vector<char> read_early(const Reached& reached);
    void done(uint64_t number);  // opens the gate
    void end();                  // the program is gone: opens all gates

  private:
    struct Gate;
    CUresult charge(uint64_t number, bool report, std::vector<wire::EarlyRead> reads);
    void refuse(uint64_t number);  // under the mutex
    CUresult add_callback(Driver& cuda, CUstream stream, uint64_t number);
    static void CUDA_CB on_reached(CUstream, CUresult status, void* gate);
    void wait_at_gate(uint64_t number, CUresult status);
    // What the worker keeps of a gate, and charges to the lease's book until nothing of it is left.
    struct State {
        bool shut = true, reported = false, passed = false;
        bool report = false;  // and no function
        std::vector<wire::EarlyRead> reads;
        uint64_t launches = 0;
    };
    void change(uint64_t number, bool State::* what, bool to);  // under the mutex

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::pair<uint64_t, CUresult>> reached_;
    std::map<uint64_t, State> gates_;
    std::map<uint64_t, uint64_t> refused_;  // runs of numbers: the first and the last; to be reported
    Session& program_;                      // not when it is over
    HostMemory& book_;
    uint64_t charged_ = 0;
    bool over_ = false;
};

}  // namespace gpukernel::worker
