// From 32 addresses to 32 host pointers: one range check where all lanes fall in one allocation.
#pragma once
#include "simgpu/exec/handlers/lanes.h"

namespace gpukernel::simgpu {
namespace {

// `rows` and `blocks`: each eight lanes lie side by side, or share one address; only ad[0], ad[8], ad[16],
// ad[24] are set.
enum class Shape { scattered, contiguous, uniform, rows, blocks };

// `op.sub` bit 0: the address register has 32 bits.
template <Space S, u32 Size, u32 Step = Size>
inline Shape locate(Warp& w, const Op& op, u64* ad) {
    if (op.sub & 1) {
        const u32* a = in<u32>(w, op.a);
        LANES ad[i] = a[i] + static_cast<u32>(op.imm);
    } else {
        const u64* a = in<u64>(w, op.a);
        u64 imm = static_cast<u64>(op.imm);
        LANES ad[i] = a[i] + imm;
    }
    u64 first = ad[__builtin_ctz(w.exec)];
    if (w.exec != kFull) {
        u32 m = w.exec;
        LANES ad[i] = (m >> i & 1) ? ad[i] : first;
    }
    u64 low_bits = 0, off_line = 0, off_same = 0;
    for (int i = 0; i < kLanes; ++i) {
        off_line |= ad[i] ^ (first + static_cast<u64>(i) * Step);
        off_same |= ad[i] ^ first;
        low_bits |= ad[i];
    }
    Shape shape = !off_same                        ? Shape::uniform
                  : (!off_line && w.exec == kFull) ? Shape::contiguous
                                                   : Shape::scattered;
    // Whether all lanes fall into [base, base + bytes): a difference that is negative or too large sets the
    // top bit of one of the two terms, which is cheaper than a least and a greatest of 64 bits.
    auto within = [&](u64 base, u64 bytes) {
        if (bytes < Size) return false;
        const u64 limit = bytes - Size, from = first - base;
        if (shape == Shape::uniform) return from <= limit;
        if (shape == Shape::contiguous) return from <= limit && limit - from >= (kLanes - 1) * Step;
        u64 outside = 0;
        for (int i = 0; i < kLanes; ++i) {
            u64 o = ad[i] - base;
            outside |= o | (limit - o);
        }
        return !(outside >> 63);
    };
    const bool aligned = !(low_bits & (Size - 1));
    constexpr bool generic = S == Space::generic;
    if constexpr (S == Space::global || generic) {
        for (const CachedRange& c : w.cache)
            if (aligned && within(c.lo, c.hi - c.lo)) return shape;
    }
    if constexpr (S == Space::shared || generic) {
        u64 base = generic ? kSharedWindow : 0;
        if (aligned && within(base, w.shared_bytes)) {
            u64 delta = reinterpret_cast<u64>(w.shared) - base;
            LANES ad[i] += delta;
            return shape;
        }
    }
    if constexpr (S == Space::local || generic) {
        u64 base = generic ? kLocalWindow : 0;
        if (aligned && within(base, w.local_stride)) {
            u64 delta = reinterpret_cast<u64>(w.local) - base, stride = w.local_stride;
            LANES ad[i] += delta + static_cast<u64>(i) * stride;
            return Shape::scattered;
        }
    }
    if constexpr (S == Space::param) {
        if (aligned && within(0, w.param_bytes)) {
            u64 delta = reinterpret_cast<u64>(w.params);
            LANES ad[i] += delta;
            return shape;
        }
    }
    resolve_slowly(w, op, ad, Size, S);
    return Shape::scattered;
}

// Generic addresses that lie together in shared memory, or in one allocation that an access has found before:
// `ad` becomes host pointers.  false: they must be looked at one by one; `ad` is as it was.
inline bool in_one_range(u64* ad, u32 count, u64 base, u64 bytes, u32 size) {
    if (bytes < size) return false;
    const u64 limit = bytes - size;
    u64 outside = 0;
    for (u32 i = 0; i < count; ++i) {
        const u64 o = ad[i] - base;
        outside |= o | (limit - o);
    }
    return !(outside >> 63);
}
inline bool all_aligned(const u64* ad, u32 count, u32 align) {
    u64 low = 0;
    for (u32 i = 0; i < count; ++i) low |= ad[i];
    return !(low & (align - 1));
}
inline bool locate_shared_at_once(Warp& w, u64* ad, u32 count, u32 size, u32 align) {
    if (!all_aligned(ad, count, align) || !in_one_range(ad, count, kSharedWindow, w.shared_bytes, size))
        return false;
    const u64 delta = reinterpret_cast<u64>(w.shared) - kSharedWindow;
    for (u32 i = 0; i < count; ++i) ad[i] += delta;
    return true;
}
inline bool locate_global_at_once(Warp& w, u64* ad, u32 count, u32 size, u32 align) {
    if (!all_aligned(ad, count, align)) return false;
    for (const CachedRange& c : w.cache)
        if (in_one_range(ad, count, c.lo, c.hi - c.lo, size)) return true;
    return false;
}

// One address register for shared memory, whose offsets fit 32 bits, which is where tiled kernels spend their
// time: eight lanes a vector, and the patterns of blocks that are 8 or 16 threads wide told apart.  Only
// where all lanes run.
template <u32 Size>
inline bool locate_shared(Warp& w, const Op& op, u64* ad, Shape& shape) {
    using Eight = u32 __attribute__((vector_size(32)));
    constexpr Eight steps = {0, Size, 2 * Size, 3 * Size, 4 * Size, 5 * Size, 6 * Size, 7 * Size};
    if (w.exec != kFull || w.shared_bytes < 8 * Size) return false;
    const u32 limit = static_cast<u32>(w.shared_bytes) - Size;
    const u64 shared = reinterpret_cast<u64>(w.shared);
    Pattern& pattern = w.patterns[op.pattern];
    if (op.same_pattern && (w.known_patterns >> op.pattern & 1)) {
        shape = static_cast<Shape>(pattern.shape);
        const u64 reach = shape == Shape::rows || shape == Shape::contiguous ? 7 * Size : 0;
        u64 low = 0;
        bool inside = true;
        for (int g = 0; g < 4; ++g) {
            const u64 first = pattern.first[g] + static_cast<u64>(op.imm);
            inside &= first + reach <= limit && first <= limit;
            low |= first;
            ad[8 * g] = shared + first;
        }
        return inside && !(low & (Size - 1));
    }
    alignas(64) u32 offset[kLanes];
    if (op.sub & 1) {
        const u32* a = in<u32>(w, op.a);
        LANES offset[i] = a[i] + static_cast<u32>(op.imm);
    } else {
        const u64* a = in<u64>(w, op.a);
        const u64 imm = static_cast<u64>(op.imm);
        u64 all = 0;
        for (int i = 0; i < kLanes; ++i) {
            all |= a[i] + imm;
            offset[i] = static_cast<u32>(a[i] + imm);
        }
        if (all >> 32) return false;
    }
    Eight line{}, same{}, low{};
    const Eight* at = reinterpret_cast<const Eight*>(offset);
    for (int g = 0; g < 4; ++g) {
        const Eight first = Eight{} + offset[8 * g];
        line |= at[g] ^ (first + steps);
        same |= at[g] ^ first;
        low |= at[g];
    }
    auto any = [](Eight v) {
        u64 q[4];
        memcpy(q, &v, sizeof q);
        return q[0] | q[1] | q[2] | q[3];
    };
    u64 bits = any(low);
    if ((bits | bits >> 32) & (Size - 1)) return false;
    const bool in_rows = !any(line);
    if (in_rows || !any(same)) {
        const u32 reach = in_rows ? 7 * Size : 0;
        u32 apart = 0;
        for (int g = 0; g < 4; ++g) {
            const u32 first = offset[8 * g];
            if (first > limit || limit - first < reach) return false;
            apart |= first ^ (offset[0] + static_cast<u32>(g) * (in_rows ? 8 * Size : 0));
            ad[8 * g] = shared + first;
            pattern.first[g] = first - static_cast<u64>(op.imm);
        }
        shape =
            in_rows ? (apart ? Shape::rows : Shape::contiguous) : (apart ? Shape::blocks : Shape::uniform);
        pattern.shape = static_cast<uint8_t>(shape);
        if (op.pattern) w.known_patterns |= 1u << op.pattern;
        return true;
    }
    const Eight most = Eight{} + limit;
    Eight outside{};
    for (int g = 0; g < 4; ++g) outside |= at[g] > most ? ~Eight{} : Eight{};
    if (any(outside)) return false;
    LANES ad[i] = shared + offset[i];
    shape = Shape::scattered;
    return true;
}

}  // namespace
}  // namespace gpukernel::simgpu
