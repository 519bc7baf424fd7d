// CUDA's execution model on one host thread, for generated kernels: every thread of a block is a fiber,
// blocks run one after the other.  A fiber runs until it waits for others (a barrier, a warp's exchange); the
// order in which fibers take turns is a parameter, so that a kernel whose result depends on it can be told.
#include <stdint.h>
#include <stdlib.h>
#include <ucontext.h>

#include "reference.h"

#define __device__
#define __global__
#define __constant__
#define __shared__ static  // blocks run one at a time
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define DYNAMIC_SHARED(name) unsigned char* name = oracle::dynamic_shared
#define KERNEL extern "C" void

namespace oracle {
struct Dim {
    unsigned x, y, z;
};

// Lanes that meet under one mask.
struct Meeting {
    unsigned mask, arrived, generation;
};
struct WarpOf {
    unsigned long long values[32];
    Meeting meetings[64];
};
struct Fiber {
    ucontext_t context;
    Dim thread;
    unsigned linear;
    bool done;
};

constexpr unsigned MOST_THREADS = 256, STACK = 64 << 10;
inline Fiber fibers[MOST_THREADS];
inline WarpOf warps[MOST_THREADS / 32];
inline unsigned char* stacks;
alignas(16) inline unsigned char dynamic_shared[16 << 10];
inline ucontext_t scheduler;
inline Fiber* now;
inline Dim block_dim, grid_dim, block_index;
inline unsigned live, arrived, generation, turns;
inline int counted, count_result;
inline void (*body)(void**);
inline void** body_arguments;

inline void yield() { swapcontext(&now->context, &scheduler); }
inline void complete_barrier() {
    arrived = 0;
    count_result = counted;
    counted = 0;
    ++generation;
    ++turns;
}
inline int barrier(bool predicate) {
    counted += predicate;
    const unsigned mine = generation;
    if (++arrived == live) complete_barrier();
    while (generation == mine) yield();
    return count_result;
}
inline void run_fiber() {
    body(body_arguments);
    now->done = true;
    ++turns;
    if (--live && arrived == live) complete_barrier();
    swapcontext(&now->context, &scheduler);
}
inline void meet(unsigned mask) {
    Meeting* m = warps[now->linear / 32].meetings;
    while (m->mask != mask && m->mask) ++m;
    m->mask = mask;
    m->arrived |= 1u << (now->linear & 31);
    if ((m->arrived & mask) == mask) {
        m->arrived = 0;
        ++m->generation;
        ++turns;
        return;
    }
    for (const unsigned mine = m->generation; m->generation == mine;) yield();
}
// What all lanes of the mask gave; read() sees it before anybody goes on.
template <class F>
inline auto exchange(unsigned mask, unsigned long long value, F read) {
    WarpOf& warp = warps[now->linear / 32];
    warp.values[now->linear & 31] = value;
    meet(mask);
    const auto result = read(warp.values);
    meet(mask);
    return result;
}
// Returns 0, or 1 where no fiber can go on.
inline int launch(void (*kernel)(void**), void** arguments, const unsigned* sizes, int order) {
    if (!stacks) stacks = static_cast<unsigned char*>(malloc(size_t{MOST_THREADS} * STACK));
    grid_dim = {sizes[0], sizes[1], sizes[2]};
    block_dim = {sizes[3], sizes[4], sizes[5]};
    body = kernel;
    body_arguments = arguments;
    const unsigned threads = block_dim.x * block_dim.y * block_dim.z,
                   blocks = grid_dim.x * grid_dim.y * grid_dim.z;
    for (unsigned n = 0; n < blocks; ++n) {
        const unsigned b = order ? blocks - 1 - n : n;
        block_index = {b % grid_dim.x, b / grid_dim.x % grid_dim.y, b / grid_dim.x / grid_dim.y};
        memset(warps, 0, sizeof warps);
        live = threads, arrived = 0, counted = 0;
        for (unsigned t = 0; t < threads; ++t) {
            Fiber& f = fibers[t];
            f.thread = {t % block_dim.x, t / block_dim.x % block_dim.y, t / block_dim.x / block_dim.y};
            f.linear = t;
            f.done = false;
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = stacks + size_t{t} * STACK;
            f.context.uc_stack.ss_size = STACK;
            f.context.uc_link = nullptr;
            makecontext(&f.context, run_fiber, 0);
        }
        while (live) {
            const unsigned before = turns;
            for (unsigned i = 0; i < threads; ++i) {
                Fiber& f = fibers[order ? threads - 1 - i : i];
                if (f.done) continue;
                now = &f;
                swapcontext(&scheduler, &f.context);
            }
            if (turns == before) return 1;
        }
    }
    return 0;
}
}  // namespace oracle

#define threadIdx (oracle::now->thread)
#define blockIdx (oracle::block_index)
#define blockDim (oracle::block_dim)
#define gridDim (oracle::grid_dim)

// --- barriers ---
REF void __syncthreads() { oracle::barrier(false); }
REF int __syncthreads_count(int p) { return oracle::barrier(p); }
REF int __syncthreads_or(int p) { return oracle::barrier(p) != 0; }
REF int __syncthreads_and(int p) { return oracle::barrier(!p) == 0; }
REF void __syncwarp(unsigned mask) { oracle::meet(mask); }
REF void __threadfence() {}
REF void __threadfence_block() {}

// --- warps ---
template <class T>
REF unsigned long long as_bits(T a) {
    unsigned long long r = 0;
    memcpy(&r, &a, sizeof a);
    return r;
}
template <class T>
REF T of_bits(unsigned long long a) {
    T r;
    memcpy(&r, &a, sizeof r);
    return r;
}
REF int lane_now() { return oracle::now->linear & 31; }
template <class T>
REF T shuffle(unsigned mask, T value, int source) {
    return of_bits<T>(
        oracle::exchange(mask, as_bits(value), [=](const unsigned long long* v) { return v[source & 31]; }));
}
template <class T>
REF T __shfl_sync(unsigned mask, T v, int from, int w) {
    return shuffle(mask, v, (lane_now() / w) * w + ((from % w) + w) % w);
}
template <class T>
REF T __shfl_up_sync(unsigned mask, T v, unsigned d, int w) {
    return shuffle(mask, v, lane_now() % w < (int)d ? lane_now() : lane_now() - (int)d);
}
template <class T>
REF T __shfl_down_sync(unsigned mask, T v, unsigned d, int w) {
    return shuffle(mask, v, lane_now() % w + (int)d >= w ? lane_now() : lane_now() + (int)d);
}
template <class T>
REF T __shfl_xor_sync(unsigned mask, T v, int x, int w) {
    const int to = lane_now() ^ x;
    return shuffle(mask, v, to / w > lane_now() / w ? lane_now() : to);
}
template <class F>
REF unsigned over(unsigned mask, unsigned first, const unsigned long long* v, F f) {
    bool any = false;
    for (int i = 0; i < 32; ++i)
        if (mask >> i & 1) first = any ? f(first, (unsigned)v[i]) : (unsigned)v[i], any = true;
    return first;
}
REF unsigned __ballot_sync(unsigned mask, int p) {
    return oracle::exchange(mask, p != 0, [=](const unsigned long long* v) {
        unsigned r = 0;
        for (int i = 0; i < 32; ++i)
            if (mask >> i & 1 && v[i]) r |= 1u << i;
        return r;
    });
}
REF int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
REF int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, p) == mask; }
template <class T>
REF unsigned __match_any_sync(unsigned mask, T a) {
    return oracle::exchange(mask, as_bits(a), [=](const unsigned long long* v) {
        unsigned r = 0;
        for (int i = 0; i < 32; ++i)
            if (mask >> i & 1 && v[i] == as_bits(a)) r |= 1u << i;
        return r;
    });
}
template <class T>
REF unsigned __match_all_sync(unsigned mask, T a, int* all) {
    const unsigned same = __match_any_sync(mask, a);
    *all = same == mask;
    return same == mask ? mask : 0;
}
#define REDUCE(name, type, result)                                                          \
    REF type name(unsigned mask, type a) {                                                  \
        return (type)oracle::exchange(mask, (unsigned)a, [=](const unsigned long long* v) { \
            return over(mask, 0, v, [](unsigned p, unsigned q) {                            \
                const type x = (type)p, y = (type)q;                                        \
                (void)x, (void)y;                                                           \
                return (unsigned)(result);                                                  \
            });                                                                             \
        });                                                                                 \
    }
REDUCE(reduce_add, unsigned, x + y)
REDUCE(reduce_min, unsigned, x < y ? x : y)
REDUCE(reduce_max, unsigned, x > y ? x : y)
REDUCE(reduce_min, int, x < y ? x : y)
REDUCE(reduce_max, int, x > y ? x : y)
REDUCE(reduce_and, unsigned, x& y)
REDUCE(reduce_or, unsigned, x | y)
REDUCE(reduce_xor, unsigned, x ^ y)
#undef REDUCE

// --- atomics: one host thread, so nothing comes between ---
#define ATOMIC(name, result)            \
    template <class T>                  \
    REF T name(T* at, T operand) {      \
        const T old = *at, a = operand; \
        (void)a;                        \
        *at = (T)(result);              \
        return old;                     \
    }
ATOMIC(atomicExch, a)
ATOMIC(atomicMin, a < old ? a : old)
ATOMIC(atomicMax, a > old ? a : old)
ATOMIC(atomicAnd, old& a)
ATOMIC(atomicOr, old | a)
ATOMIC(atomicXor, old ^ a)
ATOMIC(atomicInc, old >= a ? 0 : old + 1)
ATOMIC(atomicDec, old == 0 || old > a ? a : old - 1)
#undef ATOMIC
REF int atomicAdd(int* at, int a) {
    const int old = *at;
    *at = (int)((unsigned)old + (unsigned)a);
    return old;
}
template <class T>
REF T atomicAdd(T* at, T a) {
    const T old = *at;
    *at = old + a;
    return old;
}
template <class T>
REF T atomicSub(T* at, T a) {
    const T old = *at;
    *at = (T)((unsigned)old - (unsigned)a);
    return old;
}
template <class T>
REF T atomicCAS(T* at, T expected, T wanted) {
    const T old = *at;
    if (old == expected) *at = wanted;
    return old;
}

#include "common.h"

// --- halves ---
#define HALF(type, fraction, least_exponent, greatest_exponent)                                         \
    REF double number(type a) { return value_of<fraction, least_exponent, greatest_exponent>(a.bits); } \
    REF type& become(type& to, double a) {                                                              \
        to.bits = rounded_to<fraction, least_exponent, greatest_exponent>(a);                           \
        return to;                                                                                      \
    }                                                                                                   \
    REF type add(type a, type b) { return become(a, number(a) + number(b)); }                           \
    REF type sub(type a, type b) { return become(a, number(a) - number(b)); }                           \
    REF type mul(type a, type b) { return become(a, number(a) * number(b)); }                           \
    REF type fused(type a, type b, type c) {                                                            \
        return become(a, sum_to_odd(number(a) * number(b), number(c)));                                 \
    }                                                                                                   \
    REF type min_of(type a, type b) { return become(a, least(number(a), number(b))); }                  \
    REF type max_of(type a, type b) { return become(a, greatest(number(a), number(b))); }               \
    REF type negative(type a) {                                                                         \
        a.bits ^= 0x8000;                                                                               \
        return a;                                                                                       \
    }                                                                                                   \
    REF type absolute(type a) {                                                                         \
        a.bits &= 0x7fff;                                                                               \
        return a;                                                                                       \
    }                                                                                                   \
    REF bool below(type a, type b) { return number(a) < number(b); }                                    \
    REF bool equal(type a, type b) { return number(a) == number(b); }                                   \
    REF float to_float(type a) { return (float)number(a); }
HALF(f16, 10, -14, 15)
HALF(bf16, 7, -126, 127)
REF f16 to_f16(float a) {
    f16 r;
    return become(r, a);
}
REF f16 to_f16(int a) {
    f16 r;
    return become(r, a);
}
REF bf16 to_bf16(float a) {
    bf16 r;
    return become(r, a);
}
REF int to_int(f16 a) { return integer<int>(trunc(number(a)), number(a) != number(a)); }
