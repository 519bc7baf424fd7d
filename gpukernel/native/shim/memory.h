// Copies of boxes, for those who keep them.
#pragma once

#include "connection.h"

namespace gpukernel::shim {

CUDA_MEMCPY3D linear_copy(CUmemorytype to, uint64_t destination, CUmemorytype from, uint64_t source,
                          size_t bytes);
CUDA_MEMCPY3D flat_copy(const CUDA_MEMCPY2D& copy);
// Says of unified addresses whose they are.
CUresult resolve(Connection& connection, CUDA_MEMCPY3D& copy);

// Plain copies, between device memory and memory of this process that is not managed.
CUresult write_to_device(Connection& connection, CUdeviceptr destination, const void* source, size_t bytes,
                         CUstream stream);
CUresult read_from_device(Connection& connection, void* destination, CUdeviceptr source, size_t bytes,
                          CUstream stream);

struct Place {
    bool host;
    uint64_t address;
};
CUresult copy_span(Connection& connection, Place to, Place from, size_t bytes, CUstream stream);
// boxes.cpp
CUresult copy_box(Connection& connection, const CUDA_MEMCPY3D& copy, CUstream stream);
CUresult copy_box_across(Connection& from, const CUDA_MEMCPY3D& source, Connection& to,
                         const CUDA_MEMCPY3D& destination);

}  // namespace gpukernel::shim
