// What warps do, counted while the interpreter runs them: every instruction is seen, and nothing is guessed.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/kernel_table.h"
#include "simgpu/exec/machine.h"

namespace gpukernel::simgpu::profile {

// How an operation accesses memory.
enum class Watched : uint8_t { none, load, store, atomic, copy, constant, other };

// Of each operation of a function.
struct WatchPlan {
    struct Seen {
        Watched access = Watched::none;
        Space space = Space::generic;
        uint8_t bytes = 0;  // of one thread
    };
    std::vector<Seen> of;
};

// The counts of the blocks that one thread runs.
class Watcher {
  public:
    // A warp comes to an operation with the lanes of `mask`, of which those of `exec` execute it.  Called
    // before that.
    void see(const Warp& warp, const Op& op, uint32_t mask, uint32_t exec);
    // The same of lanes that are in `function` while the warp's frame may be another.
    void see(const Function& function, const Op& op, uint32_t lanes);
    void block_begins() { ++blocks_; }

    const KernelCounts& counts() const { return counts_; }
    uint64_t blocks() const { return blocks_; }
    // Warps' executions of each operation.
    const std::unordered_map<const Function*, std::vector<uint64_t>>& operations() const { return executed_; }

  private:
    KernelCounts counts_;
    uint64_t blocks_ = 0;
    std::unordered_map<const Function*, std::vector<uint64_t>> executed_;
    const Function* function_ = nullptr;  // the last one, and what is known of it
    const WatchPlan* plan_ = nullptr;
    uint64_t* times_ = nullptr;

    void enter(const Function& function);
    void count(const Op& op, size_t n, uint32_t mask, uint32_t exec);
    void look(const Warp& warp, const Op& op, const WatchPlan::Seen& seen, uint32_t lanes);
    void global(const uint64_t* addresses, uint32_t lanes, uint32_t bytes, bool store);
    void shared(const uint64_t* addresses, uint32_t lanes, uint32_t bytes);
    void local(uint32_t lanes, uint32_t bytes);
};

}  // namespace gpukernel::simgpu::profile
