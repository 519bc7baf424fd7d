// Address ranges reserved both in this process and at a worker, and the requests about the memory mapped
// there.
#pragma once

#include <functional>
#include <initializer_list>

#include "shim/transport/request.h"

namespace gpukernel::shim {

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

}  // namespace gpukernel::shim
