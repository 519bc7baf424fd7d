// The 32 lanes of a warp, as a handler reads and writes them.  Included only by files that are compiled once
// per x86-64 level: everything here has internal linkage, so no level's code can stand in for another's.
#pragma once

#include <math.h>
#include <string.h>

#include <bit>
#include <cstdint>
#include <type_traits>

#include "simgpu/exec/machine.h"

#define LANES _Pragma("GCC ivdep") for (int i = 0; i < kLanes; ++i)

namespace gpukernel::simgpu {
namespace {

using u8 = uint8_t;
using s8 = int8_t;
using u16 = uint16_t;
using s16 = int16_t;
using u32 = uint32_t;
using s32 = int32_t;
using u64 = uint64_t;
using s64 = int64_t;
using u128 = unsigned __int128;
using f32 = float;
using f64 = double;
using f16 = _Float16;

template <class T>
inline const T* in(const Warp& w, u32 operand) {
    return static_cast<const T*>(__builtin_assume_aligned(w.base[operand & 1] + operand, 64));
}
inline u32 in_pred(const Warp& w, u32 operand) {
    return *reinterpret_cast<const u32*>(w.base[operand & 1] + operand);
}
template <class T>
inline T* out(Warp& w, u32 operand) {
    return static_cast<T*>(__builtin_assume_aligned(w.registers + operand, 64));
}
template <class D>
inline void blend(D* d, const D* t, u32 m) {
    LANES d[i] = (m >> i & 1) ? t[i] : d[i];
}
inline void out_pred(Warp& w, u32 operand, u32 value) {
    u32* d = reinterpret_cast<u32*>(w.registers + operand);
    *d = (*d & ~w.exec) | (value & w.exec);
}

// The operations that a handler does at once: itself and its neighbours of the same kind, so that what it
// costs to come here is paid once.
#define EACH_OF(first)                                                                                    \
    for (const Op *p = &(first), *stop = p + (first).width < w.end ? p + (first).width : w.end; p < stop; \
         ++p)                                                                                             \
        if (const Op& op = *p; true)

// Lanes that have diverged: computed beside and blended in.  Apart, so that the usual path needs no stack.
template <class D, class A, auto F>
[[gnu::noinline]] void un_some(Warp& w, const Op& first) {
    EACH_OF(first) {
        const A* a = in<A>(w, op.a);
        alignas(64) D t[kLanes];
        LANES t[i] = F(a[i]);
        blend(out<D>(w, op.dst), t, w.exec);
    }
}
template <class D, class A, auto F>
void un(Warp& w, const Op& first) {
    if (w.exec != kFull) [[unlikely]]
        return un_some<D, A, F>(w, first);
    EACH_OF(first) {
        const A* a = in<A>(w, op.a);
        D* d = out<D>(w, op.dst);
        LANES d[i] = F(a[i]);
    }
}
template <class D, class A, class B, auto F>
[[gnu::noinline]] void bin_some(Warp& w, const Op& first) {
    EACH_OF(first) {
        const A* a = in<A>(w, op.a);
        const B* b = in<B>(w, op.b);
        alignas(64) D t[kLanes];
        LANES t[i] = F(a[i], b[i]);
        blend(out<D>(w, op.dst), t, w.exec);
    }
}
template <class D, class A, class B, auto F>
void bin(Warp& w, const Op& first) {
    if (w.exec != kFull) [[unlikely]]
        return bin_some<D, A, B, F>(w, first);
    EACH_OF(first) {
        const A* a = in<A>(w, op.a);
        const B* b = in<B>(w, op.b);
        D* d = out<D>(w, op.dst);
        LANES d[i] = F(a[i], b[i]);
    }
}
template <class D, class A, class B, class C, auto F>
[[gnu::noinline]] void tri_some(Warp& w, const Op& first) {
    EACH_OF(first) {
        const A* a = in<A>(w, op.a);
        const B* b = in<B>(w, op.b);
        const C* c = in<C>(w, op.c);
        alignas(64) D t[kLanes];
        LANES t[i] = F(a[i], b[i], c[i]);
        blend(out<D>(w, op.dst), t, w.exec);
    }
}
template <class D, class A, class B, class C, auto F>
void tri(Warp& w, const Op& first) {
    if (w.exec != kFull) [[unlikely]]
        return tri_some<D, A, B, C, F>(w, first);
    EACH_OF(first) {
        const A* a = in<A>(w, op.a);
        const B* b = in<B>(w, op.b);
        const C* c = in<C>(w, op.c);
        D* d = out<D>(w, op.dst);
        LANES d[i] = F(a[i], b[i], c[i]);
    }
}

// The same on one type where the decoder knows which operands are constants, one number for all lanes, and
// which are registers: arithmetic is bound by its loads.
template <class T>
inline T* at(const char* base, u32 operand) {
    return static_cast<T*>(__builtin_assume_aligned(const_cast<char*>(base) + operand, 64));
}
template <class T>
inline T one(const char* constants, u32 operand) {
    return *reinterpret_cast<const T*>(constants + operand);
}
template <class T, auto F>
void bin_with_b(Warp& w, const Op& first) {
    if (w.exec != kFull) [[unlikely]]
        return bin_some<T, T, T, F>(w, first);
    char* const registers = w.registers;
    const char* const constants = w.base[1];
    EACH_OF(first) {
        const T *a = at<T>(registers, op.a), b = one<T>(constants, op.b);
        T* d = at<T>(registers, op.dst);
        LANES d[i] = F(a[i], b);
    }
}
template <class T, auto F, bool OneB, bool OneC>
void tri_with(Warp& w, const Op& first) {
    if (w.exec != kFull) [[unlikely]]
        return tri_some<T, T, T, T, F>(w, first);
    char* const registers = w.registers;
    const char* const constants = w.base[1];
    EACH_OF(first) {
        const T* a = at<T>(registers, op.a);
        T* d = at<T>(registers, op.dst);
        if constexpr (OneB && OneC) {
            const T b = one<T>(constants, op.b), c = one<T>(constants, op.c);
            LANES d[i] = F(a[i], b, c);
        } else if constexpr (OneB) {
            const T b = one<T>(constants, op.b), *c = at<T>(registers, op.c);
            LANES d[i] = F(a[i], b, c[i]);
        } else if constexpr (OneC) {
            const T *b = at<T>(registers, op.b), c = one<T>(constants, op.c);
            LANES d[i] = F(a[i], b[i], c);
        } else {
            const T *b = at<T>(registers, op.b), *c = at<T>(registers, op.c);
            LANES d[i] = F(a[i], b[i], c[i]);
        }
    }
}
// For functions that are calls: only for the lanes that run.
template <class D, class A, auto F>
void each(Warp& w, const Op& op) {
    const A* a = in<A>(w, op.a);
    D* d = out<D>(w, op.dst);
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        d[i] = F(a[i]);
    }
}
template <class A, auto F>
void compare(Warp& w, const Op& op) {
    const A* a = in<A>(w, op.a);
    const A* b = in<A>(w, op.b);
    alignas(64) u32 t[kLanes];
    LANES t[i] = F(a[i], b[i]) ? 1u << i : 0u;
    u32 m = 0;
    for (int i = 0; i < kLanes; ++i) m |= t[i];
    out_pred(w, op.dst, m);
}

}  // namespace
}  // namespace gpukernel::simgpu
