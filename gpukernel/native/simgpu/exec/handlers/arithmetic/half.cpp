// Half precision and bfloat16, alone and two in a register (PTX ISA 9.7.4).  The decoder follows up with
// "sat", "relu" and "flush" where an instruction asks for them.
#include "simgpu/exec/handlers/arithmetic/half.h"

#include "simgpu/exec/handlers/arithmetic/functions.h"
#include "simgpu/exec/handlers/tables.h"

namespace gpukernel::simgpu {
namespace {

inline f32 clip(f32 a) { return a > 0 ? (a < 1 ? a : 1.0f) : 0.0f; }
inline f32 rectify(f32 a) { return a != a ? a : a > 0 ? a : 0.0f; }

template <class F, auto Op1>
u16 one(u16 a) {
    return F::near(Op1(F::get(a)));
}
template <class F>
u16 fused(u16 a, u16 b, u16 c) {
    f64 p = f64(F::get(a)) * F::get(b);
    return F::near(odd(odd_sum(p, F::get(c))));
}
template <class F>
u16 flush(u16 a) {
    return a & F::exponent ? a : a & 0x8000;
}
template <auto G>
u32 each_half(u32 a) {
    return u32(G(static_cast<u16>(a))) | u32(G(static_cast<u16>(a >> 16))) << 16;
}
template <class F>
u32 fused_halves(u32 a, u32 b, u32 c) {
    return u32(fused<F>(static_cast<u16>(a), static_cast<u16>(b), static_cast<u16>(c))) |
           u32(fused<F>(static_cast<u16>(a >> 16), static_cast<u16>(b >> 16), static_cast<u16>(c >> 16)))
               << 16;
}
inline f32 subtract(f32 a, f32 b) { return a - b; }
inline f32 multiply(f32 a, f32 b) { return a * b; }

#define ONE(name, k, g) \
    {name "." k, un<u16, u16, g>}, { name "." k "x2", un<u32, u32, each_half<g>> }
#define TWO(name, k, g) \
    {name "." k, bin<u16, u16, u16, g>}, { name "." k "x2", bin<u32, u32, u32, both_halves<g>> }
#define EXTREME(name, k, F, Nan, XorSign)                       \
    TWO("min" name, k, (two<F, extreme<Nan, false, XorSign>>)), \
        TWO("max" name, k, (two<F, extreme<Nan, true, XorSign>>))
inline u16 negate(u16 a) { return a ^ 0x8000; }
inline u16 magnitude(u16 a) { return a & 0x7fff; }
#define FORMAT(k, F)                                                                                    \
    TWO("add", k, (two<F, add>)), TWO("sub", k, (two<F, subtract>)), TWO("mul", k, (two<F, multiply>)), \
        EXTREME("", k, F, false, false), EXTREME(".NaN", k, F, true, false),                            \
        EXTREME(".xorsign.abs", k, F, false, true), EXTREME(".NaN.xorsign.abs", k, F, true, true),      \
        ONE("neg", k, negate), ONE("abs", k, magnitude), ONE("sat", k, (one<F, clip>)),                 \
        ONE("relu", k, (one<F, rectify>)), ONE("flush", k, flush<F>), ONE("ex2", k, (one<F, ex2>)),     \
        ONE("tanh", k, (one<F, hyperbolic_tangent>)), {"fma." k, tri<u16, u16, u16, u16, fused<F>>}, {  \
        "fma." k "x2", tri<u32, u32, u32, u32, fused_halves<F>>                                         \
    }

const HandlerEntry entries[] = {
    FORMAT("f16", Half),
    FORMAT("bf16", Brain),
};

}  // namespace
HANDLER_TABLE(half)
}  // namespace gpukernel::simgpu
