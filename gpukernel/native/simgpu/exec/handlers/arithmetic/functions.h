// The functions that PTX calls approximate (ISA 9.7.3), without branches and calls, so that a compiler makes
// vectors of them: a warp of ex2 takes the time that two lanes of libm's exp2f take.  They are computed in
// double precision and rounded once, which keeps them within 0.51 units in the last place, far inside the
// ISA's bounds; without fused multiply-adds, so that every level of x86-64 has the same result.  Subnormal
// arguments and results are flushed where the processor's mode says so, as it converts to and from double.
// Coefficients: interpolation at Chebyshev's nodes; the relative error stands beside each.
#pragma once

#include "simgpu/exec/handlers/lanes.h"

namespace gpukernel::simgpu {
namespace {

constexpr f64 kRound = 0x1.8p52;  // added and taken away again, it leaves the nearest whole number

// 2 to the x; where that is no number of single precision, one that is rounded to infinity or 0.  Not of NaN.
inline f64 power_of_two(f64 x) {
    const f64 bounded = x < -200 ? -200 : x > 200 ? 200 : x;
    const f64 shifted = bounded + kRound, r = bounded - (shifted - kRound);
    f64 p = 1.5303700711365693e-05;  // 2^-34 on [-1/2, 1/2]
    p = p * r + 0.00015469729214118296;
    p = p * r + 0.0013333478473685416;
    p = p * r + 0.009618025613318034;
    p = p * r + 0.055504109063258665;
    p = p * r + 0.24022651213498092;
    p = p * r + 0.6931471805568324;
    p = p * r + 0.9999999999595618;
    return std::bit_cast<f64>(std::bit_cast<u64>(p) + (std::bit_cast<u64>(shifted) << 52));
}
inline f32 ex2(f32 a) {
    const f32 power = static_cast<f32>(power_of_two(a));
    return a != a ? a + a : power;
}

inline f32 lg2(f32 a) {
    const f64 x = a;
    // x is m times 2 to the e, and m lies between the root of 1/2 and that of 2.
    constexpr u64 kHalf = 0x3fe6a09e667f3bcd, kBias = 1024;
    const u64 e = ((std::bit_cast<u64>(x) - kHalf + (kBias << 52)) >> 52) - kBias;
    const f64 m = std::bit_cast<f64>(std::bit_cast<u64>(x) - (e << 52));
    const f64 whole = std::bit_cast<f64>(std::bit_cast<u64>(kRound) + e) - kRound;
    const f64 s = (m - 1) / (m + 1), z = s * s;
    f64 p = 0.34075396761187643;  // 2^-37 for |s| up to 0.172
    p = p * z + 0.41167160620240695;
    p = p * z + 0.577083600061585;
    p = p * z + 0.961796673284573;
    p = p * z + 2.88539008179011;
    const f32 r = static_cast<f32>(whole + s * p);
    const f32 positive = a < __builtin_inff() ? r : a;
    const f32 other = a == 0 ? -__builtin_inff() : a != a ? a + a : __builtin_nanf("");
    return a > 0 ? positive : other;
}

inline f32 hyperbolic_tangent(f32 a) {
    const f64 x = a, size = __builtin_fabs(x), z = x * x;
    const f64 power = power_of_two(2.8853900817779268 * size);
    const f64 large = 1 - 2 / (power + 1);
    const f64 small = size * (1 + z * (-1.0 / 3 + z * (2.0 / 15 - z * (17.0 / 315))));
    const f64 r = size < 0.03 ? small : large;
    const f32 signed_ = static_cast<f32>(__builtin_copysign(r, x));
    return a != a ? a + a : signed_;
}

// Sine, or cosine, of angles up to kNear: with larger ones too little is left of a quarter turn's 95 bits.
constexpr f32 kNear = 0x1p20f;
template <bool Cosine>
inline f32 sine(f32 a) {
    const f64 x = a, turned = x * 0.6366197723675814 + kRound, k = turned - kRound;
    const f64 r = x - k * 0x1.921fb54400000p+0 - k * 0x1.0b4611a400000p-34 - k * 0x1.13198a2e03707p-65;
    const f64 z = r * r;
    f64 s = 2.717269367045458e-06;  // 2^-37 on an eighth of a turn
    s = s * z - 0.00019839193964485497;
    s = s * z + 0.00833332875517132;
    s = s * z - 0.1666666663131027;
    s = s * z + 0.9999999999956297;
    f64 c = -2.7172666562783097e-07;  // 2^-43
    c = c * z + 2.479891815008481e-05;
    c = c * z - 0.0013888880342838477;
    c = c * z + 0.04166666654292815;
    c = c * z - 0.4999999999934461;
    c = c * z + 0.9999999999999437;
    const u64 quarter = std::bit_cast<u64>(turned) + Cosine;
    const f64 of_quarter = quarter & 1 ? c : r * s;
    return static_cast<f32>(std::bit_cast<f64>(std::bit_cast<u64>(of_quarter) ^ (quarter & 2) << 62));
}

// Of larger angles, infinities and NaN libm's.
template <bool Cosine>
void sines(Warp& w, const Op& op) {
    const f32* a = in<f32>(w, op.a);
    alignas(64) f32 t[kLanes];
    alignas(64) u32 beyond[kLanes];
    LANES t[i] = sine<Cosine>(a[i]);
    LANES beyond[i] = __builtin_fabsf(a[i]) <= kNear ? 0u : 1u << i;
    u32 left = 0;
    for (int i = 0; i < kLanes; ++i) left |= beyond[i];
    for (left &= w.exec; left; left &= left - 1) {
        const int i = __builtin_ctz(left);
        t[i] = Cosine ? cosf(a[i]) : sinf(a[i]);
    }
    blend(out<f32>(w, op.dst), t, w.exec);
}

}  // namespace
}  // namespace gpukernel::simgpu
