// A kernel's launch with its parameters packed, as it travels; a graph keeps it and launches it again and
// again.
#pragma once

#include "modules.h"
#include "wire/protocol.h"

namespace gpukernel::shim {

struct KernelCall {
    const void* function = nullptr;  // a CUfunction, or a CUkernel in its place
    unsigned shape[6] = {};          // the grid, then the block
    unsigned shared = 0;
    wire::LaunchMode mode;
    std::shared_ptr<const Layout> layout;
    std::vector<char> block;  // the parameters where the layout has them
};

// The attributes of a launch that a kernel can tell; false: no device takes such clusters.
bool read_attribute(CUlaunchAttributeID id, const CUlaunchAttributeValue& value, wire::LaunchMode& mode);
bool read_attributes(const CUlaunchConfig& config, wire::LaunchMode& mode);

// Reads the parameters that the caller points at, either way of cuLaunchKernel.
CUresult pack(Connection& connection, KernelCall& call, void** params, void** extra);
CUresult queue(Connection& connection, const KernelCall& call, CUstream stream);

}  // namespace gpukernel::shim
