// What managed memory consists of: ranges, allocations in blocks, and how far each side may trust what it
// has. Everything here is guarded by Managed::mutex.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "managed.h"
#include "managed_advice.h"

namespace gpukernel::shim {

constexpr uint64_t BLOCK = 64 << 10;

inline void* at(uint64_t address) { return reinterpret_cast<void*>(address); }

enum class State : uint8_t { fresh, clean, dirty, open, stale };

// Addresses that both sides have, with the device's memory at the worker; one or several allocations.
struct Range {
    Connection* connection;
    CUdeviceptr address;
    uint64_t bytes, handle;
    std::map<CUdeviceptr, uint64_t> gaps;
    CUdeviceptr used_up_to;  // behind it the device's memory is as it came
};

// Touches that go on in order are served more and more at one time; any other begins again.
struct InOrder {
    size_t next = 0, window = 1;
    size_t end(size_t block, size_t most) {
        window = block == next ? std::min(2 * window, most) : 1;
        return next = block + window;
    }
};

struct Allocation {
    Range* range;
    Device* device;
    CUdeviceptr address;
    uint64_t bytes, room;
    char* view;       // the shim's own
    uint64_t offset;  // in the file
    std::pair<uint64_t, uint64_t> file;
    std::vector<State> blocks;
    std::vector<char> twin;  // of an open one
    InOrder read, written;
    bool wanted = false;                 // by cuMemPrefetchAsync to the host
    bool lost = false;                   // the device's memory is gone
    std::optional<unsigned> host_flags;  // of cuMemHostAlloc: to the program it is host memory
    ManagedAdvice advice;

    Connection& connection() const { return *range->connection; }
    size_t block(CUdeviceptr at) const { return (at - address) / BLOCK; }
    uint64_t begin(size_t block) const { return block * BLOCK; }
    uint64_t end(size_t block) const { return std::min((block + 1) * BLOCK, room); }
};

// Of one connection: how far the host may trust what it has.
struct Progress {
    uint64_t submitted = 0, finished = 0;  // work that may have changed managed memory
    std::set<uint64_t> streams;            // where it runs
    std::set<Allocation*> here;            // allocations with a block that is not stale
};

struct Managed {
    std::mutex mutex;
    int file = -1;  // behind all pages
    uint64_t file_bytes = 0;
    // Programs close descriptors that they do not know, and others get their numbers.
    std::pair<uint64_t, uint64_t> identity;
    bool has_file() const;
    std::map<CUdeviceptr, std::unique_ptr<Allocation>> allocations;
    std::vector<std::unique_ptr<Range>> ranges;
    std::map<Connection*, Progress> progress;
    bool told_of_loss = false;

    Allocation* find(CUdeviceptr address) {
        auto it = allocations.upper_bound(address);
        if (it == allocations.begin()) return nullptr;
        Allocation* found = std::prev(it)->second.get();
        return address - found->address < found->room ? found : nullptr;
    }
    Allocation* find(CUdeviceptr address, uint64_t bytes) {
        Allocation* found = find(address);
        const uint64_t inside = found ? address - found->address : 0;
        return found && inside < found->bytes && bytes <= found->bytes - inside ? found : nullptr;
    }
};
Managed& managed();

// --- managed_pages.cpp ---

void owe(Connection& connection, CUresult error);  // for the next call to tell
bool set(Allocation& a, size_t first, size_t end, State state);
// Sends what was written here and says how blocks are from then on; true where something was sent.
bool settle(Allocation& a, size_t first, size_t end, bool device_writes);
// Stale blocks of [first, end) become clean; the others stay as they are.  False: what is here is all there
// is.
bool fetch(Allocation& a, size_t first, size_t end);
// Everything becomes dirty, in one piece: where the kernel has no more mappings for pieces of their own.
void take_over(Allocation& a);
void lose(Allocation& a, CUresult why);
uint64_t number_of(Connection& connection, CUstream stream);  // 0: the legacy stream
void submitted(Connection& connection, CUstream stream);
// Host data went by the legacy stream, for which a stream of its own may not wait.
void before(Connection& connection, CUstream stream);
void before_any(Connection& connection);
CUresult catch_up(Connection& connection);
void fetch_expected(Connection& connection);

// --- managed_ranges.cpp ---

CUresult allocate(Device& device, uint64_t bytes, CUdeviceptr& address);
CUresult release(Allocation& a);
void forget(Connection& connection);  // its worker has given all back

}  // namespace gpukernel::shim
