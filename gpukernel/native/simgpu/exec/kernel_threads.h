// The threads that run kernels, and what their warps keep of the allocations that they have looked up.
//
// A warp that has found an allocation does not ask again for each access.  So that nobody reaches memory that
// was freed, whoever frees some takes it out of the books, has all warps forget, and gives the memory back
// after that (read-copy-update).
#pragma once

#include <atomic>
#include <cstdint>

namespace gpukernel::simgpu {

struct Warp;

// Has all warps forget what they keep, and returns when none runs with what it kept before.  A thread that
// runs a kernel itself does not wait.  The caller holds no lock that a kernel may need.
void forget_allocations();

// One more each time that something was freed.
extern std::atomic<uint64_t> age_of_allocations;

// In the thread that runs them: one warp begins, or goes on after a pause.
void renew(Warp& warp);

// This thread runs warps while the object exists.
class RunsWarps {
  public:
    RunsWarps();
    ~RunsWarps();
    RunsWarps(const RunsWarps&) = delete;
};

// It runs none while this object exists; `renew` comes after it.
class RunsNone {
  public:
    RunsNone();
    ~RunsNone();
    RunsNone(const RunsNone&) = delete;
};

}  // namespace gpukernel::simgpu
