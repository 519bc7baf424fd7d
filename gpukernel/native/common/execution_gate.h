// The gate through which time slicing pauses a simulated device in the middle of a kernel.
//
// The simulated GPU's libcuda exports one function beyond CUDA's, `gpukernel_set_execution_gate`; NVIDIA's
// has none of that name, and its kernels run to their end.  While the gate is closed every kernel of the
// device rests at its next opportunity, which is a backward branch, a call, the begin of a warp's work, or
// some thousand operations in a row, and no kernel begins.  Copies and host functions go on.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpukernel {

struct ExecutionGate {
    std::atomic<uint32_t>* closed;  // a futex: not 0 while kernels must rest; whoever opens it wakes them
    std::atomic<uint32_t>*begun, *ended;  // kernels: the device counts them
    // Both are called from the device's threads, which hold no lock:
    void (*blocked)(void* argument);  // a kernel rests, or goes on resting
    void (*running)(void* argument);  // now and then while a kernel runs
    void* argument;
};

// Keeps a copy of `gate` for the device, for good; returns a CUresult.  Called before its first launch.
using SetExecutionGate = int (*)(int device, const ExecutionGate* gate);
constexpr char SET_EXECUTION_GATE[] = "gpukernel_set_execution_gate";

}  // namespace gpukernel
