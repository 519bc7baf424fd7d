// A kernel launch with its parameters packed, in the form in which it is sent and in which graphs keep it.
#pragma once

#include "libcuda/launch.h"
#include "shim/modules/modules.h"
#include "wire/protocol.h"

namespace gpukernel::shim {

struct KernelCall {
    const void* function = nullptr;  // a CUfunction, or a CUkernel in its place
    unsigned shape[6] = {};          // the grid, then the block
    unsigned shared = 0;
    wire::LaunchMode mode;
    std::shared_ptr<const Layout> layout;
    std::vector<char> block;      // the parameters where the layout has them
    const void* named = nullptr;  // the function as the program calls it
};

// Tell a worker how a launch is to be made; false: no device takes such clusters.
bool mode_of(const libcuda::LaunchShape& shape, wire::LaunchMode& mode);
bool read_attribute(CUlaunchAttributeID id, const CUlaunchAttributeValue& value, wire::LaunchMode& mode);

// Packs the parameters, given in either form of cuLaunchKernel.
CUresult pack(Connection& connection, KernelCall& call, void** params, void** extra);
CUresult queue(Connection& connection, const KernelCall& call, CUstream stream);

}  // namespace gpukernel::shim
