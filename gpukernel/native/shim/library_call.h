// A math library's call, in the form in which it is sent and in which graphs keep it (library_port.cpp).
#pragma once

#include <vector>

#include "shim/transport/connection.h"

namespace gpukernel::shim {

struct LibraryCall {
    uint32_t library = 0, function = 0;
    std::vector<uint64_t> arguments;
};

CUresult queue(Connection& connection, const LibraryCall& call, CUstream stream);

}  // namespace gpukernel::shim
