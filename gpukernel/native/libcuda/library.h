// The interface that each libcuda.so.1 implements for the code that all of them share.
//
// The other files of this folder decode and check what a program calls with: descriptors, attributes, the
// older forms of a call.  What remains differs: the shim sends it to a worker, the simulated GPU executes it.
// Those parts are declared here; each library defines every one of them, once.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "codegen/cuda_driver.h"
#include "libcuda/jit_logs.h"
#include "libcuda/launch.h"

// A thread-local variable with a fixed place in each thread, which costs one load at every use.
// Others of a library that a program may open later are found by a call, are initialised by a second one
// where another file defines them, and may be allocated at their first use, which a signal handler must not
// do.  A library that has one of this kind gets the room for all its thread-local variables when it is
// opened, out of 1.6 KiB that the C library keeps for everything that a program opens:
// tests/native/test_thread_local.py says how much.
#define GPUKERNEL_STATIC_THREAD_LOCAL constinit thread_local __attribute__((tls_model("initial-exec")))

// Nothing of this is exported, so that calls within the library are direct.
#pragma GCC visibility push(hidden)

namespace gpukernel::libcuda {

// --- when a call may be made ---

// CUDA_SUCCESS after cuInit, else CUDA_ERROR_NOT_INITIALIZED: for calls that need no context.
CUresult initialised();
// CUDA_SUCCESS where the calling thread has a current context and may use it, else the error that a call
// returns.
CUresult current_usable();

// --- devices ---

// The base of each library's own, and as visible as that; what is exported is the version script's to say.
struct __attribute__((visibility("default"))) Device {};

int device_count();                  // after cuInit
Device* device_at(CUdevice number);  // nullptr for a number that is none, and before cuInit
CUdevice number_of(const Device& device);
std::string name_of(const Device& device);
CUuuid uuid_of(const Device& device);
uint64_t total_memory(const Device& device);  // bytes
std::string bus_id_of(const Device& device);  // "0000:01:00.0"
// Returns false for an attribute that there is not.  Programs ask often, and an optional<int> across files
// costs more than the look-up: it is stored in two parts and loaded in one.
bool attribute_of(const Device& device, CUdevice_attribute attribute, int& value);

// Define `variable` as the device of a number, or return the error from the calling function.  Device and
// device_at are those that the calling file sees.
#define GPUKERNEL_DEVICE(variable, number)                                                 \
    Device* const variable = device_at(number);                                            \
    if (!variable)                                                                         \
    return ::gpukernel::libcuda::initialised() == CUDA_SUCCESS ? CUDA_ERROR_INVALID_DEVICE \
                                                               : CUDA_ERROR_NOT_INITIALIZED

// --- contexts: each library says what a CUctx_st is ---

// The calling thread's contexts; the last is current.
inline GPUKERNEL_STATIC_THREAD_LOCAL std::vector<CUcontext>* own_context_stack = nullptr;
std::vector<CUcontext>& begin_context_stack();
inline std::vector<CUcontext>& context_stack() {
    return own_context_stack ? *own_context_stack : begin_context_stack();
}

bool is_context(CUcontext handle);
Device& device_of(CUcontext context);
unsigned& flags_of(CUcontext context);

struct PrimaryContext {
    CUcontext context;
    std::mutex& mutex;  // guards `retained`
    int& retained;
};
PrimaryContext primary_context(Device& device);

// --- modules ---

// Load an image.  `bytes` may be read at `image`; 0 where the caller does not say how many.
CUresult load_module(const void* image, size_t bytes, const JitLogs& logs, CUmodule& module);
CUresult load_library(const void* image, size_t bytes, const JitLogs& logs, CUlibrary& library);

// --- launches ---

CUresult launch(const void* function, const LaunchShape& shape, CUstream stream, void** params, void** extra);

// --- memory ---

// Host memory that the device reaches (CU_MEMHOSTALLOC_DEVICEMAP), and its flags; none: not such memory.
CUresult allocate_mapped(void** pointer, size_t bytes, unsigned flags);
std::optional<unsigned> mapped_flags(const void* pointer);
// CUDA_SUCCESS where a program may ask about host memory, else the error.  The shim's belongs to the process,
// the simulated GPU's to the current context.
CUresult host_memory_usable();
// Pinned memory, which kernels reach by the same address (unified addressing).
CUresult allocate_pinned(void** pointer, size_t bytes);
// Host memory that a program allocated or registered, and the device cannot reach yet.
bool is_pinned(const void* pointer);
// Lets the device reach the pinned memory that the program allocated there; CUDA_SUCCESS where there is none.
CUresult map_pinned(const void* pointer);
// The device's address of registered memory.
CUresult registered_pointer(const void* pointer, CUdeviceptr& address);

// CUDA_SUCCESS where copies of a batch may go into `stream` one after another, else what the batch returns.
CUresult may_batch(CUstream stream);

// CUDA_SUCCESS for a handle of physical memory that is alive (cuMemCreate), and what it may be shared by,
// else the error.
CUresult check_physical(CUmemGenericAllocationHandle handle, CUmemAllocationHandleType& shared_by);
// Whether programs may share a device's physical memory by handles of that type.
bool can_share_by(const Device& device, CUmemAllocationHandleType type);

}  // namespace gpukernel::libcuda

#pragma GCC visibility pop
