// Where calls meet a stream that captures: each such call asks here first, and is done if it gets an answer.
// While nothing captures, the question is one load.
#pragma once

#include <atomic>
#include <optional>

#include "connection.h"
#include "launch.h"
#include "memory_operations.h"

namespace gpukernel::shim {

// Captures under way, and events that were last recorded in one.
extern std::atomic<int> captures_and_events;
inline bool capturing() { return captures_and_events.load(std::memory_order_relaxed) != 0; }

using Captured = std::optional<CUresult>;  // nothing: go on as if there were no captures

Captured captured_launch(Connection& connection, const KernelCall& call, void** params, void** extra,
                         CUstream stream);
// `copy`'s memory types may be unified; a captured copy reads and writes host memory when its graph runs.
Captured captured_copy(Connection& connection, const CUDA_MEMCPY3D& copy, CUstream stream);
Captured captured_operations(Connection& connection, const MemoryOperations& operations, CUstream stream);
Captured captured_host(Connection& connection, CUhostFn function, void* data, CUstream stream);
// What no graph can hold, or what uses a stream in a way that a capture forbids.
Captured captured_refusal(Connection& connection, CUstream stream);
// A call that works on the legacy stream without naming it, or that might wait for the device: a capture in
// another mode than the thread's forbids it.
Captured captured_unsafe(Connection& connection, bool legacy_stream);

// Streams are told apart by whether the legacy stream waits for them.
void made_stream(Connection& connection, CUstream stream, unsigned flags);

}  // namespace gpukernel::shim
