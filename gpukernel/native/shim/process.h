// What this process knows: its lease, its devices, each thread's stack of contexts.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "connection.h"
#include "wire/device_facts.h"

namespace gpukernel::shim {

struct Context;

struct Device {
    int index;
    Connection connection;
    wire::DeviceFacts facts;  // told by the worker once, answered from here ever after
    std::unique_ptr<Context> primary;
    int retained = 0;
    std::atomic<unsigned> resets{0};  // by cuDevicePrimaryCtxReset
};

struct Context {
    Device* device;
    unsigned flags = 0;
};

struct Process {
    std::string lease;
    std::vector<std::unique_ptr<Device>> devices;
};

// After cuInit succeeded, and not in a forked child; else nullptr.  Where cuInit left the queue because its
// cell was interrupted, this waits again: some libraries call cuInit once in their life.
Process* process();
CUresult initialise();

extern thread_local std::vector<Context*> context_stack;
extern thread_local bool calling_host;  // this thread runs a function of the program for a stream

Device* device_at(CUdevice index);      // nullptr for a number that is none
Context* context_of(CUcontext handle);  // nullptr for a stray handle

// The connection of the current context, or of the first device; nullptr with the error to return.
Connection* current(CUresult& error);
Connection* default_device(CUresult& error);

#define GPUKERNEL_CONNECTION(connection, of)                                                        \
    CUresult error_of_##connection = CUDA_SUCCESS;                                                  \
    ::gpukernel::shim::Connection* const connection = ::gpukernel::shim::of(error_of_##connection); \
    if (!connection) return error_of_##connection
#define GPUKERNEL_CURRENT(connection) GPUKERNEL_CONNECTION(connection, current)
#define GPUKERNEL_DEFAULT_DEVICE(connection) GPUKERNEL_CONNECTION(connection, default_device)

}  // namespace gpukernel::shim
