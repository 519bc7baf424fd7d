// Stream capture's hooks: a call that can be captured calls its hook first, and returns the hook's result if
// there is one.  While no stream captures, the check costs one load.
#pragma once

#include <atomic>
#include <optional>

#include "shim/library_call.h"
#include "shim/memory/memory_operations.h"
#include "shim/modules/launch.h"
#include "shim/transport/connection.h"

namespace gpukernel::shim {

// The number of captures under way, and of events that were last recorded in one.
extern std::atomic<int> captures_and_events;
inline bool capturing() { return captures_and_events.load(std::memory_order_relaxed) != 0; }

using Captured = std::optional<CUresult>;  // nothing: the call goes on as without captures

Captured captured_launch(Connection& connection, const KernelCall& call, void** params, void** extra,
                         CUstream stream);
// `copy`'s memory types may be unified; a captured copy reads and writes host memory when its graph runs.
Captured captured_copy(Connection& connection, const CUDA_MEMCPY3D& copy, CUstream stream);
Captured captured_operations(Connection& connection, const MemoryOperations& operations, CUstream stream);
Captured captured_library(Connection& connection, const LibraryCall& call, CUstream stream);
Captured captured_host(Connection& connection, CUhostFn function, void* data, CUstream stream);
// For calls that no graph can hold, or that use a stream in a way that a capture forbids.
Captured captured_refusal(Connection& connection, CUstream stream);
// For calls that use the legacy stream without naming it, or that might wait for the device: captures forbid
// them, depending on their mode.
Captured captured_unsafe(Connection& connection, bool legacy_stream);

// Notes whether a new stream is a blocking one, for which the legacy stream waits.
void made_stream(Connection& connection, CUstream stream, unsigned flags);

}  // namespace gpukernel::shim
