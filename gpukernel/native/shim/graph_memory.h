// Memory that graphs allocate and free.
//
// An allocation has its address from the moment its node is made: addresses are reserved on both sides
// (virtual_memory.h), in ranges that belong to the graph.  Physical memory is made, and counts against the
// slice at the worker, when a launch first needs it.  It stays mapped for the next launch until
// cuDeviceGraphMemTrim, until a launch finds no room otherwise, or until the graph, its executable and the
// last allocation in the range are gone.
//
// Whether an allocation is there follows from the order of the program's calls.  That the device is done with
// a range is told by events recorded behind what used it (Fence): nothing is unmapped before, and a launch
// into another stream waits for them.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "process.h"

namespace gpukernel::shim {

struct Node;

// An event behind the last use of some memory, or behind the last launch of an executable graph.
class Fence {
  public:
    explicit Fence(Device& device);
    bool is_of(const Device& device) const { return &device == &device_ && !ended(); }
    ~Fence();
    Fence(const Fence&) = delete;
    void record(uint64_t stream);
    void hold(uint64_t stream) const;  // what is submitted to it later, unless it is the one recorded in
    CUresult done(bool wait) const;    // CUDA_ERROR_NOT_READY: not yet

  private:
    bool ended() const { return resets_ != device_.resets; }
    Device& device_;
    unsigned resets_;
    uint64_t event_ = 0, stream_ = 0;
};

struct Allocation;

// Addresses of one graph, under one mutex with all others.  They are mapped wholly or not at all.
struct Range {
    struct Slot {
        uint64_t bytes;
        std::shared_ptr<Allocation> last;  // the newest of those that have had it in turn
    };
    Device* device;
    CUdeviceptr address;
    uint64_t bytes, given = 0;
    bool mapped = false;
    bool owned = true;  // the graph, or its executable, may still launch
    bool gone = false;  // as nobody needed it, or with all that the device had (cuDevicePrimaryCtxReset)
    int live = 0, launches = 0;
    std::map<CUdeviceptr, Slot> slots = {};
    std::vector<std::shared_ptr<Fence>> fences = {};
};

// The ranges of one graph; an executable made of it shares them.
struct Arena {
    std::vector<std::shared_ptr<Range>> ranges;
    std::unordered_set<const Allocation*> freed;  // by nodes of the graph, or of those inside it
    std::shared_ptr<Arena> parent;                // of the graph that this one's has moved into
    bool instantiated = false;
    ~Arena();
};
inline Arena* root(Arena* arena) {
    while (arena && arena->parent) arena = arena->parent.get();
    return arena;
}

// A graph becomes part of another: what either frees, the other frees too.
void move_memory(const std::shared_ptr<Arena>& inner, const std::shared_ptr<Arena>& outer);

struct Allocation {
    std::shared_ptr<Range> range;
    CUdeviceptr address;
    uint64_t bytes;                  // as asked for
    std::weak_ptr<Arena> arena;      // of the graph that allocates it
    const Node* freed_at = nullptr;  // the node of that graph that frees it, if one does
    bool freed_elsewhere = false;    // another graph has such a node
    bool live = false;
};

// --- nodes ---

// Room that the graph itself has freed again, and where.
struct FreedSlot {
    CUdeviceptr address;
    uint64_t bytes;
    const Node* freed_at;
};
std::vector<FreedSlot> freed_slots(const Arena& arena, const Device& device, uint64_t bytes);
// In that slot, if one is named; else where nothing of the graph has been.
CUresult allocate(const std::shared_ptr<Arena>& arena, Device& device, uint64_t bytes, CUdeviceptr slot,
                  std::shared_ptr<Allocation>& allocation);
// An allocation that nodes of `by` may free at that address.
CUresult find_to_free(Arena& by, CUdeviceptr address, std::shared_ptr<Allocation>& allocation);
void freed_by_node(Arena& by, const std::shared_ptr<Allocation>& allocation, const Node* node);

// --- launches ---

// What an executable graph does with memory, in the order of its nodes.
struct LaunchMemory {
    struct Step {
        std::shared_ptr<Allocation> allocation;
        bool frees;
    };
    std::vector<Step> steps;
    std::vector<std::shared_ptr<Range>> ranges;  // that it needs, each once
    bool auto_free = false;
};

// From before the first call of a launch to after the last; all of it is done or nothing.
class MemoryLaunch {
  public:
    explicit MemoryLaunch(std::shared_ptr<LaunchMemory> memory) : memory_(std::move(memory)) {}
    CUresult begin(uint64_t stream);
    void end(CUresult result, const std::shared_ptr<Fence>& fence);  // which stands behind the launch

  private:
    CUresult check();
    std::shared_ptr<LaunchMemory> memory_;
    std::vector<std::pair<std::shared_ptr<Allocation>, bool>> changes_;  // to be live or not
};

// --- other calls ---

extern std::atomic<int> graph_memory_ranges;
inline bool has_graph_memory() { return graph_memory_ranges.load(std::memory_order_relaxed) != 0; }

bool is_graph_memory(CUdeviceptr address);
std::optional<uint64_t> graph_memory_attribute(CUpointer_attribute attribute, CUdeviceptr address);
// Gives back what no graph can need any more and the device is done with.
void settle_graph_memory();
// Everything that the device has ends; `end` has the worker do so.
CUresult end_graph_memory(Device& device, const std::function<CUresult()>& end);

}  // namespace gpukernel::shim
