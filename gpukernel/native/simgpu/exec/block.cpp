// Setting up a block's warps, and the special registers.
#include "simgpu/exec/block.h"

#include <bit>
#include <chrono>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace gpukernel::simgpu {

namespace {

// Bytes behind shared memory that compiled code may load, and throws away.
constexpr uint64_t kReadBehind = 128;

}  // namespace

void BlockState::prepare(LaunchState& state, const compiler::CompiledKernel* code, profile::Watcher* counts) {
    launch = &state;
    compiled = code, watcher = counts;
    uint32_t threads = state.threads();
    const Dim3& shape = state.launch->block;
    uint32_t count = (threads + kLanes - 1) / kLanes;
    constexpr size_t PER_WARP = sizeof(Warp) + sizeof(Frame) + sizeof(Storage) + 64;
    if (!share.grow(sizeof(BlockState) + PER_WARP * count)) no_host_memory();
    // Of the launch before, places and frames are as they were where blocks have the same shape.
    const bool same = count == warps.size() && shape == placed;
    warps.resize(count);
    placed = {0, 0, 0};  // nowhere, should there be no memory
    const size_t per_warp = state.registers_of_a_warp() + compiler::bytes_of_lines(code);
    char* regs = registers.need(per_warp * count);
    if (!same || frames.size() != count) {
        frames.clear(), frames.resize(count);
        frame_storage.clear(), frame_storage.resize(count);
        frame_bytes = 0;
    }
    spare.clear();
    uint64_t stride = (state.stack_bytes + 15) / 16 * 16;
    char* stack = stride ? local.need(stride * kLanes * count) : nullptr;
    const uint64_t padded = padded_shared(state.shared_bytes);
    char* block_shared = shared.need(padded + kReadBehind);
    std::memset(block_shared + state.shared_bytes, 0, padded - state.shared_bytes);  // no other program's
    Dim3 thread{0, 0, 0};  // counted on: a division for each lane was a third of an empty kernel's time
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
        warp.arrived = warp.odd = 0;
        for (uint32_t lane = 0; lane < kLanes && !same; ++lane) {
            warp.tid[0][lane] = thread.x;
            warp.tid[1][lane] = thread.y;
            warp.tid[2][lane] = thread.z;
            if (++thread.x < shape.x) continue;
            thread.x = 0;
            if (++thread.y < shape.y) continue;
            thread.y = 0, ++thread.z;
        }
        if (!frames[w]) frames[w] = std::make_unique<Frame>();
        *frames[w] = {.registers = regs + per_warp * w, .function = state.kernel};
        warp.frame = frames[w].get();
    }
    placed = shape;
    compiler::prepare(*this);
}

void end_lanes(Warp& warp, uint32_t lanes) {
    const auto count = static_cast<uint32_t>(std::popcount(lanes));
    Cluster& cluster = *warp.block->cluster;
    cluster.arrived -= static_cast<uint32_t>(std::popcount(lanes & cluster.waiting(warp)));
    warp.arrived &= ~lanes;
    warp.live &= ~lanes;
    warp.block->living -= count;
    cluster.living -= count;
    cluster.meet();
}

void BlockState::start(uint32_t x, uint32_t y, uint32_t z) {
    const Dim3& grid = launch->launch->grid;
    linear = x + uint64_t{grid.x} * (y + uint64_t{grid.y} * z);
    ctaid[0] = x, ctaid[1] = y, ctaid[2] = z;
    living = launch->threads();
    if (watcher) watcher->block_begins();
#ifdef SIMGPU_CLEARED
    for (const Storage* storage : {&registers, &shared, &local})
        if (storage->size) std::memset(storage->bytes.get(), 0, storage->size);
#endif
    spare.clear();  // frames of functions in which threads of the last block ended, too
    for (size_t f = warps.size(); f < frames.size(); ++f) spare.push_back(frames[f].get());
    for (Barrier& b : barriers) b = {};
    warpgroups.clear();
    compiler::start(*this);
}
void BlockState::start(Warp& warp) {
    warp.live = warp.started;
    warp.arrived = 0;
    warp.partner = nullptr;
    warp.resumes = nullptr;
    warp.group_count = 1;
    warp.groups[0] = {
        frames[warp.index].get(), launch->kernel->code.data(), warp.started, Wait::ready, 0, false};
}

Frame* BlockState::make_frame(const Function& function) {
    const size_t need = size_t{function.register_bytes} + 64;
    for (auto i = spare.rbegin(); i != spare.rend(); ++i) {
        if ((*i)->capacity < need) continue;
        Frame* f = *i;
        *i = spare.back();
        spare.pop_back();
        f->function = &function;
#ifdef SIMGPU_CLEARED
        std::memset(f->registers, 0, need);
#endif
        return f;
    }
    if (need > kMostFrameRegisters - frame_bytes)
        throw Fault{Status::illegal_address,
                    "stack overflow: the registers of all calls within each other take " +
                        std::to_string(kMostFrameRegisters >> 20) + " MiB in one block, at a call of " +
                        function.name};
    frames.push_back(std::make_unique<Frame>());
    frame_storage.emplace_back();
    Frame* f = frames.back().get();
    f->registers = frame_storage.back().need(need);
#ifdef SIMGPU_CLEARED
    std::memset(f->registers, 0, need);
#endif
    f->capacity = frame_storage.back().size;
    frame_bytes += f->capacity;
    f->function = &function;
    return f;
}

void BlockState::release_barriers() {
    for (int id = 0; id < kBarriers; ++id) {
        Barrier& b = barriers[id];
        uint32_t expected = b.expected ? b.expected : living;
        if (!b.arrived || b.arrived < expected) continue;
        for (Warp& warp : warps) {
            for (int i = 0; i < warp.group_count; ++i) {
                Group& g = warp.groups[i];
                if (g.wait != Wait::barrier || g.barrier != id) continue;
                const Op& op = *g.ip;
                if (op.sub) {  // bar.red: popc, and, or
                    uint32_t value = op.sub == 1   ? b.votes_true
                                     : op.sub == 2 ? b.votes_true == b.votes
                                                   : b.votes_true != 0;
                    if (op.sub == 1) {
                        uint32_t* out = reinterpret_cast<uint32_t*>(g.frame->registers + op.dst);
                        for (int lane = 0; lane < kLanes; ++lane)
                            if (g.mask >> lane & 1) out[lane] = value;
                    } else {
                        uint32_t* out = reinterpret_cast<uint32_t*>(g.frame->registers + op.dst);
                        *out = value ? *out | g.mask : *out & ~g.mask;
                    }
                }
                g.wait = Wait::ready;
                g.barrier = 0;
                ++g.ip;
            }
        }
        b = {};
    }
}

void BlockState::deadlock() const {
    warpgroups_that_wait(*this);
    for (const Warp& warp : warps)
        if (warp.group_count)
            throw Fault{Status::illegal_barrier,
                        "Deadlock: threads wait for others that never come, " +
                            place(warp, std::countr_zero(warp.groups[0].mask), warp.groups[0].ip->line)};
    throw Fault{Status::illegal_barrier, "Deadlock: threads wait for others that never come"};
}

void Cluster::prepare(LaunchState& state, const compiler::CompiledKernel* code, profile::Watcher* counts) {
    blocks.resize(state.launch->cluster.volume());
    for (size_t rank = 0; rank < blocks.size(); ++rank) {
        if (!blocks[rank]) blocks[rank] = std::make_unique<BlockState>();
        blocks[rank]->cluster = this;
        blocks[rank]->rank = static_cast<uint32_t>(rank);
        blocks[rank]->prepare(state, code, counts);
    }
}

void Cluster::start(uint64_t number) {
    const Launch& launch = *blocks[0]->launch->launch;
    const Dim3 &grid = launch.grid, &shape = launch.cluster;
    const bool alone = blocks.size() == 1;  // no division, as there are many clusters
    const uint64_t across = alone ? grid.x : grid.x / shape.x, along = alone ? grid.y : grid.y / shape.y;
    const uint64_t row = number < across ? 0 : number / across, plane = row < along ? 0 : row / along;
    const auto x = static_cast<uint32_t>(number - row * across) * shape.x,
               y = static_cast<uint32_t>(row - plane * along) * shape.y,
               z = static_cast<uint32_t>(plane) * shape.z;
    arrived = phase = living = 0;
    for (uint32_t rank = 0; rank < blocks.size(); ++rank) {
        BlockState& block = *blocks[rank];
        block.start(x + rank % shape.x, y + rank / shape.x % shape.y, z + rank / shape.x / shape.y);
        living += block.living;
    }
}
void Cluster::start_warps() {
    for (const std::unique_ptr<BlockState>& block : blocks)
        for (Warp& warp : block->warps) block->start(warp);
}

uint64_t special_register(Warp& warp, int lane, int which) {
    const BlockState& block = *warp.block;
    const Launch& launch = *warp.launch->launch;
    const uint32_t grid[] = {launch.grid.x, launch.grid.y, launch.grid.z};
    const uint32_t cluster[] = {launch.cluster.x, launch.cluster.y, launch.cluster.z};
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
        case kNctaidY:
        case kNctaidZ:
            return grid[which - kNctaidX];
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
            return warp.launch->kernel->dynamic_base();
        case kWorkspaceHigh:
            return warp.launch->workspace >> 32;
        case kWorkspaceLow:
            return warp.launch->workspace & 0xffffffffu;
        case kClusterIdX:
        case kClusterIdY:
        case kClusterIdZ:
            return block.ctaid[which - kClusterIdX] / cluster[which - kClusterIdX];
        case kNclusterIdX:
        case kNclusterIdY:
        case kNclusterIdZ:
            return grid[which - kNclusterIdX] / cluster[which - kNclusterIdX];
        case kClusterCtaidX:
        case kClusterCtaidY:
        case kClusterCtaidZ:
            return block.ctaid[which - kClusterCtaidX] % cluster[which - kClusterCtaidX];
        case kClusterNctaidX:
        case kClusterNctaidY:
        case kClusterNctaidZ:
            return cluster[which - kClusterNctaidX];
        case kClusterCtaRank:
            return block.rank;
        case kClusterNctaRank:
            return block.cluster->blocks.size();
        case kIsExplicitCluster:
            return launch.in_clusters;
        default:
            return 0;
    }
}

namespace {

// A .sync instruction by which lanes exchange something, and the sizes of what they give and get.
struct Exchange {
    Handler fn;
    uint32_t given, got;  // bytes a lane; 0: a predicate
};
const Exchange* exchange_of(const Op& op) {
    static const std::vector<Exchange> all = [] {
        std::vector<Exchange> known;
        const auto add = [&](std::initializer_list<const char*> keys, uint32_t given, uint32_t got) {
            for (const char* key : keys) known.push_back({find_handler(key), given, got});
        };
        add({"shfl.idx.b32", "shfl.up.b32", "shfl.down.b32", "shfl.bfly.b32"}, 4, 4);
        add({"vote.ballot.b32"}, 0, 4);
        add({"vote.all.pred", "vote.any.pred", "vote.uni.pred"}, 0, 0);
        add({"match.any.b32", "match.all.b32"}, 4, 4);
        add({"match.any.b64", "match.all.b64"}, 8, 4);
        add({"redux.add.u32", "redux.add.s32", "redux.min.u32", "redux.max.u32", "redux.min.s32",
             "redux.max.s32", "redux.and.b32", "redux.or.b32", "redux.xor.b32", "elect"},
            4, 4);
        return known;
    }();
    for (const Exchange& each : all)
        if (each.fn == op.fn) return &each;
    return nullptr;
}
// Lanes that wait at a place of their own for others, and may find them at another.
bool waits_apart(const Group& g) { return g.wait == Wait::warp && (!g.ip->fn || exchange_of(*g.ip)); }

// What lanes bring to an instruction from wherever each of them is, and what they get: the registers and
// constants of an operation of its own.
struct Meeting {
    alignas(64) uint64_t wide[kLanes] = {};
    alignas(64) uint32_t given[kLanes] = {}, b[kLanes] = {}, c[kLanes] = {}, named[kLanes] = {};
    alignas(64) uint32_t got[kLanes] = {}, more = 0, predicates = 0;

    void bring(const Group& g, uint32_t lanes) {
        const Op& op = *g.ip;
        const char* base[2] = {g.frame->registers, g.frame->function->constant_base};
        const auto at = [&](uint32_t operand) { return base[operand & 1] + operand; };
        const auto words = [&](uint32_t operand) { return reinterpret_cast<const uint32_t*>(at(operand)); };
        const Exchange* what = exchange_of(op);
        if (what && !what->given) {
            const uint32_t own = op.sub & 1 ? ~*words(op.a) : *words(op.a);
            predicates = (predicates & ~lanes) | (own & lanes);
        }
        for (; lanes; lanes &= lanes - 1) {
            const int lane = std::countr_zero(lanes);
            named[lane] = words(op.aux)[lane];
            if (!what) continue;
            if (what->given == 4)
                given[lane] = words(op.a)[lane], b[lane] = words(op.b)[lane], c[lane] = words(op.c)[lane];
            if (what->given == 8) wide[lane] = reinterpret_cast<const uint64_t*>(at(op.a))[lane];
        }
    }
    uint32_t operand(const void* mine) const {  // as that of a constant is
        return static_cast<uint32_t>(static_cast<const char*>(mine) - reinterpret_cast<const char*>(this)) +
               1;
    }
    uint32_t result(const void* mine) const { return operand(mine) - 1; }
    void hold(Warp& warp, const Group& g, uint32_t lanes) {
        const Exchange& what = *exchange_of(*g.ip);
        Op op = *g.ip;
        op.a = !what.given ? operand(&predicates) : what.given == 8 ? operand(wide) : operand(given);
        op.b = operand(b), op.c = operand(c), op.aux = operand(named);
        op.dst = result(got), op.extra = result(&more);
        op.sub = 0, op.sub2 |= 1;  // negated already; the second result, for those who want it
        warp.registers = reinterpret_cast<char*>(this);
        warp.base[0] = warp.registers;
        warp.base[1] = reinterpret_cast<const char*>(this) - 1;
        warp.exec = lanes;
        op.fn(warp, op);
    }
    void take(const Group& g, uint32_t lanes) const {
        const Op& op = *g.ip;
        const auto words = [&](uint32_t operand) {
            return reinterpret_cast<uint32_t*>(g.frame->registers + operand);
        };
        const auto predicate = [&](uint32_t operand, uint32_t value) {
            *words(operand) = (*words(operand) & ~lanes) | (value & lanes);
        };
        if (!exchange_of(op)->got) return predicate(op.dst, got[0]);
        for (uint32_t left = lanes; left; left &= left - 1)
            words(op.dst)[std::countr_zero(left)] = got[std::countr_zero(left)];
        if (op.sub2 & 1) predicate(op.extra, more);
    }
};

}  // namespace

bool meet_apart(Warp& warp) {
    uint32_t waiting = 0, free = 0;
    for (int i = 0; i < warp.group_count; ++i)
        if (waits_apart(warp.groups[i])) waiting |= warp.groups[i].mask;
    if (!waiting) return false;
    Meeting meeting;
    const Group* where[kLanes] = {};
    for (int i = 0; i < warp.group_count; ++i) {
        const Group& g = warp.groups[i];
        if (!waits_apart(g)) continue;
        meeting.bring(g, g.mask);
        for (uint32_t left = g.mask; left; left &= left - 1) where[std::countr_zero(left)] = &g;
    }
    for (uint32_t left = waiting; left;) {
        const int lane = std::countr_zero(left);
        uint32_t party = 0;
        for (uint32_t each = left; each; each &= each - 1) {
            const int other = std::countr_zero(each);
            party |= uint32_t(meeting.named[other] == meeting.named[lane] &&
                              where[other]->ip->fn == where[lane]->ip->fn)
                     << other;
        }
        left &= ~party;
        if (meeting.named[lane] & warp.live & ~party) continue;
        if (profile::Watcher* watcher = warp.block->watcher)
            watcher->see(*where[lane]->frame->function, *where[lane]->ip, party);
        if (where[lane]->ip->fn) meeting.hold(warp, *where[lane], party);
        free |= party;
    }
    for (int i = 0, count = warp.group_count; i < count; ++i) {
        Group& g = warp.groups[i];
        const uint32_t lanes = waits_apart(g) ? g.mask & free : 0;
        if (!lanes) continue;
        if (g.ip->fn) meeting.take(g, lanes);
        if (lanes != g.mask) {
            g.mask &= ~lanes;
            warp.groups[warp.group_count++] = {g.frame, g.ip + 1, lanes, Wait::ready, 0, false};
        } else {
            g.wait = Wait::ready, ++g.ip;
        }
    }
    return free;
}

}  // namespace gpukernel::simgpu
