#include "simgpu/exec/hopper/warpgroups.h"

#include <algorithm>
#include <bit>

#include "simgpu/exec/block.h"

namespace gpukernel::simgpu {
namespace {

// For a warp that never waits: a GPU lets none be as far ahead.  More than the first few are charged.
constexpr size_t kMostOpen = 1 << 16, kUncharged = 4096;

Warpgroup& warpgroup_of(const Warp& warp) {
    auto& groups = warp.block->warpgroups;
    if (groups.empty()) groups.resize((warp.block->warps.size() + kWarpsOfGroup - 1) / kWarpsOfGroup);
    return groups[warp.index / kWarpsOfGroup];
}

const Warp* first_of(const BlockState& block, const Warp& warp) {
    return &block.warps[warp.index / kWarpsOfGroup * kWarpsOfGroup];
}

// Four warps of 32 threads each, as the block began.
void whole_warpgroup(const Warp& warp, const Op& op, const std::string& text) {
    const auto& warps = warp.block->warps;
    const size_t first = warp.index / kWarpsOfGroup * kWarpsOfGroup;
    for (size_t i = first; i < first + kWarpsOfGroup; ++i)
        if (i >= warps.size() || warps[i].started != kFull)
            throw Fault{Status::illegal_barrier, text + " takes a warpgroup of 128 threads; a block of " +
                                                     std::to_string(warp.launch->threads()) +
                                                     " has none for it, " +
                                                     place(warp, std::countr_zero(warp.exec), op.line)};
}

[[noreturn]] void others_do_not_come(const Warp& warp, const Op& op, uint64_t wanted) {
    const Warpgroup& group = warp.block->warpgroups[warp.index / kWarpsOfGroup];
    const auto there = std::count_if(std::begin(group.committed), std::end(group.committed),
                                     [&](uint64_t n) { return n >= wanted; });
    throw Fault{Status::illegal_barrier,
                "Only " + std::to_string(there) +
                    " of the 4 warps of a warpgroup execute the wgmma instructions that are waited for, " +
                    place(warp, std::countr_zero(warp.live), op.line)};
}

uint64_t wanted_groups(const Warp& warp, const Op& op) {
    const auto& groups = warp.block->warpgroups;
    if (groups.empty()) return 0;
    const uint64_t mine = groups[warp.index / kWarpsOfGroup].committed[warp.index % kWarpsOfGroup],
                   left = static_cast<uint64_t>(op.imm);
    return mine > left ? mine - left : 0;
}

}  // namespace

void warpgroup_multiplies(Warp& warp, const Op& op, const WarpgroupPlan& plan, uint64_t a, uint64_t b,
                          bool adds) {
    Warpgroup& group = warpgroup_of(warp);
    uint64_t& done = group.done[warp.index % kWarpsOfGroup];
    if (done == group.closed + group.open.size()) {
        whole_warpgroup(warp, op, plan.text);
        if (group.open.size() == kMostOpen)
            throw Fault{Status::illegal_barrier,
                        "A warp is " + std::to_string(kMostOpen) +
                            " multiplications ahead of others of its warpgroup, in " + plan.text + " " +
                            place(warp, 0, op.line)};
        const size_t bytes = (group.open.size() + 1) * sizeof(Multiplication);
        if (bytes > kUncharged && !group.share.grow((bytes + kUncharged - 1) / kUncharged * kUncharged))
            no_host_memory();
        group.open.push_back({&op, a, b, adds});
    } else {
        const Multiplication& first = group.open[done - group.closed];
        if (first.op != &op || first.a != a || first.b != b || first.adds != adds)
            throw Fault{Status::illegal_barrier,
                        std::string("The warps of a warpgroup execute different wgmma instructions, or with "
                                    "different descriptors: ") +
                            plan.text + " (another warp is at line " + std::to_string(first.op->line) + ") " +
                            place(warp, 0, op.line)};
    }
    ++done;
    while (!group.open.empty() &&
           *std::min_element(std::begin(group.done), std::end(group.done)) > group.closed) {
        group.open.pop_front();
        ++group.closed;
    }
}

// A group may be empty: each warp counts all of its own, or they would not mean the same ones.
void warpgroup_commits(Warp& warp, const Op& op, const WarpgroupPlan& plan) {
    whole_warpgroup(warp, op, plan.text);
    ++warpgroup_of(warp).committed[warp.index % kWarpsOfGroup];
}

bool warpgroup_is_done(const Warp& warp, const Op& op) {
    const uint64_t wanted = wanted_groups(warp, op);
    if (!wanted) return true;
    const Warpgroup& group = warp.block->warpgroups[warp.index / kWarpsOfGroup];
    const Warp* warps = first_of(*warp.block, warp);
    bool done = true;
    for (uint32_t i = 0; i < kWarpsOfGroup; ++i) {
        if (group.committed[i] >= wanted) continue;
        if (!warps[i].live) others_do_not_come(warp, op, wanted);
        done = false;
    }
    return done;
}

void warpgroups_that_wait(const BlockState& block) {
    for (const Warp& warp : block.warps)
        for (int i = 0; i < warp.group_count; ++i)
            if (warp.groups[i].wait == Wait::warpgroup)
                others_do_not_come(warp, *warp.groups[i].ip, wanted_groups(warp, *warp.groups[i].ip));
}

}  // namespace gpukernel::simgpu
