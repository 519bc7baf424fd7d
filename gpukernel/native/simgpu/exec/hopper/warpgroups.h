// What the four warps of a warpgroup know of each other (PTX ISA 9.7.15).  Each does its sixteen rows of a
// multiplication when it comes to it, so nobody waits there; but a group of multiplications is over only
// when all four have done theirs: what they read may then be overwritten.
#pragma once

#include <cstdint>
#include <deque>

#include "simgpu/exec/machine.h"
#include "simgpu/host_memory.h"

namespace gpukernel::simgpu {

constexpr uint32_t kWarpsOfGroup = 4;
struct Multiplication {  // that some warps have done and others have not: all must do the same
    const Op* op;
    uint64_t a, b;
    bool adds;
};
struct Warpgroup {
    std::deque<Multiplication> open;
    HostShare share;      // of these
    uint64_t closed = 0;  // multiplications before the first of `open`
    uint64_t done[kWarpsOfGroup] = {}, committed[kWarpsOfGroup] = {};
};

// Whether so many groups (Op::imm) or fewer of the warp's last ones are still to be done by any warp of its
// warpgroup.
bool warpgroup_is_done(const Warp& warp, const Op& op);
// Throws where a warp waits for others of its warpgroup, of whom no one can go on.
void warpgroups_that_wait(const BlockState& block);

}  // namespace gpukernel::simgpu
