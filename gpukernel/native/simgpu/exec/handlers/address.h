// From 32 addresses to 32 host pointers: one range check where all lanes fall in one allocation.
#pragma once
#include "lanes.h"

namespace gpukernel::simgpu {
namespace {

enum class Shape { scattered, contiguous, uniform };

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
    u64 lo = ~0ull, hi = 0, low_bits = 0, off_line = 0, off_same = 0;
    for (int i = 0; i < kLanes; ++i) {
        off_line |= ad[i] ^ (first + static_cast<u64>(i) * Step);
        off_same |= ad[i] ^ first;
        low_bits |= ad[i];
        lo = ad[i] < lo ? ad[i] : lo;
        hi = ad[i] > hi ? ad[i] : hi;
    }
    Shape shape = !off_same                        ? Shape::uniform
                  : (!off_line && w.exec == kFull) ? Shape::contiguous
                                                   : Shape::scattered;
    bool aligned = !(low_bits & (Size - 1));
    constexpr u64 generic = S == Space::generic;
    // `hi + Size` wraps around for the last addresses there are, so the sizes stand on the other side.
    if constexpr (S == Space::global || S == Space::generic) {
        for (const CachedRange& c : w.cache)
            if (aligned && lo >= c.lo && c.hi >= Size && hi <= c.hi - Size) return shape;
    }
    if constexpr (S == Space::shared || S == Space::generic) {
        u64 base = generic ? kSharedWindow : 0;
        if (aligned && lo >= base && w.shared_bytes >= Size && hi - base <= w.shared_bytes - Size) {
            u64 delta = reinterpret_cast<u64>(w.shared) - base;
            LANES ad[i] += delta;
            return shape;
        }
    }
    if constexpr (S == Space::local || S == Space::generic) {
        u64 base = generic ? kLocalWindow : 0;
        if (aligned && lo >= base && w.local_stride >= Size && hi - base <= w.local_stride - Size) {
            u64 delta = reinterpret_cast<u64>(w.local) - base, stride = w.local_stride;
            LANES ad[i] += delta + static_cast<u64>(i) * stride;
            return Shape::scattered;
        }
    }
    if constexpr (S == Space::param) {
        if (aligned && w.param_bytes >= Size && hi <= w.param_bytes - Size) {
            u64 delta = reinterpret_cast<u64>(w.params);
            LANES ad[i] += delta;
            return shape;
        }
    }
    resolve_slowly(w, op, ad, Size, S);
    return Shape::scattered;
}

}  // namespace
}  // namespace gpukernel::simgpu
