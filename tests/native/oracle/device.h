// What common.h does not say for NVRTC (and clang.h): kernels, dynamic shared memory, and halves as PTX has
// them.
#ifdef __CUDACC_RTC__
#define KERNEL extern "C" __global__ void
#define REF static __device__ __forceinline__
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
#endif
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

// Sums over a warp's lanes: an instruction since compute capability 8.0; before it one lane after the other.
#if __CUDA_ARCH__ >= 800
#define REDUCE(name, type, letter, instruction, result)                                                   \
    REF type name(u32 mask, type a) {                                                                     \
        type r;                                                                                           \
        asm volatile("redux.sync." instruction " %0, %1, %2;" : "=" letter(r) : letter(a), letter(mask)); \
        return r;                                                                                         \
    }
#else
#define REDUCE(name, type, letter, instruction, result)          \
    REF type name(u32 mask, type a) {                            \
        bool any = false;                                        \
        type x = 0;                                              \
        for (u32 i = 0; i < 32; ++i)                             \
            if (mask >> i & 1) {                                 \
                const type y = __shfl_sync(mask, a, (int)i, 32); \
                x = any ? (result) : y;                          \
                any = true;                                      \
            }                                                    \
        return x;                                                \
    }
#endif
REDUCE(reduce_add, u32, "r", "add.u32", x + y)
REDUCE(reduce_min, u32, "r", "min.u32", x < y ? x : y)
REDUCE(reduce_max, u32, "r", "max.u32", x > y ? x : y)
REDUCE(reduce_min, i32, "r", "min.s32", x < y ? x : y)
REDUCE(reduce_max, i32, "r", "max.s32", x > y ? x : y)
REDUCE(reduce_and, u32, "r", "and.b32", x& y)
REDUCE(reduce_or, u32, "r", "or.b32", x | y)
REDUCE(reduce_xor, u32, "r", "xor.b32", x ^ y)

#define HALF1(type, name, text)                            \
    REF type name(type a) {                                \
        type r;                                            \
        asm(text " %0, %1;" : "=h"(r.bits) : "h"(a.bits)); \
        return r;                                          \
    }
#define HALF2(type, name, text)                                             \
    REF type name(type a, type b) {                                         \
        type r;                                                             \
        asm(text " %0, %1, %2;" : "=h"(r.bits) : "h"(a.bits), "h"(b.bits)); \
        return r;                                                           \
    }
#define HALF3(type, name, text)                                                              \
    REF type name(type a, type b, type c) {                                                  \
        type r;                                                                              \
        asm(text " %0, %1, %2, %3;" : "=h"(r.bits) : "h"(a.bits), "h"(b.bits), "h"(c.bits)); \
        return r;                                                                            \
    }
#define HALF_TEST(type, name, text)                                            \
    REF bool name(type a, type b) {                                            \
        u32 r;                                                                 \
        asm("{ .reg .pred p; setp." text " p, %1, %2; selp.u32 %0, 1, 0, p; }" \
            : "=r"(r)                                                          \
            : "h"(a.bits), "h"(b.bits));                                       \
        return r != 0;                                                         \
    }
HALF2(f16, add, "add.rn.f16")
HALF2(f16, sub, "sub.rn.f16")
HALF2(f16, mul, "mul.rn.f16")
HALF3(f16, fused, "fma.rn.f16")
REF f16 negative(f16 a) {
    a.bits ^= 0x8000;
    return a;
}
REF f16 absolute(f16 a) {
    a.bits &= 0x7fff;
    return a;
}
HALF_TEST(f16, below, "lt.f16")
HALF_TEST(f16, equal, "eq.f16")
REF float to_float(f16 a) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(a.bits));
    return r;
}
REF f16 to_f16(float a) {
    f16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(a));
    return r;
}
REF f16 to_f16(int a) {
    f16 r;
    asm("cvt.rn.f16.s32 %0, %1;" : "=h"(r.bits) : "r"(a));
    return r;
}
REF int to_int(f16 a) {
    int r;
    asm("cvt.rzi.s32.f16 %0, %1;" : "=r"(r) : "h"(a.bits));
    return r;
}
#if __CUDA_ARCH__ >= 800
HALF2(f16, min_of, "min.f16")
HALF2(f16, max_of, "max.f16")
HALF2(bf16, min_of, "min.bf16")
HALF2(bf16, max_of, "max.bf16")
HALF3(bf16, fused, "fma.rn.bf16")
REF bf16 to_bf16(float a) {
    bf16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(a));
    return r;
}
#else
REF f16 min_of(f16 a, f16 b) { return to_f16(min_of(to_float(a), to_float(b))); }
REF f16 max_of(f16 a, f16 b) { return to_f16(max_of(to_float(a), to_float(b))); }
REF bf16 to_bf16(float a) {
    const u32 w = (u32)__float_as_int(a);
    bf16 r;
    r.bits = a != a ? 0x7fff : (u16)((w + 0x7fff + (w >> 16 & 1)) >> 16);
    return r;
}
#endif
REF float to_float(bf16 a) { return __int_as_float((int)((u32)a.bits << 16)); }
#if __CUDA_ARCH__ < 800
REF bf16 min_of(bf16 a, bf16 b) { return to_bf16(min_of(to_float(a), to_float(b))); }
REF bf16 max_of(bf16 a, bf16 b) { return to_bf16(max_of(to_float(a), to_float(b))); }
REF bf16 fused(bf16 a, bf16 b,
               bf16 c) {  // the sum is cut off towards zero, and its last bit says so: rounded once
    const double p = (double)to_float(a) * to_float(b), q = to_float(c), sum = __dadd_rz(p, q);
    const double odd = __longlong_as_double(__double_as_longlong(sum) |
                                            (sum == __dadd_ru(p, q) && sum == __dadd_rd(p, q) ? 0 : 1));
    const float low = __double2float_rz(odd);
    return sum - sum != 0 ? to_bf16((float)sum)
                          : to_bf16(__int_as_float(__float_as_int(low) | ((double)low != odd)));
}
#endif
#if __CUDA_ARCH__ >= 900
HALF2(bf16, add, "add.rn.bf16")
HALF2(bf16, sub, "sub.rn.bf16")
HALF2(bf16, mul, "mul.rn.bf16")
HALF_TEST(bf16, below, "lt.bf16")
HALF_TEST(bf16, equal, "eq.bf16")
#else
REF bf16 add(bf16 a, bf16 b) { return to_bf16(to_float(a) + to_float(b)); }
REF bf16 sub(bf16 a, bf16 b) { return to_bf16(to_float(a) - to_float(b)); }
REF bf16 mul(bf16 a, bf16 b) { return to_bf16(to_float(a) * to_float(b)); }
REF bool below(bf16 a, bf16 b) { return to_float(a) < to_float(b); }
REF bool equal(bf16 a, bf16 b) { return to_float(a) == to_float(b); }
#endif
REF bf16 negative(bf16 a) {
    a.bits ^= 0x8000;
    return a;
}
REF bf16 absolute(bf16 a) {
    a.bits &= 0x7fff;
    return a;
}
