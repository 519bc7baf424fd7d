// Copies from the program's memory, for which a program need not wait.
//
// The shim has the bytes when such a call returns, and sends them before anything that is asked later.  So
// where a stream has nothing else left to do, who asks or waits for it, or for an event in it, is told at
// once that it is done.  The worker is told, too (settle_copies): it finishes those copies before it serves
// a later request, of whatever thread and for whatever stream.
//
// That holds for a copy that cannot fail: to a known stream, into one block that the program has from
// cuMemAlloc.  It holds neither where another program may look at the memory, nor with managed memory, nor in
// a stream that waits for the legacy one.
#pragma once

#include <cstdint>

#include "libcuda/entry_points.h"
#include "shim/transport/finished.h"

namespace gpukernel::shim {

// Under the mutex, all: whether bytes are of one block that the program has from cuMemAlloc.
bool in_a_block(const Connection& connection, CUdeviceptr address, uint64_t bytes);
// The request that has begun is a copy in `stream`.
void note_copy(Connection& connection, uint64_t stream, CUdeviceptr to, uint64_t bytes);
// Whether what is left of a stream's work is such copies alone.
bool may_settle(Connection& connection, uint64_t stream);
// Has the worker finish what a stream, or an event, comes after, where that is such copies alone; false where
// it is not.
bool settle_copies(Connection& connection, uint64_t stream);
bool settle_copies(Connection& connection, CUevent event, const Finished::Recording& recording);

}  // namespace gpukernel::shim
