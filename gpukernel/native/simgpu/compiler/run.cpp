// Between the scheduler and compiled code: a warp's lanes go in and come out as the interpreter's groups.
#include <algorithm>
#include <bit>
#include <cstring>

#include "common/checked.h"
#include "simgpu/compiler/compiler.h"
#include "simgpu/compiler/machine_code.h"
#include "simgpu/exec/block.h"
#include "simgpu/exec/kernel_threads.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr uint32_t kLook = 1 << 10;  // barriers of a block between two looks at what else happens

// The library's way to count is a call.
uint32_t count_of(uint32_t lanes) {
    return lanes == kFull ? kLanes : static_cast<uint32_t>(std::popcount(lanes));
}

struct Running {
    Warp& warp;
    BlockState& block;
    const CompiledKernel& kernel;
    const MachineCode& image;
    const Flow& flow;
    Context& context;
    char* bytes;

    explicit Running(Warp& w)
        : warp(w),
          block(*w.block),
          kernel(*w.block->compiled),
          image(kernel.image()),
          flow(image.flow),
          context(*reinterpret_cast<Context*>(block.context.bytes.get())),
          bytes(block.context.bytes.get()) {}

    uint32_t* waiting() const { return reinterpret_cast<uint32_t*>(bytes + image.layout.waiting); }
    const Op* code() const { return flow.function->code.data(); }

    // The block at whose first operation a group is; -1: it is elsewhere, or not ready.
    int at_block(const Group& g) const {
        if (g.frame->caller || g.frame->function != flow.function || g.wait != Wait::ready || g.deferred)
            return -1;
        const auto n = static_cast<uint32_t>(g.ip - code());
        const uint32_t b = flow.block_of[n];
        return flow.blocks[b].begin == n ? static_cast<int>(b) : -1;
    }

    uint64_t& first_of(const Value& line) const {
        char* from = line.settled ? bytes + image.layout.settled : frame()->registers + image.layout.lines;
        return reinterpret_cast<uint64_t*>(from)[line.scalar];
    }

    template <class T>
    static bool on_a_line(const char* from, uint64_t step, uint32_t lanes, uint64_t& first) {
        const auto* values = reinterpret_cast<const T*>(from);
        const auto begin = [&](int lane) {
            const uint64_t steps = wrapping_product(step, static_cast<uint64_t>(lane));
            return static_cast<T>(wrapping_sum(values[lane], wrapping_negative(steps)));
        };
        const T base = begin(std::countr_zero(lanes));
        first = base;
        for (; lanes; lanes &= lanes - 1)
            if (begin(std::countr_zero(lanes)) != base) return false;
        return true;
    }

    // The first lane of each line that is alive at `entry`.  The lanes must be what the compiler has taken
    // them for, whatever order the interpreter has run them in.
    bool take_lines(uint32_t entry, const int* blocks) {
        for (uint32_t v : image.entry_lines[entry]) {
            const Value& value = flow.values[v];
            uint32_t lanes = 0;
            for (int i = 0; i < warp.group_count; ++i)
                if (contains(flow.blocks[static_cast<size_t>(blocks[i])].live, v))
                    lanes |= warp.groups[i].mask;
            if (!lanes) continue;
            uint64_t& scalar = first_of(value);
            const char* from = warp.registers + value.slot;
            const auto step = static_cast<uint64_t>(value.shape.step);
            if (value.bytes == 0) {
                const uint32_t bits = *reinterpret_cast<const uint32_t*>(from) & lanes;
                if (bits && bits != lanes) return false;
                scalar = bits ? ~0u : 0;
            } else if (!(value.bytes == 8 ? on_a_line<uint64_t>(from, step, lanes, scalar)
                                          : on_a_line<uint32_t>(from, step, lanes, scalar))) {
                return false;
            }
        }
        return true;
    }

    // Lines to where the interpreter has them.
    void give_lines(const Set& alive) {
        for (uint32_t v = 0; v < flow.values.size(); ++v) {
            const Value& value = flow.values[v];
            if (value.shape.kind != LaneShape::line || !contains(alive, v)) continue;
            char* to = frame()->registers + value.slot;
            const uint64_t first = first_of(value), step = static_cast<uint64_t>(value.shape.step);
            if (value.bytes == 0) std::memcpy(to, &first, sizeof(uint32_t));
            for (uint32_t lane = 0; value.bytes && lane < kLanes; ++lane) {
                const uint64_t one = wrapping_sum(first, wrapping_product(step, lane));
                std::memcpy(to + lane * value.bytes, &one, value.bytes);
            }
        }
    }

    // The lanes that run have come to a barrier of the whole block; false: the interpreter sees to it.
    bool meet() {
        const Op& op = code()[context.operation];
        const auto* ids = reinterpret_cast<const uint32_t*>(warp.base[op.a & 1] + op.a);
        const uint32_t id = ids[std::countr_zero(context.mask)];
        if (warp.group_count != 1 || id >= kBarriers) {
            const CodeBlock& here = flow.blocks[flow.block_of[context.operation]];
            give_lines(flow.alive(here)[context.operation - here.begin]);
            return false;
        }
        wait(op, id, context.mask);
        return true;
    }
    // At a barrier of the whole block, with the lines behind the registers.
    void wait(const Op& op, uint32_t id, uint32_t lanes) {
        warp.resumes = &op + 1;
        block.barriers[id].arrived += count_of(lanes);
        warp.groups[0].ip = &op;
        warp.groups[0].wait = Wait::barrier;
        warp.groups[0].barrier = static_cast<uint8_t>(id);
    }

    void forget_sites(uint64_t age) {
        std::memset(bytes + image.layout.sites, 0, image.layout.literals - image.layout.sites);
        block.context_age = age;
    }

    // Somebody else may have changed addresses: they are compared with what is known, or (`all`) that is
    // of another launch.
    void forget_places(bool all = false) {
        if (!image.layout.places) return;
        auto* states = reinterpret_cast<uint32_t*>(frame()->registers + image.layout.places);
        for (uint32_t n = 0; n < kPlaceStates; ++n)
            states[n] &= all ? 0 : ~static_cast<uint32_t>(kPlaceIsKnownNow);
    }

    void write_groups() {
        warp.group_count = 0;
        if (context.mask)
            warp.groups[warp.group_count++] = {
                frame(), code() + context.operation, context.mask, Wait::ready, 0, false};
        for (uint32_t b = 0; b < flow.blocks.size(); ++b) {
            if (!waiting()[b]) continue;
            warp.groups[warp.group_count++] = {
                frame(), code() + flow.blocks[b].begin, waiting()[b], Wait::ready, 0, false};
            waiting()[b] = 0;
        }
    }
    void write_only() {
        warp.group_count = 1;
        warp.groups[0] = {frame(), code() + context.operation, context.mask, Wait::ready, 0, false};
    }
    Frame* frame() const { return block.frames[warp.index].get(); }

    bool run() {
        // The barrier at which compiled code has left it has let it go: nobody else has touched it.
        const bool resumes = warp.resumes && warp.group_count == 1 && warp.groups[0].ip == warp.resumes;
        int blocks[kLanes];
        int lowest = -1;
        for (int i = 0; i < warp.group_count; ++i) {
            blocks[i] = at_block(warp.groups[i]);
            if (blocks[i] < 0) return false;
            if (lowest < 0 || blocks[i] < blocks[lowest]) lowest = i;
        }
        if (lowest < 0 || !flow.blocks[static_cast<size_t>(blocks[lowest])].entry) return false;
        const auto entry = static_cast<uint32_t>(blocks[lowest]);
        for (int i = 0; i < warp.group_count; ++i)
            if (i != lowest && (blocks[i] == blocks[lowest] ||
                                !flow.blocks[entry].waited_for.contains(static_cast<uint32_t>(blocks[i]))))
                return false;
        begin();
        warp.resumes = nullptr;
        if (!resumes) {
            forget_places();
            if (!take_lines(entry, blocks)) return false;
        }
        for (int i = 0; i < warp.group_count; ++i)
            if (i != lowest) waiting()[blocks[i]] |= warp.groups[i].mask;
        return after(enter(entry, warp.groups[lowest].mask));
    }

    // The warp's turn begins.
    void begin() {
        if (warp.launch->must_end() || warp.launch->must_rest()) warp.launch->go_on();
        // This thread has seen the age that its context has, or a later one.
        if (const uint64_t now = age_of_allocations.load(); warp.age != now || block.context_age != now)
            renew(warp);
        Frame* f = frame();
        warp.frame = f;
        warp.registers = f->registers;
        warp.base[0] = f->registers, warp.base[1] = flow.function->constant_base;
        warp.touched = false;
        if (block.context_age != warp.age) forget_sites(warp.age);
    }
    Left enter(uint32_t entry, uint32_t lanes) {
        context.front = context.back = &warp, context.more_blocks = 0, context.turns = 0;
        context.abreast = Abreast::off;
        context.mask = lanes;
        context.exited = 0;
        context.budget = kBudget;
        return static_cast<Left>(kernel.enter(context, warp, entry));
    }
    // The code was left; whether the warp's turn is over.
    bool after(Left left) {
        if (left == Left::faulted) {
            std::fill_n(waiting(), flow.blocks.size(), 0u);
            std::rethrow_exception(std::exchange(block.fault, nullptr));
        }
        if (left == Left::ended) context.mask = 0, context.exited = warp.live;
        // Nobody waits elsewhere: most often, there is nothing to look through.
        if (left == Left::met && flow.blocks[flow.block_of[context.operation]].alone)
            write_only();
        else
            write_groups();
        if (context.exited) end_lanes(warp, context.exited);
        if (left == Left::met) return meet();
        if (left == Left::handed) return false;
        if (left == Left::over) {
            warp.launch->go_on();
            // Lanes that wait in a loop for others of their warp are the interpreter's: it lets them pass.
            if (warp.touched && warp.group_count > 1) return false;
        }
        return true;
    }

    // A turn of a warp that has not been started; `handed`: the scheduler goes on with it.
    Left run_first() {
        warp.live = warp.started;
        warp.resumes = nullptr;
        begin();
        forget_places();
        const Left left = enter(0, warp.started);
        return left == Left::ended ? end_all() : begun(left);
    }
    Left begun(Left left) {
        block.start(warp);
        return after(left) ? left : Left::handed;
    }
    // A turn behind a barrier of the whole block.
    Left run_on() {
        const Group& group = warp.groups[0];
        const uint32_t entry = flow.block_of[static_cast<size_t>(group.ip - code())];
        begin();
        warp.resumes = nullptr;
        const Left left = enter(entry, group.mask);
        if (left == Left::ended) return end_all();
        return after(left) ? left : Left::handed;
    }
    // The same two, where code that has run several warps has not run this one, or has done its part of the
    // turn as far as an operation.
    void begin_later(uint32_t entry) {
        block.start(warp);
        if (entry) warp.resumes = warp.groups[0].ip = code() + flow.blocks[entry].begin;
    }
    void has_done(uint32_t end) {
        block.start(warp);
        if (end == kEnds) {
            end_all();
        } else {
            const Op& op = code()[end];
            wait(op, *reinterpret_cast<const uint32_t*>(flow.function->constant_base + op.a), warp.started);
        }
    }
    Left end_all() {  // nobody waits anywhere
        const uint32_t count = count_of(warp.live);
        block.living -= count, block.cluster->living -= count;
        warp.live = 0;
        warp.group_count = 0;
        return Left::ended;
    }
};

// All living threads wait at one barrier and for nobody else: they go on.
bool release(BlockState& block) {
    uint32_t id = kBarriers;
    for (const Warp& warp : block.warps)
        if (warp.live) id = warp.groups[0].barrier;
    if (block.barriers[id].arrived != block.living) return false;
    block.barriers[id] = {};
    for (Warp& warp : block.warps) {
        if (!warp.live) continue;
        Group& group = warp.groups[0];
        group.wait = Wait::ready, group.barrier = 0;
        ++group.ip;
    }
    return true;
}

}  // namespace

bool run(Warp& warp) { return Running(warp).run(); }

namespace {

// From barrier to barrier, beginning with the warps from `warp` on, which are where the turn begins; true:
// the block has ended.
bool run_turns(BlockState& block, Warp* warp, bool at_first) {
    do {
        for (; warp <= &block.warps.back(); ++warp) {
            if (!warp->live) continue;
            const Left left = at_first ? Running(*warp).run_first() : Running(*warp).run_on();
            if (left != Left::ended && left != Left::met) return false;
        }
        if (!block.living) return true;
        if (++block.turns % kLook == 0) block.launch->go_on();
        warp = &block.warps.front();
        at_first = false;
    } while (release(block));
    return false;
}

void make_untouched(BlockState& block) {
    for (Warp& warp : block.warps) {
        renew(warp);
        Frame* frame = block.frames[warp.index].get();
        warp.frame = frame, warp.registers = frame->registers;
        warp.base[0] = frame->registers, warp.base[1] = frame->function->constant_base;
        warp.live = warp.started;
        warp.arrived = 0;
        warp.partner = nullptr, warp.resumes = nullptr;
        warp.touched = false;
        warp.group_count = 0;
        Running(warp).forget_places();
    }
    block.untouched = true;
}

// Whoever asks which block it is asks the block itself, which code that runs several has not told.
void tell_block(BlockState& block) {
    const auto& context = *reinterpret_cast<const Context*>(block.context.bytes.get());
    block.linear += context.special[kCtaidX] - block.ctaid[0];
    block.ctaid[0] = context.special[kCtaidX];
}

// Runs warps from the block's first on until all have ended, or one is to be left.
Left run_warps(BlockState& block, Context& context) {
    for (Warp* warp = context.front;; warp = context.at) {
        LaunchState& launch = *block.launch;
        if (launch.must_end() || launch.must_rest()) launch.go_on();
        // What was freed after this look is found at the next one: nobody waits for less until then.
        const uint64_t now = age_of_allocations.load();
        if (!block.untouched || block.context_age != now) {
            make_untouched(block);
            Running(*warp).forget_sites(now);
        }
        context.exited = 0;
        context.budget = kBudget;
        const auto left = static_cast<Left>(block.compiled->enter_warps(context, *warp));
        if (left != Left::between) return left;
        launch.go_on();
    }
}

// One of a block's warps has left a turn; true: the block has ended nevertheless.
bool go_apart(BlockState& block, Context& context, Left left) {
    Warp& at = *context.at;
    const uint32_t turn_block = context.turn_block, turn_ends = context.turn_ends;
    const Warp *from = context.waiting_from, *to = context.waiting_to;
    if (from != to) context.differs = 1;  // most often the next block would be left, too
    for (Warp& warp : block.warps) {
        if (&warp >= from && &warp < to)
            Running(warp).begin_later(context.waits_at);
        else if (&warp < &at)
            Running(warp).has_done(turn_ends);
        else
            Running(warp).begin_later(turn_block);
    }
    left = Running(at).begun(left == Left::parted ? Left::ended : left);
    return from == to && (left == Left::ended || left == Left::met) &&
           run_turns(block, &at + 1, turn_block == 0);
}

}  // namespace

Ran run_blocks(BlockState& block, uint64_t count) {
#ifdef SIMGPU_CLEARED
    count = 1;
#endif
    auto& context = *reinterpret_cast<Context*>(block.context.bytes.get());
    const uint32_t x = block.ctaid[0];
    count = std::min<uint64_t>({count, block.launch->launch->grid.x - x, INT32_MAX});
    context.front = &block.warps.front(), context.back = &block.warps.back();
    context.more_blocks = static_cast<int32_t>(count - 1);
    context.turn_block = 0, context.turn_ends = kEnds, context.turns = 1;
    context.waiting_from = context.waiting_to = nullptr;
    context.abreast = context.differs ? Abreast::off : Abreast::gathers;
    block.compiled->begin_warps(context);
    const Left left = run_warps(block, context);
    if (left == Left::ended) {
        block.living = block.cluster->living = 0;
        return {count, true};
    }
    // The warp at which the code was left goes on, as if nobody had run those before it together.  What the
    // code has left in registers and memory is that warp's: only the block's number is new.
    block.untouched = false;
    const uint32_t blocks = context.special[kCtaidX] - x;
    tell_block(block);
    return {uint64_t{blocks} + 1, go_apart(block, context, left)};
}

void start(BlockState& block) {
    if (!block.compiled) return;
    auto& context = *reinterpret_cast<Context*>(block.context.bytes.get());
    std::copy_n(block.ctaid, 3, context.special + kCtaidX);
}

void prepare(BlockState& block) {
    const CompiledKernel* kernel = block.compiled;
    if (!kernel) return;
    const MachineCode& image = kernel->image();
    char* bytes = block.context.need(image.layout.bytes);
    std::memset(bytes, 0, image.layout.bytes);
    auto& context = *new (bytes) Context;
    std::copy(image.literals.begin(), image.literals.end(),
              reinterpret_cast<uint64_t*>(bytes + image.layout.literals));
    const Launch& launch = *block.launch->launch;
    context.params = block.launch->params.data();
    const Dim3 *shape = &launch.block, *grid = &launch.grid;
    const uint32_t values[] = {shape->x, shape->y, shape->z, 0, 0, 0, grid->x, grid->y, grid->z};
    std::copy(std::begin(values), std::end(values), context.special + kNtidX);
    context.dynamic_base = block.launch->kernel->dynamic_base();
    block.context_age = 0;
    block.untouched = false;
    Warp& warp = block.warps[0];
    warp.registers = block.frames[0]->registers;
    warp.base[0] = warp.registers, warp.base[1] = block.launch->kernel->constant_base;
    for (Warp& each : block.warps) Running(each).forget_places(true);
    kernel->settle(context, warp);
}

uint32_t call_handler(Warp* warp, const Op* op, uint32_t lanes) {
    try {
        tell_block(*warp->block);
        warp->exec = lanes;
        warp->end = op + 1;
        warp->known_patterns = 0;
        op->fn(*warp, *op);
        return 1;
    } catch (...) {
        warp->block->fault = std::current_exception();
        return 0;
    }
}

uint32_t call_and_learn(Warp* warp, const Op* op, uint32_t lanes, uint32_t site) {
    const char* registers = warp->base[op->a & 1] + op->a;
    uint64_t address;
    const int lane = std::countr_zero(lanes);  // before the access, which may change its own address
    if (op->sub & 1)
        address = static_cast<uint32_t>(
            wrapping_sum(reinterpret_cast<const uint32_t*>(registers)[lane], static_cast<uint64_t>(op->imm)));
    else
        address =
            wrapping_sum(reinterpret_cast<const uint64_t*>(registers)[lane], static_cast<uint64_t>(op->imm));
    if (!call_handler(warp, op, lanes)) return 0;
    const MachineCode& image = warp->block->compiled->image();
    auto* sites = reinterpret_cast<Site*>(warp->block->context.bytes.get() + image.layout.sites);
    for (const CachedRange& range : warp->cache) {
        if (address < range.lo || address >= range.hi) continue;
        for (int n = static_cast<int>(site); n >= 0; n = image.wanted[static_cast<size_t>(n)].also) {
            const uint64_t bytes = range.hi - range.lo, span = image.wanted[static_cast<size_t>(n)].span;
            sites[n] = {range.lo, bytes < span ? 0 : bytes - span + 1};
        }
    }
    return 1;
}

}  // namespace gpukernel::simgpu::compiler
