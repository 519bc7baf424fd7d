// Loads and stores of 32 bits in shared memory whose lanes have addresses of their own, sixteen at a time.
#include <algorithm>
#include <cstddef>

#include "simgpu/compiler/generate/generator.h"
#include "simgpu/compiler/generate/instructions.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr int64_t kFarthest = 1 << 29;
constexpr uint8_t kOrMasked = 0xf8;  // of a ternary operation: a | (b & c)

}  // namespace

// Sixteen addresses as numbers of 32 bits, and in register 0 what must be nothing where they are multiples of
// four that have no more bits.
int Generator::half_of_addresses(Access address, int unit) {
    const Memory low_bits = every(3, 4);
    if (address.bytes == 4) {
        const int index = in_register(address, unit, 1 + unit);
        a_.vector(kAnd, 0, index, low_bits);
        return index;
    }
    const int first = in_register(address, 2 * unit, 3), second = in_register(address, 2 * unit + 1, 4);
    const int index = 1 + unit;
    a_.vector(kLoad, index, 0, table_of([](uint32_t lane) { return 2 * (lane % kHalfLanes); }, 0));
    a_.vector(kLoad, 0, 0, table_of([](uint32_t lane) { return 2 * (lane % kHalfLanes) + 1; }, 0));
    a_.vector(kPermuteTwo, index, first, second);
    a_.vector(kPermuteTwo, 0, first, second);
    a_.vector(kTernary, 0, index, low_bits);
    a_.byte(kOrMasked);
    return index;
}

// How many addresses there are from which four bytes with each of the offsets are shared, into each lane of
// register 5.  No sum with an offset leaves 32 bits: what the least one takes away is looked at with the
// address.
void Generator::check_room(int32_t least, int32_t most, Label& elsewhere) {
    a_.load(rcx, warp_field(offsetof(Warp, shared_bytes)), true);
    a_.alu(Assembler::subtract, rcx, 3 + most - std::min(least, 0), true);
    a_.jump(below_equal, elsewhere);
    a_.vector(kBroadcastGpr, 5, 0, static_cast<int>(rcx));
}
// The addresses with the least offset, if that is below zero.
int Generator::from_least(int index, int32_t least) {
    if (least >= 0) return index;
    a_.vector(kAdd, 3, index, every(static_cast<uint32_t>(least), 4));
    return 3;
}

// Whether the addresses with each of the offsets, from the least to the most, are where four bytes are
// shared: of the lanes that run, or of all.
void Generator::check_halves(Access address, int32_t least, int32_t most, bool running, int* index,
                             Label& elsewhere) {
    check_room(least, most, elsewhere);
    for (int unit = 0; unit < 2; ++unit) {
        index[unit] = half_of_addresses(address, unit);
        const int k = !running ? 0 : unit ? 2 : 1, all = unit ? 6 : 5;
        a_.vector(kTest, all, 0, 0, k);
        if (unit) a_.mask(Assembler::mask_or, 5, 5, 6);
        a_.vector(kCompareUnsigned, 6, from_least(index[unit], least), 5, k);
        a_.byte(5);
        a_.mask(Assembler::mask_or, 5, 5, 6);
    }
    a_.mask_to(rax, 5);
    a_.test(rax, rax, false);
    a_.jump(not_equal, elsewhere);
}

// Most often they lie side by side, or near each other: a row is stored at once, and what is loaded is picked
// out of two vectors.  A gather or scatter takes several times as long.
void Generator::shared_each(const MemoryOp& m, Slow& slow) {
    const Access address = s_->reads[0], data = m.loads ? s_->writes[0] : s_->reads[1];
    const auto imm = static_cast<int32_t>(op_->imm);
    need_masks(false);
    int index[2];
    check_halves(address, imm, imm, true, index, slow.begin);
    a_.load(rax, warp_field(offsetof(Warp, shared)), true);
    for (int unit = 0; unit < 2; ++unit) {
        Label apart, done;
        const Memory first = field(offsetof(Context, first));
        a_.vector(kStoreFirst, index[unit], 0, first);
        a_.vector(kBroadcast, 4, 0, index[unit]);
        a_.vector(kSubtract, 4, index[unit], 4);
        a_.vector(kCompareUnsigned, 6, 4, m.loads ? every(kWindow, 4) : lanes_of(m.memory, 4, 0));
        a_.byte(m.loads ? 1 : 0);  // below, or equal
        a_.mask_to(rdx, 6);
        a_.alu(Assembler::compare, rdx, kAllOfHalf, false);
        a_.jump(not_equal, apart);
        a_.load_sized(rcx, first, 4, true, true);
        if (imm) a_.alu(Assembler::add, rcx, imm, true);
        const int k = unit ? 2 : 1;
        if (m.loads) {
            a_.alu(Assembler::compare, rcx, warp_field(offsetof(Warp, shared_bytes)), true);
            a_.jump(above_equal, apart);
            a_.alu(Assembler::add, rcx, rax, true);
            a_.vector(kShiftRight, 0, 4, every(2, 4));
            a_.vector(kLoad, 5, 0, Memory{rcx});
            a_.vector(kPermuteTwo, 0, 5, Memory{rcx, 64});
        } else {
            a_.alu(Assembler::add, rcx, rax, true);
            a_.vector(kStore, in_register(data, unit, 3), 0, Memory{rcx}, k);
        }
        a_.jump(done);
        a_.bind(apart);
        a_.mask(Assembler::mask_and, 5, k, k);
        const Memory each{rax, imm, index[unit], m.memory};
        if (m.loads)
            a_.vector(kGather, 0, 0, each, 5);
        else
            a_.vector(kScatter, in_register(data, unit, 3), 0, each, 5);
        a_.bind(done);
        if (m.loads) finish(data, unit, 0);
    }
}

bool Generator::is_shared_access(const Op& op, const MemoryOp& m) {
    return m.where == MemoryOp::shared && m.count == 1 && m.memory == 4 && m.reg == 4 && op.imm % 4 == 0 &&
           op.imm >= -kFarthest && op.imm <= kFarthest;
}

bool Generator::shared_access(const MemoryOp& m) {
    if (!is_shared_access(*op_, m)) return false;
    const auto slow = slow_for(false, m.memory);
    if (const int place = place_of(s_->reads[0].operand); place >= 0)
        known_access(m, place, slow);
    else
        shared_each(m, *slow);
    slow_path(slow);
    return true;
}

}  // namespace gpukernel::simgpu::compiler
