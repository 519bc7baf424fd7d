// Functions of the program that its streams call: one after another, in a thread of the shim.
#pragma once

#include "process.h"

namespace gpukernel::shim {

struct HostCall {
    CUhostFn function;          // or
    CUstreamCallback callback;  // which is called after an error, too
    CUstream stream;
    void* data;
};
// Returns at once; the call is made when all is done that was submitted to its stream before, and what is
// submitted later waits for it.
CUresult call_in_order(Connection& connection, const HostCall& call);
CUresult finish_host_calls(Connection& connection);  // waits for them
bool host_calls_are_left();                          // on any device, one that runs too

}  // namespace gpukernel::shim
