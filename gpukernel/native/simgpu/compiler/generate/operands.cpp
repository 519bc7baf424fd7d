// Operands and results: where they lie, and how they come into a register and out of it.
#include <algorithm>
#include <cstddef>

#include "simgpu/compiler/generate/generator.h"
#include "simgpu/compiler/generate/instructions.h"

namespace gpukernel::simgpu::compiler {

bool Generator::merges(uint32_t operand) const {
    return op_->guard != kNoGuard || contains(block().kept, flow_.value(operand));
}

Memory Generator::scalar(uint32_t operand, uint8_t bytes) {
    write_back(operand);
    Memory from = home(operand);
    from.bytes = bytes, from.broadcast = true;
    return from;
}
Memory Generator::slot(uint32_t operand, int unit, uint8_t bytes) const {
    return {rbx, static_cast<int32_t>(operand) + bytes * unit, -1, bytes};
}
Memory Generator::literal(std::vector<uint64_t> words, uint8_t bytes, bool broadcast) {
    std::vector<uint64_t>& all = image_.literals;
    size_t at = 0;
    while (at < all.size() &&
           !(at + words.size() <= all.size() &&
             std::equal(words.begin(), words.end(), all.begin() + static_cast<int64_t>(at))))
        at += broadcast ? 1 : 8;
    if (at >= all.size()) {
        while (!broadcast && all.size() % 8) all.push_back(0);
        at = all.size();
        all.insert(all.end(), words.begin(), words.end());
    }
    return {r15, static_cast<int32_t>(image_.layout.literals + 8 * at), -1, bytes, broadcast};
}
Memory Generator::every(uint64_t word, uint8_t bytes) {
    if (bytes == 4) word = (word & 0xffffffff) | word << 32;
    return literal({word}, bytes, true);
}
// What a line adds to its first lane.
Memory Generator::lanes_of(int64_t step, uint32_t bytes, int unit) {
    std::vector<uint64_t> words;
    if (bytes == 8)
        for (int lane = 0; lane < kLanes; ++lane) words.push_back(static_cast<uint64_t>(step * lane));
    else
        for (int lane = 0; lane < kLanes; lane += 2)
            words.push_back(static_cast<uint32_t>(step * lane) | static_cast<uint64_t>(step * (lane + 1))
                                                                     << 32);
    Memory m = literal(std::move(words), 64, false);
    m.displacement += 64 * unit;
    return m;
}

int Generator::in_register(Access access, int unit, int scratch) {
    if (!is_line(access.operand)) {
        const Value& v = value(access.operand);
        if (!v.vectors.empty()) return v.vectors[static_cast<size_t>(unit)];
        a_.vector(kLoad, scratch, 0, slot(access.operand, unit));
        return scratch;
    }
    if (const int reg = broadcast_of(access, unit); reg >= 0) return reg;
    if (const int reg = kept(access.operand); reg >= 0) {
        a_.vector(access.bytes == 8 ? kBroadcastGprWide : kBroadcastGpr, scratch, 0, reg);
    } else {
        Memory from = scalar(access.operand, static_cast<uint8_t>(access.bytes));
        from.broadcast = false;
        a_.vector(access.bytes == 8 ? kBroadcastWide : kBroadcast, scratch, 0, from);
    }
    if (const int64_t by = step(access.operand))
        a_.vector(access.bytes == 8 ? kAddWide : kAdd, scratch, scratch, lanes_of(by, access.bytes, unit));
    return scratch;
}
// to = i(first, second) where the second operand may come from memory.
void Generator::apply(Encoding i, int to, int first, Access second, int unit, int scratch, int k) {
    if (is_line(second.operand)) {
        if (!step(second.operand) && broadcast_of(second) < 0)
            return a_.vector(i, to, first, scalar(second.operand, static_cast<uint8_t>(second.bytes)), k);
    } else if (value(second.operand).vectors.empty()) {
        return a_.vector(i, to, first, slot(second.operand, unit), k);
    }
    a_.vector(i, to, first, in_register(second, unit, scratch), k);
}
int Generator::half_in_register(Access access, int unit, int scratch) {
    if (is_line(access.operand)) {
        if (const int reg = broadcast_of(access); reg >= 0) return reg;
        if (const int reg = kept(access.operand); reg >= 0) {
            a_.vector(kBroadcastGpr, scratch, 0, reg);
        } else {
            Memory from = scalar(access.operand, 4);
            from.broadcast = false;
            a_.vector(kBroadcast, scratch, 0, from);
        }
        if (const int64_t by = step(access.operand)) {
            Memory lanes = lanes_of(by, 4, 0);
            lanes.displacement += 32 * unit, lanes.bytes = 32;
            a_.vector(kAdd, scratch, scratch, lanes, 0, true);
        }
        return scratch;
    }
    const Value& v = value(access.operand);
    if (v.vectors.empty()) {
        a_.vector(kLoad, scratch, 0, slot(access.operand, unit, 32), 0, true);
        return scratch;
    }
    const int whole = v.vectors[static_cast<size_t>(unit / 2)];
    if (unit % 2 == 0) return whole;
    a_.vector(kExtractHalf, whole, 0, scratch);
    a_.byte(1);
    return scratch;
}

int Generator::home_of(Access access, int unit) const {
    if (is_line(access.operand)) return -1;
    const Value& v = value(access.operand);
    return v.vectors.empty() ? -1 : v.vectors[static_cast<size_t>(unit)];
}
int Generator::register_of(Access access, int unit) const {
    return is_line(access.operand) ? broadcast_of(access, unit) : home_of(access, unit);
}
int Generator::target(Access write, int unit) const {
    if (is_line(write.operand) || merges(write.operand) || value(write.operand).vectors.empty()) return 0;
    return value(write.operand).vectors[static_cast<size_t>(unit)];
}
int Generator::mask_of(Access write, int unit) {
    need_masks(write.bytes == 8);
    constexpr int narrow[] = {1, 2}, wide[] = {1, 3, 2, 4};
    return write.bytes == 8 ? wide[unit] : narrow[unit];
}
void Generator::finish(Access write, int unit, int reg) {
    const bool wide = write.bytes == 8;
    if (is_line(write.operand)) {
        Memory to = home(write.operand);
        to.bytes = static_cast<uint8_t>(write.bytes);
        return a_.vector(wide ? kStoreFirstWide : kStoreFirst, reg, 0, to);
    }
    const Value& v = value(write.operand);
    const int k = merges(write.operand) ? mask_of(write, unit) : 0;
    const bool words = write.bytes == 2;
    if (v.vectors.empty())
        return a_.vector(words  ? kStoreWords
                         : wide ? kStoreWide
                                : kStore,
                         reg, 0, slot(write.operand, unit), k);
    const int home = v.vectors[static_cast<size_t>(unit)];
    if (home != reg) a_.vector(words ? kLoadWords : wide ? kLoadWide : kLoad, home, 0, reg, k);
}

void Generator::running_lanes(Gpr to) {
    if (op_->guard == kNoGuard) return a_.move(to, r12, false);
    predicate_to(to, op_->guard, op_->guard_not);
    a_.alu(Assembler::bit_and, to, r12, false);
}
void Generator::need_masks(bool eights) {
    const Masks wanted = op_->guard == kNoGuard ? Masks::running : Masks::guarded;
    const bool new_ones = masks_ != wanted;
    masks_ = wanted;
    if (new_ones) {
        Gpr lanes = r12;
        if (wanted == Masks::guarded) running_lanes(lanes = r11);
        a_.mask_from(1, lanes);
        a_.mask_shift_right(2, 1, 16);
    }
    if (!eights || (has_eights_ && !new_ones)) {
        has_eights_ &= !new_ones;
        return;
    }
    a_.mask_shift_right(3, 1, 8);
    a_.mask_shift_right(4, 1, 24);
    has_eights_ = true;
}

void Generator::line_to_slot(uint32_t operand) {
    const uint32_t bytes = value(operand).bytes;
    if (!bytes) {
        predicate_to(rax, operand, false);
        return a_.store(slot(operand, 0, 4), rax, false);
    }
    for (int unit = 0; unit < units(bytes); ++unit)
        a_.vector(kStore, in_register({operand, bytes}, unit, 0), 0, slot(operand, unit));
}
void Generator::predicate_to(Gpr to, uint32_t operand, bool inverted) {
    if (const int reg = kept(operand); reg < 0)
        a_.load(to, home(operand), false);
    else if (reg != to)
        a_.move(to, static_cast<Gpr>(reg), false);
    if (inverted) a_.complement(to);
}
// What lanes that do not run must keep is kept.
void Generator::put_predicate(uint32_t operand, Gpr from) {
    if (!is_line(operand) && merges(operand)) {
        if (from != rax) a_.move(rax, from, false);
        from = rax;
        running_lanes(rdx);
        a_.alu(Assembler::bit_and, rax, rdx, false);
        a_.complement(rdx);
        a_.alu(Assembler::bit_and, rdx, home(operand), false);
        a_.alu(Assembler::bit_or, rax, rdx, false);
    }
    const Gpr to = register_for(operand, kNoGuard);
    if (to != from) a_.move(to, from, false);
    put(operand, to);
}

}  // namespace gpukernel::simgpu::compiler
