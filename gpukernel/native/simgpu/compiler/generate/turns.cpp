// Warps of a block one after the other, from barrier to barrier, and blocks one after the other along x.
//
// In a turn each warp of a block runs from one place, the block's beginning or what is behind a barrier of
// the whole block, and all its lanes end at one barrier, or all end.  The first warp says which; where
// another one does not the same the code is left, and the scheduler finds all warps as if they had run alone.
// What a warp has to keep meanwhile lies with its registers.
#include <cstddef>

#include "simgpu/compiler/generate/generator.h"
#include "simgpu/compiler/generate/instructions.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr int32_t kOfOthers = 1 << 14;  // what is used up of the budget when a warp begins
constexpr int32_t kWarp = sizeof(Warp);
constexpr int kRounds =
    64;  // over all blocks of code; whoever needs more has everything flushed and reloaded

bool add(Set& to, const Set& from) {
    bool more = false;
    for (size_t w = 0; w < to.size(); ++w) more |= (from[w] & ~to[w]) != 0, to[w] |= from[w];
    return more;
}

}  // namespace

// At which all lanes of all warps meet, without anything else to be done.
bool Generator::is_plain_barrier(const Op& op) {
    return op.control == Control::barrier && !op.sub && !(op.sub2 & 1) && op.guard == kNoGuard;
}

void Generator::note_change(uint32_t operation, Set& changed) const {
    for (const Access& a : flow_.signatures[operation].writes) insert(changed, flow_.value(a.operand));
}

// An address about which a warp remembers what it needs; whoever wants the address itself reloads it.
bool Generator::reads_known(uint32_t operation, uint32_t operand) const {
    const Signature& s = flow_.signatures[operation];
    MemoryOp m;
    return place_of(operand) >= 0 && memory_op(s.key, m) && is_shared_access(function_.code[operation], m) &&
           s.reads[0].operand == operand && (m.loads || s.reads[1].operand != operand);
}

// At a barrier what has changed goes to memory, and behind it what is wanted before the next one comes from
// there: all else stays where it is.  Wherever something may have changed its vectors have it, whichever way
// a warp has come.
void Generator::find_changes() {
    const size_t count = flow_.blocks.size();
    std::vector<Set> written(count, flow_.nothing());
    changes_ = near_ = written;
    const auto meets = [&](uint32_t b) { return is_plain_barrier(function_.code[flow_.blocks[b].end - 1]); };
    for (uint32_t b = 0; b < count; ++b)
        for (uint32_t n = flow_.blocks[b].begin; n < flow_.blocks[b].end; ++n) {
            note_change(n, written[b]);
            for (const Access& a : flow_.signatures[n].reads)
                if (!(a.operand & 1) && !reads_known(n, a.operand)) insert(near_[b], flow_.value(a.operand));
        }
    // Lanes that wait elsewhere have changed something, too, and want something without another entry.
    int rounds = kRounds;
    for (bool more = true; more && rounds; --rounds) {
        more = false;
        for (uint32_t b = 0; b < count; ++b) {
            for (uint32_t at : flow_.blocks[b].waited_for) more |= add(changes_[b], changes_[at]);
            if (meets(b)) continue;
            for (uint32_t to : flow_.blocks[b].next) {
                more |= add(changes_[to], changes_[b]);
                more |= add(changes_[to], written[b]);
            }
        }
    }
    for (uint32_t b = 0; b < count; ++b) add(near_[b], written[b]), add(near_[b], changes_[b]);
    for (bool more = true; more && rounds; --rounds) {
        more = false;
        for (size_t n = count; n > 0; --n) {
            const auto b = static_cast<uint32_t>(n - 1);
            for (uint32_t at : flow_.blocks[b].waited_for) more |= add(near_[b], near_[at]);
            if (meets(b)) continue;
            for (uint32_t to : flow_.blocks[b].next) more |= add(near_[b], near_[to]);
        }
    }
    if (!rounds) changes_.assign(count, Set(flow_.nothing().size(), ~0ull)), near_ = changes_;
}

// The warp's part of a turn ends like the first one's, or the code goes `elsewhere`.
void Generator::like_the_first(int32_t end, Label& elsewhere) {
    auto first = std::make_shared<Label>(), same = std::make_shared<Label>();
    const Memory known = field(offsetof(Context, turn_ends));
    a_.alu(Assembler::compare, r14, field(offsetof(Context, front), 8), true);
    a_.jump(equal, *first);
    a_.alu(Assembler::compare, known, end);
    a_.jump(not_equal, elsewhere);
    a_.bind(*same);
    cold_.push_back([this, first, same, known, end] {
        a_.bind(*first);
        a_.store(known, end, false);
        a_.jump(*same);
    });
}

void Generator::next_warp(Label& was_last) {
    a_.alu(Assembler::compare, r14, field(offsetof(Context, back), 8), true);
    a_.jump(equal, was_last);
    a_.alu(Assembler::add, r14, kWarp, true);
}
void Generator::to_turn() {
    a_.load(rax, field(offsetof(Context, turn), 8), true);
    a_.jump_to(rax);
}
// The first warp begins another turn, in a block of code.
void Generator::begin_turn(uint32_t b) {
    a_.address(rax, turns_[b]);
    a_.store(field(offsetof(Context, turn), 8), rax, true);
    a_.store(field(offsetof(Context, turn_block)), static_cast<int32_t>(b), false);
    a_.load(r14, field(offsetof(Context, front), 8), true);
    a_.jump(turns_[b]);
}

// A barrier of the whole block, whose number is known.  All that the warp has is where the next turn finds
// it.
void Generator::meet_in_turn(const std::shared_ptr<Label>& apart) {
    const uint32_t behind = flow_.block_of[at_ + 1];
    turn_begins_[behind] = true;
    a_.alu(Assembler::compare, r12, warp_field(offsetof(Warp, started), 4), false);
    a_.jump(not_equal, *apart);
    none_waits(*apart);
    like_the_first(static_cast<int32_t>(at_), *apart);
    const auto last = std::make_shared<Label>();
    next_warp(*last);
    to_turn();
    cold_.push_back([this, apart, last, behind] {
        a_.bind(*last);
        a_.alu(Assembler::compare, field(offsetof(Context, turns)), 0);
        a_.jump(equal, *apart);
        begin_turn(behind);
    });
}

// Behind a warp that has ended.
void Generator::write_warps() {
    a_.bind(checks_.back());
    Label parted, of_another_block, all;
    none_waits(parted);
    if (image_.meets) like_the_first(static_cast<int32_t>(kEnds), parted);
    next_warp(of_another_block);
    if (image_.meets || abreast_.count)
        to_turn();
    else
        a_.jump(turns_[0]);
    a_.bind(of_another_block);
    a_.alu(Assembler::subtract, field(offsetof(Context, more_blocks)), 1);
    a_.jump(below, all);
    a_.alu(Assembler::add, field(offsetof(Context, special) + sizeof(uint32_t) * kCtaidX), 1);
    begin_turn(0);
    a_.bind(all);
    leave(Left::ended);
    if (image_.meets || abreast_.count) {
        a_.bind(parted);
        leave(Left::parted);
    }
}

// Where a warp's part of a turn begins; what follows is the entry of the block of code.
void Generator::write_turn(uint32_t b, Label& between) {
    a_.bind(turns_[b]);
    if (b == 0) image_.warps = a_.size();
    int32_t cost = 0;  // of what runs once; loops pay for each time that they begin again
    for (uint32_t n = flow_.blocks[b].begin; n < function_.code.size(); ++n)
        cost += settled_[n] ? 0 : cost_of(n);
    a_.alu(Assembler::compare, rbp, kBudget - kOfOthers, false);
    a_.jump(less, between);
    a_.alu(Assembler::subtract, rbp, cost, false);
    a_.load(r12, warp_field(offsetof(Warp, started), 4), false);
    a_.load(rbx, warp_field(offsetof(Warp, registers)), true);
    if (keeps_exited_) a_.store(field(offsetof(Context, exited)), 0, false);
    if (touches_) a_.store(warp_field(offsetof(Warp, touched), 1), 0, false);
}

}  // namespace gpukernel::simgpu::compiler
