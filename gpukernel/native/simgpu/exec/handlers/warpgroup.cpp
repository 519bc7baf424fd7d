// Matrix instructions of a warpgroup (PTX ISA 9.7.15): each of its four warps does its sixteen rows.  Sums
// are those of matrix.cpp.
#include "simgpu/exec/handlers/address.h"
#include "simgpu/exec/handlers/multiplicands.h"
#include "simgpu/exec/handlers/tables.h"

namespace gpukernel::simgpu {
namespace {

const WarpgroupPlan& plan_of(Warp& w, const Op& op) {
    const WarpgroupPlan& plan = w.frame->function->warpgroups[op.extra];
    if (w.exec != kFull) [[unlikely]]
        not_a_whole_warp(w, op, plan.text);
    return plan;
}

// A matrix in shared memory, as its descriptor says (9.7.15.5.1): rows of sixteen bytes, eight of which make
// a core matrix.  "Along" is the way in which elements of a row lie side by side, "across" the other one.
struct Descriptor {
    u32 start, leading, stride, base, mask, width;
    explicit Descriptor(u64 bits)
        : start((bits & 0x3fff) << 4),
          leading((bits >> 16 & 0x3fff) << 4),
          stride((bits >> 32 & 0x3fff) << 4),
          base(bits >> 49 & 7) {
        constexpr u32 masks[] = {0, 7, 3, 1};  // not swizzled, 128, 64, 32 bytes
        mask = masks[bits >> 62];
        width = 16 * (mask + 1);
    }
    u32 place(u32 offset) const {
        const u32 at = (start + offset) & 0x3ffff;
        return at ^ ((((at >> 7) - base) & mask) << 4);
    }
    // Where the depth lies side by side: row `r`, chunk `c` of sixteen bytes of its depth.
    u32 by_depth(u32 r, u32 c) const {
        return place(r / 8 * stride + r % 8 * width + c * (mask ? 16 : leading));
    }
    // Where rows lie side by side: depth `k`, chunk `m` of sixteen bytes of rows.
    u32 by_rows(u32 k, u32 m) const {
        if (!mask) return place(m * stride + k / 8 * leading + k % 8 * 16);
        const u32 chunks = mask + 1;
        return place(m / chunks * leading + m % chunks * 16 + k / 8 * stride + k % 8 * width);
    }
};

// Sixteen bytes of the block's own shared memory, or the fault.
inline const char* chunk(Warp& w, const Op& op, u32 at) {
    if (u64(at) + kRow <= w.shared_bytes) return w.shared + at;
    alignas(64) u64 ad[kLanes] = {at};
    w.exec = 1;
    resolve_slowly(w, op, ad, kRow, Space::shared);
    w.exec = kFull;
    return reinterpret_cast<const char*>(ad[0]);
}
// A block of eight chunks, row after row.
template <class At>
inline void fetch(Warp& w, const Op& op, char* block, At at) {
    for (u32 r = 0; r < 8; ++r) memcpy(block + kRow * r, chunk(w, op, at(r)), kRow);
}

constexpr u32 kRows = 16, kMostColumns = 256;
constexpr u32 kChunks = 2;  // of sixteen bytes: the depth of every type
template <Element E>
constexpr u32 kDeep = kChunks * 128 / bits_of(E);

template <Element E, class T>
void gather_a(Warp& w, const Op& op, const WarpgroupPlan& plan, u64 descriptor, T* a) {
    constexpr u32 depth = kDeep<E>, each = depth / kChunks;
    alignas(64) char block[kBlock];
    const Descriptor from(descriptor);
    const u32 first = w.index % 4 * kRows;
    for (u32 c = 0; c < kChunks; ++c)
        for (u32 half = 0; half < 2; ++half) {
            if (plan.a_in_registers) {
                expand<E>(plan.a_element, in<char>(w, plan.a[2 * c + half]), a + 8 * half * depth + c * each,
                          depth);
            } else if (!plan.a_transposed) {
                fetch(w, op, block, [&](u32 r) { return from.by_depth(first + 8 * half + r, c); });
                expand<E>(plan.a_element, block, a + 8 * half * depth + c * each, depth);
            } else {  // eight of the depth, and as many rows
                alignas(64) T turned[64];
                fetch(w, op, block, [&](u32 k) { return from.by_rows(8 * c + k, (first + 8 * half) / 8); });
                expand<E>(plan.a_element, block, turned, 8);
                for (u32 k = 0; k < 8; ++k)
                    for (u32 r = 0; r < 8; ++r) a[(8 * half + r) * depth + 8 * c + k] = turned[8 * k + r];
            }
        }
}
// b[k][n], so many columns a row.
template <Element E, class T>
void gather_b(Warp& w, const Op& op, const WarpgroupPlan& plan, u64 descriptor, T* b) {
    constexpr u32 depth = kDeep<E>, each = depth / kChunks;
    alignas(64) char block[kBlock];
    alignas(64) T rows[8 * depth];
    const Descriptor from(descriptor);
    for (u32 n = 0; n < plan.columns / 8u; ++n) {
        for (u32 c = 0; c < kChunks; ++c) {
            if (plan.b_transposed) {
                fetch(w, op, block, [&](u32 k) { return from.by_rows(8 * c + k, n); });
                expand<E>(plan.b_element, block, b + 8 * c * kMostColumns + 8 * n, kMostColumns);
            } else {
                fetch(w, op, block, [&](u32 r) { return from.by_depth(8 * n + r, c); });
                expand<E>(plan.b_element, block, rows + c * each, depth);
            }
        }
        if (!plan.b_transposed)
            for (u32 k = 0; k < depth; k += 4)
                for (u32 r = 0; r < 8; r += 4)
                    transpose(rows + r * depth + k, depth, b + k * kMostColumns + 8 * n + r, kMostColumns);
    }
}

// Eight columns of the sixteen rows: two blocks, row after row.
template <u32 Depth, class T>
void multiply_columns(const T* a, const T* b, T* d, bool exact) {
    using Vector = typename Columns<T>::Vector;
    for (u32 half = 0; half < 2; ++half, a += 8 * Depth, d += 64) {
        Vector sum[8];
#pragma GCC unroll 8
        for (u32 r = 0; r < 8; ++r) memcpy(&sum[r], d + 8 * r, sizeof(Vector));
        for (u32 k = 0; k < Depth; ++k) {
            Vector row;
            memcpy(&row, b + k * kMostColumns, sizeof row);
#pragma GCC unroll 8
            for (u32 r = 0; r < 8; ++r) sum[r] = fuse(a[r * Depth + k] - Vector{}, row, sum[r], exact);
        }
#pragma GCC unroll 8
        for (u32 r = 0; r < 8; ++r) memcpy(d + 8 * r, &sum[r], sizeof(Vector));
    }
}

struct Given {
    u64 a = 0, b;
    bool adds;
};
// What all threads of the warp must agree on.
Given given(Warp& w, const Op& op, const WarpgroupPlan& plan) {
    const u64 *a = in<u64>(w, op.a), *b = in<u64>(w, op.b);
    const u32 adds = in_pred(w, op.c) ^ (plan.negated_predicate ? kFull : 0);
    for (int i = 1; i < kLanes; ++i)
        if ((!plan.a_in_registers && a[i] != a[0]) || b[i] != b[0] || (adds >> i & 1) != (adds & 1))
            not_one_descriptor(w, op, i, plan);
    Given all{plan.a_in_registers ? 0 : a[0], b[0], (adds & 1) != 0};
    warpgroup_multiplies(w, op, plan, all.a, all.b, all.adds);
    return all;
}

template <Element E>
void floats(Warp& w, const Op& op) {
    const WarpgroupPlan& plan = plan_of(w, op);
    const Given of = given(w, op, plan);
    constexpr u32 depth = kDeep<E>;
    constexpr bool exact = E == Element::f16 || E == Element::e4m3;
    alignas(64) f32 a[kRows * depth], b[depth * kMostColumns], d[2 * 64];
    gather_a<E>(w, op, plan, of.a, a);
    gather_b<E>(w, op, plan, of.b, b);
    if (plan.adds_negated)
        for (f32& v : a) v = -v;
    const bool half = plan.d_element == Element::f16;
    for (u32 n = 0; n < plan.columns / 8u; ++n) {
        for (u32 h = 0; h < 2; ++h) {
            f32* block = d + 64 * h;
            if (!of.adds)
                memset(block, 0, 64 * sizeof(f32));
            else if (half)
                for (u32 r = 0; r < 8; ++r) halves(in<char>(w, plan.d[2 * n + h]) + kRow * r, block + 8 * r);
            else
                weave(in<f32>(w, plan.d[4 * n + 2 * h]), in<f32>(w, plan.d[4 * n + 2 * h + 1]), block);
        }
        multiply_columns<depth>(a, b + 8 * n, d, exact);
        for (u32 h = 0; h < 2; ++h) {
            f32* block = d + 64 * h;
            if (half) {
                u16* to = out<u16>(w, plan.d[2 * n + h]);
                for (u32 i = 0; i < 64; ++i) to[i] = settle_half(block[i], false);
            } else {
                for (u32 i = 0; i < 64; ++i) block[i] = settle(block[i], false);
                unweave(block, out<f32>(w, plan.d[4 * n + 2 * h]), out<f32>(w, plan.d[4 * n + 2 * h + 1]));
            }
        }
    }
}

// Sums of products fit 32 bits; what they are added to wraps around, or ends at the largest number.
void add_to(Warp& w, const WarpgroupPlan& plan, bool adds, u32 n, s32* d) {
    alignas(64) s32 before[64];
    for (u32 h = 0; h < 2; ++h, d += 64) {
        s32 *even = out<s32>(w, plan.d[4 * n + 2 * h]), *odd = out<s32>(w, plan.d[4 * n + 2 * h + 1]);
        if (adds) {
            weave(even, odd, before);
            for (u32 i = 0; i < 64; ++i) {
                const s64 sum = s64(before[i]) + d[i], most = 0x7fffffff, least = -most - 1;
                d[i] = static_cast<s32>(!plan.saturate ? sum : sum > most ? most : sum < least ? least : sum);
            }
        }
        unweave(d, even, odd);
    }
}
void integers(Warp& w, const Op& op) {
    const WarpgroupPlan& plan = plan_of(w, op);
    const Given of = given(w, op, plan);
    constexpr u32 depth = kDeep<Element::s8>;
    alignas(64) s32 a[kRows * depth], b[depth * kMostColumns], d[2 * 64];
    gather_a<Element::s8>(w, op, plan, of.a, a);
    gather_b<Element::s8>(w, op, plan, of.b, b);
    for (u32 n = 0; n < plan.columns / 8u; ++n) {
        memset(d, 0, sizeof d);
        multiply_columns<depth>(a, b + 8 * n, d, true);
        add_to(w, plan, of.adds, n, d);
    }
}
void single_bits(Warp& w, const Op& op) {
    const WarpgroupPlan& plan = plan_of(w, op);
    const Given of = given(w, op, plan);
    const Descriptor from_a(of.a), from_b(of.b);
    const u32 first = w.index % 4 * kRows;
    alignas(64) s32 d[2 * 64];
    for (u32 n = 0; n < plan.columns / 8u; ++n) {
        memset(d, 0, sizeof d);
        for (u32 c = 0; c < kChunks; ++c) {
            alignas(64) u64 a[2][16], b[16];
            for (u32 h = 0; h < 2; ++h)
                if (plan.a_in_registers)
                    memcpy(a[h], in<char>(w, plan.a[2 * c + h]), kBlock);
                else
                    fetch(w, op, reinterpret_cast<char*>(a[h]),
                          [&](u32 r) { return from_a.by_depth(first + 8 * h + r, c); });
            fetch(w, op, reinterpret_cast<char*>(b), [&](u32 r) { return from_b.by_depth(8 * n + r, c); });
            for (u32 i = 0; i < 128; ++i) {
                const u64 *row = a[i / 64] + i % 64 / 8 * 2, *column = b + i % 8 * 2;
                d[i] += __builtin_popcountll(row[0] & column[0]) + __builtin_popcountll(row[1] & column[1]);
            }
        }
        add_to(w, plan, of.adds, n, d);
    }
}

void whole(Warp& w, const Op& op) { plan_of(w, op); }
void commit(Warp& w, const Op& op) { warpgroup_commits(w, op, plan_of(w, op)); }

const HandlerEntry entries[] = {
    {"wgmma.f16", floats<Element::f16>},
    {"wgmma.bf16", floats<Element::bf16>},
    {"wgmma.tf32", floats<Element::tf32>},
    {"wgmma.f8", floats<Element::e4m3>},
    {"wgmma.s8", integers},
    {"wgmma.bits", single_bits},
    {"wgmma.whole", whole},
    {"wgmma.commit", commit},
};

}  // namespace
HANDLER_TABLE(warpgroup)
}  // namespace gpukernel::simgpu
