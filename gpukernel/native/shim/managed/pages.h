// The data of managed memory: ranges, allocations in blocks, and which side has the newest data.
// Managed::mutex guards all of it.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "libcuda/managed_advice.h"
#include "shim/managed/managed.h"

namespace gpukernel::shim {

constexpr uint64_t BLOCK = 64 << 10;

inline void* at(uint64_t address) { return reinterpret_cast<void*>(address); }

enum class BlockState : uint8_t { fresh, clean, dirty, open, stale };

// Addresses reserved on both sides, with memory of the device mapped at the worker; holds one or several
// allocations.
struct ManagedRange {
    Connection* connection;
    CUdeviceptr address;
    uint64_t bytes, handle;
    std::map<CUdeviceptr, uint64_t> gaps;
    CUdeviceptr used_up_to;  // behind it the device's memory is as it came
};

// The read-ahead window: it doubles while accesses are sequential, and shrinks to one block otherwise.
struct InOrder {
    size_t next = 0, window = 1;
    size_t end(size_t block, size_t most) {
        window = block == next ? std::min(2 * window, most) : 1;
        return next = block + window;
    }
};

struct ManagedAllocation {
    ManagedRange* range;
    Device* device;
    CUdeviceptr address;
    uint64_t bytes, room;
    char* view;       // the shim's own
    uint64_t offset;  // in the file
    std::pair<uint64_t, uint64_t> file;
    std::vector<BlockState> blocks;
    std::vector<char> twin;  // of an open one
    InOrder read, written;
    bool wanted = false;                 // on the host, by cuMemPrefetchAsync
    bool lost = false;                   // the device's memory is gone
    std::optional<unsigned> host_flags;  // of cuMemHostAlloc: to the program it is host memory
    bool mapped = false;                 // by the program (mapped.cpp): to it no managed memory
    ManagedAdvice advice;

    Connection& connection() const { return *range->connection; }
    size_t block(CUdeviceptr at) const { return (at - address) / BLOCK; }
    uint64_t begin(size_t block) const { return block * BLOCK; }
    uint64_t end(size_t block) const { return std::min((block + 1) * BLOCK, room); }
};

// What a device has of registered memory, or a managed variable (mirrors.cpp).
struct Mirror {
    Device* device;
    uint64_t host, bytes;  // the program's own
    ManagedRange* range;
    CUdeviceptr address;
    uint64_t room;
    std::vector<char> twin;
    bool read_only;
    bool out = false;      // the device may have newer data,
    uint64_t written = 0;  // until so much of the connection's work is finished
    bool lost = false;
    uint64_t library = 0;  // of a managed variable, which has one address on both sides (variables.cpp)
};

// The work of one connection that may have changed managed memory.
struct Progress {
    uint64_t submitted = 0, finished = 0;  // counts of such work
    std::set<uint64_t> streams;            // in which it runs
    std::set<ManagedAllocation*> here;     // allocations with a block that is not stale
    uint64_t mirror_stream = 0;
};

// The pages of a range that the program has reserved and maps memory of one device in (mapped.cpp).
struct MappedRange {
    ManagedRange range;
    ManagedAllocation pages;  // as many as the range is long; memory has what was touched
};

struct Managed {
    std::mutex mutex;
    int file = -1;  // behind all pages
    uint64_t file_bytes = 0;
    // Of the file: programs close descriptors that they do not know, and their numbers are used again.
    std::pair<uint64_t, uint64_t> identity;
    bool has_file() const;
    std::map<CUdeviceptr, std::unique_ptr<ManagedAllocation>> allocations;
    std::vector<std::unique_ptr<ManagedRange>> ranges;
    std::map<CUdeviceptr, std::unique_ptr<Mirror>> mirrors;
    std::map<Connection*, Progress> progress;
    std::vector<std::unique_ptr<MappedRange>> mapped;
    std::set<uint64_t> variable_pages;  // of the program, under managed variables
    bool told_of_loss = false;

    ManagedAllocation* find(CUdeviceptr address) {
        auto it = allocations.upper_bound(address);
        if (it == allocations.begin()) return nullptr;
        ManagedAllocation* found = std::prev(it)->second.get();
        return address - found->address < found->room ? found : nullptr;
    }
    Mirror* find_mirror(CUdeviceptr address);
    ManagedAllocation* find(CUdeviceptr address, uint64_t bytes) {
        ManagedAllocation* found = find(address);
        const uint64_t inside = found ? address - found->address : 0;
        return found && inside < found->bytes && bytes <= found->bytes - inside ? found : nullptr;
    }
};
Managed& managed();

// --- pages.cpp ---

void owe(Connection& connection, CUresult error);  // keeps an error for the program's next call
bool set(ManagedAllocation& a, size_t first, size_t end, BlockState state);
// Sends the dirty blocks of [first, end) and sets the state of all; returns whether something was sent.
bool settle(ManagedAllocation& a, size_t first, size_t end, bool device_writes);
// Fetches the stale blocks of [first, end), which become clean; false where the device's memory is lost.
bool fetch(ManagedAllocation& a, size_t first, size_t end);
// Makes all blocks dirty, in one mapping: used where the kernel's limit of mappings is reached.
void take_over(ManagedAllocation& a);
void lose(ManagedAllocation& a, CUresult why);
uint64_t number_of(Connection& connection, CUstream stream);  // 0: the legacy stream
void submitted(Connection& connection, CUstream stream);
// Has `stream` wait for host data that was sent in the legacy stream, for which a non-blocking stream does
// not wait.
void before(Connection& connection, CUstream stream);
void before_any(Connection& connection);
CUresult catch_up(Connection& connection);
// An error returned by `function` may be that of an earlier asynchronous call of the program: it is kept for
// the program, and is no reason to stop.
template <class Function>
CUresult despite_earlier_errors(Connection& connection, Function function) {
    const CUresult result = function();
    if (result == CUDA_SUCCESS || result == GONE) return result;
    owe(connection, result);
    return function();
}
void fetch_expected(Connection& connection);

// --- ranges.cpp ---

bool view_pages(ManagedAllocation& a);        // for the shim
bool show_pages(const ManagedAllocation& a);  // to the program
void hide_pages(const ManagedAllocation& a);
void add(std::unique_ptr<ManagedAllocation> fresh, BlockState state);
CUresult allocate(Device& device, uint64_t bytes, CUdeviceptr& address);
// Makes memory of the program managed memory, with what it holds: whole units, reserved here.  Other threads
// may go on writing to it.
CUresult adopt(Device& device, CUdeviceptr address, uint64_t bytes);
CUresult release(ManagedAllocation& a);
// Memory of the device alone, in a range of its own or in one that small allocations share.
CUresult make_room(Connection& connection, uint64_t room, ManagedRange*& range, CUdeviceptr& address);
void leave_room(ManagedRange* range, CUdeviceptr address, uint64_t room);
void forget(Connection& connection);  // after its worker has released everything

// --- mapped.cpp ---

void forget_mapped(Connection& connection);

// --- mirrors.cpp ---

// Before work that was submitted last, which may use all mirrors or what it names; of the latter, whether the
// work writes to one.
void send_mirrors(Connection& connection);
bool send_mirror(Connection& connection, const MemoryUse& use);
void fetch_mirrors(Connection& connection);  // after a wait
void forget_mirrors(Connection& connection);
// Makes a managed variable of a library a mirror of memory that is mapped here at its address.
CUresult mirror_variable(Device& device, uint64_t library, CUdeviceptr address, uint64_t bytes);
void end_variables(Connection& connection, uint64_t library);

}  // namespace gpukernel::shim
