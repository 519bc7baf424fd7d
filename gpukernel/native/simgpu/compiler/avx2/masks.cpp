// Masks: numbers in the frame, whose bits are spread over the lanes where an operation needs them so.
#include <algorithm>

#include "simgpu/compiler/avx2/avx2.h"
#include "simgpu/compiler/avx2/codes.h"

namespace gpukernel::simgpu::compiler {

namespace {

uint64_t name_of_mask(int k, int bytes, int h) { return static_cast<uint64_t>(k * 64 + bytes * 2 + h); }

}  // namespace

void Avx2::forget_mask(int k) {
    for (int bytes : {2, 4, 8})
        for (int h : {0, 1}) drop(Kind::spread, name_of_mask(k, bytes, h));
    like_[static_cast<size_t>(k)] = -1;
    for (int& other : like_)
        if (other == k) other = -1;
    bits_[static_cast<size_t>(k)] = 32;
}

// All bits of each lane whose bit is set, of a half's elements of so many bytes.
int Avx2::spread(int k, int bytes, int h) {
    if (like_[static_cast<size_t>(k)] >= 0) k = like_[static_cast<size_t>(k)];
    const uint64_t what = name_of_mask(k, bytes, h);
    if (const int reg = find(Kind::spread, what); reg >= 0) return hold(reg);
    const int reg = take();
    std::vector<uint64_t> bits;
    for (int n = 0; n < 8; ++n) {
        const uint64_t from = 1;
        if (bytes == 8)
            bits.push_back(from << n);
        else if (bytes == 4)
            bits.push_back(from << 2 * n | from << (2 * n + 1) << 32);
        else
            for (uint64_t word = n % 4 * 4; bits.size() <= static_cast<size_t>(n);)
                bits.push_back(from << word | from << (word + 1) << 16 | from << (word + 2) << 32 |
                               from << (word + 3) << 48);
    }
    Memory place = mask_place(k), all = table(std::move(bits));
    if (bytes == 2)
        place.displacement += 2 * h;
    else
        all.displacement += 32 * h;
    op(bytes == 2 ? vex::broadcast_word : vex::broadcast, reg, 0, place);
    op(vex::bit_and, reg, reg, all);
    op(bytes == 2 ? vex::equal_words : bytes == 4 ? vex::equal : vex::equal_wide, reg, reg, all);
    held_[static_cast<size_t>(reg)].kind = Kind::spread, held_[static_cast<size_t>(reg)].what = what;
    return reg;
}
void Avx2::blend(int to, int otherwise, int where, int mask, int bytes) {
    const Encoding code = bytes == 2 ? vex::blend_bytes : bytes == 8 ? vex::blend_wide : vex::blend;
    op_with(code, to, otherwise, where, static_cast<uint8_t>(mask << 4));
}

void Avx2::mask_from(int k, Gpr from) {
    forget_mask(k);
    a_.store(mask_place(k), from, false);
}
void Avx2::mask_from(int k, Memory from) {
    forget_mask(k);
    a_.load(r11, from, false);
    a_.store(mask_place(k), r11, false);
}
void Avx2::mask_to(Gpr to, int k) { a_.load(to, mask_place(k), false); }
void Avx2::mask_shift_right(int to, int from, uint8_t bits) {
    a_.load(r11, mask_place(from), false);
    a_.shift_right(r11, bits, false);
    forget_mask(to);
    a_.store(mask_place(to), r11, false);
}
void Avx2::mask_unpack(int to, int high, int low, bool words) {
    const int size = words ? 16 : 8, of_high = bits_[static_cast<size_t>(high)];
    Memory lower = mask_place(low);
    if (bits_[static_cast<size_t>(low)] > size) {
        a_.load_sized(r11, lower, size / 8, false, false);
        lower = room_place(0);
        a_.store(lower, r11, false);
    }
    a_.load(r11, mask_place(high), false);
    a_.shift_left(r11, static_cast<uint8_t>(size), false);
    if (!words && of_high > size) a_.alu(Assembler::bit_and, r11, 0xffff, false);
    a_.alu(Assembler::bit_or, r11, lower, false);
    forget_mask(to);
    a_.store(mask_place(to), r11, false);
    bits_[static_cast<size_t>(to)] = 2 * size;
}
void Avx2::mask(bool ands, int to, int a, int b) {
    const int bits = std::max(bits_[static_cast<size_t>(a)], bits_[static_cast<size_t>(b)]);
    a_.load(r11, mask_place(a), false);
    if (a != b) a_.alu(ands ? Assembler::bit_and : Assembler::bit_or, r11, mask_place(b), false);
    const int like = like_[static_cast<size_t>(a)] >= 0 ? like_[static_cast<size_t>(a)] : a;
    forget_mask(to);
    a_.store(mask_place(to), r11, false);
    bits_[static_cast<size_t>(to)] = bits;
    if (a == b && to != like) like_[static_cast<size_t>(to)] = like;
}

// The bits in r11 are a mask, of which those `under` another one stay.
void Avx2::set_mask(int k, int bits, int under) {
    if (under) a_.alu(Assembler::bit_and, r11, mask_place(under), false);
    forget_mask(k);
    a_.store(mask_place(k), r11, false);
    bits_[static_cast<size_t>(k)] = bits;
}
// Of two halves whose lanes have all bits or none.
void Avx2::lanes_to_mask(int k, const int* lanes, int bytes, bool inverted, int under) {
    const int t = take();
    if (bytes == 8) {
        op_with(vex::shuffle_two, t, lanes[0], lanes[1], 0x88);
        op_with(vex::permute_wide, t, 0, t, 0xd8);
        op(vex::signs, r11, 0, t);
    } else {
        const int other = take();
        op(vex::pack_signed, t, lanes[0], lanes[1]);
        op_with(vex::extract, t, 0, other, 1);
        op(vex::pack_signed_words, t, t, other, false);
        op_with(vex::shuffle, t, 0, t, 0xd8, false);
        op(vex::signs_of_bytes, r11, 0, t, false);
        give(other);
    }
    give(t);
    if (inverted) a_.alu(Assembler::bit_xor, r11, bytes == 8 ? 0xff : 0xffff, false);
    set_mask(k, bytes == 8 ? 8 : 16, under);
    if (inverted || under) return;
    for (int h : {0, 1}) {
        Held& held = held_[static_cast<size_t>(lanes[h])];
        held.kind = Kind::spread, held.what = name_of_mask(k, bytes, h);
    }
}

// Into a register of its own.
int Avx2::compare_integers(int a, int b, uint8_t how, bool wide, bool is_signed, bool& inverted) {
    enum { is = 0, below = 1, up_to = 2, is_not = 4, from = 5, above = 6 };
    const int t = take();
    inverted = how == is_not;
    if (how == is || how == is_not) {
        op(wide ? vex::equal_wide : vex::equal, t, a, b);
        return t;
    }
    if (!is_signed && !wide) {
        const bool most = how == from || how == below;
        op(most ? vex::most_unsigned : vex::least_unsigned, t, a, b);
        op(vex::equal, t, t, a);
        inverted = how == below || how == above;
        return t;
    }
    inverted = how == up_to || how == from;
    const bool swaps = how == below || how == from;
    const Encoding code = wide ? vex::greater_wide : vex::greater;
    if (is_signed) {
        swaps ? op(code, t, b, a) : op(code, t, a, b);
        return t;
    }
    const int top = every(1ull << 63, 8), other = take();
    op(vex::bit_xor, t, a, top);
    op(vex::bit_xor, other, b, top);
    swaps ? op(code, t, other, t) : op(code, t, t, other);
    give(other);
    return t;
}

// Instructions whose result is a mask.
bool Avx2::write_comparison() {
    const int key = i_.map << 16 | i_.prefix << 8 | i_.opcode;
    const bool wide = i_.wide;
    const int bytes = wide ? 8 : 4;
    int lanes[2];
    bool inverted = false;
    switch (key) {
        case 0x1'00'c2:
        case 0x1'01'c2:
            for (int h : {0, 1}) {
                const int a = read(first_, h);
                const Source b = second(h, bytes);
                lanes[h] = take();
                op_with(wide ? vex::compare_double : vex::compare_float, lanes[h], a, b, imm_);
                keep_only(lanes, h + 1);
            }
            break;
        case 0x3'01'1e:
        case 0x3'01'1f:
            for (int h : {0, 1}) {
                const int a = read(first_, h), b = second_in_register(h, bytes);
                lanes[h] = compare_integers(a, b, imm_, wide, i_.opcode == 0x1f, inverted);
                keep_only(lanes, h + 1);
            }
            break;
        case 0x2'01'27:
        case 0x2'02'27: {
            const int nothing = take();
            op(vex::bit_xor, nothing, nothing, nothing);
            for (int h : {0, 1}) {
                const int a = read(first_, h);
                lanes[h] = take();
                op(vex::bit_and, lanes[h], a, second(h, bytes));
                op(wide ? vex::equal_wide : vex::equal, lanes[h], lanes[h], nothing);
                keep_only(lanes, h + 1);
                hold(nothing);
            }
            inverted = i_.prefix == 1;
            break;
        }
        case 0x2'02'39:  // the signs
            for (int h : {0, 1}) {
                const int from = read(second_.v, h);
                lanes[h] = from;
            }
            if (wide) {
                const int nothing = take();
                op(vex::bit_xor, nothing, nothing, nothing);
                for (int h : {0, 1}) {
                    const int t = take();
                    op(vex::greater_wide, t, nothing, lanes[h]);
                    lanes[h] = t;
                }
            } else {
                for (int h : {0, 1}) {
                    const int t = take();
                    op_with(vex::shift_group, 4, t, lanes[h], 31);  // vpsrad
                    lanes[h] = t;
                }
            }
            break;
        default:
            return false;
    }
    lanes_to_mask(to_, lanes, bytes, inverted, k_);
    return true;
}

}  // namespace gpukernel::simgpu::compiler
