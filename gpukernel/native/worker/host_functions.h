// Host functions (cuLaunchHostFunc, cuStreamAddCallback): the program runs them, in the order of its streams.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>

#include "driver.h"

namespace gpukernel::worker {

// Of one program.  Where a function belongs, its stream comes to a gate, which tells the program by another
// connection than the one whose requests may wait for that stream, and stays shut until the program has run
// the function, or is gone.
class HostFunctions : public std::enable_shared_from_this<HostFunctions> {
  public:
    CUresult hold(Driver& cuda, const CUstream* stream, uint64_t number);  // nullptr: there is no such stream
    // Waits for the next gate that a stream has come to; false: there will be none.
    bool next(uint64_t& number, CUresult& status);
    void done(uint64_t number);
    void end();  // the program goes: nothing waits for it any more

  private:
    struct Gate;
    static void CUDA_CB come(CUstream, CUresult status, void* gate);
    void pass(uint64_t number, CUresult status);

    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::pair<uint64_t, CUresult>> reached_;
    std::set<uint64_t> shut_;
    bool over_ = false;
};

}  // namespace gpukernel::worker
