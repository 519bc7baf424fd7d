// Floating-point arithmetic (PTX ISA 9.7.3 to 9.7.5).  The rounding mode and flushing of subnormals are the
// processor's: the decoder puts "mode" operations around what asks for another one.
#include <immintrin.h>

#include "simgpu/exec/handlers/arithmetic/functions.h"
#include "simgpu/exec/handlers/lanes.h"
#include "simgpu/exec/handlers/tables.h"

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

// The smaller magnitude (or the larger), its sign the product of both (min.xorsign.abs).
template <class T, auto F>
T xorsign(T a, T b) {
    T r = F(__builtin_fabsf(a), __builtin_fabsf(b));
    return r == r && ((__builtin_signbit(a) != 0) != (__builtin_signbit(b) != 0)) ? -r : r;
}
inline f32 root(f32 a) { return __builtin_sqrtf(a); }
inline f64 root(f64 a) { return __builtin_sqrt(a); }
inline u32 flush(u32 a) { return a & 0x7f800000 ? a : a & 0x80000000; }

// Two floats in 64 bits, the lower one first.
struct Two {
    f32 lower, upper;
};
template <auto F, class... More>
u64 by_two(u64 a, More... more) {
    const Two x = std::bit_cast<Two>(a);
    return std::bit_cast<u64>(
        Two{F(x.lower, std::bit_cast<Two>(more).lower...), F(x.upper, std::bit_cast<Two>(more).upper...)});
}

// Multiply-adds stand in rows, and in a row the same factor comes again, or the last result.  What is in the
// processor's registers already is not loaded once more: loads and stores are what such rows wait for.  The
// decoder finds the rows of one shape (ptx/decode/rows.cpp), so that hardly anything is looked at between two
// operations.
#if defined __AVX512F__
using Vector = __m512;
inline Vector load(const f32* from) { return _mm512_load_ps(from); }
inline Vector all(f32 value) { return _mm512_set1_ps(value); }
inline Vector fuse(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
inline void store(f32* to, Vector v) { _mm512_store_ps(to, v); }
#elif defined __FMA__
using Vector = __m256;
inline Vector load(const f32* from) { return _mm256_load_ps(from); }
inline Vector all(f32 value) { return _mm256_set1_ps(value); }
inline Vector fuse(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
inline void store(f32* to, Vector v) { _mm256_store_ps(to, v); }
#endif
#if defined __FMA__
constexpr int kEach = sizeof(Vector) / sizeof(f32), kVectors = kLanes / kEach;
#define VECTORS(warps) _Pragma("GCC unroll 8") for (int v = 0; v < (warps) * kVectors; ++v)

// All that is in a row: of one warp, or of two that run together.
template <int Warps>
struct Registers {
    char* of[Warps];
    const char* constants;
    explicit Registers(Warp& w) : constants(w.base[1]) {
        of[0] = w.registers;
        if constexpr (Warps == 2) of[1] = w.partner->registers;
    }
    f32* vector(int v, u32 operand) const {
        return at<f32>(of[v / kVectors], operand) + v % kVectors * kEach;
    }
};

template <bool One, int Warps = 1>
struct Operand {  // of all lanes: a register's values, or one constant
    Vector of[One ? 1 : Warps * kVectors];
    Operand(const Registers<Warps>& registers, u32 operand) {
        if constexpr (One)
            of[0] = all(one<f32>(registers.constants, operand));
        else
            VECTORS(Warps) of[v] = load(registers.vector(v, operand));
    }
    Vector operator[](int v) const { return of[One ? 0 : v]; }
};

#define UNLESS_ALL_RUN                \
    if (w.exec != kFull) [[unlikely]] \
    return tri_some<f32, f32, f32, f32, [](f32 a, f32 b, f32 c) { return fuse(a, b, c); }>(w, first)

// d = a * b + c with one b and one c.
template <bool OneB, bool OneC>
void fuse_same(Warp& w, const Op& first) {
    UNLESS_ALL_RUN;
    const Registers<1> registers{w};
    const Operand<OneB> b{registers, first.b};
    const Operand<OneC> c{registers, first.c};
    EACH_OF(first) {
        VECTORS(1)
        store(registers.vector(v, op.dst), fuse(load(registers.vector(v, op.a)), b[v], c[v]));
    }
}
// d = a * b + c with one b.
template <bool OneB, bool OneC>
void fuse_factor(Warp& w, const Op& first) {
    UNLESS_ALL_RUN;
    const Registers<1> registers{w};
    const Operand<OneB> b{registers, first.b};
    EACH_OF(first) {
        const Operand<OneC> c{registers, op.c};
        VECTORS(1)
        store(registers.vector(v, op.dst), fuse(load(registers.vector(v, op.a)), b[v], c[v]));
    }
}

// Where each operation needs the last one's result, a warp has too few vectors to keep the processor busy
// until that is there: of two warps that run together the one's hide what the other's wait for.
#define ONE_OR_BOTH(row) \
    UNLESS_ALL_RUN;      \
    w.partner ? row(Registers<2>{w}, w, first) : row(Registers<1>{w}, w, first)

// The last result plus a * b, where only the next operation wants it; else the next has a sum of its own.
template <bool OneB, int Warps>
void sums(const Registers<Warps> registers, Warp& w, const Op& first) {
    Operand<false, Warps> sum{registers, first.c};
    EACH_OF(first) {
        const Operand<OneB, Warps> b{registers, op.b};
        VECTORS(Warps) sum.of[v] = fuse(load(registers.vector(v, op.a)), b[v], sum.of[v]);
        if (op.fleeting && p + 1 < stop) continue;
        VECTORS(Warps) store(registers.vector(v, op.dst), sum.of[v]);
        if (p + 1 < stop) sum = {registers, p[1].c};
    }
}
template <bool OneB>
void fuse_sums(Warp& w, const Op& first) {
    ONE_OR_BOTH(sums<OneB>);
}
// The last result times one b, plus c, likewise.
template <bool OneB, bool OneC, int Warps>
void polynomials(const Registers<Warps> registers, Warp& w, const Op& first) {
    const Operand<OneB, Warps> b{registers, first.b};
    Operand<false, Warps> value{registers, first.a};
    EACH_OF(first) {
        const Operand<OneC, Warps> c{registers, op.c};
        VECTORS(Warps) value.of[v] = fuse(value.of[v], b[v], c[v]);
        if (op.fleeting && p + 1 < stop) continue;
        VECTORS(Warps) store(registers.vector(v, op.dst), value.of[v]);
        if (p + 1 < stop) value = {registers, p[1].a};
    }
}
template <bool OneB, bool OneC>
void fuse_polynomials(Warp& w, const Op& first) {
    ONE_OR_BOTH((polynomials<OneB, OneC>));
}
#define SHAPED(operands, OneB, OneC)                                           \
    {"fma.f32@" operands " same b, c", fuse_same<OneB, OneC>, true},           \
        {"fma.f32@" operands " same b", fuse_factor<OneB, OneC>, true}, {      \
        "fma.f32@" operands " polynomials", fuse_polynomials<OneB, OneC>, true \
    }
#endif

#define UN(name, D, A, expr) {name, un<D, A, [](A a) -> D { return (expr); }>, true}
#define BIN(name, T, expr) {name, bin<T, T, T, [](T a, T b) -> T { return (expr); }>, true}
#define TRI(name, T, expr) {name, tri<T, T, T, T, [](T a, T b, T c) -> T { return (expr); }>, true}
// After the @: which operands are constants; the others are registers.
#define WITH(name, T, expr) {name "@b", bin_with_b<T, [](T a, T b) -> T { return (expr); }>, true}
#define WITH_ALL(k, T) WITH("add." k, T, a + b), WITH("sub." k, T, a - b), WITH("mul." k, T, a* b)
#define FUSE_WITH(k, T)                                                                                      \
    {"fma." k "@b", tri_with<T, [](T a, T b, T c) -> T { return fuse(a, b, c); }, true, false>, true},       \
        {"fma." k "@c", tri_with<T, [](T a, T b, T c) -> T { return fuse(a, b, c); }, false, true>, true},   \
        {"fma." k "@bc", tri_with<T, [](T a, T b, T c) -> T { return fuse(a, b, c); }, true, true>, true}, { \
        "fma." k "@", tri_with<T, [](T a, T b, T c) -> T { return fuse(a, b, c); }, false, false>, true      \
    }
#define BOTH(k, T, U)                                                                                       \
    BIN("add." k, T, a + b), BIN("sub." k, T, a - b), BIN("mul." k, T, a* b), BIN("div." k, T, a / b),      \
        TRI("fma." k, T, fuse(a, b, c)), TRI("mad." k, T, fuse(a, b, c)), BIN("min." k, T, least(a, b)),    \
        BIN("max." k, T, most(a, b)), UN("abs." k, U, U, a & (~U(0) >> 1)),                                 \
        UN("neg." k, U, U, a ^ (U(1) << (sizeof(U) * 8 - 1))), UN("rcp." k, T, T, T(1) / a),                \
        UN("sqrt." k, T, T, root(a)), UN("sat." k, T, T, saturate(a)), {                                    \
        "copysign." k, bin<U, U, U, [](U a, U b) -> U { return (b & (~U(0) >> 1)) | (a & ~(~U(0) >> 1)); }> \
    }

const HandlerEntry entries[] = {
    BOTH("f32", f32, u32),
    BOTH("f64", f64, u64),
    WITH_ALL("f32", f32),
    WITH_ALL("f64", f64),
    FUSE_WITH("f32", f32),
    FUSE_WITH("f64", f64),
#if defined __FMA__
    SHAPED("", false, false),
    SHAPED("b", true, false),
    SHAPED("c", false, true),
    SHAPED("bc", true, true),
    {"fma.f32@ sums", fuse_sums<false>, true},
    {"fma.f32@b sums", fuse_sums<true>, true},
#endif
    BIN("min.NaN.f32", f32, least_nan(a, b)),
    BIN("max.NaN.f32", f32, most_nan(a, b)),
    UN("rsqrt.f32", f32, f32, static_cast<f32>(1.0 / root(static_cast<f64>(a)))),
    UN("rsqrt.f64", f64, f64, 1.0 / root(a)),
    {"sin.f32", sines<false>},
    {"cos.f32", sines<true>},
    UN("lg2.f32", f32, f32, lg2(a)),
    UN("ex2.f32", f32, f32, ex2(a)),
    UN("tanh.f32", f32, f32, hyperbolic_tangent(a)),
    UN("rcp.ftz64.f64", f64, f64, std::bit_cast<f64>(bits_of(1.0 / a) & 0xffffffff00000000ull)),
    UN("rsqrt.ftz64.f64", f64, f64, std::bit_cast<f64>(bits_of(1.0 / root(a)) & 0xffffffff00000000ull)),
    BIN("min.xorsign.abs.f32", f32, (xorsign<f32, least<f32>>(a, b))),
    BIN("max.xorsign.abs.f32", f32, (xorsign<f32, most<f32>>(a, b))),
    BIN("min.NaN.xorsign.abs.f32", f32, (xorsign<f32, least_nan<f32>>(a, b))),
    BIN("max.NaN.xorsign.abs.f32", f32, (xorsign<f32, most_nan<f32>>(a, b))),
    BIN("add.f32x2", u64, (by_two<[](f32 p, f32 q) { return p + q; }>(a, b))),
    BIN("sub.f32x2", u64, (by_two<[](f32 p, f32 q) { return p - q; }>(a, b))),
    BIN("mul.f32x2", u64, (by_two<[](f32 p, f32 q) { return p * q; }>(a, b))),
    TRI("fma.f32x2", u64, (by_two<[](f32 p, f32 q, f32 r) { return fuse(p, q, r); }>(a, b, c))),
    UN("flush.f32", u32, u32, flush(a)),
};

}  // namespace
HANDLER_TABLE(floating)
}  // namespace gpukernel::simgpu
