// How a driver has its engine end early what nobody waits for any more.
#pragma once

#include <atomic>

namespace gpukernel::simgpu {

// Set and true: what this thread does is in vain, and `load_module` ends early.
extern thread_local const std::atomic<bool>* in_vain;

}  // namespace gpukernel::simgpu
