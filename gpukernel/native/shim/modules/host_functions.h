// Host functions: functions of the program that its streams call, one after another, in a thread of the shim.
#pragma once

#include <unordered_map>

#include "shim/process.h"

namespace gpukernel::shim {

struct HostCall {
    CUhostFn function;          // or
    CUstreamCallback callback;  // which is called after an error, too
    CUstream stream;
    void* data;
    explicit operator bool() const { return function || callback; }
};
// Puts a call into its stream and returns: it is made when all earlier work of the stream is done, and later
// work waits for it.
CUresult call_in_order(Connection& connection, const HostCall& call);
// Runs a function in this thread; `status` is of the work before it.
void perform(const HostCall& call, CUresult status);
// Puts a gate into a stream that opens when the `call`th function run in the program has (local_calls.h), and
// returns the request's number.  Under the connection's mutex, before a request begins.
uint64_t add_gate(Connection& connection, uint64_t stream, uint64_t call);
// Whether there may be one more report that says when a stream has come to a place.  Then, under the mutex,
// either puts the place into the stream, or forgets it.
bool expect_report(Connection& connection);
void add_report(Connection& connection, uint64_t stream);
void forget_report(Connection& connection);
class Request;
// What a wait comes after: the functions that a device's worker was given in `places`, streams and the
// requests up to which they are meant, or in all streams up to `number`, and those run in the program up to
// `call`.  An error was told of requests up to `told` when the wait began.
struct FunctionsBefore {
    bool any = false, all = false, asks = false;  // asks: does not wait
    std::unordered_map<uint64_t, uint64_t> places;
    uint64_t number = 0, call = 0, told = 0;
};
// Under the mutex, of a request that is written and not sent.
FunctionsBefore functions_before(Connection& connection, const Request& request);
// Without the mutex, where the worker says that the wait is over: waits for the functions, since the worker
// may have had no room for the places at which later work waits for them.  An error of one for which it had
// none is told to whoever waits for its stream, until it was told to somebody.
CUresult come_after(Connection& connection, const FunctionsBefore& before, CUresult result);
CUresult finish_host_calls(Connection& connection);  // waits for all of a connection
bool host_calls_are_left();                          // on any device, running or pending

}  // namespace gpukernel::shim
