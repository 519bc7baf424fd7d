// Memory that graphs allocate and free.
//
// An allocation has its address as soon as its node exists: addresses are reserved on both sides
// (virtual_memory.h), in ranges that belong to the graph.  Physical memory is created, and charged to the
// slice by the worker, when a launch first needs it.  It stays mapped for later launches until
// cuDeviceGraphMemTrim, until a launch finds no room otherwise, or until the graph, its executable and the
// last allocation in the range are gone.
//
// Whether an allocation is live follows from the order of the program's calls.  Whether the device still uses
// a range follows from events recorded after its uses (Fence): nothing is unmapped before they have passed,
// and a launch into another stream waits for them.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "shim/process.h"

namespace gpukernel::shim {

struct Node;

// An event after the last use of some memory, or after the last launch of an executable graph.
class Fence {
  public:
    explicit Fence(Device& device);
    bool is_of(const Device& device) const { return &device == &device_ && !ended(); }
    ~Fence();
    Fence(const Fence&) = delete;
    void record(uint64_t stream);
    // Has later work of `stream` wait for the event, unless it was recorded in that stream.
    void delay(uint64_t stream) const;
    CUresult done(bool wait) const;  // CUDA_ERROR_NOT_READY: not yet

  private:
    bool ended() const { return resets_ != device_.resets; }
    Device& device_;
    unsigned resets_;
    uint64_t event_ = 0, stream_ = 0;
};

struct GraphAllocation;

// An address range of one graph, mapped as a whole or not at all.  One mutex guards all ranges.
struct GraphRange {
    struct Slot {
        uint64_t bytes;
        std::shared_ptr<GraphAllocation> last;  // the newest of those that have used the slot
    };
    Device* device;
    CUdeviceptr address;
    uint64_t bytes, given = 0;
    bool mapped = false;
    bool owned = true;  // the graph, or its executable, may still launch
    bool gone = false;  // released, or lost with the context (cuDevicePrimaryCtxReset)
    int live = 0, launches = 0;
    std::map<CUdeviceptr, Slot> slots = {};
    std::vector<std::shared_ptr<Fence>> fences = {};
};

// The ranges of one graph; an executable made of it shares them.
struct Arena {
    std::vector<std::shared_ptr<GraphRange>> ranges;
    std::unordered_set<const GraphAllocation*> freed;  // by nodes of the graph or of its child graphs
    std::shared_ptr<Arena> parent;                     // of the graph that this one's graph was moved into
    bool instantiated = false;
    ~Arena();
};
inline Arena* root(Arena* arena) {
    while (arena && arena->parent) arena = arena->parent.get();
    return arena;
}

// Joins the memory of a graph that becomes part of another: what either frees is freed in both.
void move_memory(const std::shared_ptr<Arena>& inner, const std::shared_ptr<Arena>& outer);

struct GraphAllocation {
    std::shared_ptr<GraphRange> range;
    CUdeviceptr address;
    uint64_t bytes;                  // as asked for
    std::weak_ptr<Arena> arena;      // of the graph that allocates it
    const Node* freed_at = nullptr;  // the node of that graph that frees it, if one does
    bool freed_elsewhere = false;    // another graph has such a node
    bool live = false;
};

// --- nodes ---

// A slot that a node of the graph has freed again.
struct FreedSlot {
    CUdeviceptr address;
    uint64_t bytes;
    const Node* freed_at;
};
std::vector<FreedSlot> freed_slots(const Arena& arena, const Device& device, uint64_t bytes);
// Makes an allocation in `slot`, or where `slot` is 0 at addresses that the graph has not used.
CUresult allocate(const std::shared_ptr<Arena>& arena, Device& device, uint64_t bytes, CUdeviceptr slot,
                  std::shared_ptr<GraphAllocation>& allocation);
// Finds the allocation at `address` that nodes of `by` may free.
CUresult find_to_free(Arena& by, CUdeviceptr address, std::shared_ptr<GraphAllocation>& allocation);
void freed_by_node(Arena& by, const std::shared_ptr<GraphAllocation>& allocation, const Node* node);

// --- launches ---

// What an executable graph does with memory, in the order of its nodes.
struct LaunchMemory {
    struct Step {
        std::shared_ptr<GraphAllocation> allocation;
        bool frees;
    };
    std::vector<Step> steps;
    std::vector<std::shared_ptr<GraphRange>> ranges;  // all that it needs, each once
    bool auto_free = false;
};

// The memory of one launch: `begin` before its first call maps everything or nothing, `end` comes after its
// last.
class MemoryLaunch {
  public:
    explicit MemoryLaunch(std::shared_ptr<LaunchMemory> memory) : memory_(std::move(memory)) {}
    CUresult begin(uint64_t stream);
    void end(CUresult result, const std::shared_ptr<Fence>& fence);  // recorded after the launch

  private:
    CUresult check();
    std::shared_ptr<LaunchMemory> memory_;
    std::vector<std::pair<std::shared_ptr<GraphAllocation>, bool>>
        changes_;  // whether each is live afterwards
};

// --- other calls ---

extern std::atomic<int> graph_memory_ranges;
inline bool has_graph_memory() { return graph_memory_ranges.load(std::memory_order_relaxed) != 0; }

bool is_graph_memory(CUdeviceptr address);
std::optional<uint64_t> graph_memory_attribute(CUpointer_attribute attribute, CUdeviceptr address);
// Releases the memory that no graph can need any more and that the device has finished with.
void settle_graph_memory();
// Calls `end`, by which the worker releases everything on the device, and forgets the device's ranges.
CUresult end_graph_memory(Device& device, const std::function<CUresult()>& end);

}  // namespace gpukernel::shim
