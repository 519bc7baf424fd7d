// Setting up a block's warps, and the special registers.
#include "block.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace gpukernel::simgpu {

void BlockState::prepare(LaunchState& state) {
    launch = &state;
    uint32_t threads = state.threads();
    const Dim3& shape = state.launch->block;
    uint32_t count = (threads + kLanes - 1) / kLanes;
    warps.resize(count);
    size_t per_warp = (state.kernel->register_bytes + 127) / 64 * 64;
    char* regs = registers.need(per_warp * count);
    frames.clear();
    frame_storage.clear();
    spare.clear();
    uint64_t stride = (state.stack_bytes + 15) / 16 * 16;
    char* stack = stride ? local.need(stride * kLanes * count) : nullptr;
    char* block_shared = shared.need(state.shared_bytes + 64);
    for (uint32_t w = 0; w < count; ++w) {
        Warp& warp = warps[w];
        warp.index = w;
        warp.block = this;
        warp.launch = &state;
        warp.started = w + 1 < count || threads % kLanes == 0 ? kFull : (1u << threads % kLanes) - 1;
        warp.shared = block_shared;
        warp.shared_bytes = state.shared_bytes;
        warp.local_stride = stride;
        warp.local = stack + stride * kLanes * w;
        warp.params = state.params.data();
        warp.param_bytes = state.params.size();
        warp.cache[0] = warp.cache[1] = {};
        warp.texture = nullptr;
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
            uint32_t t = w * kLanes + lane;
            warp.tid[0][lane] = t % shape.x;
            warp.tid[1][lane] = t / shape.x % shape.y;
            warp.tid[2][lane] = t / shape.x / shape.y;
        }
        frames.push_back(std::make_unique<Frame>());
        frame_storage.emplace_back();
        frames.back()->registers = regs + per_warp * w;
        frames.back()->function = state.kernel;
        warp.frame = frames.back().get();
    }
}

void BlockState::start(uint64_t block) {
    const Dim3& grid = launch->launch->grid;
    linear = block;
    ctaid[0] = static_cast<uint32_t>(block % grid.x);
    ctaid[1] = static_cast<uint32_t>(block / grid.x % grid.y);
    ctaid[2] = static_cast<uint32_t>(block / grid.x / grid.y);
    living = launch->threads();
    spare.clear();  // frames of functions in which threads of the last block ended, too
    for (size_t f = warps.size(); f < frames.size(); ++f) spare.push_back(frames[f].get());
    for (Barrier& b : barriers) b = {};
    for (size_t w = 0; w < warps.size(); ++w) {
        Warp& warp = warps[w];
        warp.live = warp.started;
        warp.group_count = 1;
        warp.groups[0] = {frames[w].get(), launch->kernel->code.data(), warp.started, Wait::ready, 0, false};
    }
}

uint64_t special_register(Warp& warp, int lane, int which) {
    const BlockState& block = *warp.block;
    const Launch& launch = *warp.launch->launch;
    auto clock = [] { return static_cast<uint64_t>(__builtin_ia32_rdtsc()); };
    auto nanoseconds = [] {
        return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                         std::chrono::system_clock::now().time_since_epoch())
                                         .count());
    };
    uint32_t bit = 1u << lane;
    switch (which) {
        case kTidX:
        case kTidY:
        case kTidZ:
            return warp.tid[which - kTidX][lane];
        case kNtidX:
            return launch.block.x;
        case kNtidY:
            return launch.block.y;
        case kNtidZ:
            return launch.block.z;
        case kCtaidX:
        case kCtaidY:
        case kCtaidZ:
            return block.ctaid[which - kCtaidX];
        case kNctaidX:
            return launch.grid.x;
        case kNctaidY:
            return launch.grid.y;
        case kNctaidZ:
            return launch.grid.z;
        case kLaneId:
            return static_cast<uint64_t>(lane);
        case kWarpId:
            return warp.index;
        case kNwarpId:
            return block.warps.size();
        case kSmId:
            return block.linear % static_cast<uint64_t>(warp.launch->multiprocessors);
        case kNsmId:
            return static_cast<uint64_t>(warp.launch->multiprocessors);
        case kGridId:
            return 0;
        case kLanemaskEq:
            return bit;
        case kLanemaskLe:
            return bit | (bit - 1);
        case kLanemaskLt:
            return bit - 1;
        case kLanemaskGe:
            return ~(bit - 1);
        case kLanemaskGt:
            return ~(bit | (bit - 1));
        case kClock:
        case kClock64:
            return clock();
        case kClockHi:
            return clock() >> 32;
        case kGlobalTimer:
        case kGlobalTimerLo:
            return nanoseconds();
        case kGlobalTimerHi:
            return nanoseconds() >> 32;
        case kDynamicSmem:
            return launch.dynamic_shared_bytes;
        case kTotalSmem:
            return warp.shared_bytes;
        case kDynamicBase:
            return (warp.launch->kernel->shared_bytes + 15) / 16 * 16;
        case kWorkspaceHigh:
            return warp.launch->workspace >> 32;
        case kWorkspaceLow:
            return warp.launch->workspace & 0xffffffffu;
        case kOne:
            return 1;
        default:
            return 0;
    }
}

}  // namespace gpukernel::simgpu
