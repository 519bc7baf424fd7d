// Host functions: functions of the program that its streams call, one after another, in a thread of the shim.
#pragma once

#include "shim/process.h"

namespace gpukernel::shim {

struct HostCall {
    CUhostFn function;          // or
    CUstreamCallback callback;  // which is called after an error, too
    CUstream stream;
    void* data;
};
// Puts a call into its stream and returns: it is made when all earlier work of the stream is done, and later
// work waits for it.
CUresult call_in_order(Connection& connection, const HostCall& call);
// Runs a function in this thread; `status` is of the work before it.
void perform(const HostCall& call, CUresult status);
// Puts a gate into a stream that opens when the `call`th function run in the program has (local_calls.h), and
// returns the request's number.  Under the connection's mutex, before a request begins.
uint64_t add_gate(Connection& connection, uint64_t stream, uint64_t call);
// The number of a report that will say when a stream has come to a place; 0: it cannot be had.  Then, under
// the mutex, either puts the place into the stream, or forgets it.
uint64_t expect_report(Connection& connection);
void add_report(Connection& connection, uint64_t stream, uint64_t number);
void forget_report(Connection& connection, uint64_t number);
CUresult finish_host_calls(Connection& connection);  // waits for all of a connection
bool host_calls_are_left();                          // on any device, running or pending

}  // namespace gpukernel::shim
