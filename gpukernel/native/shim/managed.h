// Managed memory (cuMemAllocManaged): one address that means the same memory to the program and to its slice.
//
// The range is reserved on both sides.  On the device's side physical memory is mapped there; on this side
// pages of a file without a name, which a second mapping shows to the shim alone.  The program's pages are in
// blocks, each in one of these states:
//
//     fresh   never used by the device: readable and writable; what was written is what the file holds
//     clean   as on the device: readable
//     dirty   written here since: readable and writable
//     open    small, as on the device when it came: readable and writable, with a copy to compare with
//     stale   the device may have something newer: a touch fetches it
//
// Work that may use managed memory first gets what was written here, and leaves stale what it may write
// (DeviceWork).  A touch of a stale block waits for all work that was submitted before, then fetches the
// block, and the more of what follows it the longer touches go on in order.  So the two sides agree at every
// point where CUDA demands it, and a program that forgets to wait sees whole results too.
#pragma once

#include <atomic>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <optional>

#include "process.h"

namespace gpukernel::shim {

extern std::atomic<int> managed_allocations;
inline bool has_managed() { return managed_allocations.load(std::memory_order_relaxed) != 0; }

// The one mutex of managed memory, taken before any connection's.  Whoever holds it touches no managed page.
class ManagedLock {
  public:
    ManagedLock() = default;  // holds nothing
    explicit ManagedLock(std::mutex& mutex);
    ManagedLock(ManagedLock&&) = default;
    ManagedLock& operator=(ManagedLock&&) = default;
    ~ManagedLock();

  private:
    std::unique_lock<std::mutex> lock_;
};

bool holds_managed();  // this thread: what it asks of a worker now is managed memory's own

// What some work on the device uses, for as long as it takes to submit it.
struct Use {
    CUdeviceptr address;
    uint64_t bytes;
    bool writes;
};
class DeviceWork {
  public:
    // A kernel: it may use everything.
    DeviceWork(Connection& connection, CUstream stream) {
        if (has_managed()) everything(connection, stream);
    }
    DeviceWork(Connection& connection, CUstream stream, std::initializer_list<Use> uses) {
        if (has_managed()) some(connection, stream, uses);
    }

  private:
    void everything(Connection& connection, CUstream stream);
    void some(Connection& connection, CUstream stream, std::initializer_list<Use> uses);
    ManagedLock lock_;
};

// A wait for a stream, or for all: when it is over, what is here may be up to date again.
class DeviceWait {
  public:
    DeviceWait(Connection& connection, std::optional<CUstream> stream);
    CUresult over(CUresult result) const;

  private:
    Connection* connection_ = nullptr;  // where the wait is for everything that is under way
    uint64_t submitted_ = 0;
};

Connection* managed_at(uint64_t address);  // whose memory it is; nullptr: it is not managed
inline bool is_managed(uint64_t address) { return managed_at(address) != nullptr; }
// Everything that the device has ends; `end` has the worker do so.
CUresult end_managed(Connection& connection, const std::function<CUresult()>& end);

// A copy between the host and the device where either side is managed memory; nothing where none is.
std::optional<CUresult> managed_copy(Connection& connection, CUdeviceptr to, CUdeviceptr from, uint64_t bytes,
                                     bool to_device, CUstream stream);
std::optional<CUresult> managed_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr address);

// Host memory that the device reaches at the same address (CU_MEMHOSTALLOC_DEVICEMAP): managed memory under
// another name.
CUresult allocate_mapped(void** pointer, size_t bytes, unsigned flags);
std::optional<CUresult> free_mapped(const void* pointer);      // nothing where it is not such memory
std::optional<unsigned> flags_of_mapped(const void* pointer);  // those it was allocated with

// A fault at `address`, in the thread that serves them; false: not of managed memory.
bool serve_fault(uint64_t address, std::optional<bool> writing);

}  // namespace gpukernel::shim
