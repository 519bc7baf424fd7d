// Matrix instructions (PTX ISA 9.7.14).  exec/matrix.h says how fragments lie in registers.
//
// What the ISA leaves open: each element of the result is the accumulator and then, in the order of the
// depth, one multiply-add after the other, fused, rounded to nearest even in single precision (.f64: in
// double); subnormals count; accumulators of .f16 are rounded once, at the end; a NaN is the GPU's canonical
// one.
#include "simgpu/exec/handlers/address.h"
#include "simgpu/exec/handlers/multiplicands.h"
#include "simgpu/exec/handlers/tables.h"

namespace gpukernel::simgpu {
namespace {

const MatrixPlan& plan_of(Warp& w, const Op& op) {
    const MatrixPlan& plan = w.frame->function->matrices[op.extra];
    if (w.exec != kFull) [[unlikely]]
        not_a_whole_warp(w, op, plan.text);
    return plan;
}

template <class T>
struct Sizes;
template <>
struct Sizes<f32> {
    static constexpr u32 depth = 32;  // at most
};
template <>
struct Sizes<s32> {
    static constexpr u32 depth = 64;
};
template <>
struct Sizes<f64> {
    static constexpr u32 depth = 16;
};
template <class T>
struct alignas(64) Matrices {
    static constexpr u32 kDepth = Sizes<T>::depth, kWidth = 32;
    T a[32 * kDepth];  // row by row
    T b[kDepth * kWidth];
    T d[4][64];  // block by block, those of a column of blocks first
};

template <Element E, class T>
void gather(Warp& w, const MatrixPlan& plan, Matrices<T>& m) {
    constexpr u32 step = Matrices<T>::kDepth, width = Matrices<T>::kWidth;
    constexpr u32 each = sizeof(T) == 8 ? 4 : 128 / bits_of(E);  // the depth of a block
    for (u32 k = 0; k < plan.depth; ++k)
        for (u32 r = 0; r < plan.rows; ++r)
            expand<E>(plan.a.element, in<char>(w, plan.a.slot[k * plan.rows + r]),
                      m.a + 8 * r * step + k * each, step);
    alignas(64) T rows[8 * Matrices<T>::kDepth];
    for (u32 n = 0; n < plan.columns; ++n) {
        for (u32 k = 0; k < plan.depth; ++k)
            expand<E>(plan.b.element, in<char>(w, plan.b.slot[n * plan.depth + k]), rows + k * each, step);
        for (u32 k = 0; k < plan.depth * each; k += 4)
            for (u32 r = 0; r < 8; r += 4)
                transpose(rows + r * step + k, step, m.b + k * width + 8 * n + r, width);
    }
}

template <class T>
void gather_accumulators(Warp& w, const MatrixPlan& plan, Matrices<T>& m) {
    for (u32 n = 0; n < u32(plan.rows) * plan.columns; ++n) {
        if constexpr (sizeof(T) == 4 && !std::is_integral_v<T>)
            if (plan.c.element == Element::f16) {
                const char* block = in<char>(w, plan.c.slot[n]);
                for (u32 r = 0; r < 8; ++r) halves(block + kRow * r, m.d[n] + 8 * r);
                continue;
            }
        weave(in<T>(w, plan.c.slot[2 * n]), in<T>(w, plan.c.slot[2 * n + 1]), m.d[n]);
    }
}

void scatter(Warp& w, const MatrixPlan& plan, Matrices<f32>& m) {
    for (u32 n = 0; n < u32(plan.rows) * plan.columns; ++n) {
        f32* d = m.d[n];
        if (plan.d.element == Element::f16) {
            u16* to = out<u16>(w, plan.d.slot[n]);
            for (u32 i = 0; i < 64; ++i) to[i] = settle_half(d[i], plan.saturate);
            continue;
        }
        if (plan.saturate)
            for (u32 i = 0; i < 64; ++i) d[i] = settle(d[i], true);
        else
            for (u32 i = 0; i < 64; ++i) d[i] = d[i] != d[i] ? std::bit_cast<f32>(0x7fffffffu) : d[i];
        unweave(d, out<f32>(w, plan.d.slot[2 * n]), out<f32>(w, plan.d.slot[2 * n + 1]));
    }
}
template <class T>
void scatter(Warp& w, const MatrixPlan& plan, Matrices<T>& m) {
    for (u32 n = 0; n < u32(plan.rows) * plan.columns; ++n)
        unweave(m.d[n], out<T>(w, plan.d.slot[2 * n]), out<T>(w, plan.d.slot[2 * n + 1]));
}

// ---- Multiplying ----

template <class T>
void multiply_block(const T* a, const T* b, T* d, u32 depth, bool exact) {
    using Vector = typename Columns<T>::Vector;
    constexpr u32 step = Matrices<T>::kDepth, width = Matrices<T>::kWidth, each = 32 / sizeof(T);
    for (u32 c = 0; c < 8; c += each) {
        Vector sum[8];
#pragma GCC unroll 8
        for (u32 r = 0; r < 8; ++r) memcpy(&sum[r], d + 8 * r + c, sizeof(Vector));
        for (u32 k = 0; k < depth; ++k) {
            Vector row;
            memcpy(&row, b + k * width + c, sizeof row);
#pragma GCC unroll 8
            for (u32 r = 0; r < 8; ++r) sum[r] = fuse(a[r * step + k] - Vector{}, row, sum[r], exact);
        }
#pragma GCC unroll 8
        for (u32 r = 0; r < 8; ++r) memcpy(d + 8 * r + c, &sum[r], sizeof(Vector));
    }
}
template <Element E, class T>
void multiply_all(const MatrixPlan& plan, Matrices<T>& m) {
    const u32 depth = plan.depth * (sizeof(T) == 8 ? 4 : 128 / bits_of(E));
    constexpr bool exact = E == Element::f16 || E == Element::e4m3;
    for (u32 n = 0; n < plan.columns; ++n)
        for (u32 r = 0; r < plan.rows; ++r)
            multiply_block<T>(m.a + 8 * r * Matrices<T>::kDepth, m.b + 8 * n, m.d[n * plan.rows + r], depth,
                              exact);
}

template <Element E>
void floats(Warp& w, const Op& op) {
    const MatrixPlan& plan = plan_of(w, op);
    Matrices<f32> m;
    gather<E>(w, plan, m);
    gather_accumulators(w, plan, m);
    multiply_all<E>(plan, m);
    scatter(w, plan, m);
}
void doubles(Warp& w, const Op& op) {
    const MatrixPlan& plan = plan_of(w, op);
    Matrices<f64> m;
    gather<Element::f64>(w, plan, m);
    gather_accumulators(w, plan, m);
    // The scheduler may come to another warp behind this operation, so the mode is this operation's own.
    _mm_setcsr(0x1f80u | plan.mode);
    asm volatile("" ::: "memory");
    multiply_all<Element::f64>(plan, m);
    asm volatile("" ::: "memory");
    _mm_setcsr(0x1f80u);
    scatter(w, plan, m);
}
// Sums of products fit 32 bits; what is added to them wraps around, or ends at the largest number.
void add_accumulators(Warp& w, const MatrixPlan& plan, Matrices<s32>& sums) {
    Matrices<s32> m;
    gather_accumulators(w, plan, m);
    for (u32 n = 0; n < u32(plan.rows) * plan.columns; ++n)
        for (u32 i = 0; i < 64; ++i) {
            const s64 sum = s64(sums.d[n][i]) + m.d[n][i];
            const s64 most = 0x7fffffff, least = -most - 1;
            sums.d[n][i] = static_cast<s32>(!plan.saturate ? sum
                                            : sum > most   ? most
                                            : sum < least  ? least
                                                           : sum);
        }
}
template <Element E>
void integers(Warp& w, const Op& op) {
    const MatrixPlan& plan = plan_of(w, op);
    Matrices<s32> m;
    gather<E>(w, plan, m);
    memset(m.d, 0, sizeof m.d);
    multiply_all<E>(plan, m);
    add_accumulators(w, plan, m);
    scatter(w, plan, m);
}
void single_bits(Warp& w, const Op& op) {
    const MatrixPlan& plan = plan_of(w, op);
    Matrices<s32> m;
    memset(m.d, 0, sizeof m.d);
    for (u32 k = 0; k < plan.depth; ++k)
        for (u32 r = 0; r < 8u * plan.rows; ++r)
            for (u32 c = 0; c < 8; ++c) {
                u64 a[2], b[2];
                memcpy(a, in<char>(w, plan.a.slot[k * plan.rows + r / 8]) + kRow * (r % 8), kRow);
                memcpy(b, in<char>(w, plan.b.slot[k]) + kRow * c, kRow);
                for (int i = 0; i < 2; ++i)
                    m.d[r / 8][8 * (r % 8) + c] +=
                        __builtin_popcountll(plan.xors ? a[i] ^ b[i] : a[i] & b[i]);
            }
    add_accumulators(w, plan, m);
    scatter(w, plan, m);
}

// mma.m8n8k4 on .f16: four products of 8 x 4 and 4 x 8, each by four lanes and the four lanes sixteen behind
// them (9.7.14.5.1).
void quads(Warp& w, const Op& op) {
    const MatrixPlan& plan = plan_of(w, op);
    alignas(64) u16 result[4][2 * kLanes];
    alignas(64) f32 wide[8][kLanes];
    // Element i of a lane's multiplicand.
    auto multiplicand = [&](const Fragment& f, u32 lane, u32 i) {
        return Half::get(in<u16>(w, f.slot[i / 2])[2 * lane + i % 2]);
    };
    for (u32 q = 0; q < 4; ++q) {
        auto lane_of = [&](u32 row) { return 4 * q + row % 4 + (row < 4 ? 0 : 16); };
        f32 a[8][4], b[4][8], d[8][8];
        for (u32 x = 0; x < 8; ++x)
            for (u32 k = 0; k < 4; ++k) {
                const u32 across = 4 * q + k + (x < 4 ? 0 : 16);
                a[x][k] = plan.a_columns ? multiplicand(plan.a, across, x % 4)
                                         : multiplicand(plan.a, lane_of(x), k);
                b[k][x] = plan.b_columns ? multiplicand(plan.b, lane_of(x), k)
                                         : multiplicand(plan.b, across, x % 4);
            }
        auto wide_place = [&](u32 row, u32 column, u32& lane, u32& i) {
            lane = 4 * q + (row & 1) + (column & 2) + (row < 4 ? 0 : 16);
            i = (row & 2) + (column & 4) + (column & 1);
        };
        for (u32 row = 0; row < 8; ++row)
            for (u32 column = 0; column < 8; ++column) {
                u32 lane, i;
                wide_place(row, column, lane, i);
                d[row][column] =
                    plan.c.element == Element::f16
                        ? Half::get(in<u16>(w, plan.c.slot[column / 2])[2 * lane_of(row) + column % 2])
                        : in<f32>(w, plan.c.slot[i])[lane];
            }
        for (u32 k = 0; k < 4; ++k)  // the products lose nothing
            for (u32 row = 0; row < 8; ++row)
                for (u32 column = 0; column < 8; ++column) d[row][column] += a[row][k] * b[k][column];
        for (u32 row = 0; row < 8; ++row)
            for (u32 column = 0; column < 8; ++column) {
                u32 lane, i;
                wide_place(row, column, lane, i);
                wide[i][lane] = settle(d[row][column], plan.saturate);
                result[column / 2][2 * lane_of(row) + column % 2] =
                    settle_half(d[row][column], plan.saturate);
            }
    }
    const bool half = plan.d.element == Element::f16;
    for (u32 i = 0; i < plan.d.count; ++i)
        memcpy(out<char>(w, plan.d.slot[i]), half ? static_cast<const void*>(result[i]) : wide[i], kBlock);
}

// ---- Fragments in memory ----

// The first `count` lanes' generic addresses of `size` bytes become host pointers; 0 < count <= 32.
void locate_rows(Warp& w, const Op& op, u64* ad, u32 count, u32 size, u32 align, bool shared_only) {
    if (locate_shared_at_once(w, ad, count, size, align)) return;
    if (!shared_only && locate_global_at_once(w, ad, count, size, align)) return;
    u64 low = ad[0];
    for (u32 i = 1; i < count; ++i) low = ad[i] < low ? ad[i] : low;
    const bool in_shared = low >> kWindowShift == kSharedWindow >> kWindowShift;
    // What is neither in shared nor in global memory is no address of either.
    for (u32 i = 0; i < count; ++i)
        if (in_shared)
            ad[i] -= kSharedWindow;
        else if (shared_only && ad[i] < padded_shared(w.shared_bytes))  // a generic address, not an offset
            ad[i] |= u64(1) << 63;
    const u32 exec = w.exec;
    w.exec = count == kLanes ? kFull : (1u << count) - 1;
    resolve_slowly(w, op, ad, size, in_shared || shared_only ? Space::shared : Space::global, align);
    w.exec = exec;
}

void eight_by_eight(const char* const* rows, char* to) {  // of 16 bits, transposed
    __m128i r[8], s[8];
    for (int i = 0; i < 8; ++i) r[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i]));
    for (int i = 0; i < 4; ++i) {
        s[2 * i] = _mm_unpacklo_epi16(r[i], r[i + 4]);
        s[2 * i + 1] = _mm_unpackhi_epi16(r[i], r[i + 4]);
    }
    for (int i = 0; i < 4; ++i) {
        r[2 * i] = _mm_unpacklo_epi16(s[i], s[i + 4]);
        r[2 * i + 1] = _mm_unpackhi_epi16(s[i], s[i + 4]);
    }
    for (int i = 0; i < 4; ++i) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + 2 * i, _mm_unpacklo_epi16(r[i], r[i + 4]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + 2 * i + 1, _mm_unpackhi_epi16(r[i], r[i + 4]));
    }
}
void transpose_block(const char* block, char* to) {
    const char* rows[8];
    for (u32 r = 0; r < 8; ++r) rows[r] = block + kRow * r;
    eight_by_eight(rows, to);
}

void load_rows(Warp& w, const Op& op) {
    const MatrixPlan& plan = plan_of(w, op);
    alignas(64) u64 ad[kLanes];
    memcpy(ad, in<u64>(w, op.a), sizeof ad);
    locate_rows(w, op, ad, 8 * plan.d.count, kRow, kRow, true);
    for (u32 n = 0; n < plan.d.count; ++n) {
        char* to = out<char>(w, plan.d.slot[n]);
        const char* rows[8];
        for (u32 r = 0; r < 8; ++r) rows[r] = reinterpret_cast<const char*>(ad[8 * n + r]);
        if (plan.transposed)
            eight_by_eight(rows, to);
        else
            for (u32 r = 0; r < 8; ++r) memcpy(to + kRow * r, rows[r], kRow);
    }
}
void store_rows(Warp& w, const Op& op) {
    const MatrixPlan& plan = plan_of(w, op);
    alignas(64) u64 ad[kLanes];
    memcpy(ad, in<u64>(w, op.a), sizeof ad);
    locate_rows(w, op, ad, 8 * plan.d.count, kRow, kRow, true);
    for (u32 n = 0; n < plan.d.count; ++n) {
        const char* from = in<char>(w, plan.d.slot[n]);
        alignas(64) char turned[kBlock];
        if (plan.transposed) transpose_block(from, turned), from = turned;
        for (u32 r = 0; r < 8; ++r) memcpy(reinterpret_cast<char*>(ad[8 * n + r]), from + kRow * r, kRow);
    }
}
void move_transposed(Warp& w, const Op& op) {
    const MatrixPlan& plan = plan_of(w, op);
    alignas(64) char turned[kBlock];
    transpose_block(in<char>(w, plan.a.slot[0]), turned);
    memcpy(out<char>(w, plan.d.slot[0]), turned, kBlock);
}

// wmma: the rows or columns in memory, one after the other by `stride` elements.
void locate_vectors(Warp& w, const Op& op, const MatrixPlan& plan, u64* ad) {
    const u64* base = in<u64>(w, op.a);
    const u32* stride = in<u32>(w, op.b);
    for (int i = 1; i < kLanes; ++i)
        if (base[i] != base[0] || stride[i] != stride[0]) not_the_same_matrix(w, op, i, plan);
    const u64 first = base[0], apart = u64(stride[0]) * bits_of(plan.d.element) / 8;
    for (u32 i = 0; i < plan.vectors; ++i) ad[i] = first + i * apart;
    locate_rows(w, op, ad, plan.vectors, plan.bytes, plan.align, false);
}
// The place of each element of a fragment: calls f(vector, index in it, register, index in that register).
template <class F>
void each_element(const MatrixPlan& plan, u32 in_row, F f) {
    const bool pairs = plan.use == MatrixUse::c && plan.d.element != Element::f16;
    if (plan.use == MatrixUse::c) {
        for (u32 n = 0; n < plan.columns; ++n)
            for (u32 m = 0; m < plan.rows; ++m)
                for (u32 r = 0; r < 8; ++r)
                    for (u32 c = 0; c < 8; ++c) {
                        const u32 block = n * plan.rows + m, row = 8 * m + r, column = 8 * n + c;
                        f(plan.transposed ? column : row, plan.transposed ? row : column,
                          pairs ? 2 * block + c % 2 : block, pairs ? 4 * r + c / 2 : 8 * r + c);
                    }
        return;
    }
    const bool a = plan.use == MatrixUse::a;
    for (u32 m = 0; m < plan.rows; ++m)
        for (u32 k = 0; k < plan.depth; ++k)
            for (u32 r = 0; r < 8; ++r)
                for (u32 c = 0; c < in_row; ++c) {
                    const u32 row = 8 * m + r, deep = k * in_row + c;
                    f(plan.transposed ? deep : row, plan.transposed ? row : deep,
                      a ? k * plan.rows + m : m * plan.depth + k, r * in_row + c);
                }
}
template <class T>
void load_elements(Warp& w, const MatrixPlan& plan, const u64* ad) {
    each_element(plan, sizeof(T) == 8 ? 4 : kRow / sizeof(T), [&](u32 vector, u32 i, u32 slot, u32 at) {
        out<T>(w, plan.d.slot[slot])[at] = reinterpret_cast<const T*>(ad[vector])[i];
    });
}
template <class T>
void store_elements(Warp& w, const MatrixPlan& plan, const u64* ad) {
    each_element(plan, sizeof(T) == 8 ? 4 : kRow / sizeof(T), [&](u32 vector, u32 i, u32 slot, u32 at) {
        reinterpret_cast<T*>(ad[vector])[i] = in<T>(w, plan.d.slot[slot])[at];
    });
}
void load_fragment(Warp& w, const Op& op) {
    const MatrixPlan& plan = plan_of(w, op);
    alignas(64) u64 ad[kLanes];
    locate_vectors(w, op, plan, ad);
    const u32 bits = bits_of(plan.d.element);
    if (plan.use != MatrixUse::c && bits <= 32 && (!plan.transposed || bits == 16)) {  // whole blocks
        for (u32 m = 0; m < plan.rows; ++m)
            for (u32 k = 0; k < plan.depth; ++k) {
                const u32 slot = plan.use == MatrixUse::a ? k * plan.rows + m : m * plan.depth + k;
                char* to = out<char>(w, plan.d.slot[slot]);
                const char* rows[8];
                for (u32 r = 0; r < 8; ++r)
                    rows[r] = reinterpret_cast<const char*>(plan.transposed ? ad[8 * k + r] + kRow * m
                                                                            : ad[8 * m + r] + kRow * k);
                if (plan.transposed)
                    eight_by_eight(rows, to);
                else
                    for (u32 r = 0; r < 8; ++r) memcpy(to + kRow * r, rows[r], kRow);
            }
    } else if (bits == 8) {
        load_elements<u8>(w, plan, ad);
    } else if (bits == 16) {
        load_elements<u16>(w, plan, ad);
    } else if (bits == 32) {
        load_elements<u32>(w, plan, ad);
    } else {
        load_elements<u64>(w, plan, ad);
    }
    // Fragments of .f16 have eight registers in every shape: what is left repeats the first.
    if (plan.use != MatrixUse::c)
        for (u32 blocks = u32(plan.rows) * plan.depth, i = blocks; i < plan.d.count; ++i)
            memcpy(out<char>(w, plan.d.slot[i]), out<char>(w, plan.d.slot[i % blocks]), kBlock);
}
void store_fragment(Warp& w, const Op& op) {
    const MatrixPlan& plan = plan_of(w, op);
    alignas(64) u64 ad[kLanes];
    locate_vectors(w, op, plan, ad);
    const u32 bits = bits_of(plan.d.element);
    if (bits == 16)
        store_elements<u16>(w, plan, ad);
    else if (bits == 32)
        store_elements<u32>(w, plan, ad);
    else
        store_elements<u64>(w, plan, ad);
}

const HandlerEntry entries[] = {
    {"mma.f16", floats<Element::f16>},
    {"mma.bf16", floats<Element::bf16>},
    {"mma.tf32", floats<Element::tf32>},
    {"mma.f8", floats<Element::e4m3>},
    {"mma.f64", doubles},
    {"mma.s8", integers<Element::s8>},
    {"mma.s4", integers<Element::s4>},
    {"mma.bits", single_bits},
    {"mma.quads", quads},
    {"ldmatrix", load_rows},
    {"stmatrix", store_rows},
    {"movmatrix", move_transposed},
    {"wmma.load", load_fragment},
    {"wmma.store", store_fragment},
};

}  // namespace
HANDLER_TABLE(matrix)
}  // namespace gpukernel::simgpu
