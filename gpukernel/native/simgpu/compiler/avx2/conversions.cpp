// Conversions between numbers of different kinds and widths.  Each is exact where that of AVX-512 is, and
// rounded once where that is rounded.
#include "simgpu/compiler/avx2/avx2.h"
#include "simgpu/compiler/avx2/codes.h"

namespace gpukernel::simgpu::compiler {

namespace {

// Doubles whose last bits are a number's own: 2^52 with one of 52 bits, 2^84 with one of the upper 32.
constexpr uint64_t kLow = 0x4330000000000000, kHigh = 0x4530000000000000;
constexpr uint64_t kTwoTo32 = 0x41f0000000000000, kMinusOne = 0xbff0000000000000;
constexpr uint8_t kNotLess = 5, kLessOrEqual = 2, kNotBelow = 13;  // comparisons; the first of NaNs, too

}  // namespace

// Numbers of 64 bits: the halves as doubles that are exact, whose sum is rounded.
int Avx2::double_of(int from, bool is_signed) {
    const uint64_t sign = is_signed ? 1ull << 31 : 0;
    const int high = take(), low = take();
    op_with(vex::shift_group_wide, 2, high, from, 32);
    op(vex::bit_xor, high, high, every(kHigh | sign, 8));
    op_with(vex::blend_known, low, from, every(kLow, 8), 0xaa);
    op(vex::subtract_double, high, high, every(kHigh | sign | 1ull << 20, 8));
    op(vex::add_double, high, high, low);
    // Of no number at all the sum is -0 where it is rounded down.
    op(vex::bit_xor, low, low, low);
    op(vex::equal_wide, low, low, from);
    op(vex::bit_and_not, high, low, high);
    give(low);
    return high;
}
// Doubles without what is behind the point, as numbers of 52 bits in those of 2^52.
int Avx2::whole_of(int from) {
    const int t = take(), big = every(kLow, 8);
    op_with(vex::round_double, t, 0, from, 3);
    op(vex::add_double, t, t, big);
    give(big);
    return t;
}

bool Avx2::write_conversion() {
    const int key = i_.map << 16 | i_.prefix << 8 | i_.opcode;
    const bool wide = i_.wide;
    switch (key) {
        case 0x1'00'5b:
        case 0x1'02'5b:
            elementwise(true, 4);
            return true;
        case 0x2'01'30:  // wider integers
        case 0x2'01'33:
        case 0x2'01'35:
        case 0x2'01'20:
        case 0x2'01'23:
        case 0x2'01'25:
        case 0x1'00'5a:
        case 0x2'01'13:
            widen(2);
            return true;
        case 0x2'01'31:
        case 0x2'01'34:
        case 0x2'01'21:
        case 0x2'01'24:
            widen(4);
            return true;
        case 0x2'01'32:
        case 0x2'01'22:
            widen(8);
            return true;
        case 0x1'01'5a:
        case 0x1'01'e6:
            join(i_, 0);
            return true;
        case 0x3'01'1d:
            join(i_, imm_);
            return true;
        case 0x1'02'e6:
            if (!wide) {
                widen(2);
                return true;
            }
            for (int h : {0, 1}) {
                put(to_, h, double_of(second_in_register(h, 8), true), k_, 8);
                release();
            }
            return true;
        case 0x1'02'7a:
            if (wide) {
                for (int h : {0, 1}) {
                    put(to_, h, double_of(second_in_register(h, 8), false), k_, 8);
                    release();
                }
                return true;
            }
            {  // as signed numbers, and 2^32 more where that is negative
                const int from = read(second_.v, 0), parts[] = {take(), take()};
                const int nothing = take(), more = every(kTwoTo32, 8);
                op_with(vex::extract, from, 0, parts[1], 1);
                op(vex::double_of_int, parts[1], 0, parts[1]);
                op(vex::double_of_int, parts[0], 0, from);
                for (int part : parts) {
                    op(vex::bit_xor, nothing, nothing, nothing);
                    op_with(vex::blend_wide, nothing, nothing, more, static_cast<uint8_t>(part << 4));
                    op(vex::add_double, part, part, nothing);
                }
                for (int h : {0, 1}) put(to_, h, parts[h], k_, 8);
            }
            return true;
        case 0x1'03'7a:
            for (int h : {0, 1}) {
                const int from = second_in_register(h), high = take(), low = take();
                op_with(vex::shift_group, 2, high, from, 16);
                op(vex::bit_and, low, from, every(0xffff, 4));
                op(vex::float_of_int, high, 0, high);
                op(vex::float_of_int, low, 0, low);
                op(vex::multiply_float, high, high, every(0x47800000, 4));
                op(vex::add_float, high, high, low);
                put(to_, h, high, k_, 4);
                release();
            }
            return true;
        case 0x1'00'78:
            if (wide) {
                int parts[2];
                for (int h : {0, 1}) {
                    const int from = second_in_register(h, 8), bad = take();
                    parts[h] = whole_of(from);
                    op_with(vex::compare_double, bad, from, every(kTwoTo32, 8), kNotLess);
                    op(vex::bit_or, parts[h], parts[h], bad);
                    op_with(vex::compare_double, bad, from, every(kMinusOne, 8), kLessOrEqual);
                    op(vex::bit_or, parts[h], parts[h], bad);
                    keep_only(parts, h + 1);
                }
                put(to_, 0, narrow(parts[0], parts[1], 8));
                drop_half(to_, 1);
                return true;
            }
            for (int h : {0, 1}) {
                const int from = second_in_register(h), large = take(), t = take();
                const int top = every(0x4f000000, 4);  // 2^31
                op_with(vex::compare_float, large, from, top, kNotBelow);
                op(vex::bit_and, t, large, top);
                give(top);
                op(vex::subtract_float, t, from, t);
                op(vex::int_of_float, t, 0, t);
                op_with(vex::shift_group, 6, large, large, 31);
                op(vex::bit_xor, t, t, large);
                op_with(vex::compare_float, large, from, every(0x4f800000, 4), kNotLess);
                op(vex::bit_or, t, t, large);
                op_with(vex::compare_float, large, from, every(0xbf800000, 4), kLessOrEqual);
                op(vex::bit_or, t, t, large);
                put(to_, h, t, k_, 4);
                release();
            }
            return true;
        case 0x1'01'78:  // of numbers below 2^52, which quotients of 32 bits are
            for (int h : {0, 1}) {
                const int t = whole_of(second_in_register(h, 8));
                op(vex::bit_xor, t, t, every(kLow, 8));
                put(to_, h, t, k_, 8);
                release();
            }
            return true;
        default:
            return false;
    }
}

}  // namespace gpukernel::simgpu::compiler
