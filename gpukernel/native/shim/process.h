// The state of this process: its lease, its devices, and each thread's stack of contexts.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "libcuda/library.h"
#include "shim/transport/connection.h"
#include "wire/device_facts.h"

namespace gpukernel::shim {
struct Device;
}

// A context of the driver API: a device's primary one, or one that the program created.  Each is a name, with
// flags of its own, for the one context that the worker has: what is made in any of them belongs to the
// device.
struct CUctx_st {
    gpukernel::shim::Device* device;
    unsigned flags = 0;
    std::atomic<unsigned> uses{1};       // cuCtxCreate and cuCtxAttach
    std::atomic<bool> destroyed{false};  // and still on the stack of a thread, perhaps
    CUctx_st(gpukernel::shim::Device* of, unsigned its_flags = 0) : device(of), flags(its_flags) {}
};

namespace gpukernel::shim {

using Context = CUctx_st;

struct Device : libcuda::Device {
    int index;
    Connection connection;
    wire::DeviceFacts facts;  // read from the worker once
    std::unique_ptr<Context> primary;
    int retained = 0;
    std::atomic<unsigned> resets{0};  // by cuDevicePrimaryCtxReset, and slices that the process had before
};

struct Process {
    std::string lease;
    std::vector<std::unique_ptr<Device>> devices;
};

// The process's state once cuInit has succeeded; nullptr before, and in a forked child.
extern std::atomic<Process*> instance;
// Where cuInit left the queue because its cell was interrupted, waits again, since some libraries call cuInit
// only once.
Process* process_after_a_wait();
inline Process* process() {
    Process* const found = instance.load(std::memory_order_acquire);
    return found ? found : process_after_a_wait();
}
// Implements cuInit: reads the lease file, waits for a lease if need be, and connects.
CUresult initialise();

using libcuda::context_stack;
extern GPUKERNEL_STATIC_THREAD_LOCAL bool calling_host;  // this thread runs a host function

// Whether the slice has parts of several devices; a process of one has no need to tell them apart.
inline bool several_devices() {
    const Process* const now = process();
    return now && now->devices.size() > 1;
}
Device* device_at(CUdevice index);      // nullptr for a number that is none
Context* context_of(CUcontext handle);  // nullptr for a stray handle

// Return the connection of the current context, or without one of the first device; nullptr, and the error to
// return.
Connection* current(CUresult& error);
Connection* default_device(CUresult& error);
// The same for a call that names its device.
Connection* of_device(CUdevice device, CUresult& error);
// The device of a stream or an event that the program made; nullptr for a default stream and a stray handle.
Device* device_named(const void* handle);
// The same for a call whose stream or event says which device it is for: NVIDIA's driver then needs no
// current context, or another one may be.  A default stream is the current context's.
Connection* named_device(const void* handle, CUresult& error);

// False for a stream or an event of another device.
inline bool may_be_of(const Connection& connection, const void* handle) {
    const Device* const device = device_named(handle);
    return !device || &device->connection == &connection;
}

#define GPUKERNEL_CONNECTION(connection, of, ...)                                \
    CUresult error_of_##connection = CUDA_SUCCESS;                               \
    ::gpukernel::shim::Connection* const connection =                            \
        ::gpukernel::shim::of(__VA_ARGS__ __VA_OPT__(, ) error_of_##connection); \
    if (!connection) return error_of_##connection
#define GPUKERNEL_CURRENT(connection) GPUKERNEL_CONNECTION(connection, current)
#define GPUKERNEL_DEFAULT_DEVICE(connection) GPUKERNEL_CONNECTION(connection, default_device)
#define GPUKERNEL_OF_DEVICE(connection, device) GPUKERNEL_CONNECTION(connection, of_device, device)
#define GPUKERNEL_NAMED_DEVICE(connection, ...) \
    GPUKERNEL_CONNECTION(connection, named_device __VA_OPT__(, ) __VA_ARGS__)

}  // namespace gpukernel::shim
