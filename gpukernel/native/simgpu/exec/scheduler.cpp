// Runs warps.  Lanes that have diverged form groups, each with its own frame and instruction pointer; the
// group in the deepest call and, within it, at the lowest instruction runs first and merges with any group
// that it meets.  Compilers lay code out so that the lowest instruction comes before the point where paths
// rejoin, so this reconverges where a post-dominator stack would, yet every lane keeps its own program
// counter: a lane that spins on a lock is set aside for the one that holds it, as on Volta.
#include <algorithm>
#include <bit>
#include <chrono>

#include "simgpu/exec/block.h"
#include "simgpu/exec/kernel_threads.h"

namespace gpukernel::simgpu {
namespace {

constexpr int kSpinPatience = 32;  // back edges of a diverged loop with atomics, before another group runs
constexpr int kLoopPatience = 1 << 16;  // and of any other
#ifndef SIMGPU_SLICE
#define SIMGPU_SLICE (1 << 14)
#endif
constexpr int kSlice = SIMGPU_SLICE;  // operations in loops before another warp of the block runs
constexpr int kSpinSlice = 1 << 8;    // and at most so many back edges of a loop with atomics
constexpr uint32_t kDeepest = 4096;   // calls within each other

// What is used up of a slice by so many operations, once: whoever cancels a kernel must not wait for as many
// rounds of a long loop as of a short one.
int cost_of(int64_t operations, bool spins = false) {
    const auto cost = static_cast<int>(std::min<int64_t>(1 + operations, kSlice));
    return spins ? std::max(cost, kSlice / kSpinSlice) : cost;
}

uint32_t predicate(const Warp& warp, uint32_t operand) {
    return *reinterpret_cast<const uint32_t*>(warp.base[operand & 1] + operand);
}
const uint32_t* words(const Warp& warp, uint32_t operand) {
    return reinterpret_cast<const uint32_t*>(warp.base[operand & 1] + operand);
}
const uint64_t* longs(const Warp& warp, uint32_t operand) {
    return reinterpret_cast<const uint64_t*>(warp.base[operand & 1] + operand);
}

struct Runner {
    Warp& warp;
    Frame* frame = nullptr;
    const Op* ip = nullptr;
    const Op* limit = nullptr;
    uint32_t mask = 0;
    int patience = 0, spins = 0, slice = kSlice;

    void enter(Frame* f) {
        frame = f;
        warp.frame = f;
        warp.registers = f->registers;
        warp.base[0] = f->registers;
        warp.base[1] = f->function->constant_base;
    }
    void park(const Op* at, uint32_t lanes, Frame* f, Wait wait = Wait::ready, uint8_t barrier = 0,
              bool deferred = false) {
        for (int i = 0; i < warp.group_count; ++i) {
            Group& g = warp.groups[i];
            if (g.ip == at && g.frame == f && g.wait == wait && g.barrier == barrier) {
                g.mask |= lanes;
                g.deferred &= deferred;
                return;
            }
        }
        warp.groups[warp.group_count++] = {f, at, lanes, wait, barrier, deferred};
    }
    void drop(int i) { warp.groups[i] = warp.groups[--warp.group_count]; }

    // Takes the next group that can run; false: none.
    bool pick() {
        int best = -1;
        for (int round = 0; round < 2 && best < 0; ++round) {
            for (int i = 0; i < warp.group_count; ++i) {
                Group& g = warp.groups[i];
                if ((g.wait == Wait::warp && satisfied(g)) ||
                    (g.wait == Wait::cluster && g.mask & ~warp.block->cluster->waiting(warp)) ||
                    (g.wait == Wait::warpgroup && warpgroup_is_done(warp, *g.ip)))
                    g.wait = Wait::ready;
                if (g.wait != Wait::ready || g.deferred) continue;
                if (best < 0 || g.frame->depth > warp.groups[best].frame->depth ||
                    (g.frame->depth == warp.groups[best].frame->depth && g.ip < warp.groups[best].ip))
                    best = i;
            }
            // Who spins may do so for lanes that wait for each other at different places: those go first.
            if (best < 0 && meet_apart(warp)) return pick();
            if (best < 0)
                for (int i = 0; i < warp.group_count; ++i) warp.groups[i].deferred = false;
        }
        if (best < 0) return false;
        Group g = warp.groups[best];
        drop(best);
        enter(g.frame);
        ip = g.ip;
        mask = g.mask;
        for (int i = 0; i < warp.group_count; ++i)
            if (warp.groups[i].frame == frame && warp.groups[i].ip == ip &&
                warp.groups[i].wait == Wait::ready) {
                mask |= warp.groups[i].mask;
                drop(i--);
            }
        set_limit();
        return true;
    }
    void set_limit() {
        limit = reinterpret_cast<const Op*>(~uintptr_t(0));
        for (int i = 0; i < warp.group_count; ++i) {
            const Group& g = warp.groups[i];
            if (g.frame == frame && g.wait == Wait::ready && g.ip >= ip) limit = std::min(limit, g.ip);
        }
    }
    // Who waits at a .sync instruction may go on when all living lanes that one of the group names are there.
    // Whether some of the lanes that wait at one place can go on: of those with one mask, all are there that
    // it names.  The instruction asks the same, or they would be let go and wait again for ever.
    bool satisfied(const Group& g) {
        for (uint32_t left = g.mask; left;) {
            const int lane = std::countr_zero(left);
            const uint32_t mask = member_mask(g, lane);
            uint32_t lanes = 0;
            for (uint32_t each = left; each; each &= each - 1)
                lanes |= uint32_t(member_mask(g, std::countr_zero(each)) == mask) << std::countr_zero(each);
            lanes &= mask >> lane & 1 ? mask : ~mask;
            if (!waits(mask, lanes)) return true;
            left &= ~lanes;
        }
        return false;
    }
    bool waits(uint32_t mask, uint32_t lanes) const {
        const uint32_t named = mask & warp.live;
        return named & lanes && named & ~lanes;
    }
    uint32_t alike(const Op& op, uint32_t lanes) {
        const uint32_t *named = words(warp, op.aux), mask = named[std::countr_zero(lanes)];
        uint32_t same = 0;
        for (int i = 0; i < kLanes; ++i) same |= uint32_t(named[i] == mask) << i;
        return lanes & same & (mask >> std::countr_zero(lanes) & 1 ? mask : ~mask);
    }
    uint32_t member_mask(const Group& g, int lane) {
        const char* base[2] = {g.frame->registers, g.frame->function->constant_base};
        uint32_t operand = g.ip->aux;
        return reinterpret_cast<const uint32_t*>(base[operand & 1] + operand)[lane];
    }

    // For who counts: lanes do an operation of the scheduler's.
    void seen(const Op& op, uint32_t lanes) const {
        if (warp.block->watcher && lanes) warp.block->watcher->see(warp, op, lanes, lanes);
    }
    // Lanes that come to it together may do it, or be done with it, one after the other.
    static bool in_parts(const Op& op) {
        return op.control == Control::warp_sync || op.control == Control::branch_table ||
               op.control == Control::call || op.control == Control::cluster_wait ||
               op.control == Control::warpgroup_wait;
    }
    void swap_out(bool deferred = false) { park(ip, mask, frame, Wait::ready, 0, deferred); }

    bool back_edge(const Op* from, const Op* to) {  // true: give the thread to another warp
        // A loop that reads what others write may be waiting for them: they get their turn sooner.  Those of
        // its own warp get it once patience is over, which must not come later than the end of the turn.
        warp.touched ? spins += kLoopPatience / kSpinPatience : ++spins;
        slice -= warp.touched && warp.group_count ? kSlice / kSpinSlice : cost_of(from - to, warp.touched);
        if (slice > 0 && !warp.launch->must_rest()) return false;
        slice = kSlice;
        warp.launch->go_on();
        return true;
    }

    void ret(uint32_t lanes) {
        Frame* f = frame;
        if (!f->caller) return end_lanes(warp, lanes);
        const CallSite& site = *f->site;
        for (size_t r = 0; r < site.rets.size() && r < f->function->rets.size(); ++r)
            copy_local(f->local_base + f->function->rets[r].offset, f->caller->local_base + site.rets[r],
                       inside(*f->caller, site.rets[r], f->function->rets[r].size), lanes);
        f->mask &= ~lanes;
        park(f->return_to, lanes, f->caller);
        if (!f->mask) warp.block->spare.push_back(f);
    }
    // What a caller passes may be smaller than what the function declares; nothing beyond its frame is
    // touched.
    static uint32_t inside(const Frame& caller, uint32_t offset, uint32_t bytes) {
        return std::min(bytes, caller.function->local_bytes - offset);
    }
    void copy_local(uint64_t from, uint64_t to, uint32_t bytes, uint32_t lanes) {
        for (; lanes; lanes &= lanes - 1) {
            char* thread = warp.local + std::countr_zero(lanes) * warp.local_stride;
            __builtin_memcpy(thread + to, thread + from, bytes);
        }
    }

    void call(const Op& op, uint32_t lanes) {
        const Function& here = *frame->function;
        const CallSite& site = here.calls[op.extra];
        if (site.builtin != Builtin::none) {
            warp.exec = lanes;
            seen(op, lanes);
            call_builtin(warp, site);
            park(&op + 1, lanes, frame);
            return;
        }
        const auto& functions = warp.launch->program->functions;
        size_t callee = static_cast<size_t>(site.callee);
        if (site.callee < 0) {
            const uint64_t* target = longs(warp, op.a);
            uint64_t address = target[std::countr_zero(lanes)];
            uint32_t same = 0;
            for (int i = 0; i < kLanes; ++i) same |= uint32_t(target[i] == address) << i;
            if (uint32_t others = lanes & ~same) park(&op, others, frame);
            lanes &= same;
            callee = address & kOffsetMask;
            if ((address >> kWindowShift) != (kFunctionWindow >> kWindowShift) || callee >= functions.size())
                throw Fault{Status::illegal_address,
                            "An indirect call to an address that is not a function's, " +
                                place(warp, std::countr_zero(lanes), op.line)};
        }
        seen(op, lanes);
        const Function& function = *functions[callee];
        if (!function.lacking.empty()) throw Fault{Status::unsupported, function.lacking};
        if (frame->depth >= kDeepest)  // a frame without variables takes no stack, but it takes registers
            throw Fault{Status::illegal_address, "stack overflow: " + std::to_string(kDeepest) +
                                                     " calls within each other, at " +
                                                     place(warp, std::countr_zero(lanes))};
        slice -= cost_of(static_cast<int64_t>(function.code.size()));
        if (slice <= 0) {  // recursion may take for ever without one backward branch
            slice = kSlice;
            pause(warp);
        }
        Frame* f = warp.block->make_frame(function);
        f->caller = frame;
        f->return_to = &op + 1;
        f->mask = lanes;
        f->depth = frame->depth + 1;
        f->site = &site;
        f->local_base = (frame->local_base + here.local_bytes + 15) / 16 * 16;
        if (f->local_base + function.local_bytes > warp.local_stride)
            stack_overflow(warp, std::countr_zero(lanes));
        for (size_t p = 0; p < site.args.size() && p < function.params.size(); ++p)
            copy_local(frame->local_base + site.args[p], f->local_base + function.params[p].offset,
                       inside(*frame, site.args[p], function.params[p].size), lanes);
        park(function.code.data(), lanes, f);
    }

    void barrier(const Op& op, uint32_t lanes) {
        uint32_t id = words(warp, op.a)[std::countr_zero(lanes)];
        if (id >= kBarriers)
            throw Fault{Status::illegal_barrier, "Barrier " + std::to_string(id) +
                                                     " does not exist (0 to 15), " +
                                                     place(warp, std::countr_zero(lanes), op.line)};
        Barrier& b = warp.block->barriers[id];
        uint32_t count = std::popcount(lanes);
        if (op.sub2 & 1) {  // an explicit count: whole warps
            b.expected = words(warp, op.b)[std::countr_zero(lanes)];
            if ((lanes & warp.live) == warp.live) count = kLanes;
        }
        if (op.sub) {
            uint32_t p = predicate(warp, op.c);
            if (op.sub2 & 2) p = ~p;
            b.votes += std::popcount(lanes);
            b.votes_true += std::popcount(lanes & p);
        }
        b.arrived += count;
        if (op.control == Control::barrier_arrive)
            park(&op + 1, lanes, frame);
        else
            park(&op, lanes, frame, Wait::barrier, static_cast<uint8_t>(id));
    }

    // A barrier in two halves, for all threads of the cluster that have not ended (PTX ISA 9.7.13.4).
    void cluster_arrive(const Op& op, uint32_t lanes) {
        Cluster& cluster = *warp.block->cluster;
        if (const uint32_t again = lanes & warp.arrived)
            throw Fault{Status::illegal_barrier,
                        "A thread arrives at its cluster's barrier again without having waited there, " +
                            place(warp, std::countr_zero(again), op.line)};
        warp.arrived |= lanes;
        warp.odd = cluster.phase & 1 ? warp.odd | lanes : warp.odd & ~lanes;
        cluster.arrived += static_cast<uint32_t>(std::popcount(lanes));
        cluster.meet();
        park(&op + 1, lanes, frame);
    }
    void cluster_wait(const Op& op, uint32_t lanes) {
        if (const uint32_t strangers = lanes & ~warp.arrived)
            throw Fault{Status::illegal_barrier,
                        "A thread waits at its cluster's barrier without having arrived there, " +
                            place(warp, std::countr_zero(strangers), op.line)};
        const uint32_t waiting = lanes & warp.block->cluster->waiting(warp), passed = lanes & ~waiting;
        if (waiting) park(&op, waiting, frame, Wait::cluster);
        if (!passed) return;
        warp.arrived &= ~passed;
        seen(op, passed);
        park(&op + 1, passed, frame);
    }

    bool run() {
        if (warp.block->watcher) return watched(warp);
        if (warp.block->compiled && compiler::run(warp)) return true;
        return interpret<false>();
    }
    // Apart from the other, so that whoever is not watched has all of this in registers.
    [[gnu::noinline]] static bool watched(Warp& warp);
    template <bool kWatched>
    bool interpret();
};

// Where it is watched, `see` is told of every operation before it is executed.
template <bool kWatched>
[[gnu::always_inline]] inline bool Runner::interpret() {
    const auto see = [this](const Op& op, uint32_t lanes, uint32_t exec) {
        if constexpr (kWatched) warp.block->watcher->see(warp, op, lanes, exec);
    };
    bool progress = false;
    while (pick()) {
        if (warp.launch->must_rest()) warp.launch->go_on();
        renew(warp);
        // Where lanes have diverged, a loop may wait for others of its warp, whatever it calls meanwhile.
        if (!progress || !warp.group_count) spins = 0, warp.touched = false;
        progress = true;
        for (;;) {
            if (ip >= limit) {
                swap_out();
                break;
            }
            const Op& op = *ip;
            if (op.straight) {  // most of what runs: nothing to look at between two operations
                const Op *at = ip, *end = std::min(ip + op.straight, limit);
                warp.exec = mask;
                warp.end = end;
                warp.known_patterns = 0;
                do {
                    if constexpr (kWatched)  // those that one handler does at once access no memory
                        for (const Op* each = at; each < std::min(at + at->width, end); ++each)
                            see(*each, mask, mask);
                    at->fn(warp, *at);
                    at += at->width;
                } while (at < end);
                ip = end;
                continue;
            }
            uint32_t exec = mask;
            if (op.guard != kNoGuard) {
                uint32_t p = predicate(warp, op.guard);
                exec &= op.guard_not ? ~p : p;
                if (!exec) {
                    see(op, mask, 0);
                    ++ip;
                    continue;
                }
            }
            if (op.control == Control::none) {
                see(op, mask, exec);
                warp.exec = exec;
                warp.end = ip + 1;
                op.fn(warp, op);
                ++ip;
                continue;
            }
            if (op.control == Control::branch) {
                const Op *from = ip, *target = frame->function->code.data() + op.aux;
                bool back = target <= ip;
                see(op, mask, exec);
                uint32_t rest = mask & ~exec;
                if (!rest) {
                    ip = target;
                } else {
                    park(ip + 1, rest, frame);
                    ip = target;
                    mask = exec;
                }
                if (back && back_edge(from, target)) {
                    swap_out();
                    return true;
                }
                if (warp.group_count) {
                    bool deferred = spins >= kLoopPatience;
                    swap_out(deferred);
                    if (deferred) spins = 0, warp.touched = false, pause(warp);
                    if (!pick()) return true;
                }
                continue;
            }
            // The rest is rare: lanes whose guard is off go on behind it.
            if (uint32_t rest = mask & ~exec) park(ip + 1, rest, frame);
            mask = exec;
            bool again = false;
            if constexpr (kWatched)
                if (!in_parts(op)) seen(op, exec);
            switch (const uint32_t all = exec; op.control) {
                case Control::warp_sync: {
                    exec = mask = alike(op, exec);
                    if (all != exec) park(ip, all & ~exec, frame);
                    if (waits(words(warp, op.aux)[std::countr_zero(exec)], exec)) {
                        park(ip, exec, frame, Wait::warp);
                        break;
                    }
                    see(op, exec, exec);
                    warp.exec = exec;
                    if (op.fn) op.fn(warp, op);
                    ++ip;
                    again = all == exec;
                    again ? set_limit() : swap_out();
                    break;
                }
                case Control::branch_table: {
                    const uint32_t* index = words(warp, op.a);
                    const auto& table = frame->function->tables[op.extra];
                    uint32_t value = index[std::countr_zero(exec)], same = 0;
                    for (int i = 0; i < kLanes; ++i) same |= uint32_t(index[i] == value) << i;
                    see(op, exec & same, exec & same);
                    if (exec & ~same) park(ip, exec & ~same, frame);
                    if (value >= table.size())
                        throw Fault{Status::trap, "brx.idx with an index outside its table, " +
                                                      place(warp, std::countr_zero(exec), op.line)};
                    const Op* to = frame->function->code.data() + table[value];
                    park(to, exec & same, frame);
                    if (to <= ip && back_edge(ip, to)) return true;
                    break;
                }
                case Control::ret:
                    ret(exec);
                    break;
                case Control::exit: {
                    Frame* f = frame;
                    end_lanes(warp, exec);
                    for (; f->caller; f = f->caller) f->mask &= ~exec;
                    break;
                }
                case Control::call:
                    call(op, exec);
                    break;
                case Control::barrier:
                case Control::barrier_arrive:
                    barrier(op, exec);
                    break;
                case Control::cluster_arrive:
                    cluster_arrive(op, exec);
                    break;
                case Control::cluster_wait:
                    cluster_wait(op, exec);
                    break;
                case Control::warpgroup_wait:
                    if (warpgroup_is_done(warp, op))
                        see(op, exec, exec), park(ip + 1, exec, frame);
                    else
                        park(ip, exec, frame, Wait::warpgroup);
                    break;
                case Control::trap:
                    throw Fault{Status::trap, "Trap " + place(warp, std::countr_zero(exec), op.line)};
                default:
                    park(ip + 1, exec, frame);
                    return true;
            }
            if (!again) break;
        }
    }
    return progress;
}

bool Runner::watched(Warp& warp) { return Runner{warp}.interpret<true>(); }

// Two warps whose lanes are all at the same instruction, for as long as they stay together.  An instruction
// of the one hides in the other's what it waits for: its own last result, above all.
struct Pair {
    Warp* warps[2];
    const Op* ip = nullptr;
    int slice = kSlice;

    static const Group* whole(const Warp& warp) {
        const Group& g = warp.groups[0];
        return warp.group_count == 1 && g.mask == kFull && g.wait == Wait::ready ? &g : nullptr;
    }
    static bool together(const Warp& a, const Warp& b) {
        const Group *one = whole(a), *other = whole(b);
        return one && other && one->ip == other->ip;
    }

    bool run() {  // whether both have used their slice
        Warp &a = *warps[0], &b = *warps[1];
        for (Warp* warp : warps) {
            Runner{*warp}.enter(warp->groups[0].frame);
            renew(*warp);
            warp->touched = false;
        }
        a.partner = &b;
        ip = a.groups[0].ip;
        for (;;) {
            const Op& op = *ip;
            if (op.straight) {
                const Op *at = ip, *end = ip + op.straight;
                for (Warp* warp : warps) warp->exec = kFull, warp->end = end, warp->known_patterns = 0;
                do {
                    at->fn(a, *at);
                    if (!at->pairs) at->fn(b, *at);
                    at += at->width;
                } while (at < end);
                ip = end;
                continue;
            }
            uint32_t run[2] = {kFull, kFull};
            if (op.guard != kNoGuard)
                for (int i = 0; i < 2; ++i) {
                    const uint32_t p = predicate(*warps[i], op.guard);
                    run[i] = op.guard_not ? ~p : p;
                }
            if (!run[0] && !run[1]) {
                ++ip;
            } else if (op.control == Control::none) {
                for (int i = 0; i < 2; ++i) {
                    if (!run[i]) continue;
                    warps[i]->exec = run[i];
                    warps[i]->end = ip + 1;
                    op.fn(*warps[i], op);
                }
                ++ip;
            } else if ((run[0] & run[1]) != kFull) {
                return part(false);
            } else if (op.control == Control::branch) {
                const Op* target = a.frame->function->code.data() + op.aux;
                const int64_t round = ip - target;
                ip = target;
                if (round < 0) continue;
                slice -= cost_of(round, a.touched || b.touched);
                if (slice > 0 && !a.launch->must_rest()) continue;
                a.launch->go_on();
                return part(true);
            } else if (op.control == Control::warp_sync && names_all(op)) {
                for (Warp* warp : warps) {
                    warp->exec = kFull;
                    if (op.fn) op.fn(*warp, op);
                }
                ++ip;
            } else {
                return part(false);
            }
        }
    }
    bool names_all(const Op& op) const {
        uint32_t missing = 0;
        for (int i = 0; i < 2 * kLanes; ++i) missing |= ~words(*warps[i / kLanes], op.aux)[i % kLanes];
        return !missing;
    }
    bool part(bool used) {
        warps[0]->partner = nullptr;
        for (Warp* warp : warps) warp->groups[0].ip = ip;
        return used;
    }
};

}  // namespace

void pause(Warp& warp) {
    warp.launch->go_on();
    renew(warp);
}

SliceResult BlockState::run_slice() {
    bool progress = false;
    if (++turns % kSlice == 0 || launch->must_end())
        launch->go_on();  // warps that only sleep or meet at barriers never ask
    for (size_t w = 0; w < warps.size(); ++w) {
        if (!compiled && !watcher && w + 1 < warps.size() && Pair::together(warps[w], warps[w + 1])) {
            progress = true;
            if (Pair{{&warps[w], &warps[w + 1]}}.run()) {
                ++w;
                continue;
            }
        }
        if (warps[w].live) progress |= Runner{warps[w]}.run();
    }
    if (!living) return SliceResult::ended;
    for (Barrier& b : barriers)
        if (b.arrived && b.arrived >= (b.expected ? b.expected : living)) {
            release_barriers();
            progress = true;
            break;
        }
    return progress ? SliceResult::ran : SliceResult::stuck;
}

bool Cluster::run_slice() {
    bool progress = false;
    const BlockState* stuck = nullptr;
    for (const std::unique_ptr<BlockState>& block : blocks) {
        if (!block->living) continue;
        const SliceResult turn = block->run_slice();
        progress |= turn != SliceResult::stuck;
        if (turn == SliceResult::stuck) stuck = block.get();
    }
    if (stuck && !progress) stuck->deadlock();
    return !living;
}

}  // namespace gpukernel::simgpu
