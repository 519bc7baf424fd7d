// Encodings of Intel's manual, volume 2: REX, VEX and EVEX prefixes, ModRM and SIB.
#include "simgpu/compiler/assembler.h"

#include <cstring>
#include <utility>

#include "simgpu/compiler/avx2/avx2.h"

namespace gpukernel::simgpu::compiler {

Assembler::Assembler() = default;
Assembler::~Assembler() = default;
void Assembler::narrow(std::unique_ptr<Avx2> back) { narrow_ = std::move(back); }
bool Assembler::failed() const { return narrow_ && narrow_->failed(); }
void Assembler::only(uint32_t vectors) {
    if (narrow_) narrow_->only(vectors);
}
void Assembler::complete(uint8_t immediate) {
    awaits_ = false;
    narrow_->complete(immediate);
}

void Assembler::word(uint32_t value) {
    for (int n = 0; n < 4; ++n) byte(static_cast<uint8_t>(value >> 8 * n));
}

void Assembler::bind(Label& label) {
    if (narrow_) narrow_->meet();
    bind_plainly(label);
}
void Assembler::bind_plainly(Label& label) {
    label.at = static_cast<int64_t>(code_.size());
    for (size_t from : label.from) {
        const auto distance = static_cast<int32_t>(label.at - static_cast<int64_t>(from + 4));
        std::memcpy(&code_[from], &distance, sizeof distance);
    }
    label.from.clear();
}
void Assembler::reference(Label& label) {
    if (label.at >= 0) return word(static_cast<uint32_t>(label.at - static_cast<int64_t>(code_.size() + 4)));
    label.from.push_back(code_.size());
    word(0);
}
void Assembler::jump(Label& label) {
    if (narrow_) narrow_->part();
    byte(0xe9);
    reference(label);
    if (narrow_) narrow_->forget();
}
void Assembler::jump(Condition condition, Label& label) {
    if (narrow_) narrow_->part();
    jump_plainly(condition, label);
}
void Assembler::jump_plainly(Condition condition, Label& label) {
    byte(0x0f), byte(static_cast<uint8_t>(0x80 + condition));
    reference(label);
}
void Assembler::address(Gpr to, Label& label) {
    byte(static_cast<uint8_t>(0x48 | (to >> 3) << 2)), byte(0x8d),
        byte(static_cast<uint8_t>((to & 7) << 3 | 5));
    reference(label);
}
void Assembler::jump_to(Gpr target) {
    if (narrow_) narrow_->meet();
    if (target >> 3) byte(0x41);
    byte(0xff), byte(static_cast<uint8_t>(0xe0 | (target & 7)));
}
void Assembler::call(Gpr target) {
    if (narrow_) narrow_->forget();
    if (target >> 3) byte(0x41);
    byte(0xff), byte(static_cast<uint8_t>(0xd0 | (target & 7)));
}
void Assembler::ret() { byte(0xc3); }
void Assembler::push(Gpr r) {
    if (r >> 3) byte(0x41);
    byte(static_cast<uint8_t>(0x50 | (r & 7)));
}
void Assembler::pop(Gpr r) {
    if (r >> 3) byte(0x41);
    byte(static_cast<uint8_t>(0x58 | (r & 7)));
}

// ModRM, SIB and displacement.  A short displacement counts in units of `scale`.
void Assembler::operand(int reg, Memory m, int scale) {
    const int index = m.scaled >= 0 ? m.scaled : m.index;
    const bool sib = index >= 0 || (m.base & 7) == rsp;
    const bool brief =
        m.displacement % scale == 0 && m.displacement / scale >= -128 && m.displacement / scale < 128;
    byte(static_cast<uint8_t>((brief ? 0x40 : 0x80) | (reg & 7) << 3 | (sib ? 4 : m.base & 7)));
    if (sib) byte(static_cast<uint8_t>(m.shift << 6 | (index >= 0 ? index & 7 : 4) << 3 | (m.base & 7)));
    if (brief)
        byte(static_cast<uint8_t>(m.displacement / scale));
    else
        word(static_cast<uint32_t>(m.displacement));
}
void Assembler::rm(bool wide, uint8_t opcode, int reg, Gpr r) {
    const int rex = wide << 3 | (reg >> 3) << 2 | r >> 3;
    if (rex) byte(static_cast<uint8_t>(0x40 | rex));
    byte(opcode), byte(static_cast<uint8_t>(0xc0 | (reg & 7) << 3 | (r & 7)));
}
void Assembler::rm(bool wide, uint8_t opcode, int reg, Memory m) {
    const int rex = wide << 3 | (reg >> 3) << 2 | m.base >> 3;
    if (rex) byte(static_cast<uint8_t>(0x40 | rex));
    byte(opcode);
    operand(reg, m, 1);
}
void Assembler::store(Memory to, int32_t value, bool wide) {
    rm(wide, 0xc7, 0, to);
    word(static_cast<uint32_t>(value));
}
void Assembler::load_sized(Gpr to, Memory from, int bytes, bool is_signed, bool wide) {
    if (bytes == 8 || (bytes == 4 && !(is_signed && wide))) return load(to, from, bytes == 8);
    if (bytes == 4) return rm(true, 0x63, to, from);
    const int rex = (is_signed && wide) << 3 | (to >> 3) << 2 | from.base >> 3;
    if (rex) byte(static_cast<uint8_t>(0x40 | rex));
    byte(0x0f), byte(static_cast<uint8_t>((is_signed ? 0xbe : 0xb6) | (bytes == 2)));
    operand(to, from, 1);
}
void Assembler::immediate(Gpr to, uint64_t value) {
    if (value >> 32 == 0) {
        if (to >> 3) byte(0x41);
        byte(static_cast<uint8_t>(0xb8 | (to & 7)));
        return word(static_cast<uint32_t>(value));
    }
    byte(static_cast<uint8_t>(0x48 | to >> 3)), byte(static_cast<uint8_t>(0xb8 | (to & 7)));
    word(static_cast<uint32_t>(value)), word(static_cast<uint32_t>(value >> 32));
}
void Assembler::alu(Alu what, Gpr to, int32_t value, bool wide) {
    const bool brief = value == static_cast<int8_t>(value);
    rm(wide, brief ? 0x83 : 0x81, what, to);
    brief ? byte(static_cast<uint8_t>(value)) : word(static_cast<uint32_t>(value));
}
void Assembler::alu(Alu what, Memory to, int32_t value) {
    const bool brief = value == static_cast<int8_t>(value);
    rm(false, brief ? 0x83 : 0x81, what, to);
    brief ? byte(static_cast<uint8_t>(value)) : word(static_cast<uint32_t>(value));
}
void Assembler::multiply(Gpr to, Memory with, bool wide) {
    const int rex = wide << 3 | (to >> 3) << 2 | with.base >> 3;
    if (rex) byte(static_cast<uint8_t>(0x40 | rex));
    byte(0x0f), byte(0xaf);
    operand(to, with, 1);
}
void Assembler::multiply(Gpr to, Gpr with) {
    byte(static_cast<uint8_t>(0x48 | (to >> 3) << 2 | with >> 3)), byte(0x0f), byte(0xaf);
    byte(static_cast<uint8_t>(0xc0 | (to & 7) << 3 | (with & 7)));
}
void Assembler::multiply(Gpr to, Gpr from, int32_t value, bool wide) {
    rm(wide, 0x69, to, from);
    word(static_cast<uint32_t>(value));
}
void Assembler::shift_left(Gpr to, uint8_t bits, bool wide) {
    rm(wide, 0xc1, 4, to);
    byte(bits);
}
void Assembler::shift_right(Gpr to, uint8_t bits, bool wide) {
    rm(wide, 0xc1, 5, to);
    byte(bits);
}
void Assembler::sign_extend(Gpr to, Gpr from) { rm(true, 0x63, to, from); }
void Assembler::complement(Gpr r) { rm(false, 0xf7, 2, r); }
void Assembler::negate(Gpr r) { rm(false, 0xf7, 3, r); }
void Assembler::test(Gpr a, Gpr b, bool wide) { rm(wide, 0x85, a, b); }
void Assembler::test(Gpr a, int32_t bits) {
    if (a == rax && bits >= 0 && bits < 256) return byte(0xa8), byte(static_cast<uint8_t>(bits));
    rm(false, 0xf7, 0, a);
    word(static_cast<uint32_t>(bits));
}
void Assembler::test(Memory a, int32_t bits) {
    rm(false, 0xf7, 0, a);
    word(static_cast<uint32_t>(bits));
}
void Assembler::lowest_bit(Gpr to, Gpr from) {
    byte(0xf3);
    if (to >> 3 || from >> 3) byte(static_cast<uint8_t>(0x40 | (to >> 3) << 2 | from >> 3));
    byte(0x0f), byte(0xbc), byte(static_cast<uint8_t>(0xc0 | (to & 7) << 3 | (from & 7)));
}
void Assembler::leading_zeros(Gpr to, Gpr from) {
    byte(0xf3);
    if (to >> 3 || from >> 3) byte(static_cast<uint8_t>(0x40 | (to >> 3) << 2 | from >> 3));
    byte(0x0f), byte(0xbd), byte(static_cast<uint8_t>(0xc0 | (to & 7) << 3 | (from & 7)));
}
void Assembler::drop_lowest_bit(Gpr r) {
    byte(0xc4), byte(0xe2), byte(static_cast<uint8_t>((~r & 15) << 3)), byte(0xf3);
    byte(static_cast<uint8_t>(0xc8 | r));
}
void Assembler::all_ones_if_below(Gpr r, int32_t n) {
    alu(compare, r, n, false);
    rm(false, 0x19, r, r);  // sbb
}
void Assembler::move_if(Condition condition, Gpr to, Gpr from, bool wide) {
    const int rex = wide << 3 | (to >> 3) << 2 | from >> 3;
    if (rex) byte(static_cast<uint8_t>(0x40 | rex));
    byte(0x0f), byte(static_cast<uint8_t>(0x40 + condition));
    byte(static_cast<uint8_t>(0xc0 | (to & 7) << 3 | (from & 7)));
}
void Assembler::store_narrow(Memory to, Gpr from, int bytes) {
    if (bytes >= 4) return store(to, from, bytes == 8);
    if (bytes == 2) byte(0x66);
    rm(false, bytes == 2 ? 0x89 : 0x88, from, to);
}
void Assembler::exchange(Exchange what, Memory with, Gpr r, bool wide, bool locks) {
    if (locks) lock();
    const int rex = wide << 3 | (r >> 3) << 2 | with.base >> 3;
    if (rex) byte(static_cast<uint8_t>(0x40 | rex));
    byte(0x0f), byte(what);
    operand(r, with, 1);
}
void Assembler::load_mode(Memory from) {
    if (from.base >> 3) byte(0x41);
    byte(0x0f), byte(0xae);
    operand(2, from, 1);
}

// The VEX prefix of an instruction on masks (or on vectors below 8), whose second operand has the number
// `second`.
void Assembler::mask_prefix(uint8_t prefix, uint8_t map, bool wide, bool length, int second, bool extended) {
    byte(0xc4), byte(static_cast<uint8_t>(0xc0 | !extended << 5 | map));
    byte(static_cast<uint8_t>(wide << 7 | (~second & 15) << 3 | length << 2 | prefix));
}
void Assembler::mask_from(int k, Gpr from) {
    if (narrow_) return narrow_->mask_from(k, from);
    mask_prefix(3, 1, false, false, 0, from >> 3);
    byte(0x92), byte(static_cast<uint8_t>(0xc0 | k << 3 | (from & 7)));
}
void Assembler::mask_from(int k, Memory from) {
    if (narrow_) return narrow_->mask_from(k, from);
    mask_prefix(1, 1, true, false, 0, from.base >> 3);
    byte(0x90);
    operand(k, from, 1);
}
void Assembler::mask_to(Gpr to, int k) {
    if (narrow_) return narrow_->mask_to(to, k);
    byte(0xc4), byte(static_cast<uint8_t>((to >> 3 ? 0x60 : 0xe0) | 1)), byte(0x7b);
    byte(0x93), byte(static_cast<uint8_t>(0xc0 | (to & 7) << 3 | k));
}
void Assembler::mask_shift_right(int to, int from, uint8_t bits) {
    if (narrow_) return narrow_->mask_shift_right(to, from, bits);
    mask_prefix(1, 3, false, false, 0, false);
    byte(0x31), byte(static_cast<uint8_t>(0xc0 | to << 3 | from)), byte(bits);
}
void Assembler::mask_unpack(int to, int high, int low, bool words) {
    if (narrow_) return narrow_->mask_unpack(to, high, low, words);
    mask_prefix(words ? 0 : 1, 1, false, true, high, false);
    byte(0x4b), byte(static_cast<uint8_t>(0xc0 | to << 3 | low));
}
void Assembler::mask(MaskOp what, int to, int a, int b) {
    if (narrow_) return narrow_->mask(what == mask_and, to, a, b);
    mask_prefix(1, 1, true, true, a, false);
    byte(what), byte(static_cast<uint8_t>(0xc0 | to << 3 | b));
}

void Assembler::vector(Encoding i, int to, int first, int second, int k, bool half) {
    if (narrow_) {
        narrow_->vector(i, to, first, second, k, half);
        awaits_ = narrow_->awaits_immediate();
        return;
    }
    byte(0x62);
    byte(static_cast<uint8_t>((~to >> 3 & 1) << 7 | (~second >> 4 & 1) << 6 | (~second >> 3 & 1) << 5 |
                              (~to >> 4 & 1) << 4 | i.map));
    byte(static_cast<uint8_t>(i.wide << 7 | (~first & 15) << 3 | 4 | i.prefix));
    byte(static_cast<uint8_t>((half ? 1 : 2) << 5 | (~first >> 4 & 1) << 3 | k));
    byte(i.opcode), byte(static_cast<uint8_t>(0xc0 | (to & 7) << 3 | (second & 7)));
}
void Assembler::vector(Encoding i, int to, int first, Memory m, int k, bool half) {
    if (narrow_) {
        narrow_->vector(i, to, first, m, k, half);
        awaits_ = narrow_->awaits_immediate();
        return;
    }
    const int high =
        m.index >= 0 ? m.index : first;  // of an index, the fifth bit stands where a register's would
    byte(0x62);
    byte(static_cast<uint8_t>((~to >> 3 & 1) << 7 | (m.index >= 0 ? ~m.index >> 3 & 1 : 1) << 6 |
                              (~m.base >> 3 & 1) << 5 | (~to >> 4 & 1) << 4 | i.map));
    byte(static_cast<uint8_t>(i.wide << 7 | (~first & 15) << 3 | 4 | i.prefix));
    byte(static_cast<uint8_t>((half ? 1 : 2) << 5 | m.broadcast << 4 | (~high >> 4 & 1) << 3 | k));
    byte(i.opcode);
    operand(to, m, m.bytes);
}

void Assembler::sixteen_bytes(bool stores, int reg, Memory m) {  // by the VEX prefix
    if (narrow_) return narrow_->sixteen_bytes(stores, reg, m);
    byte(0xc4);
    byte(static_cast<uint8_t>((~reg >> 3 & 1) << 7 | 0x40 | (~m.base >> 3 & 1) << 5 | 1));
    byte(0x78), byte(stores ? 0x11 : 0x10);
    operand(reg, m, 1);
}
void Assembler::vector_from(int reg, Gpr from, bool wide) {
    if (narrow_) return narrow_->vector_from(reg, from, wide);
    mask_prefix(1, 1, wide, false, 0, from >> 3);
    byte(0x6e), byte(static_cast<uint8_t>(0xc0 | (reg & 7) << 3 | (from & 7)));
}
void Assembler::vector_to(Gpr to, int reg, bool wide) {
    if (narrow_) return narrow_->vector_to(to, reg, wide);
    mask_prefix(1, 1, wide, false, 0, to >> 3);
    byte(0x7e), byte(static_cast<uint8_t>(0xc0 | (reg & 7) << 3 | (to & 7)));
}

}  // namespace gpukernel::simgpu::compiler
