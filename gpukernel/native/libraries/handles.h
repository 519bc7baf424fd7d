// Handles of the libraries whose only settings are a stream and a few modes (cuSOLVER, cuSPARSE, cuRAND): the
// same in the program and beside the simulated GPU.
#pragma once

#include <cstdint>
#include <memory>

#include "libraries/library.h"

namespace gpukernel::libraries {

// The library's own numbers, which the file with its functions defines.
struct Statuses {
    int not_initialized, alloc_failed, invalid_value, execution_failed, internal_error, not_supported;
};
extern const Statuses STATUSES;

// What computes beside the simulated GPU needs no workspace of the program's; programs take an address of
// none for an error.
constexpr int LEAST_ROOM = 16;

struct StreamHandle {
    CUstream stream = nullptr;
    int pointer_mode = 0;  // 0: scalars are on the host
    int mode = 0;          // what else the library lets a program set
    // In the program: the worker's number of it, the device, and what the worker said of its library.
    uint64_t name = 0;
    int device = -1, version = 0;
    bool simulated = false;
    bool captured = false;       // a graph has calls with it
    std::shared_ptr<void> more;  // what else the library keeps with it
};

StreamHandle* handle_of(void* handle);  // nullptr for a stray one
void* keep_handle(StreamHandle* handle);
StreamHandle* drop_handle(void* handle);  // makes it invalid; the caller deletes it

int status_of(CUresult result);

}  // namespace gpukernel::libraries
