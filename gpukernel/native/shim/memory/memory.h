// Copies between host memory, device memory and arrays.
#pragma once

#include "shim/memory/host_memory.h"
#include "shim/process.h"
#include "shim/transport/connection.h"

namespace gpukernel::shim {

// Describe contiguous and two-dimensional copies as three-dimensional ones.
CUDA_MEMCPY3D linear_copy(CUmemorytype to, uint64_t destination, CUmemorytype from, uint64_t source,
                          size_t bytes);
CUDA_MEMCPY3D flat_copy(const CUDA_MEMCPY2D& copy);
// Replaces unified memory types by those that the addresses have.
CUresult resolve(Connection& connection, CUDA_MEMCPY3D& copy);
CUresult wait_for_default(Connection& connection);  // its default stream's work

// Copy between device memory and memory of this process that is not managed.
CUresult write_to_device(Connection& connection, CUdeviceptr destination, const void* source, size_t bytes,
                         CUstream stream);
CUresult read_from_device(Connection& connection, void* destination, CUdeviceptr source, size_t bytes,
                          CUstream stream);

// One end of a contiguous copy.
struct CopyEnd {
    bool host;
    uint64_t address;
};
CUresult copy_span(Connection& connection, CopyEnd to, CopyEnd from, size_t bytes, CUstream stream);
// Makes a copy between addresses of the device where one is of pinned memory that no kernel has used; nothing
// where none is.
std::optional<CUresult> copy_pinned(Connection& connection, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                    CUstream stream);

// --- attributes.cpp ---
CUresult get_sync_memops(CUdeviceptr ptr, unsigned& value);

// --- sharing.cpp ---
// Whether the worker knows the calls for what programs share; one of an older version does not.
bool worker_shares(const Device& device);
void forget_opened(Connection& connection);  // memory of other programs

// --- pitched_copies.cpp ---
CUresult copy_pitched(Connection& connection, const CUDA_MEMCPY3D& copy, CUstream stream);
CUresult copy_pitched_across(Connection& from, const CUDA_MEMCPY3D& source, Connection& to,
                             const CUDA_MEMCPY3D& destination);

}  // namespace gpukernel::shim
