// Host functions that are due when they are put into their stream, since its work is known to be finished.
//
// The worker has nothing to report of them, so they run at once, in a thread of the shim, in the order in
// which they were given.  Later work of the stream comes after them: where it is sent before they have run, a
// gate is put into the stream first, which the worker opens when it is told that they have
// (host_functions.h).
#pragma once

#include <cstdint>

#include "shim/modules/host_functions.h"

namespace gpukernel::shim {

// Whether there is a thread for it.
bool can_run_here(Connection& connection);
// Runs `call`, the `number`th of the connection, after those before it.
void run_here(Connection& connection, const HostCall& call, uint64_t number);
// Waits until so many of the connection's functions have run.
void wait_for_calls(Connection& connection, uint64_t number);
void wait_for_all_calls(Connection& connection);

}  // namespace gpukernel::shim
