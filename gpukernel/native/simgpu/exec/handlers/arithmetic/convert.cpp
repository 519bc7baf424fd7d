// cvt (PTX ISA 9.7.9.21) and the widening and narrowing of registers.
#include "simgpu/exec/handlers/arithmetic/half.h"
#include "simgpu/exec/handlers/tables.h"

namespace gpukernel::simgpu {
namespace {

// What is out of range becomes the nearest end.  NaN becomes 0, or the highest bit alone where the source is
// .f64 or the result has 64 bits.
template <class D, class A>
D clamp(A a) {
    constexpr bool is_signed = D(-1) < D(0);
    constexpr int n = sizeof(D) * 8 - (is_signed ? 1 : 0);
    constexpr D top = static_cast<D>(is_signed ? (~u64(0) >> (64 - n)) : (~u64(0) >> (64 - n)));
    constexpr D bottom = is_signed ? static_cast<D>(-static_cast<s64>(top) - 1) : D(0);
    constexpr A limit = static_cast<A>(1ull << (n - 1)) * 2;
    constexpr D nan = sizeof(A) == 8 || sizeof(D) == 8 ? static_cast<D>(u64(1) << (sizeof(D) * 8 - 1)) : D(0);
    if constexpr (is_signed) return a >= limit ? top : a < -limit ? bottom : a == a ? static_cast<D>(a) : nan;
    return a >= limit ? top : a > 0 ? static_cast<D>(a) : a == a ? D(0) : nan;
}
template <class D, class A>
D narrow(A a) {  // integer to integer with .sat
    constexpr bool ds = D(-1) < D(0), as = A(-1) < A(0);
    constexpr D top = static_cast<D>(~u64(0) >> (64 - (sizeof(D) * 8 - (ds ? 1 : 0))));
    constexpr D bottom = ds ? static_cast<D>(-static_cast<s64>(top) - 1) : D(0);
    __int128 v = a, lo = bottom, hi = top;
    (void)as;
    return v < lo ? bottom : v > hi ? top : static_cast<D>(a);
}
inline f32 near(f32 a) { return __builtin_rintf(a); }
inline f64 near(f64 a) { return __builtin_rint(a); }
inline f32 low(f32 a) { return __builtin_floorf(a); }
inline f64 low(f64 a) { return __builtin_floor(a); }
inline f32 up(f32 a) { return __builtin_ceilf(a); }
inline f64 up(f64 a) { return __builtin_ceil(a); }
inline f32 zero(f32 a) { return __builtin_truncf(a); }
inline f64 zero(f64 a) { return __builtin_trunc(a); }

// To 16 bits by way of a float that nothing is lost in (half.h), in any rounding.
template <class F, Round R>
u16 from_f32(f32 a) {
    return put<F, R>(a);
}
template <class F, Round R>
u16 from_f64(f64 a) {
    return put<F, R>(odd(a));
}
template <class F, Round R, class T>
u16 from_integer(T a) {
    return put<F, R>(odd(odd_integer(a)));
}
template <class F, Round R>
u32 two_from_f32(f32 a, f32 b) {  // the first operand is the upper half
    return u32(put<F, R>(a)) << 16 | put<F, R>(b);
}

enum class Tf32 { near, away, zero };
template <Tf32 R>
u32 tf32(f32 a) {
    u32 b = std::bit_cast<u32>(a);
    if (a != a) return 0x7fffffff;
    if (a - a != 0) return b;
    if (R == Tf32::near) b += 0xfff + (b >> 13 & 1);
    if (R == Tf32::away) b += 0x1000;
    return b & ~0x1fffu;
}

// Eight bits, saturating to the largest finite number: e4m3 has no infinity, its NaN is all ones.
template <int Mantissa>
u8 to_f8(f32 a) {
    constexpr int bias = Mantissa == 3 ? 7 : 15;
    constexpr f32 most = Mantissa == 3 ? 448.0f : 57344.0f;
    u8 sign = __builtin_signbit(a) ? 0x80 : 0;
    if (a != a) return 0x7f;
    f32 m = __builtin_fabsf(a);
    if (m >= most) m = most;
    int e = m > 0 ? __builtin_ilogbf(m) : 1 - bias;
    e = e < 1 - bias ? 1 - bias : e;
    int q = static_cast<int>(__builtin_rint(__builtin_ldexp(static_cast<f64>(m), Mantissa - e)));
    int code = q + ((e + bias - 1) << Mantissa);  // a carry moves into the exponent by itself
    return sign | static_cast<u8>(code);
}
template <int Mantissa>
u16 from_f8(u8 a) {
    constexpr int bias = Mantissa == 3 ? 7 : 15;
    int e = a >> Mantissa & ((1 << (7 - Mantissa)) - 1), m = a & ((1 << Mantissa) - 1);
    f32 v;
    if (Mantissa == 3 ? (a & 0x7f) == 0x7f : e == 31 && m)
        return Half::nan;
    else if (Mantissa == 2 && e == 31)
        v = __builtin_inff();
    else
        v = __builtin_ldexpf(static_cast<f32>(e ? m + (1 << Mantissa) : m), (e ? e : 1) - bias - Mantissa);
    return Half::near(a & 0x80 ? -v : v);
}
template <int Mantissa>
u16 two_to_f8(f32 a, f32 b) {
    return static_cast<u16>(to_f8<Mantissa>(a) << 8 | to_f8<Mantissa>(b));
}
template <int Mantissa>
u16 halves_to_f8(u32 a) {
    return two_to_f8<Mantissa>(Half::get(static_cast<u16>(a >> 16)), Half::get(static_cast<u16>(a)));
}
template <int Mantissa>
u32 halves_from_f8(u16 a) {
    return u32(from_f8<Mantissa>(static_cast<u8>(a >> 8))) << 16 | from_f8<Mantissa>(static_cast<u8>(a));
}

// cvt.pack: both saturated to `imm` bits, behind them what was in c.
void pack(Warp& w, const Op& op) {
    const s32 *a = in<s32>(w, op.a), *b = in<s32>(w, op.b);
    const u32* c = in<u32>(w, op.c);
    int n = static_cast<int>(op.imm);
    s32 top = (1 << (n - (op.sub ? 1 : 0))) - 1, bottom = op.sub ? -top - 1 : 0;
    u32 mask = (1u << n) - 1;
    alignas(64) u32 t[kLanes];
    LANES {
        s32 x = a[i] < bottom ? bottom
                : a[i] > top  ? top
                              : a[i],
            y = b[i] < bottom ? bottom
                : b[i] > top  ? top
                              : b[i];
        t[i] = (n == 16 ? 0 : c[i] << 2 * n) | (u32(x) & mask) << n | (u32(y) & mask);
    }
    blend(out<u32>(w, op.dst), t, w.exec);
}

#define UN(name, D, A, expr) {name, un<D, A, [](A a) -> D { return (expr); }>, true}
// Eight-bit values travel in 16-bit registers.  R is the register's type, D the value's.
#define FROM_FLOAT(d, R, D)                                                              \
    UN("cvt.rni." d ".f32", R, f32, static_cast<R>(clamp<D>(near(a)))),                  \
        UN("cvt.rzi." d ".f32", R, f32, static_cast<R>(clamp<D>(zero(a)))),              \
        UN("cvt.rmi." d ".f32", R, f32, static_cast<R>(clamp<D>(low(a)))),               \
        UN("cvt.rpi." d ".f32", R, f32, static_cast<R>(clamp<D>(up(a)))),                \
        UN("cvt.rni." d ".f64", R, f64, static_cast<R>(clamp<D>(near(a)))),              \
        UN("cvt.rzi." d ".f64", R, f64, static_cast<R>(clamp<D>(zero(a)))),              \
        UN("cvt.rmi." d ".f64", R, f64, static_cast<R>(clamp<D>(low(a)))),               \
        UN("cvt.rpi." d ".f64", R, f64, static_cast<R>(clamp<D>(up(a)))),                \
        UN("cvt.rni." d ".f16", R, f16, static_cast<R>(clamp<D>(near(f32(a))))),         \
        UN("cvt.rzi." d ".f16", R, f16, static_cast<R>(clamp<D>(zero(f32(a))))),         \
        UN("cvt.rmi." d ".f16", R, f16, static_cast<R>(clamp<D>(low(f32(a))))),          \
        UN("cvt.rpi." d ".f16", R, f16, static_cast<R>(clamp<D>(up(f32(a))))),           \
        UN("cvt.rni." d ".bf16", R, u16, static_cast<R>(clamp<D>(near(Brain::get(a))))), \
        UN("cvt.rzi." d ".bf16", R, u16, static_cast<R>(clamp<D>(zero(Brain::get(a))))), \
        UN("cvt.rmi." d ".bf16", R, u16, static_cast<R>(clamp<D>(low(Brain::get(a))))),  \
        UN("cvt.rpi." d ".bf16", R, u16, static_cast<R>(clamp<D>(up(Brain::get(a)))))
#define TO_HALF(k, F, s, A, with, value)                              \
    UN("cvt." k "." s, u16, A, (with<F, Round::near>(value))),        \
        UN("cvt.rz." k "." s, u16, A, (with<F, Round::zero>(value))), \
        UN("cvt.rm." k "." s, u16, A, (with<F, Round::down>(value))), \
        UN("cvt.rp." k "." s, u16, A, (with<F, Round::up>(value)))
#define TO_HALVES(s, A, with, value) \
    TO_HALF("f16", Half, s, A, with, value), TO_HALF("bf16", Brain, s, A, with, value)
#define TWO_TO_HALF(k, F)                                                    \
    {"cvt." k ".f32", bin<u32, f32, f32, two_from_f32<F, Round::near>>}, {   \
        "cvt.rz." k ".f32", bin<u32, f32, f32, two_from_f32<F, Round::zero>> \
    }
#define FROM_INT(s, R, A)                                              \
    UN("cvt.f32." s, f32, R, static_cast<f32>(static_cast<A>(a))),     \
        UN("cvt.f64." s, f64, R, static_cast<f64>(static_cast<A>(a))), \
        TO_HALVES(s, R, from_integer, static_cast<A>(a))
#define INT_TO(s, SR, S, d, DR, D)                                                  \
    UN("cvt." d "." s, DR, SR, static_cast<DR>(static_cast<D>(static_cast<S>(a)))), \
        UN("cvt.sat." d "." s, DR, SR, static_cast<DR>((narrow<D, S>(static_cast<S>(a)))))
#define INT_FROM(s, SR, S)                                                                               \
    INT_TO(s, SR, S, "u8", u16, u8), INT_TO(s, SR, S, "s8", s16, s8), INT_TO(s, SR, S, "u16", u16, u16), \
        INT_TO(s, SR, S, "s16", s16, s16), INT_TO(s, SR, S, "u32", u32, u32),                            \
        INT_TO(s, SR, S, "s32", s32, s32), INT_TO(s, SR, S, "u64", u64, u64),                            \
        INT_TO(s, SR, S, "s64", s64, s64)

const HandlerEntry entries[] = {
    FROM_FLOAT("u8", u16, u8),
    FROM_FLOAT("s8", s16, s8),
    FROM_FLOAT("u16", u16, u16),
    FROM_FLOAT("s16", s16, s16),
    FROM_FLOAT("u32", u32, u32),
    FROM_FLOAT("s32", s32, s32),
    FROM_FLOAT("u64", u64, u64),
    FROM_FLOAT("s64", s64, s64),
    FROM_INT("u8", u16, u8),
    FROM_INT("s8", s16, s8),
    FROM_INT("u16", u16, u16),
    FROM_INT("s16", s16, s16),
    FROM_INT("u32", u32, u32),
    FROM_INT("s32", s32, s32),
    FROM_INT("u64", u64, u64),
    FROM_INT("s64", s64, s64),
    INT_FROM("u8", u16, u8),
    INT_FROM("s8", s16, s8),
    INT_FROM("u16", u16, u16),
    INT_FROM("s16", s16, s16),
    INT_FROM("u32", u32, u32),
    INT_FROM("s32", s32, s32),
    INT_FROM("u64", u64, u64),
    INT_FROM("s64", s64, s64),
    UN("cvt.f64.f32", f64, f32, a),
    UN("cvt.f32.f64", f32, f64, static_cast<f32>(a)),
    UN("cvt.f32.f32", f32, f32, a),
    UN("cvt.f64.f64", f64, f64, a),
    UN("cvt.f32.f16", f32, f16, f32(a)),
    UN("cvt.f64.f16", f64, f16, f64(a)),
    TO_HALVES("f32", f32, from_f32, a),
    TO_HALVES("f64", f64, from_f64, a),
    TO_HALF("bf16", Brain, "f16", u16, from_f32, Half::get(a)),
    TO_HALF("f16", Half, "bf16", u16, from_f32, Brain::get(a)),
    TWO_TO_HALF("f16x2", Half),
    TWO_TO_HALF("bf16x2", Brain),
    UN("cvt.tf32.f32", u32, f32, tf32<Tf32::near>(a)),
    UN("cvt.rz.tf32.f32", u32, f32, tf32<Tf32::zero>(a)),
    UN("cvt.rna.tf32.f32", u32, f32, tf32<Tf32::away>(a)),
    {"cvt.e4m3x2.f32", bin<u16, f32, f32, two_to_f8<3>>},
    {"cvt.e5m2x2.f32", bin<u16, f32, f32, two_to_f8<2>>},
    {"cvt.e4m3x2.f16x2", un<u16, u32, halves_to_f8<3>>},
    {"cvt.e5m2x2.f16x2", un<u16, u32, halves_to_f8<2>>},
    {"cvt.f16x2.e4m3x2", un<u32, u16, halves_from_f8<3>>},
    {"cvt.f16x2.e5m2x2", un<u32, u16, halves_from_f8<2>>},
    {"cvt.pack", pack},
    UN("relu.f32", f32, f32, a > 0 || a != a ? a : 0.0f),
    UN("cvt.rni.bf16.bf16", u16, u16, Brain::near(near(Brain::get(a)))),
    UN("cvt.rzi.bf16.bf16", u16, u16, Brain::near(zero(Brain::get(a)))),
    UN("cvt.rmi.bf16.bf16", u16, u16, Brain::near(low(Brain::get(a)))),
    UN("cvt.rpi.bf16.bf16", u16, u16, Brain::near(up(Brain::get(a)))),
    UN("cvt.bf16.bf16", u16, u16, a),
    UN("cvt.f64.bf16", f64, u16, Brain::get(a)),
    UN("cvt.f16.f16", u16, u16, a),
    UN("cvt.rni.f16.f16", f16, f16, static_cast<f16>(near(f32(a)))),
    UN("cvt.rzi.f16.f16", f16, f16, static_cast<f16>(zero(f32(a)))),
    UN("cvt.rmi.f16.f16", f16, f16, static_cast<f16>(low(f32(a)))),
    UN("cvt.rpi.f16.f16", f16, f16, static_cast<f16>(up(f32(a)))),
    UN("cvt.rni.f32.f32", f32, f32, near(a)),
    UN("cvt.rzi.f32.f32", f32, f32, zero(a)),
    UN("cvt.rmi.f32.f32", f32, f32, low(a)),
    UN("cvt.rpi.f32.f32", f32, f32, up(a)),
    UN("cvt.rni.f64.f64", f64, f64, near(a)),
    UN("cvt.rzi.f64.f64", f64, f64, zero(a)),
    UN("cvt.rmi.f64.f64", f64, f64, low(a)),
    UN("cvt.rpi.f64.f64", f64, f64, up(a)),
    UN("cvt.f32.bf16", f32, u16, Brain::get(a)),
    UN("resize.16.32", u16, u32, static_cast<u16>(a)),
    UN("resize.16.64", u16, u64, static_cast<u16>(a)),
    UN("resize.32.64", u32, u64, static_cast<u32>(a)),
    UN("resize.32.16", u32, u16, a),
    UN("resize.64.16", u64, u16, a),
    UN("resize.64.32", u64, u32, a),
    UN("resize.s32.16", s32, s16, a),
    UN("resize.s64.16", s64, s16, a),
    UN("resize.s64.32", s64, s32, a),
    UN("resize.8.16", u16, u16, a & 0xff),
    UN("high.8.16", u16, u16, a >> 8),
    UN("resize.64.128", u64, u128, static_cast<u64>(a)),
    UN("high.64.128", u64, u128, static_cast<u64>(a >> 64)),
    {"pack.16.8",
     bin<u16, u16, u16, [](u16 a, u16 b) -> u16 { return static_cast<u16>(b << 8 | (a & 0xff)); }>},
    {"pack.128.64", bin<u128, u64, u64, [](u64 a, u64 b) -> u128 { return u128(b) << 64 | a; }>},
    {"pack.32.16", bin<u32, u16, u16, [](u16 a, u16 b) -> u32 { return u32(b) << 16 | a; }>},
    {"pack.64.32", bin<u64, u32, u32, [](u32 a, u32 b) -> u64 { return u64(b) << 32 | a; }>},
    UN("high.16.32", u16, u32, static_cast<u16>(a >> 16)),
    UN("high.32.64", u32, u64, static_cast<u32>(a >> 32)),
};

}  // namespace
HANDLER_TABLE(convert)
}  // namespace gpukernel::simgpu
