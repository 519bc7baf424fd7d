// Work on a simulated device that is no kernel: what the math libraries beside it compute
// (simgpu_libraries/).
//
// The simulated GPU's libcuda exports a function beyond CUDA's, `gpukernel_simgpu_run`.  The work
// takes its place in a stream as a kernel does: in the stream's order, by the device's threads, counted as
// the device's time, paused by the gate of time slicing (common/execution_gate.h), and cancelled with its
// program (common/cancellation.h).  It is cut into pieces of about a millisecond, because it can be paused
// and cancelled only between two.
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <cstdint>

namespace gpukernel::simgpu {

// What a piece may ask while it runs.  What was allowed stays so until the piece ends: memory that is freed
// meanwhile is given back after that.
struct NativeAccess {
    const void* device;
    bool (*allowed)(const void* device, uint64_t address, uint64_t bytes, bool writing);
};

struct NativeWork {
    uint64_t pieces;      // which may run at the same time, in any order
    uint64_t host_bytes;  // of the host's memory, until `end`
    // Runs one piece; false after an access that was not allowed, and `fault` (256 bytes) says which: the
    // work ends, and the context is lost as by a kernel that does this.
    bool (*run)(void* argument, uint64_t piece, const NativeAccess* access, char* fault);
    void (*end)(void* argument);  // the work is over, or never will run
    void* argument;
};

// Returns a CUresult; `end` is called in any case.
using RunNative = int (*)(CUstream stream, const NativeWork* work);
constexpr char RUN_NATIVE[] = "gpukernel_simgpu_run";

// Two more are for the host's memory that such work takes: `bool (uint64_t bytes)`, false where there is not
// so much, and `void (uint64_t bytes)`.  A piece that gets none throws std::bad_alloc.
constexpr char TAKE_HOST_MEMORY[] = "gpukernel_simgpu_take";
constexpr char GIVE_BACK_HOST_MEMORY[] = "gpukernel_simgpu_give_back";

}  // namespace gpukernel::simgpu
