// cvt (PTX ISA 9.7.9.21) and the widening and narrowing of registers.
#include "lanes.h"
#include "tables.h"

namespace gpukernel::simgpu {
namespace {

// NaN becomes 0, what is out of range the nearest end.
template <class D, class A>
D clamp(A a) {
    constexpr bool is_signed = D(-1) < D(0);
    constexpr int n = sizeof(D) * 8 - (is_signed ? 1 : 0);
    constexpr D top = static_cast<D>(is_signed ? (~u64(0) >> (64 - n)) : (~u64(0) >> (64 - n)));
    constexpr D bottom = is_signed ? static_cast<D>(-static_cast<s64>(top) - 1) : D(0);
    constexpr A limit = static_cast<A>(1ull << (n - 1)) * 2;
    if constexpr (is_signed)
        return a >= limit ? top : a < -limit ? bottom : a == a ? static_cast<D>(a) : D(0);
    return a >= limit ? top : a > 0 ? static_cast<D>(a) : D(0);
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
inline f32 wide_bf16(u16 a) { return std::bit_cast<f32>(u32(a) << 16); }
inline u16 to_bf16(f32 a) {
    u32 b = std::bit_cast<u32>(a);
    if (a != a) return 0x7fff;
    return static_cast<u16>((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

#define UN(name, D, A, expr) {name, un<D, A, [](A a) -> D { return (expr); }>}
// Eight-bit values travel in 16-bit registers.  R is the register's type, D the value's.
#define FROM_FLOAT(d, R, D)                                                      \
    UN("cvt.rni." d ".f32", R, f32, static_cast<R>(clamp<D>(near(a)))),          \
        UN("cvt.rzi." d ".f32", R, f32, static_cast<R>(clamp<D>(zero(a)))),      \
        UN("cvt.rmi." d ".f32", R, f32, static_cast<R>(clamp<D>(low(a)))),       \
        UN("cvt.rpi." d ".f32", R, f32, static_cast<R>(clamp<D>(up(a)))),        \
        UN("cvt.rni." d ".f64", R, f64, static_cast<R>(clamp<D>(near(a)))),      \
        UN("cvt.rzi." d ".f64", R, f64, static_cast<R>(clamp<D>(zero(a)))),      \
        UN("cvt.rmi." d ".f64", R, f64, static_cast<R>(clamp<D>(low(a)))),       \
        UN("cvt.rpi." d ".f64", R, f64, static_cast<R>(clamp<D>(up(a)))),        \
        UN("cvt.rni." d ".f16", R, f16, static_cast<R>(clamp<D>(near(f32(a))))), \
        UN("cvt.rzi." d ".f16", R, f16, static_cast<R>(clamp<D>(zero(f32(a))))), \
        UN("cvt.rmi." d ".f16", R, f16, static_cast<R>(clamp<D>(low(f32(a))))),  \
        UN("cvt.rpi." d ".f16", R, f16, static_cast<R>(clamp<D>(up(f32(a)))))
#define FROM_INT(s, R, A)                                              \
    UN("cvt.f32." s, f32, R, static_cast<f32>(static_cast<A>(a))),     \
        UN("cvt.f64." s, f64, R, static_cast<f64>(static_cast<A>(a))), \
        UN("cvt.f16." s, f16, R, static_cast<f16>(static_cast<f64>(static_cast<A>(a))))
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
    UN("cvt.f16.f32", f16, f32, static_cast<f16>(a)),
    UN("cvt.f16.f64", f16, f64, static_cast<f16>(a)),
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
    UN("cvt.f32.bf16", f32, u16, wide_bf16(a)),
    UN("cvt.bf16.f32", u16, f32, to_bf16(a)),
    {"cvt.f16x2.f32", bin<u32, f32, f32,
                          [](f32 a, f32 b) -> u32 {
                              return u32(std::bit_cast<u16>(static_cast<f16>(a))) << 16 |
                                     std::bit_cast<u16>(static_cast<f16>(b));
                          }>},
    {"cvt.bf16x2.f32",
     bin<u32, f32, f32, [](f32 a, f32 b) -> u32 { return u32(to_bf16(a)) << 16 | to_bf16(b); }>},
    UN("resize.16.32", u16, u32, static_cast<u16>(a)),
    UN("resize.16.64", u16, u64, static_cast<u16>(a)),
    UN("resize.32.64", u32, u64, static_cast<u32>(a)),
    UN("resize.32.16", u32, u16, a),
    UN("resize.64.16", u64, u16, a),
    UN("resize.64.32", u64, u32, a),
    UN("resize.s32.16", s32, s16, a),
    UN("resize.s64.16", s64, s16, a),
    UN("resize.s64.32", s64, s32, a),
    {"pack.32.16", bin<u32, u16, u16, [](u16 a, u16 b) -> u32 { return u32(b) << 16 | a; }>},
    {"pack.64.32", bin<u64, u32, u32, [](u32 a, u32 b) -> u64 { return u64(b) << 32 | a; }>},
    UN("high.16.32", u16, u32, static_cast<u16>(a >> 16)),
    UN("high.32.64", u32, u64, static_cast<u32>(a >> 32)),
};

}  // namespace
HANDLER_TABLE(convert)
}  // namespace gpukernel::simgpu
