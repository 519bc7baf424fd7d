// How the work of a program that is gone is cancelled on a simulated device.
//
// The programs of a lease share one context.  The simulated GPU's libcuda exports two functions beyond
// CUDA's, so that what one of them has submitted can end without the others' noticing; NVIDIA's has none of
// these names.
#pragma once

#include <cstdint>

namespace gpukernel {

// From now on this thread submits and waits for that program; 0: nobody.  Its streams are the program's.
using WorkFor = void (*)(uint64_t program);
constexpr char WORK_FOR[] = "gpukernel_work_for";

// Cancels what the program has submitted, and what is still submitted for it: kernels stop where they could
// be paused, large copies and fills after some MiB, and whatever has not begun never does, but for host
// functions and for memory that is freed in stream order.  Returns at once.  A thread that works for the
// program waits from now on for its work alone.
using EndProgram = void (*)(uint64_t program);
constexpr char END_PROGRAM[] = "gpukernel_end_program";

}  // namespace gpukernel
