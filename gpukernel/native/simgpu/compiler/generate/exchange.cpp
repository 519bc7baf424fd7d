// What lanes give each other: shuffles, votes, reductions.  All lanes that the instruction names are here.
#include <cstddef>

#include "simgpu/compiler/generate/generator.h"
#include "simgpu/compiler/generate/instructions.h"

namespace gpukernel::simgpu::compiler {

bool Generator::exchange_natively() {
    const std::string& key = s_->key;
    if (key.starts_with("shfl."))
        shuffle();
    else if (key.starts_with("vote."))
        vote();
    else if (key.starts_with("redux."))
        reduce();
    else
        return false;
    return true;
}

// A number of 32 bits for each lane, sixteen of which make a unit.
Memory Generator::table_of(const std::function<uint32_t(uint32_t lane)>& value, int unit) {
    std::vector<uint64_t> words;
    for (uint32_t lane = 0; lane < kLanes; lane += 2)
        words.push_back(value(lane) | static_cast<uint64_t>(value(lane + 1)) << 32);
    Memory m = literal(std::move(words), 64, false);
    m.displacement += 64 * unit;
    return m;
}

// PTX ISA 9.7.9.6: a lane's source j from its own number, `b` and what `c` says of segments and the last
// lane.
void Generator::shuffle() {
    enum Mode { up, down, butterfly, index };
    const std::string& key = s_->key;
    const Mode mode = key.starts_with("shfl.up")     ? up
                      : key.starts_with("shfl.down") ? down
                      : key.starts_with("shfl.bfly") ? butterfly
                                                     : index;
    const bool known = op_->c & 1;
    const uint32_t c = known ? static_cast<uint32_t>(constant(op_->c, 4)) : 0, segment = c >> 8 & 31,
                   last = c & 31;
    const auto bottom = [&](uint32_t lane) { return lane & segment; };
    const auto top = [&](uint32_t lane) { return (lane & segment) | (last & ~segment); };
    const Access given{op_->a, 4}, by{op_->b, 4};
    const bool tells = op_->sub2 & 1;
    const int result[] = {0, 3};
    if (known && op_->b & 1) {
        const uint32_t b = static_cast<uint32_t>(constant(op_->b, 4)) & 31;
        uint32_t inside = 0, from[kLanes];
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
            const int at = static_cast<int>(lane), far = static_cast<int>(b);
            const int j = mode == up          ? at - far
                          : mode == down      ? at + far
                          : mode == butterfly ? at ^ far
                                              : static_cast<int>(bottom(lane) | (b & ~segment));
            const bool fits =
                mode == up ? j >= static_cast<int>(top(lane)) : j <= static_cast<int>(top(lane));
            from[lane] = static_cast<uint32_t>(fits ? j : at) & 31;
            inside |= uint32_t{fits} << lane;
        }
        for (int unit = 0; unit < 2; ++unit)
            a_.vector(kLoad, result[unit], 0, table_of([&](uint32_t lane) { return from[lane]; }, unit));
        if (tells) a_.immediate(rcx, inside);
    } else {
        for (int unit = 0; unit < 2; ++unit) {
            const Memory lanes = table_of([](uint32_t lane) { return lane; }, unit);
            a_.vector(kLoad, result[unit], 0, lanes);
            if (!known) {  // the same with vectors: 1 becomes `bottom`, 2 `top`
                const Access clamp{op_->c, 4};
                a_.vector(kShiftRight, 5, in_register(clamp, unit, 4), every(8, 4));
                a_.vector(kAnd, 5, 5, every(31, 4));
                a_.vector(kAnd, 4, in_register(clamp, unit, 4), every(31, 4));
                a_.vector(kAndNot, 4, 5, 4);
                a_.vector(kAnd, 1, 5, lanes);
                a_.vector(kOr, 2, 4, 1);
            }
            a_.vector(kAnd, 4, in_register(by, unit, 4), every(mode == index ? ~segment & 31 : 31, 4));
            if (!known && mode == index) a_.vector(kAndNot, 4, 5, 4);
            switch (mode) {
                case up:
                    a_.vector(kSubtract, 5, result[unit], 4);
                    break;
                case down:
                    a_.vector(kAdd, 5, 4, lanes);
                    break;
                case butterfly:
                    a_.vector(kXor, 5, 4, lanes);
                    break;
                case index:
                    known ? a_.vector(kOr, 5, 4, table_of(bottom, unit)) : a_.vector(kOr, 5, 4, 1);
                    break;
            }
            const int k = 5 + unit;
            known ? a_.vector(kCompareSigned, k, 5, table_of(top, unit)) : a_.vector(kCompareSigned, k, 5, 2);
            a_.byte(mode == up ? 5 : 2);
            a_.vector(kMove, result[unit], 0, 5, k);
        }
        if (tells) {
            a_.mask_unpack(5, 6, 5, true);
            a_.mask_to(rcx, 5);
        }
    }
    const int low = in_register(given, 0, 1), high = in_register(given, 1, 2);
    for (int unit = 0; unit < 2; ++unit) a_.vector(kPermuteTwo, result[unit], low, high);
    for (int unit = 0; unit < 2; ++unit) finish(s_->writes[0], unit, result[unit]);
    if (!tells) return;
    put_predicate(op_->extra, rcx);
}

// One number for all lanes that run.
void Generator::same_for_all(Access write, Gpr from) {
    if (!write.bytes) return put_predicate(write.operand, from);
    if (is_line(write.operand)) return a_.store(home(write.operand), from, write.bytes == 8);
    a_.vector(write.bytes == 8 ? kBroadcastGprWide : kBroadcastGpr, 5, 0, static_cast<int>(from));
    for (int unit = 0; unit < units(write.bytes); ++unit) finish(write, unit, 5);
}

void Generator::vote() {
    const std::string& key = s_->key;
    predicate_to(rax, op_->a, op_->sub & 1);
    a_.alu(Assembler::bit_and, rax, r12, false);
    if (key.starts_with("vote.any")) {
        a_.all_ones_if_below(rax, 1);
        a_.complement(rax);
    } else if (!key.starts_with("vote.ballot")) {
        if (key.starts_with("vote.uni")) {
            a_.move(rcx, rax, false);
            a_.all_ones_if_below(rcx, 1);
        }
        a_.alu(Assembler::bit_xor, rax, r12, false);
        a_.all_ones_if_below(rax, 1);
        if (key.starts_with("vote.uni")) a_.alu(Assembler::bit_or, rax, rcx, false);
    }
    same_for_all(s_->writes[0], rax);
}

void Generator::reduce() {
    const std::string& key = s_->key;
    const bool is_signed = key.ends_with(".s32");
    spill({op_->a, 4}, 0);
    a_.lowest_bit(rdx, r12);
    a_.load(rax, lane_place(0, 4), false);
    const bool adds = key.starts_with("redux.add"), flips = key.starts_with("redux.xor");
    if (adds || flips) a_.immediate(rax, 0);
    each_lane([&] {
        const Memory with = lane_place(0, 4);
        if (adds) return a_.alu(Assembler::add, rax, with, false);
        if (flips) return a_.alu(Assembler::bit_xor, rax, with, false);
        if (key.starts_with("redux.and")) return a_.alu(Assembler::bit_and, rax, with, false);
        if (key.starts_with("redux.or")) return a_.alu(Assembler::bit_or, rax, with, false);
        const bool least = key.starts_with("redux.min");
        a_.load(rsi, with, false);
        a_.alu(Assembler::compare, rsi, rax, false);
        a_.move_if(least ? (is_signed ? less : below) : (is_signed ? greater : above), rax, rsi, false);
    });
    same_for_all(s_->writes[0], rax);
}

}  // namespace gpukernel::simgpu::compiler
