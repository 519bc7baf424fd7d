// atom and red (PTX ISA 9.7.13): lane after lane with the host's atomics, so other blocks' threads see each
// whole.
#include "simgpu/exec/handlers/address.h"
#include "simgpu/exec/handlers/arithmetic/half.h"
#include "simgpu/exec/handlers/tables.h"

namespace gpukernel::simgpu {
namespace {

template <class T>
struct Word {
    using type = T;
};
template <>
struct Word<f32> {
    using type = u32;
};
template <>
struct Word<f64> {
    using type = u64;
};

// Which lanes' addresses are of global memory: the windows of others begin above it.
u32 lanes_in_global(const Warp& w, const Op& op) {
    if (op.sub & 1) return kFull;  // addresses of 32 bits lie below all windows
    const u64* a = in<u64>(w, op.a);
    u32 lanes = 0;
    for (int i = 0; i < kLanes; ++i)
        lanes |= static_cast<u32>(!((a[i] + static_cast<u64>(op.imm)) >> kWindowShift)) << i;
    return lanes;
}
f32 flushed(f32 x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x; }

// `flushes`: on global memory, though not on shared one, subnormal numbers become zeros of their sign before
// and after an addition of single precision (the ISA's note on atom and red).
template <class T, auto F, bool flushes = false>
void atomic(Warp& w, const Op& op) {
    using U = typename Word<T>::type;
    alignas(64) u64 ad[kLanes];
    const u32 flushing = flushes ? lanes_in_global(w, op) : 0;
    locate<Space::generic, sizeof(T)>(w, op, ad);
    w.touched = true;
    const T* b = in<T>(w, op.b);
    U* d = op.sub2 & 1 ? out<U>(w, op.dst) : nullptr;
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        U* p = reinterpret_cast<U*>(ad[i]);
        U old = __atomic_load_n(p, __ATOMIC_RELAXED);
        U next;
        do {
            const T before = std::bit_cast<T>(old);
            if constexpr (flushes) {
                const bool flush = flushing >> i & 1;
                const T sum = F(flush ? flushed(before) : before, flush ? flushed(b[i]) : b[i]);
                next = std::bit_cast<U>(flush ? flushed(sum) : sum);
            } else {
                next = std::bit_cast<U>(static_cast<T>(F(before, b[i])));
            }
        } while (!__atomic_compare_exchange_n(p, &old, next, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
        if (d) d[i] = old;
    }
}
template <class T>
void fetch_add(Warp& w, const Op& op) {
    alignas(64) u64 ad[kLanes];
    locate<Space::generic, sizeof(T)>(w, op, ad);
    w.touched = true;
    const T* b = in<T>(w, op.b);
    T* d = op.sub2 & 1 ? out<T>(w, op.dst) : nullptr;
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        T old = __atomic_fetch_add(reinterpret_cast<T*>(ad[i]), b[i], __ATOMIC_SEQ_CST);
        if (d) d[i] = old;
    }
}
template <class T>
void cas(Warp& w, const Op& op) {
    alignas(64) u64 ad[kLanes];
    locate<Space::generic, sizeof(T)>(w, op, ad);
    w.touched = true;
    const T *b = in<T>(w, op.b), *c = in<T>(w, op.c);
    T* d = out<T>(w, op.dst);
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        T old = b[i];
        __atomic_compare_exchange_n(reinterpret_cast<T*>(ad[i]), &old, c[i], false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST);
        if (op.sub2 & 1) d[i] = old;
    }
}
// Sixteen bytes: the processor compares and exchanges them at once (cmpxchg16b).
template <bool Compare>
void wide(Warp& w, const Op& op) {
    alignas(64) u64 ad[kLanes];
    locate<Space::generic, 16>(w, op, ad);
    w.touched = true;
    const u128 *b = in<u128>(w, op.b), *c = Compare ? in<u128>(w, op.c) : b;
    u128* d = op.sub2 & 1 ? out<u128>(w, op.dst) : nullptr;
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        u128* p = reinterpret_cast<u128*>(ad[i]);
        u128 expected = Compare ? b[i] : *p, old;
        for (;;) {
            old = __sync_val_compare_and_swap(p, expected, c[i]);
            if (Compare || old == expected) break;
            expected = old;
        }
        if (d) d[i] = old;
    }
}
#define RMW(name, T, expr)                       \
    {"atom." name, atomic<T, [](T a, T b) -> T { \
         (void)a;                                \
         return (expr);                          \
     }>}
#define BITS(n, U)                                                                                     \
    RMW("and.b" n, U, a& b), RMW("or.b" n, U, a | b), RMW("xor.b" n, U, a ^ b), RMW("exch.b" n, U, b), \
        {"atom.cas.b" n, cas<U>}, {                                                                    \
        "atom.add.b" n, fetch_add<U>                                                                   \
    }
#define HALF(name, k, op) RMW(name "." k, u16, (op(a, b))), RMW(name "." k "x2", u32, (both_halves<op>(a, b)))
#define HALVES(k, F)                                                                       \
    HALF("add", k, (two<F, add>)), HALF("min", k, (two<F, extreme<false, false, false>>)), \
        HALF("max", k, (two<F, extreme<false, true, false>>))
#define ENDS(k, T) RMW("min." k, T, a < b ? a : b), RMW("max." k, T, a > b ? a : b)

const HandlerEntry entries[] = {
    BITS("32", u32),
    BITS("64", u64),
    ENDS("u32", u32),
    ENDS("s32", s32),
    ENDS("u64", u64),
    ENDS("s64", s64),
    RMW("inc.u32", u32, a >= b ? 0 : a + 1),
    RMW("dec.u32", u32, a == 0 || a > b ? b : a - 1),
    {"atom.add.f32", atomic<f32, [](f32 a, f32 b) { return a + b; }, true>},
    RMW("add.f64", f64, a + b),
    HALVES("f16", Half),
    HALVES("bf16", Brain),
    {"atom.cas.b128", wide<true>},
    {"atom.exch.b128", wide<false>},
    {"atom.cas.b16", cas<u16>},
};

}  // namespace
HANDLER_TABLE(atomic)
}  // namespace gpukernel::simgpu
