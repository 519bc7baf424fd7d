// Waiting in the pool's queue.  The shim does not speak with the pool: it asks whoever keeps this kernel's
// slice, at the socket that the lease file names (gpukernel/jupyter/desk.py says how).
#pragma once

#include <string>

namespace gpukernel::shim {

enum class Line { came, left, refused };

// Waits until the slice of `key` is there, with the place in the queue as one line on stdout that changes.
// `left`: the place was given up, by an interrupt for example, and may be asked for again; `refused`: there
// will be no slice.  In both `error` says why.
Line wait_in_line(const std::string& desk, const std::string& key, std::string& error);

}  // namespace gpukernel::shim
