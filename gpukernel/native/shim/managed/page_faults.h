// Page faults: the handler of SIGSEGV serves faults of managed pages and forwards all others to the program's
// handler.
//
// The handler only stores the fault's address and waits: a thread of the shim serves it, with locks, memory
// and a stack of its own.  So a program may fault on the smallest signal stack, be interrupted by other
// signals meanwhile, and leave their handlers by siglongjmp.
#pragma once

#include <cstdint>
#include <optional>

namespace gpukernel::shim {

// Starts the serving thread, before the first page that may fault; false where the system gives no thread.
bool serve_faults();
// Installs the handler, again where the program has installed one of its own since.
void watch_faults();
// Adds addresses whose faults may be of managed memory.
void widen_faults(uint64_t begin, uint64_t end);

}  // namespace gpukernel::shim
