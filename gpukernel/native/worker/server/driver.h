// The CUDA library that the worker loads: NVIDIA's or the simulated GPU's, by the same functions.
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <string>

#include "common/cancellation.h"
#include "common/execution_gate.h"
#include "common/kernel_table.h"
#include "common/memory_check.h"
#include "worker/lease/host_memory.h"

namespace gpukernel::worker {

// The library's functions by name; the list is generated from codegen/calls.txt.
struct Driver {
#define GPUKERNEL_DRIVER_FUNCTION(name) decltype(&::name) name = nullptr;
#include "driver_functions.inc"
#undef GPUKERNEL_DRIVER_FUNCTION

    // Of a simulated device, whose kernels can be paused; nullptr where the library has none.
    SetExecutionGate set_execution_gate = nullptr;
    // The same for programs, whose work can be cancelled.
    WorkFor work_for = nullptr;
    EndProgram end_program = nullptr;
    // Of a simulated device, whose kernels' accesses are checked; nullptr where the library has none.
    SetMemoryCheck set_memory_check = nullptr;
    // The same for what it says of its kernels.
    ReadKernels read_kernels = nullptr;
    ProfileKernels profile_kernels = nullptr;
    SetRange set_range = nullptr;

    // Loads the library at `path`; a function that it lacks returns CUDA_ERROR_NOT_SUPPORTED.  False, and
    // `error` says why, where it cannot be loaded or finds no usable device.
    bool load(const std::string& path, std::string& error);
    std::string error_name(CUresult code) const;
    bool simulated() const;
    // Whether it loads a module's code when that is first used, as CUDA_MODULE_LOADING or its own usual
    // choice say.
    bool loads_lazily() const;
    // Whether kernels' local memory is the device's, as with NVIDIA's; a simulated device's is the host's.
    bool local_memory_on_device() const;
    std::string folder() const;  // where the library lies
    // Frees what kernels of a simulated device have from malloc(); NVIDIA's keeps it until its context ends.
    void clear_heap() const;
    // Has the simulated GPU's library ask `book` for what it takes of the host's memory.
    void bound(HostMemory& book) const;

  private:
    void* library_ = nullptr;
};

}  // namespace gpukernel::worker
