// One instruction of AVX-512 after the other, each a few of AVX2.
#include "simgpu/compiler/avx2/avx2.h"

#include "simgpu/compiler/avx2/codes.h"

namespace gpukernel::simgpu::compiler {

namespace {

int key_of(Encoding i) { return i.map << 16 | i.prefix << 8 | i.opcode; }

// Whose last byte comes behind the operands.
bool takes_immediate(Encoding i) { return i.map == 3 || (i.map == 1 && i.opcode == 0xc2); }

}  // namespace

void Avx2::begin(Encoding i, int to, int first, Second second, int k, bool half) {
    i_ = i, to_ = to, first_ = first, second_ = second, k_ = k, half_ = half;
    awaits_ = takes_immediate(i);
    if (!awaits_) write();
}
void Avx2::vector(Encoding i, int to, int first, int second, int k, bool half) {
    begin(i, to, first, {false, second}, k, half);
}
void Avx2::vector(Encoding i, int to, int first, Memory second, int k, bool half) {
    begin(i, to, first, {true, 0, second}, k, half);
}
void Avx2::complete(uint8_t immediate) {
    awaits_ = false;
    imm_ = immediate;
    write();
}

void Avx2::write() {
    if (!(write_float() || write_integer() || write_comparison() || write_permutation() || write_move() ||
          write_conversion() || write_access()))
        failed_ = true;
    release();
}

// The same instruction on both halves, of one operand or two.
void Avx2::elementwise(bool one, int bytes) {
    Encoding code = i_;
    if (code.map == 1) code.wide = 0;
    if (code.map == 3 && !one) failed_ = true;
    const int common = second_.is_memory && second_.at.broadcast ? constant(second_.at, bytes) : -1;
    for (int h = 0; h < count(); ++h) {
        const int a = one ? 0 : read(first_, h);
        const Source b = common >= 0 ? Source{common} : second(h, bytes);
        const int to = k_ ? take() : target(to_, h);
        op(code, to, a, b);
        if (code.map == 3) a_.byte(imm_);
        if (k_) put(to_, h, to, k_, bytes);
        release();
        if (common >= 0) hold(common);
    }
    if (half_) drop_half(to_, 1);
}

bool Avx2::write_float() {
    const int bytes = i_.wide ? 8 : 4;
    switch (key_of(i_)) {
        case 0x1'03'58:  // of one number: vaddsd, vaddss
        case 0x1'02'58: {
            const int a = read(first_, 0);
            Encoding code = i_;
            code.wide = 0;
            const Source b = second_.is_memory ? Source{-1, second_.at} : source(second_.v, 0);
            op(code, target(to_, 0), a, b, false);
            return true;
        }
        case 0x1'00'58:
        case 0x1'01'58:
        case 0x1'00'59:
        case 0x1'01'59:
        case 0x1'00'5c:
        case 0x1'01'5c:
        case 0x1'00'5e:
        case 0x1'01'5e:
            elementwise(false, bytes);
            return true;
        case 0x1'00'51:
        case 0x1'01'51:
            elementwise(true, bytes);
            return true;
        case 0x3'01'08:
        case 0x3'01'09:
            i_.wide = 0;
            elementwise(true, bytes);
            return true;
        case 0x2'01'98:  // fused, the result in the place of a factor or the summand
        case 0x2'01'a8:
        case 0x2'01'b8: {
            const int common = second_.is_memory && second_.at.broadcast ? constant(second_.at, bytes) : -1;
            for (int h : {0, 1}) {
                const int a = read(first_, h);
                const Source b = common >= 0 ? Source{common} : second(h, bytes);
                int to;
                if (k_) {
                    to = copy(to_, h);
                } else {
                    read(to_, h);
                    to = target(to_, h);
                }
                op(i_, to, a, b);
                if (k_) put(to_, h, to, k_, bytes);
                release();
                if (common >= 0) hold(common);
            }
            return true;
        }
        default:
            return false;
    }
}

bool Avx2::write_integer() {
    const bool wide = i_.wide;
    const int bytes = wide ? 8 : 4;
    switch (key_of(i_)) {
        case 0x1'01'fe:  // vpaddd and so on
        case 0x1'01'd4:
        case 0x1'01'fa:
        case 0x1'01'fb:
        case 0x1'01'db:
        case 0x1'01'eb:
        case 0x1'01'ef:
        case 0x1'01'df:
        case 0x1'01'f4:
        case 0x1'01'fd:
        case 0x1'01'f9:
        case 0x1'01'd5:
        case 0x2'01'00:
        case 0x2'01'28:
        case 0x2'01'45:
        case 0x2'01'47:
            if (i_.map == 2 && (i_.opcode == 0x28)) i_.wide = 0;
            elementwise(false, bytes);
            return true;
        case 0x2'01'1e:
            elementwise(true, bytes);
            return true;
        case 0x2'01'1f:
            for (int h : {0, 1}) {
                const int from = second_in_register(h, bytes), t = take(), negative = take();
                op(vex::bit_xor, negative, negative, negative);
                op(vex::greater_wide, negative, negative, from);
                op(vex::bit_xor, t, from, negative);
                op(vex::subtract_wide, t, t, negative);
                put(to_, h, t, k_, 8);
                release();
            }
            return true;
        case 0x2'01'39:
        case 0x2'01'3b:
        case 0x2'01'3d:
        case 0x2'01'3f:
            if (!wide) {
                elementwise(false, bytes);
                return true;
            }
            for (int h : {0, 1}) {
                const int a = read(first_, h), b = second_in_register(h, bytes);
                put(to_, h, extreme(a, b, i_.opcode < 0x3c, !(i_.opcode & 2)), k_, 8);
                release();
            }
            return true;
        case 0x2'01'40:
            if (!wide) {
                elementwise(false, bytes);
                return true;
            }
            for (int h : {0, 1}) {
                const int a = read(first_, h), b = second_in_register(h, bytes);
                put(to_, h, product(a, b), k_, 8);
                release();
            }
            return true;
        case 0x2'01'46:
            if (!wide) {
                elementwise(false, bytes);
                return true;
            }
            for (int h : {0, 1}) {  // vpsravq: the sign bit, shifted, has what is missing
                const int from = read(first_, h), by = take(), t = take();
                const Source given = second(h, bytes);
                op(given.reg >= 0 ? vex::copy : vex::load, by, 0, given);
                const int most = every(63, 8);
                op(vex::greater_wide, t, by, most);
                op(vex::bit_or, t, t, by);  // with the upper bit it is far more
                op_with(vex::blend_wide, by, by, most, static_cast<uint8_t>(t << 4));
                give(most);
                const int sign = take();
                op(vex::shift_right_wide, sign, every(1ull << 63, 8), by);
                op(vex::shift_right_wide, t, from, by);
                op(vex::bit_xor, t, t, sign);
                op(vex::subtract_wide, t, t, sign);
                put(to_, h, t, k_, 8);
                release();
            }
            return true;
        case 0x2'01'44:  // vplzcntd: the exponent of what is left of the number without bits behind the first
            for (int h : {0, 1}) {
                const int from = second_in_register(h), t = take(), other = take();
                op_with(vex::shift_group, 2, t, from, 1);
                op(vex::bit_and_not, t, t, from);  // its first bit is the same, the next one is none
                op(vex::float_of_int, t, 0, t);
                op_with(vex::shift_group, 2, t, t, 23);
                // 158 less the exponent; of a negative number, whose sign is a bit of it, none, of 0 all.
                op(vex::bit_xor, other, other, other);
                op(vex::subtract, t, every(158, 4), t);
                op(Encoding{1, 2, 0, 0x3d}, t, t, other);         // vpmaxsd
                op(Encoding{1, 2, 0, 0x39}, t, t, every(32, 4));  // vpminsd
                put(to_, h, t, k_, 4);
                release();
            }
            return true;
        case 0x2'01'55:  // vpopcntd, by half bytes
            for (int h : {0, 1}) {
                const int from = second_in_register(h), t = take(), high = take();
                const Memory counts = table({0x0302020102010100, 0x0403030203020201, 0x0302020102010100,
                                             0x0403030203020201, 0, 0, 0, 0});
                const int half_bytes = every(0x0f0f0f0f, 4), all = take();
                op(vex::load, all, 0, counts);
                op_with(vex::shift_group, 2, high, from, 4);
                op(vex::bit_and, high, high, half_bytes);
                op(vex::bit_and, t, from, half_bytes);
                const Encoding shuffle_bytes{1, 2, 0, 0x00}, add_bytes{1, 1, 0, 0xfc}, pairs{1, 2, 0, 0x04},
                    pairs_of_words{1, 1, 0, 0xf5};  // vpmaddubsw, vpmaddwd
                op(shuffle_bytes, t, all, t);
                op(shuffle_bytes, high, all, high);
                op(add_bytes, t, t, high);
                give(half_bytes), give(all);
                op(pairs, t, t, every(0x01010101, 4));
                op(pairs_of_words, t, t, every(0x00010001, 4));
                put(to_, h, t, k_, 4);
                release();
            }
            return true;
        case 0x3'01'25:
            for (int h : {0, 1}) {
                put(to_, h, ternary(h), k_, 4);
                release();
            }
            return true;
        default:
            return false;
    }
}

// Two numbers of 64 bits.
int Avx2::product(int a, int b) {
    const int t = take(), other = take();
    op_with(vex::shift_group_wide, 2, t, a, 32);
    op(vex::multiply_low, t, t, b);
    op_with(vex::shift_group_wide, 2, other, b, 32);
    op(vex::multiply_low, other, other, a);
    op(vex::add_wide, t, t, other);
    op_with(vex::shift_group_wide, 6, t, t, 32);
    op(vex::multiply_low, other, a, b);
    op(vex::add_wide, t, t, other);
    give(other);
    return t;
}
int Avx2::extreme(int a, int b, bool least, bool is_signed) {
    bool inverted;
    const int t = compare_integers(a, b, 6, true, is_signed, inverted);
    least ? op_with(vex::blend_wide, t, a, b, static_cast<uint8_t>(t << 4))
          : op_with(vex::blend_wide, t, b, a, static_cast<uint8_t>(t << 4));
    return t;
}

// What four bits say of two bits: the bit of b counts two, that of c one.  In a register of its own.
int Avx2::table_of_bits(int b, int c, uint8_t how) {
    const int t = take();
    const uint8_t other = how ^ 15;
    const bool known =
        how == 0 || how == 8 || how == 4 || how == 2 || how == 6 || how == 14 || how == 12 || how == 10;
    switch (known ? how : other) {
        case 0:
            op(vex::bit_xor, t, t, t);
            break;
        case 8:
            op(vex::bit_and, t, b, c);
            break;
        case 4:
            op(vex::bit_and_not, t, c, b);
            break;
        case 2:
            op(vex::bit_and_not, t, b, c);
            break;
        case 6:
            op(vex::bit_xor, t, b, c);
            break;
        case 14:
            op(vex::bit_or, t, b, c);
            break;
        case 12:
            op(vex::copy, t, 0, b);
            break;
        default:
            op(vex::copy, t, 0, c);
            break;
    }
    if (!known) {
        const int ones = take();
        op(vex::equal, ones, ones, ones);
        op(vex::bit_xor, t, t, ones);
        give(ones);
    }
    return t;
}
int Avx2::ternary(int h) {
    const int a = read(to_, h), b = read(first_, h), c = second_in_register(h);
    const uint8_t without = imm_ & 15, differs = static_cast<uint8_t>(without ^ imm_ >> 4);
    const int t = table_of_bits(b, c, without);
    if (!differs) return t;
    const int other = table_of_bits(b, c, differs);
    op(vex::bit_and, other, other, a);
    op(vex::bit_xor, t, t, other);
    return t;
}

}  // namespace gpukernel::simgpu::compiler
