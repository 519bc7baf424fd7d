// CUDA's words for Clang's own NVPTX compiler, which without NVIDIA's headers and library has none: builtins
// where there is one instruction, plain C++ elsewhere, so that its PTX is as unlike NVRTC's as can be.
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __constant__ __attribute__((constant))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define KERNEL extern "C" __global__ void
#define REF static __device__ __forceinline__

struct OracleDim {
    unsigned x, y, z;
};
#define threadIdx \
    (OracleDim{__nvvm_read_ptx_sreg_tid_x(), __nvvm_read_ptx_sreg_tid_y(), __nvvm_read_ptx_sreg_tid_z()})
#define blockIdx                                                               \
    (OracleDim{__nvvm_read_ptx_sreg_ctaid_x(), __nvvm_read_ptx_sreg_ctaid_y(), \
               __nvvm_read_ptx_sreg_ctaid_z()})
#define blockDim \
    (OracleDim{__nvvm_read_ptx_sreg_ntid_x(), __nvvm_read_ptx_sreg_ntid_y(), __nvvm_read_ptx_sreg_ntid_z()})
#define gridDim                                                                  \
    (OracleDim{__nvvm_read_ptx_sreg_nctaid_x(), __nvvm_read_ptx_sreg_nctaid_y(), \
               __nvvm_read_ptx_sreg_nctaid_z()})

template <class To, class From>
REF To reinterpret(From from) {
    return __builtin_bit_cast(To, from);
}
REF int __float_as_int(float a) { return reinterpret<int>(a); }
REF float __int_as_float(int a) { return reinterpret<float>(a); }
REF long long __double_as_longlong(double a) { return reinterpret<long long>(a); }
REF double __longlong_as_double(long long a) { return reinterpret<double>(a); }
REF int __double2hiint(double a) { return (int)(__double_as_longlong(a) >> 32); }
REF int __double2loint(double a) { return (int)__double_as_longlong(a); }
REF double __hiloint2double(int high, int low) {
    return __longlong_as_double((long long)((unsigned long long)(unsigned)high << 32 | (unsigned)low));
}

REF int __popc(unsigned a) { return __builtin_popcount(a); }
REF int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
REF int __clz(int a) { return a ? __builtin_clz((unsigned)a) : 32; }
REF int __clzll(long long a) { return a ? __builtin_clzll((unsigned long long)a) : 64; }
REF int __ffs(int a) { return __builtin_ffs(a); }
REF int __ffsll(long long a) { return __builtin_ffsll(a); }
REF unsigned __brev(unsigned a) { return __builtin_bitreverse32(a); }
REF unsigned long long __brevll(unsigned long long a) { return __builtin_bitreverse64(a); }
REF unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    unsigned r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(s & 0x7777));
    return r;
}
#define SHF(name, text)                                                  \
    REF unsigned name(unsigned a, unsigned b, unsigned n) {              \
        unsigned r;                                                      \
        asm(text " %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(n)); \
        return r;                                                        \
    }
SHF(__funnelshift_l, "shf.l.wrap.b32")
SHF(__funnelshift_r, "shf.r.wrap.b32")
SHF(__funnelshift_lc, "shf.l.clamp.b32")
SHF(__funnelshift_rc, "shf.r.clamp.b32")
REF int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
REF unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
REF long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
REF unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
REF int __mul24(int a, int b) { return __nvvm_mul24_i(a, b); }
REF unsigned __umul24(unsigned a, unsigned b) { return __nvvm_mul24_ui(a, b); }
REF unsigned __usad(unsigned a, unsigned b, unsigned c) { return __nvvm_sad_ui(a, b, c); }
REF unsigned __sad(int a, int b, unsigned c) { return (unsigned)__nvvm_sad_i(a, b, (int)c); }
REF int __hadd(int a, int b) { return (a & b) + ((a ^ b) >> 1); }
REF int __rhadd(int a, int b) { return (a | b) - ((a ^ b) >> 1); }
REF unsigned __uhadd(unsigned a, unsigned b) { return (a & b) + ((a ^ b) >> 1); }
REF unsigned __urhadd(unsigned a, unsigned b) { return (a | b) - ((a ^ b) >> 1); }
#define DOT(name, type, letter, text)                                                   \
    REF type name(type a, type b, type c) {                                             \
        type r;                                                                         \
        asm(text " %0, %1, %2, %3;" : "=" letter(r) : letter(a), letter(b), letter(c)); \
        return r;                                                                       \
    }
DOT(__dp4a, int, "r", "dp4a.s32.s32")
DOT(__dp4a, unsigned, "r", "dp4a.u32.u32")
DOT(__dp2a_lo, int, "r", "dp2a.lo.s32.s32")
DOT(__dp2a_hi, unsigned, "r", "dp2a.hi.u32.u32")

template <int N, bool S, class F>
REF unsigned parts(unsigned a, unsigned b, F f) {
    unsigned r = 0;
    for (int i = 0; i < 32; i += N) {
        const int x = S ? (int)(a << (32 - N - i)) >> (32 - N) : (int)(a << (32 - N - i) >> (32 - N));
        const int y = S ? (int)(b << (32 - N - i)) >> (32 - N) : (int)(b << (32 - N - i) >> (32 - N));
        r |= ((unsigned)f(x, y) & (N == 8 ? 255u : 65535u)) << i;
    }
    return r;
}
REF int held(int a, int low, int high) { return a < low ? low : a > high ? high : a; }
#define PARTS(name, n, s, result)                                      \
    REF unsigned name(unsigned a, unsigned b) {                        \
        return parts<n, s>(a, b, [](int x, int y) { return result; }); \
    }
PARTS(__vadd2, 16, false, x + y)
PARTS(__vadd4, 8, false, x + y)
PARTS(__vsub2, 16, false, x - y)
PARTS(__vsub4, 8, false, x - y)
PARTS(__vaddss2, 16, true, held(x + y, -32768, 32767))
PARTS(__vaddus4, 8, false, held(x + y, 0, 255))
PARTS(__vsubss4, 8, true, held(x - y, -128, 127))
PARTS(__vabsdiffs4, 8, true, x > y ? x - y : y - x)
PARTS(__vabsdiffu2, 16, false, x > y ? x - y : y - x)
PARTS(__vavgs2, 16, true, (x + y + (x + y >= 0)) >> 1)
PARTS(__vavgu4, 8, false, (x + y + 1) >> 1)
PARTS(__vmaxs2, 16, true, x > y ? x : y)
PARTS(__vminu4, 8, false, x < y ? x : y)
PARTS(__vcmpgts4, 8, true, x > y ? -1 : 0)
PARTS(__vcmpeq2, 16, false, x == y ? -1 : 0)
PARTS(__vsetltu4, 8, false, x < y)

// --- floating point ---
#define WITH_ROUNDINGS(make) make(rn, rn) make(rz, rz) make(ru, rp) make(rd, rm)
#define ARITHMETIC(cuda, ptx)                                                                       \
    REF float __fadd_##cuda(float a, float b) { return __nvvm_add_##ptx##_f(a, b); }                \
    REF float __fsub_##cuda(float a, float b) { return __nvvm_add_##ptx##_f(a, -b); }               \
    REF float __fmul_##cuda(float a, float b) { return __nvvm_mul_##ptx##_f(a, b); }                \
    REF float __fdiv_##cuda(float a, float b) { return __nvvm_div_##ptx##_f(a, b); }                \
    REF float __fsqrt_##cuda(float a) { return __nvvm_sqrt_##ptx##_f(a); }                          \
    REF float __frcp_##cuda(float a) { return __nvvm_rcp_##ptx##_f(a); }                            \
    REF float __fmaf_##cuda(float a, float b, float c) { return __nvvm_fma_##ptx##_f(a, b, c); }    \
    REF double __dadd_##cuda(double a, double b) { return __nvvm_add_##ptx##_d(a, b); }             \
    REF double __dsub_##cuda(double a, double b) { return __nvvm_add_##ptx##_d(a, -b); }            \
    REF double __dmul_##cuda(double a, double b) { return __nvvm_mul_##ptx##_d(a, b); }             \
    REF double __ddiv_##cuda(double a, double b) { return __nvvm_div_##ptx##_d(a, b); }             \
    REF double __dsqrt_##cuda(double a) { return __nvvm_sqrt_##ptx##_d(a); }                        \
    REF double __drcp_##cuda(double a) { return __nvvm_rcp_##ptx##_d(a); }                          \
    REF double __fma_##cuda(double a, double b, double c) { return __nvvm_fma_##ptx##_d(a, b, c); } \
    REF float __double2float_##cuda(double a) { return __nvvm_d2f_##ptx(a); }
WITH_ROUNDINGS(ARITHMETIC)
// By the instruction itself: what a compiler makes of a NaN, or of whole numbers rounded towards zero, is its
// own.
#define CVT(name, type, letter, from, of, text)       \
    REF type name(from a) {                           \
        type r;                                       \
        asm(text " %0, %1;" : "=" letter(r) : of(a)); \
        return r;                                     \
    }
#define CONVERSIONS(cuda, ptx, whole)                                                      \
    CVT(__int2float_##cuda, float, "f", int, "r", "cvt." #ptx ".f32.s32")                  \
    CVT(__uint2float_##cuda, float, "f", unsigned, "r", "cvt." #ptx ".f32.u32")            \
    CVT(__ll2float_##cuda, float, "f", long long, "l", "cvt." #ptx ".f32.s64")             \
    CVT(__ull2float_##cuda, float, "f", unsigned long long, "l", "cvt." #ptx ".f32.u64")   \
    CVT(__ll2double_##cuda, double, "d", long long, "l", "cvt." #ptx ".f64.s64")           \
    CVT(__ull2double_##cuda, double, "d", unsigned long long, "l", "cvt." #ptx ".f64.u64") \
    CVT(__float2int_##cuda, int, "r", float, "f", "cvt." #whole ".s32.f32")                \
    CVT(__float2uint_##cuda, unsigned, "r", float, "f", "cvt." #whole ".u32.f32")          \
    CVT(__float2ll_##cuda, long long, "l", float, "f", "cvt." #whole ".s64.f32")           \
    CVT(__float2ull_##cuda, unsigned long long, "l", float, "f", "cvt." #whole ".u64.f32") \
    CVT(__double2int_##cuda, int, "r", double, "d", "cvt." #whole ".s32.f64")              \
    CVT(__double2uint_##cuda, unsigned, "r", double, "d", "cvt." #whole ".u32.f64")        \
    CVT(__double2ll_##cuda, long long, "l", double, "d", "cvt." #whole ".s64.f64")         \
    CVT(__double2ull_##cuda, unsigned long long, "l", double, "d", "cvt." #whole ".u64.f64")
CONVERSIONS(rn, rn, rni)
CONVERSIONS(rz, rz, rzi)
CONVERSIONS(ru, rp, rpi)
CONVERSIONS(rd, rm, rmi)
REF float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
REF double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
REF float sqrtf(float a) { return __nvvm_sqrt_rn_f(a); }
REF double sqrt(double a) { return __nvvm_sqrt_rn_d(a); }
REF float fabsf(float a) { return __builtin_fabsf(a); }
REF double fabs(double a) { return __builtin_fabs(a); }
REF float copysignf(float a, float b) { return __builtin_copysignf(a, b); }
REF double copysign(double a, double b) { return __builtin_copysign(a, b); }
REF float floorf(float a) { return __builtin_floorf(a); }
REF double floor(double a) { return __builtin_floor(a); }
REF float ceilf(float a) { return __builtin_ceilf(a); }
REF double ceil(double a) { return __builtin_ceil(a); }
REF float truncf(float a) { return __builtin_truncf(a); }
REF double trunc(double a) { return __builtin_trunc(a); }
REF float rintf(float a) { return __builtin_rintf(a); }
REF double rint(double a) { return __builtin_rint(a); }
REF float __saturatef(float a) { return __nvvm_saturate_f(a); }
// Of two zeros a compiler that knows both takes either, and PTX the smaller sign: not to be folded.
#define EXTREME(type, kind, letter, what)                                                   \
    REF type what##_of(type a, type b) {                                                    \
        type r;                                                                             \
        asm volatile(#what "." kind " %0, %1, %2;" : "=" letter(r) : letter(a), letter(b)); \
        return r;                                                                           \
    }
EXTREME(float, "f32", "f", min)
EXTREME(float, "f32", "f", max)
EXTREME(double, "f64", "d", min)
EXTREME(double, "f64", "d", max)
#undef EXTREME

// --- barriers, warps ---
REF int __syncthreads_count(int p) { return __nvvm_bar0_popc(p); }
REF int __syncthreads_and(int p) { return __nvvm_bar0_and(p); }
REF int __syncthreads_or(int p) { return __nvvm_bar0_or(p); }
REF void __syncwarp(unsigned mask) { __nvvm_bar_warp_sync(mask); }
REF unsigned __ballot_sync(unsigned mask, int p) { return __nvvm_vote_ballot_sync(mask, p); }
REF int __any_sync(unsigned mask, int p) { return __nvvm_vote_any_sync(mask, p); }
REF int __all_sync(unsigned mask, int p) { return __nvvm_vote_all_sync(mask, p); }
REF unsigned __match_any_sync(unsigned mask, unsigned a) { return __nvvm_match_any_sync_i32(mask, a); }
REF unsigned __match_any_sync(unsigned mask, unsigned long long a) {
    return (unsigned)__nvvm_match_any_sync_i64(mask, a);
}
REF unsigned __match_all_sync(unsigned mask, unsigned a, int* all) {
    return __nvvm_match_all_sync_i32p(mask, a, all);
}
#define SHUFFLE(name, builtin, clamp)                                                     \
    REF int name(unsigned mask, int v, int b, int w) {                                    \
        return __nvvm_shfl_sync_##builtin##_i32(mask, v, b, (32 - w) << 8 | clamp);       \
    }                                                                                     \
    REF float name(unsigned mask, float v, int b, int w) {                                \
        return __nvvm_shfl_sync_##builtin##_f32(mask, v, b, (32 - w) << 8 | clamp);       \
    }                                                                                     \
    REF unsigned name(unsigned mask, unsigned v, int b, int w) {                          \
        return (unsigned)name(mask, (int)v, b, w);                                        \
    }                                                                                     \
    REF unsigned long long name(unsigned mask, unsigned long long v, int b, int w) {      \
        const unsigned long long low = name(mask, (unsigned)v, b, w),                     \
                                 high = name(mask, (unsigned)(v >> 32), b, w);            \
        return high << 32 | low;                                                          \
    }                                                                                     \
    REF long long name(unsigned mask, long long v, int b, int w) {                        \
        return (long long)name(mask, (unsigned long long)v, b, w);                        \
    }                                                                                     \
    REF double name(unsigned mask, double v, int b, int w) {                              \
        return reinterpret<double>(name(mask, reinterpret<unsigned long long>(v), b, w)); \
    }
SHUFFLE(__shfl_sync, idx, 31)
SHUFFLE(__shfl_up_sync, up, 0)
SHUFFLE(__shfl_down_sync, down, 31)
SHUFFLE(__shfl_xor_sync, bfly, 31)

// --- atomics ---
#define ATOMIC(name, builtin)                    \
    template <class T>                           \
    REF T name(T* at, T a) {                     \
        return builtin(at, a, __ATOMIC_RELAXED); \
    }
ATOMIC(atomicExch, __atomic_exchange_n)
ATOMIC(atomicMin, __atomic_fetch_min)
ATOMIC(atomicMax, __atomic_fetch_max)
ATOMIC(atomicAnd, __atomic_fetch_and)
ATOMIC(atomicOr, __atomic_fetch_or)
ATOMIC(atomicXor, __atomic_fetch_xor)
ATOMIC(atomicSub, __atomic_fetch_sub)
template <class T>
REF T atomicAdd(T* at, T a) {
    return __atomic_fetch_add(at, a, __ATOMIC_RELAXED);
}
REF float atomicExch(float* at, float a) { return __int_as_float(atomicExch((int*)at, __float_as_int(a))); }
REF float atomicAdd(float* at, float a) { return __nvvm_atom_add_gen_f(at, a); }
REF double atomicAdd(double* at, double a) { return __nvvm_atom_add_gen_d(at, a); }
REF unsigned atomicInc(unsigned* at, unsigned a) { return __nvvm_atom_inc_gen_ui(at, a); }
REF unsigned atomicDec(unsigned* at, unsigned a) { return __nvvm_atom_dec_gen_ui(at, a); }
template <class T>
REF T atomicCAS(T* at, T expected, T wanted) {
    __atomic_compare_exchange_n(at, &expected, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

#include "common.h"
#include "device.h"
