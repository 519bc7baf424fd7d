// Values in memory that a stream writes, or waits for.
#pragma once

#include <vector>

#include "connection.h"

namespace gpukernel::shim {

using MemoryOperations = std::vector<CUstreamBatchMemOpParams>;

// Whether a stream or a graph can have them.
CUresult check_operations(unsigned count, const CUstreamBatchMemOpParams* operations, unsigned flags);
CUresult queue(Connection& connection, const MemoryOperations& operations, CUstream stream);

}  // namespace gpukernel::shim
