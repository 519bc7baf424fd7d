// The program's SIGSEGV: those of managed pages are served, every other goes where it would have gone.
//
// The handler itself only writes down where the fault was and waits: a thread of the shim serves it, with
// locks, memory and a stack of its own.  So a program may fault on the smallest signal stack, be interrupted
// by other signals meanwhile, and leave their handlers by siglongjmp.
#pragma once

#include <cstdint>
#include <optional>

// A thread's variable that the handler reads: there from the start, where a library's others may be allocated
// at their first use.
#define GPUKERNEL_HANDLER_LOCAL constinit thread_local __attribute__((tls_model("initial-exec")))

namespace gpukernel::shim {

// Before the first page that may fault; false where the system gives no thread.
bool serve_faults();
// Sees to it that faults come here first, also where the program has installed a handler of its own since.
void watch_faults();
// Faults at these addresses may be of managed memory, all others are not.
void widen_faults(uint64_t begin, uint64_t end);

}  // namespace gpukernel::shim
