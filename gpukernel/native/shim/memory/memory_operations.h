// Stream memory operations: values in memory that a stream writes or waits for.
#pragma once

#include <vector>

#include "shim/transport/connection.h"

namespace gpukernel::shim {

using MemoryOperations = std::vector<CUstreamBatchMemOpParams>;

// Returns whether a stream or a graph can have these operations.
CUresult check_operations(unsigned count, const CUstreamBatchMemOpParams* operations, unsigned flags);
CUresult queue(Connection& connection, const MemoryOperations& operations, CUstream stream);

}  // namespace gpukernel::shim
