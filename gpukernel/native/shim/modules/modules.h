// The layout of kernels' parameter blocks, requested from the worker once for each kernel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libcuda/library.h"
#include "shim/transport/connection.h"

namespace gpukernel::shim {

constexpr uint32_t MOST_PARAMETER_BYTES = 32 << 10;  // PTX ISA 5.1.6.1: 32764 since version 8.1

struct Layout {
    struct Parameter {
        uint32_t offset, size;
    };
    std::vector<Parameter> parameters;
    uint32_t bytes = 0, most_threads = 1024, registers = 0;  // of a block, of a thread
    std::string name;
};

// Returns the layout of a CUfunction or CUkernel.
CUresult layout_of(Connection& connection, const void* function, std::shared_ptr<const Layout>& layout);

// Loads an image as a library of the connection's worker, which calls it `handle`.
CUresult load_library_on(Connection& connection, const void* image, const libcuda::JitLogs& logs,
                         uint64_t& handle);

}  // namespace gpukernel::shim
