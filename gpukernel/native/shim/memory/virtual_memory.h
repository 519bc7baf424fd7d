// Address ranges reserved both in this process and at a worker, and the requests about the memory mapped
// there.
#pragma once

#include <functional>
#include <initializer_list>

#include "shim/transport/request.h"

namespace gpukernel::shim {

// A part of the address space between a program's image and its libraries, which is rarely used.
constexpr uint64_t QUIET_FROM = 0x100000000000, QUIET_BYTES = 0x400000000000;

// Requests one operation; `answer` receives its value if it has one.
CUresult ask(Connection& connection, wire::VirtualMemory operation, std::initializer_list<uint64_t> arguments,
             uint64_t* answer = nullptr);

// Reserves the same range in this process and at the worker, so that a pointer means the same to both: at
// `wanted` if it is free on both sides, else where both have room.
CUresult reserve_on_both_sides(Connection& connection, uint64_t bytes, uint64_t alignment, uint64_t wanted,
                               CUdeviceptr& address);
// Calls `end`, by which the worker releases everything on the device, and forgets the device's ranges.
CUresult end_ranges(Device& device, const std::function<CUresult()>& end);
void free_here(CUdeviceptr address, uint64_t bytes);
// Reserves a range of the quiet part in this process, where workers have room, too, most probably; 0 where
// there is none.
CUdeviceptr reserve_here(uint64_t bytes);
// Reserves at the worker what is reserved here; CUDA_ERROR_OUT_OF_MEMORY where it is in use there.
CUresult reserve_there(Connection& connection, CUdeviceptr address, uint64_t bytes);

// Whether the processor touches what is mapped: such memory has one mapping in its life, in one process.
bool refuse_to_share(const char* what);

// The handle of a device's physical memory that has that number at its worker.
CUresult physical_handle(const Device& device, uint64_t number, CUmemGenericAllocationHandle& handle);

// --- shared_physical.cpp ---
// Whether the worker lets programs share physical memory; one of an older version does not.
bool worker_shares_physical(const Device& device);
// Lets go of memory that was exported by descriptors of which none is open any more.
void end_exports();
void forget_exports(const Device& device);  // the worker has let go of everything

}  // namespace gpukernel::shim
