// What matrix instructions of a warp and of four warps share: the numbers of a block, and multiply-adds on
// vectors of them.
#pragma once
#include <immintrin.h>

#include "simgpu/exec/handlers/arithmetic/half.h"
#include "simgpu/exec/handlers/lanes.h"

namespace gpukernel::simgpu {
namespace {

constexpr u32 kRow = 16;  // bytes of a block's row, 32 where a register has 64 bits
constexpr u32 kBlock = 8 * kRow;

// ---- Numbers of a block ----

constexpr f32 eight_bits(u32 code, int mantissa) {
    const int bias = mantissa == 3 ? 7 : 15;
    const u32 e = code >> mantissa & ((1u << (7 - mantissa)) - 1), m = code & ((1u << mantissa) - 1);
    const u32 top = mantissa == 3 ? 0 : 31;
    if (mantissa == 3 ? (code & 0x7f) == 0x7f : e == top && m) return std::bit_cast<f32>(0x7fffffffu);
    f32 v = static_cast<f32>(e ? m + (1u << mantissa) : m);
    for (int n = static_cast<int>(e ? e : 1) - bias - mantissa; n; n += n < 0 ? 1 : -1)
        v *= n < 0 ? 0.5f : 2.0f;
    if (mantissa == 2 && e == top) v = std::bit_cast<f32>(0x7f800000u);
    return code & 0x80 ? -v : v;
}
struct EightBits {
    f32 value[2][256];
    constexpr EightBits() : value() {
        for (u32 code = 0; code < 256; ++code)
            value[0][code] = eight_bits(code, 3), value[1][code] = eight_bits(code, 2);
    }
};
constexpr EightBits kEightBits;

inline void halves(const char* from, f32* to) {  // eight
#ifdef __F16C__
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(from))));
#else
    const u16* p = reinterpret_cast<const u16*>(from);
    for (int i = 0; i < 8; ++i) to[i] = Half::get(p[i]);
#endif
}

// The rows of a block as numbers, row r at `to + r * step`.  `E` stands for its kind, `e` is the type itself.
template <Element E>
inline void expand(Element e, const char* block, f32* to, u32 step) {
    for (u32 r = 0; r < 8; ++r, block += kRow, to += step) {
        if constexpr (E == Element::f16) {
            halves(block, to);
        } else if constexpr (E == Element::bf16) {
            for (int i = 0; i < 8; ++i) to[i] = Brain::get(reinterpret_cast<const u16*>(block)[i]);
        } else if constexpr (E == Element::tf32) {  // the lower bits of the mantissa are not looked at
            for (int i = 0; i < 4; ++i)
                to[i] = std::bit_cast<f32>(reinterpret_cast<const u32*>(block)[i] & ~0x1fffu);
        } else {
            for (int i = 0; i < 16; ++i)
                to[i] = kEightBits.value[e == Element::e5m2][static_cast<u8>(block[i])];
        }
    }
}
template <Element E>
inline void expand(Element e, const char* block, s32* to, u32 step) {
    for (u32 r = 0; r < 8; ++r, block += kRow, to += step) {
        const u8* bytes = reinterpret_cast<const u8*>(block);
        if constexpr (E == Element::s8) {
            if (e == Element::s8)
                for (int i = 0; i < 16; ++i) to[i] = static_cast<s8>(bytes[i]);
            else
                for (int i = 0; i < 16; ++i) to[i] = bytes[i];
        } else if (e == Element::s4) {
            for (int i = 0; i < 32; ++i) to[i] = static_cast<s8>(bytes[i / 2] << (i & 1 ? 0 : 4)) >> 4;
        } else {
            for (int i = 0; i < 32; ++i) to[i] = bytes[i / 2] >> (i & 1 ? 4 : 0) & 15;
        }
    }
}
template <Element E>
inline void expand(Element, const char* block, f64* to, u32 step) {
    for (u32 r = 0; r < 8; ++r, block += 2 * kRow, to += step) memcpy(to, block, 2 * kRow);
}

// Sixteen numbers of four rows to four columns.
template <class T>
inline void transpose(const T* from, u32 step, T* to, u32 to_step) {
    if constexpr (sizeof(T) == 4) {
        __m128 r0 = _mm_loadu_ps(reinterpret_cast<const f32*>(from)),
               r1 = _mm_loadu_ps(reinterpret_cast<const f32*>(from + step)),
               r2 = _mm_loadu_ps(reinterpret_cast<const f32*>(from + 2 * step)),
               r3 = _mm_loadu_ps(reinterpret_cast<const f32*>(from + 3 * step));
        _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
        _mm_storeu_ps(reinterpret_cast<f32*>(to), r0);
        _mm_storeu_ps(reinterpret_cast<f32*>(to + to_step), r1);
        _mm_storeu_ps(reinterpret_cast<f32*>(to + 2 * to_step), r2);
        _mm_storeu_ps(reinterpret_cast<f32*>(to + 3 * to_step), r3);
    } else {
        for (u32 r = 0; r < 4; ++r)
            for (u32 c = 0; c < 4; ++c) to[c * to_step + r] = from[r * step + c];
    }
}

// An accumulator's registers, for even and odd columns, and the rows of a block.
template <class T>
void weave(const T* even, const T* odd, T* block) {
    LANES {
        block[2 * i] = even[i];
        block[2 * i + 1] = odd[i];
    }
}
template <class T>
void unweave(const T* block, T* even, T* odd) {
    LANES {
        even[i] = block[2 * i];
        odd[i] = block[2 * i + 1];
    }
}
// ---- Results ----

inline f32 settle(f32 v, bool saturate) {
    if (v != v) return saturate ? 0.0f : std::bit_cast<f32>(0x7fffffffu);
    return saturate ? __builtin_fminf(__builtin_fmaxf(v, -__FLT_MAX__), __FLT_MAX__) : v;
}
inline u16 settle_half(f32 v, bool saturate) {
    u16 h = Half::near(v);
    if (!saturate || (h & 0x7fff) < Half::exponent) return h;
    return v != v ? 0 : (h & 0x8000) | (Half::exponent - 1);
}
// ---- Multiplying ----

// Rows of the result, in vectors of eight (.f64: four) columns.
template <class T>
struct Columns;
template <>
struct Columns<f32> {
    typedef f32 Vector __attribute__((vector_size(32)));
};
template <>
struct Columns<s32> {
    typedef s32 Vector __attribute__((vector_size(32)));
};
template <>
struct Columns<f64> {
    typedef f64 Vector __attribute__((vector_size(32)));
};
inline Columns<f32>::Vector fuse(Columns<f32>::Vector a, Columns<f32>::Vector b, Columns<f32>::Vector c,
                                 bool exact) {
#ifdef __FMA__
    (void)exact;
    return reinterpret_cast<Columns<f32>::Vector>(_mm256_fmadd_ps(
        reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#else
    if (exact) return a * b + c;  // the product loses nothing, so this is the same
    for (int i = 0; i < 8; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#endif
}
inline Columns<f64>::Vector fuse(Columns<f64>::Vector a, Columns<f64>::Vector b, Columns<f64>::Vector c,
                                 bool) {
#ifdef __FMA__
    return reinterpret_cast<Columns<f64>::Vector>(_mm256_fmadd_pd(
        reinterpret_cast<__m256d>(a), reinterpret_cast<__m256d>(b), reinterpret_cast<__m256d>(c)));
#else
    for (int i = 0; i < 4; ++i) c[i] = __builtin_fma(a[i], b[i], c[i]);
    return c;
#endif
}
inline Columns<s32>::Vector fuse(Columns<s32>::Vector a, Columns<s32>::Vector b, Columns<s32>::Vector c,
                                 bool) {
    return a * b + c;
}

}  // namespace
}  // namespace gpukernel::simgpu
