// Moves, permutations, and what changes the width of elements.
#include "simgpu/compiler/avx2/avx2.h"
#include "simgpu/compiler/avx2/codes.h"

namespace gpukernel::simgpu::compiler {

void Avx2::vector_from(int v, Gpr from, bool wide) {
    op(wide ? vex::from_gpr_wide : vex::from_gpr, target(v, 0), 0, static_cast<int>(from), false);
    release();
}
void Avx2::vector_to(Gpr to, int v, bool wide) {
    op(wide ? vex::to_gpr_wide : vex::to_gpr, read(v, 0), 0, static_cast<int>(to), false);
    release();
}
void Avx2::sixteen_bytes(bool stores, int v, Memory m) {
    stores ? op(vex::store, read(v, 0), 0, m, false) : op(vex::load, target(v, 0), 0, m, false);
    release();
}

bool Avx2::write_move() {
    const int key = i_.map << 16 | i_.prefix << 8 | i_.opcode;
    const int bytes = i_.prefix == 3 ? 2 : i_.wide ? 8 : 4;
    switch (key) {
        case 0x1'00'10:  // vmovups, vmovupd, vmovdqu16
        case 0x1'01'10:
        case 0x1'03'6f:
            for (int h = 0; h < count(); ++h) {
                const Source from = second(h);
                if (k_) {
                    put(to_, h, in_register(from), k_, bytes);
                } else {
                    op(from.reg >= 0 ? vex::copy : vex::load, target(to_, h), 0, from);
                }
                release();
            }
            if (half_) drop_half(to_, 1);
            if (!half_ && !k_ && second_.is_memory && second_.at.base == r15 &&
                second_.at.displacement >= static_cast<int32_t>(from_))
                known_[static_cast<size_t>(to_)] = second_.at.displacement;
            return true;
        case 0x1'02'11:  // the first element
        case 0x1'03'11: {
            const bool wide = i_.prefix == 3;
            op(wide ? vex::store_double : vex::store_float, read(to_, 0), 0, second_.at, false);
            return true;
        }
        case 0x2'01'58:  // one number for all lanes, of memory or the first lane
        case 0x2'01'59:
        case 0x2'01'79: {
            const Encoding code = bytes == 8          ? vex::broadcast_wide
                                  : i_.opcode == 0x79 ? vex::broadcast_word
                                                      : vex::broadcast;
            const int size = i_.opcode == 0x79 ? 2 : bytes;
            const int t = take();
            if (second_.is_memory)
                op(code, t, 0, second_.at);
            else
                op(code, t, 0, read(second_.v, 0));
            if (k_) {
                for (int h : {0, 1}) put(to_, h, t, k_, size);
                return true;
            }
            if (!half_) op(vex::copy, target(to_, 1), 0, t);
            put(to_, 0, t);
            return true;
        }
        case 0x2'01'7c: {
            const int t = take();
            op(bytes == 8 ? vex::from_gpr_wide : vex::from_gpr, t, 0, second_.v, false);
            op(bytes == 8 ? vex::broadcast_wide : vex::broadcast, t, 0, t);
            if (k_) {
                for (int h : {0, 1}) put(to_, h, t, k_, bytes);
                return true;
            }
            op(vex::copy, target(to_, 1), 0, t);
            put(to_, 0, t);
            return true;
        }
        case 0x2'01'64:  // of the second operand the lanes of the mask, of the first one the others
            for (int h : {0, 1}) {
                const int a = read(first_, h), b = second_in_register(h, bytes), mask = spread(k_, bytes, h);
                blend(target(to_, h), a, b, mask, bytes);
                release();
            }
            return true;
        case 0x2'02'38:
            for (int h : {0, 1}) {
                op(vex::copy, target(to_, h), 0, spread(second_.v, 4, h));
                release();
            }
            return true;
        default:
            return false;
    }
}

// Of two registers, lane by lane that which a bit of `index` says; the result is in `otherwise`.
int Avx2::select_by_bit(int index, int bit, int otherwise, int where) {
    const int t = take();
    op_with(vex::shift_group, 6, t, index, static_cast<uint8_t>(31 - bit));
    op_with(vex::blend, otherwise, otherwise, where, static_cast<uint8_t>(t << 4));
    give(t);
    give(where);
    return otherwise;
}

// Each lane of two vectors that a table says: of each half only those halves are looked at that it wants.
void Avx2::permute_by_table(int32_t at) {
    int result[2];
    for (int h : {0, 1}) {
        int from[8];  // of 32 bits, among the 32 of both vectors
        uint32_t halves = 0;
        std::vector<uint64_t> order(8);
        bool in_order = true;
        for (int n = 0; n < 8; ++n) {
            const int element = i_.wide ? n / 2 : n;
            const auto which = static_cast<int>(literals_.word(at + 32 * h + (i_.wide ? 8 : 4) * element)) &
                               (i_.wide ? 15 : 31);
            from[n] = i_.wide ? 2 * which + n % 2 : which;
            halves |= 1u << from[n] / 8;
            in_order &= from[n] % 8 == n;
            order[static_cast<size_t>(n / 2)] |= static_cast<uint64_t>(from[n] % 8) << n % 2 * 32;
        }
        int index = -1;
        if (!in_order) {
            index = take();
            op(vex::load, index, 0, table(order));
        }
        int all = -1;
        for (int half = 0; half < 4; ++half) {
            if (!(halves >> half & 1)) continue;
            const Source source_half = half < 2 ? source(first_, half) : second(half - 2);
            const int t = take();
            in_order ? op(source_half.reg >= 0 ? vex::copy : vex::load, t, 0, source_half)
                     : op(vex::permute, t, index, source_half);
            if (source_half.reg >= 0) give(source_half.reg);
            if (all < 0) {
                all = t;
                continue;
            }
            uint8_t lanes = 0;
            for (int n = 0; n < 8; ++n) lanes |= static_cast<uint8_t>((from[n] / 8 == half) << n);
            op_with(vex::blend_known, all, all, t, lanes);
            give(t);
        }
        result[h] = all;
        keep_only(result, h + 1);
    }
    for (int h : {0, 1}) put(to_, h, result[h]);
}

bool Avx2::write_permutation() {
    const int key = i_.map << 16 | i_.prefix << 8 | i_.opcode;
    switch (key) {
        case 0x2'01'76: {  // each lane of two vectors that `to` says
            if (const int32_t table = known_[static_cast<size_t>(to_)]) {
                permute_by_table(table);
                return true;
            }
            int result[2];
            for (int h : {0, 1}) {
                int index = read(to_, h);
                if (i_.wide) {  // as pairs of 32 bits
                    const int t = take(), odd = take();
                    op_with(vex::shuffle, t, 0, index, 0xa0);
                    op(vex::add, t, t, t);
                    op(vex::load, odd, 0,
                       table({1ull << 32, 1ull << 32, 1ull << 32, 1ull << 32, 0, 0, 0, 0}));
                    op(vex::bit_or, t, t, odd);
                    give(odd);
                    if (!is_pinned(to_)) give(index);
                    index = t;
                }
                int sides[2];
                for (int side : {0, 1}) {
                    int parts[2];
                    for (int n : {0, 1}) {
                        parts[n] = take();
                        const Source from = side ? second(n) : source(first_, n);
                        op(vex::permute, parts[n], index, from);
                        if (from.reg >= 0 && from.reg != index) give(from.reg);
                    }
                    sides[side] = select_by_bit(index, 3, parts[0], parts[1]);
                }
                result[h] = select_by_bit(index, 4, sides[0], sides[1]);
                keep_only(result, h + 1);
            }
            for (int h : {0, 1}) put(to_, h, result[h]);
            return true;
        }
        case 0x2'01'36: {
            int result[2];
            for (int h : {0, 1}) {
                const int index = read(first_, h);
                int parts[2];
                for (int n : {0, 1}) {
                    parts[n] = take();
                    op(vex::permute, parts[n], index, second(n));
                }
                result[h] = select_by_bit(index, 3, parts[0], parts[1]);
                keep_only(result, h + 1);
            }
            for (int h : {0, 1}) put(to_, h, result[h]);
            return true;
        }
        case 0x3'01'1b:  // the upper half to the lower one of `second`
            op(vex::copy, target(second_.v, 0), 0, read(to_, imm_ & 1));
            drop_half(second_.v, 1);
            return true;
        case 0x3'01'1a: {  // the lower half of `second` above that of `first`
            const int upper = copy(second_.v, 0);
            if (to_ != first_) op(vex::copy, target(to_, 0), 0, read(first_, 0));
            put(to_, 1, upper);
            return true;
        }
        case 0x3'01'39: {  // sixteen bytes of the lower half
            const int t = take();
            op_with(vex::extract, read(to_, 0), 0, t, imm_ & 1);
            put(second_.v, 0, t);
            drop_half(second_.v, 1);
            return true;
        }
        default:
            return false;
    }
}

// Elements become so many times as wide.
void Avx2::widen(int ratio) {
    Encoding code = i_;
    code.wide = 0;
    const int parts[] = {take(), take()};
    for (int h : {0, 1}) {
        if (second_.is_memory) {
            Memory from = second_.at;
            from.displacement += 32 / ratio * h;
            op(code, parts[h], 0, from);
            continue;
        }
        const int from = read(second_.v, 0);
        if (h == 0) {
            op(code, parts[h], 0, from);
            continue;
        }
        if (ratio == 2)
            op_with(vex::extract, from, 0, parts[h], 1);
        else
            op_with(vex::shift_group_wide, 3, parts[h], from, static_cast<uint8_t>(32 / ratio), false);
        op(code, parts[h], 0, parts[h]);
    }
    for (int h : {0, 1}) put(to_, h, parts[h], k_, i_.wide ? 8 : 4);
}

// Elements of `from` bytes of two registers, cut to half of that, in one.
int Avx2::narrow(int one, int other, int from) {
    const int t = take();
    if (from == 8) {
        op_with(vex::shuffle_two, t, one, other, 0x88);
    } else {
        const int low = every(from == 4 ? 0xffff : 0x00ff00ff, 4), second = take();
        op(vex::bit_and, t, one, low);
        op(vex::bit_and, second, other, low);
        op(from == 4 ? vex::pack : vex::pack_words, t, t, second);
        give(low), give(second);
    }
    op_with(vex::permute_wide, t, 0, t, 0xd8);
    return t;
}

// An instruction whose result is half as wide: both halves come to the lower one of a vector.
void Avx2::join(Encoding code, int imm) {
    const int parts[] = {take(), take()};
    const bool stores = code.map == 3;  // its result stands where others have an operand
    const int from = stores ? to_ : second_.v, to = stores ? second_.v : to_;
    code.wide = 0;
    for (int h : {0, 1}) {
        const int whole = read(from, h);
        if (stores)
            op_with(code, whole, 0, parts[h], static_cast<uint8_t>(imm));
        else
            op(code, parts[h], 0, whole);
    }
    op_with(vex::insert, parts[0], parts[0], parts[1], 1);
    put(to, 0, parts[0]);
    drop_half(to, 1);
}

}  // namespace gpukernel::simgpu::compiler
