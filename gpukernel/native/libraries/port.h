// The way of a math library's calls out of the program: what the shim's libcuda.so.1 offers to the libraries
// beside it.
//
// They find `gpukernel_library_port` by dlsym in the libcuda.so.1 that is loaded.  It is private to this
// package; a libcuda.so.1 that lacks it, or knows another version of it, is not our shim.
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace gpukernel::libraries {

// A call as data.  `library` and `function` are numbers of the tables in libraries/; the arguments are words
// of 64 bits, so that device addresses among them can be found.
struct PortCall {
    uint32_t library, function;
    CUstream stream;
    const uint64_t* arguments;
    size_t words;
};

struct Port {
    // Queues the call in the stream's order.  In a stream that captures it becomes a node of the graph,
    // `captured` says so, and every launch of the graph queues it again.
    CUresult (*queue)(const PortCall* call, bool* captured);
    // Waits for the answer: the library's status, and where that is 0 at most `size` bytes of outputs, whose
    // number `got` receives.  Where the call `waits` for its stream, a capture forbids it.
    CUresult (*ask)(const PortCall* call, bool waits, int32_t* status, void* outputs, size_t size,
                    size_t* got);
    uint64_t (*name)();  // a new number for an object of the current device
    // What stands for the current device until it is reset, or -1 where no context is current.
    int (*current_device)();
};

constexpr uint32_t PORT_VERSION = 1;
constexpr char PORT[] = "gpukernel_library_port";
using FindPort = const Port* (*)(uint32_t version);

}  // namespace gpukernel::libraries
