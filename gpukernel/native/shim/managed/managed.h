// Managed memory (cuMemAllocManaged): memory at the same address in the program and on the device, kept
// coherent by page faults.
//
// The range is reserved on both sides.  On the device's side physical memory is mapped there; on this side
// pages of an anonymous file, which a second mapping shows to the shim alone.  The pages form blocks, each in
// one of these states:
//
//     fresh   never used by the device: readable and writable; what was written is what the file holds
//     clean   the same as on the device: readable
//     dirty   written here since: readable and writable
//     open    small, the same as on the device when fetched: readable and writable, with a copy to compare
//     with stale   the device may have newer data: an access fetches it
//
// Before work that may use managed memory is submitted, dirty data is sent, and blocks that the work may
// write become stale (DeviceWork).  An access to a stale block waits for all work submitted before, then
// fetches the block, with read-ahead that grows while accesses are sequential.  So the two sides agree
// wherever CUDA requires it, and a program that forgets to synchronise still sees complete results.
#pragma once

#include <atomic>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <optional>

#include "shim/process.h"

namespace gpukernel::shim {

extern std::atomic<int> managed_allocations;
inline bool has_managed() { return managed_allocations.load(std::memory_order_relaxed) != 0; }

// The one mutex of managed memory.  Lock order: before any connection's.  A thread that holds it accesses no
// managed page.
class ManagedLock {
  public:
    ManagedLock() = default;  // not locked
    explicit ManagedLock(std::mutex& mutex);
    ManagedLock(ManagedLock&&) = default;
    ManagedLock& operator=(ManagedLock&&) = default;
    ~ManagedLock();

  private:
    std::unique_lock<std::mutex> lock_;
};

// Whether this thread holds that mutex: its requests are then managed memory's own.
bool holds_managed();

// A range of device memory that some work uses.
struct MemoryUse {
    CUdeviceptr address;
    uint64_t bytes;
    bool writes;
};
// Prepares managed memory for work on the device; lives until the work is submitted.
class DeviceWork {
  public:
    // For kernels, which may use everything.
    DeviceWork(Connection& connection, CUstream stream) {
        if (has_managed()) everything(connection, stream);
    }
    DeviceWork(Connection& connection, CUstream stream, std::initializer_list<MemoryUse> uses) {
        if (has_managed()) some(connection, stream, uses);
    }
    DeviceWork(const DeviceWork&) = delete;
    ~DeviceWork() {
        if (unfinished_) finish();
    }

  private:
    void everything(Connection& connection, CUstream stream);
    void some(Connection& connection, CUstream stream, std::initializer_list<MemoryUse> uses);
    void finish();
    ManagedLock lock_;
    Connection* unfinished_ = nullptr;  // set where registered memory is written before the call returns
};

// A wait for one stream or for all: afterwards the program's pages may be up to date.
class DeviceWait {
  public:
    DeviceWait(Connection& connection, std::optional<CUstream> stream);
    // For work that is not known here.
    explicit DeviceWait(Connection& connection) : of_(connection) {}
    CUresult over(CUresult result) const;

  private:
    Connection& of_;
    bool known_ = false;                // for these:
    std::optional<uint64_t> stream_;    // none: the whole device
    uint64_t requests_ = 0;             // that were made before
    Connection* connection_ = nullptr;  // set where the wait is for all work that managed memory knows of
    uint64_t submitted_ = 0;
};
// What belongs to a wait that asks nobody, since the device is known to have nothing left to do; nothing
// where it has, or where a wait stores here what kernels wrote.
std::optional<CUresult> waited_here(Connection& connection);

// The connection of the managed memory at `address`; nullptr where it is not managed.
Connection* managed_at(uint64_t address);
inline bool is_managed(uint64_t address) { return managed_at(address) != nullptr; }
// Calls `end`, by which the worker releases everything on the device, and marks its managed memory as lost.
CUresult end_managed(Connection& connection, const std::function<CUresult()>& end);

// Whether one end of a copy is the program's own memory.
enum class Ends { device, host_to_device, device_to_host };
// Makes a copy in the program where the device has nothing to do with it (local_copies.cpp); nothing where it
// has.
std::optional<CUresult> copy_here(Connection& connection, CUdeviceptr to, CUdeviceptr from, uint64_t bytes,
                                  Ends ends);
// Copies between host and device where either side is managed memory; nothing where none is.
std::optional<CUresult> managed_copy(Connection& connection, CUdeviceptr to, CUdeviceptr from, uint64_t bytes,
                                     bool to_device, CUstream stream);
std::optional<CUresult> managed_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address);

// Before the program's first managed memory is made: what is on its way and may touch it is finished.
CUresult before_managed(Connection& connection);
// Makes pinned memory of so many bytes, with whole units reserved here, memory that kernels reach.
CUresult adopt_pinned(Device& device, CUdeviceptr address, uint64_t room, uint64_t bytes);
// How much there is from `address` on, in the device's addresses, of managed memory, mapped host memory or
// registered memory that kernels reach; nothing where that is something else.  Others of them may follow.
// `owner`: whose memory it is, where it has that address in this process, too.
std::optional<uint64_t> bytes_from(CUdeviceptr address, const Connection*& owner);
// Registered memory that kernels reach (mirrors.cpp).
struct RegisteredMemory {
    uint64_t address, bytes;
    unsigned flags;
};
extern std::atomic<int> mirrors;
inline bool has_mirrors() { return mirrors.load(std::memory_order_relaxed) != 0; }
// The device's address of registered memory, which counts against the slice from the first time on.
CUresult mirror(Device& device, const RegisteredMemory& memory, CUdeviceptr& address);
std::optional<CUdeviceptr> mirrored_at(Device& device, uint64_t host);  // where it is asked for already
void end_mirrors(uint64_t host);  // waits for what uses them, and stores what kernels wrote
// Before the program's memory is read: waits for kernels that may write it.
void bring_home(uint64_t host, uint64_t bytes);

// Frees mapped host memory (CU_MEMHOSTALLOC_DEVICEMAP), which is managed memory that libcuda::allocate_mapped
// makes; nothing for other memory.
std::optional<CUresult> free_mapped(const void* pointer);

// Memory that the program maps itself (mapped.cpp).  With `reaches_mapped` the processor may touch it, too.
extern std::atomic<bool> reaches_mapped;
// Shows the program the pages of [address, address + bytes), whole units in a range that it has reserved and
// where the device may use memory that was mapped there; `used` where that memory may hold something.
CUresult reach(Device& device, MemoryUse range, CUdeviceptr address, uint64_t bytes, bool used);
bool is_reached(CUdeviceptr address);
// Calls `unmap`, by which the worker unmaps, and takes the pages away with what they hold.
CUresult end_reach(CUdeviceptr address, uint64_t bytes, const std::function<CUresult()>& unmap);
void forget_reserved(CUdeviceptr range);  // whose addresses are free again

// Serves a fault at `address`, in the thread that serves all of them; false where it is not of managed
// memory, or nothing may be fetched: a signal's handler touched it while its thread waited in a CUDA call.
bool serve_fault(uint64_t address, std::optional<bool> writing, bool may_fetch);
constexpr char IN_A_CALL[] =
    "managed memory was touched in the middle of a CUDA call, where it cannot be fetched.";

}  // namespace gpukernel::shim
