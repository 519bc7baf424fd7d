// Sixteen-bit floating point: what the values are, and how a result is rounded to them once.
#pragma once
#include "simgpu/exec/handlers/lanes.h"

namespace gpukernel::simgpu {
namespace {

enum class Round { near, zero, down, up };

// A float that no later rounding to fewer bits can be wrong about: truncated, its last bit set where anything
// was lost.
inline f32 odd(f64 a) {
    f32 r = static_cast<f32>(a);
    if (static_cast<f64>(r) == a || a != a) return r;
    u32 b = std::bit_cast<u32>(r);
    if (__builtin_fabs(static_cast<f64>(r)) > __builtin_fabs(a)) --b;
    return std::bit_cast<f32>(b | 1);
}
template <class T>
inline f64 odd_integer(T a) {
    f64 r = static_cast<f64>(a);
    __int128 back = static_cast<__int128>(r), exact = a;
    if (back == exact) return r;
    u64 b = std::bit_cast<u64>(r);
    if ((back < 0 ? -back : back) > (exact < 0 ? -exact : exact)) --b;
    return std::bit_cast<f64>(b | 1);
}
inline f64 odd_sum(f64 a, f64 b) {  // of finite numbers far from overflow
    f64 s = a + b, part = s - a, lost = (a - (s - part)) + (b - part);
    if (lost == 0 || s != s || s - s != 0) return s;
    u64 bits = std::bit_cast<u64>(s);
    if (bits & 1) return s;
    return std::bit_cast<f64>((lost > 0) == (s > 0) ? bits + 1 : bits - 1);
}

struct Half {
    static constexpr u16 nan = 0x7fff, one = 0x3c00, exponent = 0x7c00;
    static f32 get(u16 a) { return static_cast<f32>(std::bit_cast<f16>(a)); }
    static u16 near(f32 a) { return a != a ? nan : std::bit_cast<u16>(static_cast<f16>(a)); }
};
struct Brain {
    static constexpr u16 nan = 0x7fff, one = 0x3f80, exponent = 0x7f80;
    static f32 get(u16 a) { return std::bit_cast<f32>(u32(a) << 16); }
    static u16 near(f32 a) {
        u32 b = std::bit_cast<u32>(a);
        return a != a ? nan : static_cast<u16>((b + 0x7fff + (b >> 16 & 1)) >> 16);
    }
};
template <class F, Round R = Round::near>
inline u16 put(f32 a) {
    u16 r = F::near(a);
    if constexpr (R == Round::near) return r;
    if (a != a) return r;
    f32 back = F::get(r);
    bool negative = r >> 15;
    if constexpr (R == Round::zero) return __builtin_fabsf(back) > __builtin_fabsf(a) ? r - 1 : r;
    if constexpr (R == Round::down) return back > a ? (negative ? r + 1 : r ? r - 1 : 0x8001) : r;
    return back < a ? (negative ? r - 1 : r + 1) : r;
}

template <bool Nan, bool Max, bool XorSign>
f32 extreme(f32 a, f32 b) {
    bool negative = (__builtin_signbit(a) != 0) != (__builtin_signbit(b) != 0);
    if (XorSign) a = __builtin_fabsf(a), b = __builtin_fabsf(b);
    f32 r;
    if (a != a || b != b)
        r = Nan ? __builtin_nanf("") : a != a ? b : a;
    else if (a == b)
        r = (__builtin_signbit(a) != 0) == Max ? b : a;
    else
        r = (a < b) == Max ? b : a;
    return XorSign && r == r && negative ? -r : r;
}
inline f32 add(f32 a, f32 b) { return a + b; }

template <class F, auto Op2>
u16 two(u16 a, u16 b) {
    return F::near(Op2(F::get(a), F::get(b)));
}
template <auto G>
u32 both_halves(u32 a, u32 b) {
    return u32(G(static_cast<u16>(a), static_cast<u16>(b))) |
           u32(G(static_cast<u16>(a >> 16), static_cast<u16>(b >> 16))) << 16;
}
}  // namespace
}  // namespace gpukernel::simgpu
