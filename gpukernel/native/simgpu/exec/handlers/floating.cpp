// Floating-point arithmetic (PTX ISA 9.7.3 to 9.7.5).  The rounding mode and flushing of subnormals are the
// processor's: the decoder puts "mode" operations around what asks for another one.
#include "lanes.h"
#include "tables.h"

namespace gpukernel::simgpu {
namespace {

template <class T>
T least(T a, T b) {
    return a != a ? b : b != b ? a : (a < b || (a == b && __builtin_signbit(a))) ? a : b;
}
template <class T>
T most(T a, T b) {
    return a != a ? b : b != b ? a : (a > b || (a == b && !__builtin_signbit(a))) ? a : b;
}
template <class T>
T least_nan(T a, T b) {
    return a != a ? a : b != b ? b : least(a, b);
}
template <class T>
T most_nan(T a, T b) {
    return a != a ? a : b != b ? b : most(a, b);
}
inline f32 saturate(f32 a) { return a > 0 ? (a < 1 ? a : 1.0f) : 0.0f; }
inline f64 saturate(f64 a) { return a > 0 ? (a < 1 ? a : 1.0) : 0.0; }
inline u32 bits_of(f32 a) { return std::bit_cast<u32>(a); }
inline u64 bits_of(f64 a) { return std::bit_cast<u64>(a); }

inline f32 fuse(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
inline f64 fuse(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }

// Two halves in one 32-bit register.
template <auto F>
u32 pairwise(u32 a, u32 b) {
    u32 r = 0;
    for (int n = 0; n < 2; ++n) {
        f16 x = std::bit_cast<f16>(static_cast<u16>(a >> 16 * n)),
            y = std::bit_cast<f16>(static_cast<u16>(b >> 16 * n));
        r |= u32(std::bit_cast<u16>(static_cast<f16>(F(f32(x), f32(y))))) << 16 * n;
    }
    return r;
}
inline f16 half_fma(f16 a, f16 b, f16 c) { return static_cast<f16>(f64(a) * f64(b) + f64(c)); }
inline u32 half_fma2(u32 a, u32 b, u32 c) {
    u32 r = 0;
    for (int n = 0; n < 2; ++n) {
        auto part = [n](u32 v) { return std::bit_cast<f16>(static_cast<u16>(v >> 16 * n)); };
        r |= u32(std::bit_cast<u16>(half_fma(part(a), part(b), part(c)))) << 16 * n;
    }
    return r;
}
inline f32 wide_bf16(u16 a) { return std::bit_cast<f32>(u32(a) << 16); }
inline u16 to_bf16(f32 a) {
    u32 b = bits_of(a);
    if (a != a) return 0x7fff;
    return static_cast<u16>((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

#define UN(name, D, A, expr) {name, un<D, A, [](A a) -> D { return (expr); }>}
#define EACH(name, D, A, expr) {name, each<D, A, [](A a) -> D { return (expr); }>}
#define BIN(name, T, expr) {name, bin<T, T, T, [](T a, T b) -> T { return (expr); }>}
#define TRI(name, T, expr) {name, tri<T, T, T, T, [](T a, T b, T c) -> T { return (expr); }>}
#define BOTH(k, T, U)                                                                                       \
    BIN("add." k, T, a + b), BIN("sub." k, T, a - b), BIN("mul." k, T, a* b), BIN("div." k, T, a / b),      \
        TRI("fma." k, T, fuse(a, b, c)), TRI("mad." k, T, fuse(a, b, c)), BIN("min." k, T, least(a, b)),    \
        BIN("max." k, T, most(a, b)), UN("abs." k, U, U, a & (~U(0) >> 1)),                                 \
        UN("neg." k, U, U, a ^ (U(1) << (sizeof(U) * 8 - 1))), UN("rcp." k, T, T, T(1) / a),                \
        EACH("sqrt." k, T, T, static_cast<T>(sqrt(a))), UN("sat." k, T, T, saturate(a)), {                  \
        "copysign." k, bin<U, U, U, [](U a, U b) -> U { return (b & (~U(0) >> 1)) | (a & ~(~U(0) >> 1)); }> \
    }

const HandlerEntry entries[] = {
    BOTH("f32", f32, u32),
    BOTH("f64", f64, u64),
    BIN("min.NaN.f32", f32, least_nan(a, b)),
    BIN("max.NaN.f32", f32, most_nan(a, b)),
    EACH("rsqrt.f32", f32, f32, static_cast<f32>(1.0 / sqrt(static_cast<f64>(a)))),
    EACH("rsqrt.f64", f64, f64, 1.0 / sqrt(a)),
    EACH("sin.f32", f32, f32, sinf(a)),
    EACH("cos.f32", f32, f32, cosf(a)),
    EACH("lg2.f32", f32, f32, log2f(a)),
    EACH("ex2.f32", f32, f32, exp2f(a)),
    EACH("tanh.f32", f32, f32, tanhf(a)),
    EACH("rcp.ftz64.f64", f64, f64, std::bit_cast<f64>(bits_of(1.0 / a) & 0xffffffff00000000ull)),
    EACH("rsqrt.ftz64.f64", f64, f64, std::bit_cast<f64>(bits_of(1.0 / sqrt(a)) & 0xffffffff00000000ull)),
    BIN("add.f16", f16, static_cast<f16>(f32(a) + f32(b))),
    BIN("sub.f16", f16, static_cast<f16>(f32(a) - f32(b))),
    BIN("mul.f16", f16, static_cast<f16>(f32(a) * f32(b))),
    TRI("fma.f16", f16, half_fma(a, b, c)),
    BIN("min.f16", f16, static_cast<f16>(least(f32(a), f32(b)))),
    BIN("max.f16", f16, static_cast<f16>(most(f32(a), f32(b)))),
    UN("neg.f16", u16, u16, static_cast<u16>(a ^ 0x8000)),
    UN("abs.f16", u16, u16, a & 0x7fff),
    UN("sat.f16", f16, f16, static_cast<f16>(saturate(f32(a)))),
    EACH("ex2.f16", f16, f16, static_cast<f16>(exp2f(f32(a)))),
    EACH("tanh.f16", f16, f16, static_cast<f16>(tanhf(f32(a)))),
    BIN("add.f16x2", u32, pairwise<[](f32 x, f32 y) { return x + y; }>(a, b)),
    BIN("sub.f16x2", u32, pairwise<[](f32 x, f32 y) { return x - y; }>(a, b)),
    BIN("mul.f16x2", u32, pairwise<[](f32 x, f32 y) { return x * y; }>(a, b)),
    BIN("min.f16x2", u32, (pairwise<least<f32>>(a, b))),
    BIN("max.f16x2", u32, (pairwise<most<f32>>(a, b))),
    TRI("fma.f16x2", u32, half_fma2(a, b, c)),
    UN("neg.f16x2", u32, u32, a ^ 0x80008000u),
    UN("abs.f16x2", u32, u32, a & 0x7fff7fffu),
    TRI("fma.bf16", u16, to_bf16(static_cast<f32>(f64(wide_bf16(a)) * wide_bf16(b) + wide_bf16(c)))),
    UN("neg.bf16", u16, u16, static_cast<u16>(a ^ 0x8000)),
    UN("abs.bf16", u16, u16, a & 0x7fff),
};

}  // namespace
HANDLER_TABLE(floating)
}  // namespace gpukernel::simgpu
