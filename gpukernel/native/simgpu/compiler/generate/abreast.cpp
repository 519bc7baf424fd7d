// A loop that several warps of a block run side by side, so that the latency of one hides in the others.
//
// One warp's 32 numbers are two vectors: a chain in which each operation needs the last leaves three quarters
// of the processor idle.  Of a kernel's loops without memory one is chosen.  Who comes to it writes its
// vectors to memory and waits, and the next warp of the block begins its part of the turn.  When enough wait,
// or the last has come, all of them run the loop together, each in vectors of its own; what is the same for
// all lanes must be the same for these warps, and is computed once.  Behind the loop they go on one after the
// other.  Wherever the code is left meanwhile, the scheduler finds those that wait as if each had run alone
// up to the loop, or to what is behind it.
#include <algorithm>
#include <cstddef>

#include "simgpu/compiler/generate/generator.h"
#include "simgpu/compiler/generate/instructions.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr int kMostAbreast = 4;         // eight vectors are on their way then
constexpr uint32_t kWorth = 8;          // operations with vectors
constexpr size_t kForBroadcasts = 8;    // vectors, of what all lanes share
constexpr int32_t kOfOthers = 1 << 14;  // what is used up of the budget when a warp goes on
constexpr int32_t kWarp = sizeof(Warp);

bool for_several(const VectorOp& op) {
    return op.form != VectorOp::compare && op.form != VectorOp::predicate && op.form != VectorOp::select;
}

}  // namespace

// Whether an operation of the loop can be written for several warps; `touched` are the values that need a
// vector for each.
bool Generator::goes_abreast(uint32_t n, std::set<uint32_t>& touched) const {
    const Op& op = function_.code[n];
    const Signature& s = flow_.signatures[n];
    if (settled_[n] || s.key == "nothing") return true;
    if (op.control != Control::none || op.guard != kNoGuard || s.keeps || s.writes.size() != 1) return false;
    const VectorOp* vector = vector_op(s.key);
    const bool scalar = is_line(s.writes[0].operand) && line_op(s.key) != LineOp::none &&
                        (line_op(s.key) != LineOp::shift_left || s.reads[1].operand & 1);
    if (!vector && !scalar) return false;
    const auto leaves = [&](const Access& a) {
        return widens(s.key) && is_line(a.operand) && step(a.operand);
    };
    if (scalar && std::any_of(s.reads.begin(), s.reads.end(), leaves)) return false;
    if (is_line(s.writes[0].operand)) return true;
    if (!for_several(*vector)) return false;
    std::vector<Access> all = s.reads;
    all.push_back(s.writes[0]);
    for (const Access& a : all) {
        if (is_line(a.operand)) continue;
        if (a.bytes < 4 || value(a.operand).vectors.empty()) return false;
        touched.insert(flow_.value(a.operand));
    }
    return true;
}

// Whether whoever runs a block before the loop changes nothing that others see: then nobody sees, either,
// that other warps have run it meanwhile.
bool Generator::shows_nothing(const CodeBlock& b) const {
    for (uint32_t n = b.begin; n < b.end; ++n) {
        const Op& op = function_.code[n];
        const std::string& key = flow_.signatures[n].key;
        if (op.control == Control::branch || op.control == Control::exit || op.control == Control::warp_sync)
            continue;
        if (op.control != Control::none) return false;
        MemoryOp m;
        if (memory_op(key, m) ? !m.loads
                              : !(key == "nothing" || key.starts_with("special.") || vector_op(key) ||
                                  is_composed(key) || line_op(key) != LineOp::none))
            return false;
    }
    return true;
}

bool Generator::comes_without_a_trace(uint32_t loop, const std::vector<std::vector<uint32_t>>& before) const {
    std::vector<bool> seen(flow_.blocks.size());
    std::vector<uint32_t> left = {loop};
    while (!left.empty()) {
        const uint32_t at = left.back();
        left.pop_back();
        for (uint32_t b : before[at]) {
            const CodeBlock& from = flow_.blocks[b];
            if (b == loop || seen[b] || is_plain_barrier(function_.code[from.end - 1])) continue;
            seen[b] = true;
            if (!shows_nothing(from)) return false;
            left.push_back(b);
        }
    }
    return true;
}

// The loop with the most operations that can be run so, and how many warps can.
void Generator::find_abreast() {
    if (image_.narrow) return;
    std::vector<std::vector<uint32_t>> before(flow_.blocks.size());
    for (uint32_t b = 0; b < flow_.blocks.size(); ++b)
        for (uint32_t to : flow_.blocks[b].next) before[to].push_back(b);
    uint32_t most = kWorth - 1;
    for (uint32_t b = 1; b + 1 < flow_.blocks.size(); ++b) {
        const CodeBlock& loop = flow_.blocks[b];
        const Op& last = function_.code[loop.end - 1];
        if (last.control != Control::branch || flow_.block_of[last.aux] != b || last.guard == kNoGuard ||
            !is_line(last.guard) || !loop.alone || loop.waitable || loop.depth != 1 || !loop.entry ||
            !flow_.blocks[b + 1].entry)
            continue;
        std::set<uint32_t> touched, shared;
        uint32_t operations = 0;
        bool fits = true;
        for (uint32_t n = loop.begin; fits && n + 1 < loop.end; ++n) {
            const Signature& s = flow_.signatures[n];
            fits = goes_abreast(n, touched);
            if (!fits || settled_[n] || s.writes.empty() || is_line(s.writes[0].operand)) continue;
            ++operations;
            for (const Access& a : s.reads)
                if (is_line(a.operand)) shared.insert(a.operand);
        }
        if (!fits || operations <= most || !comes_without_a_trace(b, before)) continue;
        std::set<uint8_t> vectors;
        for (uint32_t v : touched)
            vectors.insert(flow_.values[v].vectors.begin(), flow_.values[v].vectors.end());
        const int room = kVectors - kFirstVector - static_cast<int>(std::min(shared.size(), kForBroadcasts));
        const int count = std::min(kMostAbreast, room / static_cast<int>(vectors.size()));
        if (count < 2) continue;
        most = operations;
        abreast_ = {b, count, std::move(touched), {}};
        // The first has those that the values have; the others have any.
        std::set<uint8_t> taken = vectors;
        for (int g = 1; g < count; ++g) {
            std::map<uint8_t, uint8_t> own;
            uint8_t reg = kFirstVector;
            for (uint8_t each : vectors) {
                while (taken.contains(reg)) ++reg;
                taken.insert(own[each] = reg);
            }
            abreast_.own.push_back(std::move(own));
        }
    }
}

Memory Generator::home_in(Gpr frame, const Value& line) const {
    return {frame, static_cast<int32_t>(image_.layout.lines) + 8 * line.scalar};
}

// Those of the values that have vectors here, to memory or from there: of the g-th warp, whose frame it is.
void Generator::move_abreast(bool stores, int g, Gpr frame, const Set& alive) {
    for (uint32_t v : abreast_.touched) {
        if (!contains(alive, v)) continue;
        const Value& value = flow_.values[v];
        for (size_t unit = 0; unit < value.vectors.size(); ++unit) {
            const uint8_t first = value.vectors[unit];
            const int reg = g ? abreast_.own[static_cast<size_t>(g - 1)].at(first) : first;
            a_.vector(stores ? kStore : kLoad, reg, 0,
                      Memory{frame, static_cast<int32_t>(value.slot) + 64 * static_cast<int32_t>(unit)});
        }
    }
}

// All of them, and what all lanes share, to where each warp looks for it.
void Generator::store_abreast(const Set& alive) {
    std::set<uint32_t> lines;
    for (uint32_t n = block().begin; n < block().end; ++n)
        for (const Access& a : flow_.signatures[n].writes)
            if (!settled_[n] && is_line(a.operand) && contains(alive, flow_.value(a.operand)))
                lines.insert(flow_.value(a.operand));
    move_abreast(true, 0, rbx, alive);
    Label all;
    a_.move(rdx, r14);
    for (int g = 1; g < abreast_.count; ++g) {
        a_.alu(Assembler::add, rdx, kWarp, true);
        a_.alu(Assembler::compare, rdx, field(offsetof(Context, waiting_to), 8), true);
        a_.jump(above_equal, all);
        a_.load(rcx, {rdx, static_cast<int32_t>(offsetof(Warp, registers))}, true);
        move_abreast(true, g, rcx, alive);
        for (uint32_t v : lines) {
            a_.load(rax, home_in(rbx, flow_.values[v]), true);
            a_.store(home_in(rcx, flow_.values[v]), rax, true);
        }
    }
    a_.bind(all);
}

void Generator::say_abreast(Abreast what) {
    a_.store(field(offsetof(Context, abreast)), static_cast<int32_t>(what), false);
}
void Generator::if_abreast(Abreast what, Label& to) {
    a_.alu(Assembler::compare, field(offsetof(Context, abreast)), static_cast<int32_t>(what));
    a_.jump(equal, to);
}

// The warp that runs has come to the loop.
void Generator::arrive_abreast() {
    const auto arrives = std::make_shared<Label>(), plain = std::make_shared<Label>();
    a_.alu(Assembler::compare, field(offsetof(Context, abreast)), static_cast<int32_t>(Abreast::off));
    a_.jump(not_equal, *arrives);
    a_.bind(*plain);
    cold_.push_back([this, arrives, plain] {
        block_ = abreast_.block;
        const std::vector<Set> alive = flow_.alive(block());
        Label part, first, another, begin, alone;
        a_.bind(*arrives);
        if_abreast(Abreast::goes_on, *plain);
        a_.alu(Assembler::compare, r12, warp_field(offsetof(Warp, started), 4), false);
        a_.jump(not_equal, part);
        if_abreast(Abreast::waits, another);
        a_.alu(Assembler::compare, r14, field(offsetof(Context, back), 8), true);
        a_.jump(equal, *plain);
        a_.store(field(offsetof(Context, waiting_from), 8), r14, true);
        a_.store(field(offsetof(Context, waits_at)), static_cast<int32_t>(abreast_.block), false);
        a_.load(rax, field(offsetof(Context, turn), 8), true);
        a_.store(field(offsetof(Context, turn_again), 8), rax, true);
        say_abreast(Abreast::waits);
        a_.bind(another);
        for (uint32_t v = 0; v < flow_.values.size(); ++v)
            if (contains(alive.front(), v) && contains(changes_[block_], v))
                for (size_t unit = 0; unit < flow_.values[v].vectors.size(); ++unit)
                    a_.vector(kStore, flow_.values[v].vectors[unit], 0,
                              slot(flow_.values[v].slot, static_cast<int>(unit)));
        a_.place(rax, {r14, kWarp});
        a_.store(field(offsetof(Context, waiting_to), 8), rax, true);
        a_.alu(Assembler::compare, r14, field(offsetof(Context, back), 8), true);
        a_.jump(equal, begin);
        a_.alu(Assembler::subtract, rax, field(offsetof(Context, waiting_from), 8), true);
        a_.alu(Assembler::compare, rax, abreast_.count * kWarp, true);
        a_.jump(equal, begin);
        a_.alu(Assembler::add, r14, kWarp, true);
        to_turn();
        a_.bind(part);  // others wait, who were whole: each goes on by itself
        a_.alu(Assembler::compare, field(offsetof(Context, abreast)), static_cast<int32_t>(Abreast::waits));
        a_.jump(not_equal, *plain);
        out_of_budget(abreast_.block);
        run_abreast(alive, begin, alone);
        a_.bind(alone);  // what the lanes of each share is not the same for all
        a_.store(field(offsetof(Context, differs)), 1, false);
        go_on_abreast(abreast_.block, Abreast::off, *plain);
    });
}

// From `begin` on, for the warps that wait; or `alone`, with the first of them in r14.
void Generator::run_abreast(const std::vector<Set>& alive, Label& begin, Label& alone) {
    const CodeBlock& b = block();
    Label again, exit, over;
    std::set<uint32_t> same;
    const auto must_be_same = [&](uint32_t operand) {
        if (operand == kNoGuard || operand & 1 || !is_line(operand)) return;
        const uint32_t v = flow_.value(operand);
        if (contains(alive.front(), v) && !flow_.values[v].settled) same.insert(v);
    };
    for (uint32_t n = b.begin; n < b.end; ++n) {
        must_be_same(function_.code[n].guard);
        for (const Access& a : flow_.signatures[n].reads) must_be_same(a.operand);
    }
    a_.bind(begin);
    a_.load(r14, field(offsetof(Context, waiting_from), 8), true);
    a_.load(rbx, warp_field(offsetof(Warp, registers)), true);
    move_abreast(false, 0, rbx, alive.front());
    a_.move(rdx, r14);
    for (int g = 1; g < abreast_.count; ++g) {  // where there are fewer, the first does the work again
        a_.alu(Assembler::add, rdx, kWarp, true);
        a_.alu(Assembler::compare, rdx, field(offsetof(Context, waiting_to), 8), true);
        a_.move_if(above_equal, rdx, r14, true);
        a_.load(rcx, {rdx, static_cast<int32_t>(offsetof(Warp, registers))}, true);
        for (uint32_t v : same) {
            const bool wide = flow_.values[v].bytes == 8;
            a_.load(rax, home_in(rbx, flow_.values[v]), wide);
            a_.alu(Assembler::compare, rax, home_in(rcx, flow_.values[v]), wide);
            a_.jump(not_equal, alone);
        }
        move_abreast(false, g, rcx, alive.front());
    }
    // The code below is a block's like any other, but that a vector operation is written for each warp.
    std::vector<Value>& values = image_.flow.values;
    std::vector<std::vector<uint8_t>> before(values.size());
    for (size_t v = 0; v < values.size(); ++v) {
        before[v] = values[v].vectors;
        if (!abreast_.touched.contains(static_cast<uint32_t>(v))) values[v].vectors.clear();
    }
    const auto be = [&](int g) {
        for (uint32_t v : abreast_.touched)
            for (size_t unit = 0; unit < before[v].size(); ++unit)
                values[v].vectors[unit] =
                    g ? abreast_.own[static_cast<size_t>(g - 1)].at(before[v][unit]) : before[v][unit];
    };
    std::set<uint8_t> taken;
    for (const auto& own : abreast_.own)
        for (const auto& [first, reg] : own) taken.insert(reg);
    const uint32_t native = image_.native;
    masks_ = Masks::unknown;
    holds_ = kNoGuard;
    forget_all();
    broadcasts_.clear();
    find_broadcasts(b.begin, alive.front(), taken);
    load_what_stays();
    a_.bind(again);
    const auto at = [&](uint32_t n) {
        at_ = n, op_ = &function_.code[n], s_ = &flow_.signatures[n];
        before_ = alive[n - b.begin], behind_ = alive[n - b.begin + 1];
    };
    for (uint32_t n = b.begin; n + 1 < b.end && !full(); ++n) {
        if (settled_[n]) continue;
        at(n);
        const int count = s_->writes.empty() || is_line(s_->writes[0].operand) ? 1 : abreast_.count;
        for (int g = 0; g < count; ++g) be(g), operation();
        be(0);
    }
    at(b.end - 1);
    write_back(behind_);
    predicate_to(rax, op_->guard, op_->guard_not);
    a_.test(rax, rax, false);
    a_.jump(equal, exit);
    a_.alu(Assembler::subtract, rbp, std::min(cost_of_loop(block_, block_) * abreast_.count, kBudget), false);
    a_.jump(negative, over);
    load_what_stays();
    a_.jump(again);
    forget_all();
    broadcasts_.clear();
    for (size_t v = 0; v < values.size(); ++v) values[v].vectors = before[v];
    image_.native = native;
    a_.bind(over);  // they wait as before
    store_abreast(alive.front());
    a_.address(rax, begin);
    a_.store(field(offsetof(Context, turn), 8), rax, true);
    leave(Left::between);
    a_.bind(exit);
    store_abreast(alive.back());
    go_on_abreast(block_ + 1, Abreast::gathers, bodies_[block_ + 1]);
}

// The warp in r14 and those that wait behind it go on at a block of code, one after the other; then it is as
// `then` says.
void Generator::go_on_abreast(uint32_t at, Abreast then, Label& to) {
    Label next, more;
    a_.store(field(offsetof(Context, waits_at)), static_cast<int32_t>(at), false);
    say_abreast(Abreast::goes_on);
    a_.address(rax, next);
    a_.store(field(offsetof(Context, turn), 8), rax, true);
    a_.bind(next);
    a_.alu(Assembler::compare, rbp, kBudget - kOfOthers, false);
    const auto between = std::make_shared<Label>();
    a_.jump(less, *between);
    cold_.push_back([this, between] {
        a_.bind(*between);
        leave(Left::between);
    });
    a_.place(rax, {r14, kWarp});
    a_.store(field(offsetof(Context, waiting_from), 8), rax, true);
    a_.alu(Assembler::compare, rax, field(offsetof(Context, waiting_to), 8), true);
    a_.jump(not_equal, more);
    say_abreast(then);
    a_.load(rax, field(offsetof(Context, turn_again), 8), true);
    a_.store(field(offsetof(Context, turn), 8), rax, true);
    a_.bind(more);
    a_.load(r12, warp_field(offsetof(Warp, started), 4), false);
    a_.load(rbx, warp_field(offsetof(Warp, registers)), true);
    a_.store(field(offsetof(Context, exited)), 0, false);
    a_.store(warp_field(offsetof(Warp, touched), 1), 0, false);
    Set wanted = flow_.blocks[at].live;
    for (size_t w = 0; w < wanted.size(); ++w) wanted[w] &= near_[at][w];
    reload(wanted);
    a_.jump(to);
}

// Before a warp has ended its part of a turn, where it has not come to the loop at which others wait.
void Generator::none_waits(Label& otherwise) {
    if (abreast_.count) if_abreast(Abreast::waits, otherwise);
}

}  // namespace gpukernel::simgpu::compiler
