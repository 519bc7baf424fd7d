// Copies of boxes, for those who keep them.
#pragma once

#include "connection.h"

namespace gpukernel::shim {

CUDA_MEMCPY3D linear_copy(CUmemorytype to, uint64_t destination, CUmemorytype from, uint64_t source,
                          size_t bytes);
CUDA_MEMCPY3D flat_copy(const CUDA_MEMCPY2D& copy);
// Says of unified addresses whose they are; CUDA_ERROR_NOT_SUPPORTED where a side is a CUDA array.
CUresult resolve(Connection& connection, CUDA_MEMCPY3D& copy);

}  // namespace gpukernel::shim
