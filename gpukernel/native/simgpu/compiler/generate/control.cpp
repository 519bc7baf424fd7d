// The way of a warp through the code: blocks, lanes that wait, and where the interpreter takes over.
#include <algorithm>
#include <bit>
#include <cstddef>

#include "simgpu/compiler/avx2/avx2.h"
#include "simgpu/compiler/generate/generator.h"
#include "simgpu/compiler/generate/instructions.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr int32_t kSpins = 1 << 8;  // turns of a loop with atomics, which may wait for another warp
constexpr int32_t kCallCosts = 8;   // a handler, in operations

}  // namespace

Generator::Generator(MachineCode& image)
    : image_(image),
      flow_(image.flow),
      function_(*image.flow.function),
      arrivals_(flow_.blocks.size()),
      bodies_(flow_.blocks.size()),
      agains_(flow_.blocks.size()),
      checks_(flow_.blocks.size() + 1),
      entries_(flow_.blocks.size()),
      turns_(flow_.blocks.size()),
      turn_begins_(flow_.blocks.size()),
      follows_(flow_.blocks.size()),
      reached_(flow_.blocks.size()),
      settled_(function_.code.size()),
      together_of_(function_.code.size(), -1) {
    for (uint32_t n : flow_.settled) settled_[n] = true;
    turn_begins_[0] = true;
    find_together();
    find_ways();
    find_places();
    find_changes();
    find_abreast();
}

void Generator::run() {
    if (image_.narrow) {
        const uint32_t from = image_.layout.literals;
        const auto word = [this, from](int32_t at) {
            const uint32_t behind = static_cast<uint32_t>(at) - from;
            return static_cast<uint32_t>(image_.literals[behind / 8] >> behind % 8 * 8);
        };
        const auto put = [this](std::vector<uint64_t> words) { return literal(std::move(words), 64, false); };
        a_.narrow(std::make_unique<Avx2>(a_, image_.layout.frame, from, Avx2::Literals{put, word}));
    }
    for (block_ = 0; block_ < flow_.blocks.size() && !full(); ++block_) {
        const CodeBlock& b = block();
        a_.bind(arrivals_[block_]);
        if (b.waitable) {  // who arrives takes along who waits
            a_.alu(Assembler::bit_or, r12, waiting(block_), false);
            a_.store(waiting(block_), 0, false);
        }
        a_.bind(bodies_[block_]);
        if (abreast_.count && block_ == abreast_.block) arrive_abreast();
        if (reached_[block_]) operations(b.begin, flow_.alive(b));
    }
    write_warps();
    for (size_t n = 0; n < cold_.size() && !full(); ++n) {
        const std::function<void()> write = std::move(cold_[n]);  // which may add more
        forget_all();
        write();
    }
    write_checks();
    write_entries();
    write_settled();
    write_thunk();
    image_.abreast = std::max(1, abreast_.count);
    image_.code = a_.code();
    image_.unknown = a_.failed();
}

// Which blocks are ever run, and to which nothing leads but the one before: such a block begins with what
// that one has in registers.
void Generator::find_ways() {
    std::vector<uint32_t> ways(flow_.blocks.size()), left = {0};
    for (uint32_t b = 0; b < flow_.blocks.size(); ++b) {
        for (uint32_t to : flow_.blocks[b].next) ++ways[to];
        if (flow_.blocks[b].entry) left.push_back(b);
    }
    while (!left.empty()) {
        const uint32_t b = left.back();
        left.pop_back();
        if (reached_[b]) continue;
        reached_[b] = true;
        left.insert(left.end(), flow_.blocks[b].next.begin(), flow_.blocks[b].next.end());
    }
    for (uint32_t b = 1; b < flow_.blocks.size(); ++b) {
        const CodeBlock &to = flow_.blocks[b], &from = flow_.blocks[b - 1];
        const Op& last = function_.code[from.end - 1];
        const bool goes_on = last.control == Control::branch && last.guard != kNoGuard &&
                             flow_.block_of[last.aux] > b && !from.next.empty() && from.next[0] == b;
        // Code that checks accesses one by one goes on here, too, with nothing in registers.
        const bool together = std::any_of(together_of_.begin() + from.begin, together_of_.begin() + from.end,
                                          [](int n) { return n >= 0; });
        follows_[b] = goes_on && ways[b] == 1 && !to.entry && !to.waitable && !together;
    }
}

// Those of a block from one on.
void Generator::operations(uint32_t from, const std::vector<Set>& alive) {
    const CodeBlock& b = block();
    masks_ = Masks::unknown;
    holds_ = kNoGuard;
    if (apart_ || !follows_[block_]) forget_all();
    find_broadcasts(from, alive.front());
    if (!apart_ && repeats()) {
        load_what_stays();
        a_.bind(agains_[block_]);
    }
    changed_ = changes_[block_];
    for (at_ = b.begin; at_ < from; ++at_) note_change(at_, changed_);
    for (; at_ < b.end && !full(); note_change(at_, changed_), ++at_) {
        if (settled_[at_]) continue;
        op_ = &function_.code[at_], s_ = &flow_.signatures[at_];
        before_ = alive[at_ - b.begin], behind_ = alive[at_ - b.begin + 1];
        if (a_.is_narrow()) a_.only(vectors_of(before_));
        if (const auto from = apart_from_.find(at_); apart_ && from != apart_from_.end()) {
            drop_all();
            a_.bind(from->second);
            masks_ = Masks::unknown;
            holds_ = kNoGuard;
            drop_broadcasts();
        }
        if (op_->control == Control::none)
            operation();
        else
            control();
    }
    if (a_.is_narrow()) a_.only(vectors_of(alive.back()));
    if (function_.code[b.end - 1].control == Control::none) {
        write_back(alive.back());
        fall_through();
    }
    broadcasts_.clear();
}

// What lies in vectors between two operations.
uint32_t Generator::vectors_of(const Set& alive) const {
    uint32_t vectors = 0;
    for (uint32_t v = 0; v < flow_.values.size(); ++v)
        for (uint8_t reg : flow_.values[v].vectors)
            if (contains(alive, v)) vectors |= 1u << reg;
    for (const Broadcast& each : broadcasts_) vectors |= 1u << each.reg;
    return vectors;
}

uint32_t Generator::next_check(uint32_t b) const {
    while (b < flow_.blocks.size() && !flow_.blocks[b].waitable) ++b;
    return b;
}

void Generator::control() {
    holds_ = kNoGuard;
    if (op_->control != Control::branch) write_back(before_);
    // Lanes that wait need no more than what was alive where they went, and has been written back then.
    const bool stays = !apart_ && block_ + 1 < follows_.size() && follows_[block_ + 1];
    write_back(stays ? flow_.blocks[flow_.block_of[op_->aux]].live : behind_);
    switch (op_->control) {
        case Control::branch:
            return branch();
        case Control::exit:
            return leave_lanes();
        case Control::warp_sync:
            exchange();
            return fall_through();
        default:
            return hand_over();
    }
}

// All lanes that run go to a block.
void Generator::go_to(uint32_t to, bool back) {
    if (back) {
        a_.alu(Assembler::subtract, rbp, cost_of_loop(to, block_), false);
        auto over = std::make_shared<Label>();
        a_.jump(negative, *over);
        cold_.push_back([this, over, to] {
            a_.bind(*over);
            out_of_budget(to);
        });
        if (to != block_ || apart_)
            return a_.jump(bodies_[to]);  // nobody waits there, or at any block before
        load_what_stays();
        return a_.jump(agains_[to]);
    }
    if (block().alone || !flow_.blocks[to].waitable) return a_.jump(bodies_[to]);
    a_.alu(Assembler::bit_or, waiting(to), r12);
    a_.jump(checks_[next_check(block_ + 1)]);
}

void Generator::fall_through() {
    if (block_ + 1 == flow_.blocks.size()) a_.jump(checks_.back());
}

void Generator::branch() {
    const uint32_t to = flow_.block_of[op_->aux];
    const bool back = to <= block_;
    if (op_->guard == kNoGuard) return go_to(to, back);
    Label stay;
    predicate_to(rax, op_->guard, op_->guard_not);
    if (is_line(op_->guard)) {  // all or none
        a_.test(rax, rax, false);
        a_.jump(equal, stay);
        go_to(to, back);
        return a_.bind(stay);
    }
    a_.alu(Assembler::bit_and, rax, r12, false);
    a_.jump(equal, stay);
    a_.move(rcx, r12, false);
    a_.alu(Assembler::bit_xor, rcx, rax, false);  // who does not go
    if (back) {
        a_.alu(Assembler::bit_or, waiting(block_ + 1), rcx);
        a_.move(r12, rax, false);
        go_to(to, true);
    } else if (to != block_ + 1) {
        a_.alu(Assembler::bit_or, waiting(to), rax);
        a_.move(r12, rcx, false);
        a_.test(rcx, rcx, false);
        a_.jump(equal, checks_[next_check(block_ + 1)]);
    }
    a_.bind(stay);
}

void Generator::leave_lanes() {
    if (op_->guard == kNoGuard && block().alone) {  // they are the last ones
        const bool goes_on =
            apart_ || std::find(reached_.begin() + block_ + 1, reached_.end(), true) != reached_.end();
        return goes_on ? a_.jump(checks_.back()) : void();
    }
    keeps_exited_ = true;
    running_lanes(rax);
    a_.alu(Assembler::bit_or, field(offsetof(Context, exited)), rax);
    if (op_->guard != kNoGuard) {
        a_.alu(Assembler::bit_xor, r12, rax, false);
        a_.jump(equal, checks_[next_check(block_ + 1)]);
        return fall_through();
    }
    a_.jump(checks_[next_check(block_ + 1)]);
}

// A .sync instruction: all living lanes that it names must be here, or the interpreter sees to it.
void Generator::exchange() {
    if (op_->guard != kNoGuard || !is_line(op_->aux) || step(op_->aux)) return hand_over();
    Label& elsewhere = hand_over_label();
    a_.load(rax, scalar(op_->aux, 4), false);
    a_.move(rcx, rax, false);
    a_.complement(rcx);
    a_.alu(Assembler::bit_and, rcx, r12, false);
    a_.jump(not_equal, elsewhere);
    a_.load(rcx, field(offsetof(Context, exited)), false);
    a_.alu(Assembler::bit_or, rcx, r12, false);
    a_.complement(rcx);
    a_.alu(Assembler::bit_and, rcx, warp_field(offsetof(Warp, live), 4), false);
    a_.alu(Assembler::bit_and, rcx, rax, false);
    a_.jump(not_equal, elsewhere);
    if (!op_->fn) return;
    if (exchange_natively()) {
        ++image_.native;
    } else {
        call();
        ++image_.called;
        image_.handlers.insert(s_->key);
    }
    for (const Access& write : s_->writes) forget_place(write.operand);
}

void Generator::hand_over() {
    if (!is_plain_barrier(*op_)) return a_.jump(hand_over_label());
    image_.meets = true;
    // Most barriers need nothing but to wait: what is the same for all lanes stays where it is.
    Set vectors = flow_.nothing();
    for (uint32_t v = 0; v < flow_.values.size(); ++v)
        if ((contains(before_, v) || contains(behind_, v)) && !flow_.values[v].vectors.empty())
            insert(vectors, v);
    flush(vectors, changed_);
    for (const Access& a : s_->reads)
        if (!(a.operand & 1) && is_line(a.operand)) line_to_slot(a.operand);
    const auto apart = std::make_shared<Label>();
    auto leave_here = [this, apart, at = at_] {
        a_.bind(*apart);
        leave_at(at, Left::met);
    };
    if (!block().alone || at_ + 1 == function_.code.size() || !(op_->a & 1) ||
        constant(op_->a, 4) >= kBarriers)
        return leave_here();
    meet_in_turn(apart);
    cold_.push_back(std::move(leave_here));
}

void Generator::leave(Left why) {
    a_.immediate(rax, static_cast<uint64_t>(why));
    a_.jump(leave_);
}
void Generator::leave_at(uint32_t operation, Left why) {
    a_.store(field(offsetof(Context, operation)), static_cast<int32_t>(operation), false);
    leave(why);
}

// The interpreter goes on with this operation, as if nothing of it had been done.
Label& Generator::hand_over_label() {
    auto label = std::make_shared<Label>();
    cold_.push_back([this, label, kept = kept_, alive = before_, changed = changed_, at = at_] {
        a_.bind(*label);
        kept_ = kept;
        flush(alive, changed);
        leave_at(at, Left::handed);
    });
    return *label;
}

void Generator::out_of_budget(uint32_t b) {
    const CodeBlock& to = flow_.blocks[b];
    Set alive = to.live;
    for (size_t w = 0; w < alive.size(); ++w) alive[w] |= to.kept[w];
    flush(alive, changes_[b]);
    leave_at(to.begin, Left::over);
}

// Everything to where the interpreter has it; what has not changed is there.
void Generator::flush(const Set& alive, const Set& changed) {
    for (uint32_t v = 0; v < flow_.values.size(); ++v) {
        if (!contains(alive, v)) continue;
        const Value& value = flow_.values[v];
        if (value.shape.kind == LaneShape::line)
            line_to_slot(value.slot);
        else
            write_back(value.slot);
        for (size_t unit = 0; unit < value.vectors.size() && contains(changed, v); ++unit)
            a_.vector(kStore, value.vectors[unit], 0, slot(value.slot, static_cast<int>(unit)));
    }
}
void Generator::reload(const Set& alive) {
    for (uint32_t v = 0; v < flow_.values.size(); ++v)
        if (contains(alive, v))
            for (size_t unit = 0; unit < flow_.values[v].vectors.size(); ++unit)
                a_.vector(kLoad, flow_.values[v].vectors[unit], 0,
                          slot(flow_.values[v].slot, static_cast<int>(unit)));
}

int32_t Generator::cost_of(uint32_t n) const {
    const std::string& key = flow_.signatures[n].key;
    return key.empty() || vector_op(key) ? 1 : kCallCosts;
}
int32_t Generator::cost_of_loop(uint32_t from, uint32_t to) const {
    int32_t cost = 0;
    bool spins = false;
    for (uint32_t n = flow_.blocks[from].begin; n < flow_.blocks[to].end; ++n) {
        const std::string& key = flow_.signatures[n].key;
        spins |= key == "touch" || key.starts_with("atom.") || key.starts_with("mbarrier.");
        cost += cost_of(n);
    }
    return std::min(spins ? std::max(cost, kBudget / kSpins) : cost, kBudget);
}

// Who was set aside: the lanes that wait at the first block behind.
void Generator::write_checks() {
    for (uint32_t b = 0; b < flow_.blocks.size(); ++b) {
        if (!flow_.blocks[b].waitable) continue;
        a_.bind(checks_[b]);
        a_.load(r12, waiting(b), false);
        a_.test(r12, r12, false);
        a_.jump(equal, checks_[next_check(b + 1)]);
        a_.store(waiting(b), 0, false);
        a_.jump(bodies_[b]);
    }
}

void Generator::write_entries() {
    image_.entries.assign(flow_.blocks.size(), 0);
    image_.entry_lines.resize(flow_.blocks.size());
    Label between;
    for (uint32_t b = 0; b < flow_.blocks.size() && !full(); ++b) {
        if (!flow_.blocks[b].entry) continue;
        if (turn_begins_[b]) write_turn(b, between);
        a_.bind(entries_[b]);
        image_.entries[b] = a_.size();
        Set alive = flow_.blocks[b].live;
        for (size_t w = 0; w < alive.size(); ++w) alive[w] |= flow_.blocks[b].kept[w];
        Set wanted = alive;
        for (size_t w = 0; w < wanted.size(); ++w) wanted[w] &= near_[b][w];
        reload(wanted);
        for (uint32_t v = 0; v < flow_.values.size(); ++v)
            if (contains(alive, v) && flow_.values[v].shape.kind == LaneShape::line &&
                !flow_.values[v].settled)
                image_.entry_lines[b].push_back(v);
        a_.jump(bodies_[b]);
    }
    a_.bind(between);
    leave(Left::between);
}

// What a launch does once, for no lane in particular.
void Generator::write_settled() {
    image_.settle = a_.size();
    holds_ = kNoGuard;
    forget_all();
    for (uint32_t n : flow_.settled) {
        block_ = flow_.block_of[n], at_ = n;
        op_ = &function_.code[n], s_ = &flow_.signatures[n];
        if (s_->key.starts_with("ld."))
            parameter();
        else
            operation();
    }
    leave(Left::ended);
}

// uint32_t enter(Context*, Warp*, entry), by the calling convention of Linux.
void Generator::write_thunk() {
    const Gpr saved[] = {rbp, rbx, r12, r13, r14, r15};
    image_.enter = a_.size();
    for (Gpr r : saved) a_.push(r);
    a_.alu(Assembler::subtract, rsp, 8, true);  // calls need a stack that is a multiple of 16
    a_.move(r15, rdi);
    a_.move(r14, rsi);
    a_.load(rbx, warp_field(offsetof(Warp, registers)), true);
    a_.load(r13, warp_field(offsetof(Warp, base) + sizeof(char*)), true);
    a_.load(rbp, field(offsetof(Context, budget)), false);
    a_.load(r12, field(offsetof(Context, mask)), false);
    a_.jump_to(rdx);
    a_.bind(faulted_);
    a_.immediate(rax, static_cast<uint64_t>(Left::faulted));
    a_.bind(leave_);
    for (uint8_t each : {0xc5, 0xf8, 0x77}) a_.byte(each);  // vzeroupper: what follows is of an older kind
    a_.store(field(offsetof(Context, at), 8), r14, true);
    a_.store(field(offsetof(Context, mask)), r12, false);
    a_.store(field(offsetof(Context, budget)), rbp, false);
    a_.alu(Assembler::add, rsp, 8, true);
    for (size_t n = std::size(saved); n > 0; --n) a_.pop(saved[n - 1]);
    a_.ret();
}

void generate(MachineCode& image) {
    Flow& flow = image.flow;
    int32_t lines = 0, settled = 0;
    for (Value& value : flow.values)
        if (value.shape.kind == LaneShape::line) value.scalar = value.settled ? settled++ : lines++;
    allocate(flow);
    uint32_t sites = 0;
    for (const Signature& s : flow.signatures) {
        sites += s.key.starts_with("ld.") || s.key.starts_with("st.") || s.key.starts_with("atom.");
    }
    Layout& layout = image.layout;
    const auto lay = [&](uint32_t bytes) {
        const uint32_t at = layout.bytes;
        layout.bytes = (at + bytes + 63) / 64 * 64;
        return at;
    };
    lay(sizeof(Context));
    layout.waiting = lay(4 * static_cast<uint32_t>(flow.blocks.size() + 1));
    layout.lines = (flow.function->register_bytes + 127) / 64 * 64;
    layout.bytes_of_lines = (8 * static_cast<uint32_t>(lines) + 63) / 64 * 64;
    layout.settled = lay(8 * static_cast<uint32_t>(settled) + 8);
    layout.sites = lay(sizeof(Site) * 3 * sites);  // together, apart, and each as it is
    if (image.narrow) layout.frame = lay(Avx2::kFrameBytes);
    layout.literals = layout.bytes;
    Generator(image).run();
    lay(8 * static_cast<uint32_t>(image.literals.size()));
}

}  // namespace gpukernel::simgpu::compiler
