// Addresses that mean the same here and at a worker, and the requests about the memory that is mapped there.
#pragma once

#include <functional>
#include <initializer_list>

#include "request.h"

namespace gpukernel::shim {

// One operation of wire::VirtualMemory; `answer` where it has one.
CUresult ask(Connection& connection, wire::VirtualMemory operation, std::initializer_list<uint64_t> arguments,
             uint64_t* answer = nullptr);

// Reserves a range in this process and the same at the worker, so that no pointer of one means something of
// the other: at `wanted` where both have it free, else where both have room.
CUresult reserve_on_both_sides(Connection& connection, uint64_t bytes, uint64_t alignment, uint64_t wanted,
                               CUdeviceptr& address);
// Everything that the device has ends; `end` has the worker do so.
CUresult end_ranges(Device& device, const std::function<CUresult()>& end);
void free_here(CUdeviceptr address, uint64_t bytes);

}  // namespace gpukernel::shim
