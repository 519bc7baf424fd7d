// Virtual memory management: the handles of physical memory, and the checks of what a program asks for.
#pragma once

#include <cstdint>

#include "libcuda/library.h"

#pragma GCC visibility push(hidden)

namespace gpukernel::libcuda {

// A handle names the device in its upper bits, and below them one of the device's pieces of physical memory.
constexpr int DEVICE_SHIFT = 48;
// nullptr for a handle of no device.
template <class Mine>
Mine* device_of_handle(CUmemGenericAllocationHandle handle) {
    return static_cast<Mine*>(device_at(static_cast<CUdevice>(handle >> DEVICE_SHIFT)));
}
constexpr uint64_t number_of_handle(CUmemGenericAllocationHandle handle) {
    return handle & ((uint64_t{1} << DEVICE_SHIFT) - 1);
}
inline CUmemGenericAllocationHandle handle_of(const Device& device, uint64_t number) {
    return static_cast<uint64_t>(number_of(device)) << DEVICE_SHIFT | number;
}

// Find the device that `prop` wants memory of.  Memory of the host is refused, and memory to be shared by a
// handle that the device's is not shared by.
CUresult check_property(const CUmemAllocationProp* prop, Device*& device);
template <class Mine>
CUresult device_of_property(const CUmemAllocationProp* prop, Mine*& device) {
    Device* found = nullptr;
    const CUresult error = check_property(prop, found);
    device = static_cast<Mine*>(found);
    return error;
}

// CUDA_SUCCESS for arguments that cuMemAddressReserve takes, else CUDA_ERROR_INVALID_VALUE.
CUresult check_reservation(const CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr wanted,
                           unsigned long long flags);

}  // namespace gpukernel::libcuda

#pragma GCC visibility pop
