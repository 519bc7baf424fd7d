// CUDA's intrinsics in plain C++, from their description in the CUDA C++ Programming Guide and the CUDA Math
// API: what the simulated GPU's answers are compared with.  Written for clearness; nothing here is taken from
// the simulated GPU.
#include <fenv.h>
#include <math.h>
#include <string.h>

#define REF static inline

template <class To, class From>
REF To reinterpret(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
REF int __float_as_int(float a) { return reinterpret<int>(a); }
REF float __int_as_float(int a) { return reinterpret<float>(a); }
REF unsigned __float_as_uint(float a) { return reinterpret<unsigned>(a); }
REF float __uint_as_float(unsigned a) { return reinterpret<float>(a); }
REF long long __double_as_longlong(double a) { return reinterpret<long long>(a); }
REF double __longlong_as_double(long long a) { return reinterpret<double>(a); }
REF int __double2hiint(double a) { return (int)(__double_as_longlong(a) >> 32); }
REF int __double2loint(double a) { return (int)__double_as_longlong(a); }
REF double __hiloint2double(int high, int low) {
    return __longlong_as_double((long long)((unsigned long long)(unsigned)high << 32 | (unsigned)low));
}

// --- bits of integers ---
REF int __popcll(unsigned long long a) {
    int n = 0;
    for (; a; a >>= 1) n += a & 1;
    return n;
}
REF int __popc(unsigned a) { return __popcll(a); }
REF int __clzll(long long a) {
    int n = 0;
    for (int i = 63; i >= 0 && !((unsigned long long)a >> i & 1); --i) ++n;
    return n;
}
REF int __clz(int a) { return __clzll((unsigned)a) - 32; }
REF int __ffsll(long long a) {
    for (int i = 0; i < 64; ++i)
        if ((unsigned long long)a >> i & 1) return i + 1;
    return 0;
}
REF int __ffs(int a) { return __ffsll((unsigned)a); }
REF unsigned long long __brevll(unsigned long long a) {
    unsigned long long r = 0;
    for (int i = 0; i < 64; ++i) r |= (a >> i & 1) << (63 - i);
    return r;
}
REF unsigned __brev(unsigned a) { return (unsigned)(__brevll(a) >> 32); }
REF unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    const unsigned long long all = (unsigned long long)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; ++i) r |= (unsigned)(all >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
    return r;
}
REF unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
    return (unsigned)(((unsigned long long)high << 32 | low) << (n & 31) >> 32);
}
REF unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (n & 31));
}
REF unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned n) {
    return n >= 32 ? low : __funnelshift_l(low, high, n);
}
REF unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned n) {
    return n >= 32 ? high : __funnelshift_r(low, high, n);
}
REF int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
REF unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
REF long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
REF unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
REF int __mul24(int a, int b) {
    return (int)((long long)((int)((unsigned)a << 8) >> 8) * ((int)((unsigned)b << 8) >> 8));
}
REF unsigned __umul24(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)(a & 0xffffff) * (b & 0xffffff));
}
REF unsigned __sad(int a, int b, unsigned c) {
    const long long d = (long long)a - b;
    return (unsigned)(d < 0 ? -d : d) + c;
}
REF unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a > b ? a - b : b - a) + c; }
REF int __hadd(int a, int b) { return (int)(((long long)a + b) >> 1); }
REF int __rhadd(int a, int b) { return (int)(((long long)a + b + 1) >> 1); }
REF unsigned __uhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b) >> 1); }
REF unsigned __urhadd(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a + b + 1) >> 1); }
REF int __dp4a(int a, int b, int c) {
    unsigned r = (unsigned)c;
    for (int i = 0; i < 32; i += 8) r += (unsigned)((signed char)(a >> i) * (signed char)(b >> i));
    return (int)r;
}
REF unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 32; i += 8) c += (a >> i & 255) * (b >> i & 255);
    return c;
}
REF int __dp2a_lo(int a, int b, int c) {
    return (int)((unsigned)c + (unsigned)((short)a * (signed char)b) +
                 (unsigned)((short)(a >> 16) * (signed char)(b >> 8)));
}
REF unsigned __dp2a_hi(unsigned a, unsigned b, unsigned c) {
    return c + (a & 0xffff) * (b >> 16 & 255) + (a >> 16) * (b >> 24);
}

// --- numbers in the parts of a word: f takes and gives the parts as int ---
template <int N, bool S, class F>
REF unsigned parts(unsigned a, unsigned b, F f) {
    unsigned r = 0;
    const unsigned mask = N == 8 ? 255 : 65535;
    for (int i = 0; i < 32; i += N) {
        int x = (int)(a >> i & mask), y = (int)(b >> i & mask);
        if (S) x = N == 8 ? (signed char)x : (short)x, y = N == 8 ? (signed char)y : (short)y;
        r |= ((unsigned)f(x, y) & mask) << i;
    }
    return r;
}
REF int held(int a, int low, int high) { return a < low ? low : a > high ? high : a; }
#define PARTS(name, n, s, result)                   \
    REF unsigned name(unsigned a, unsigned b) {     \
        return parts<n, s>(a, b, [](int x, int y) { \
            (void)y;                                \
            return result;                          \
        });                                         \
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
#undef PARTS

// --- floating point with a rounding of its own: by the processor's, in functions that nothing is moved out
// of ---
#define ROUNDED(type, name, parameters, how, value)         \
    __attribute__((noinline)) static type name parameters { \
        fesetround(how);                                    \
        volatile type result = value;                       \
        fesetround(FE_TONEAREST);                           \
        return result;                                      \
    }
#define EACH_ROUNDING(type, name, parameters, value)           \
    ROUNDED(type, name##_rn, parameters, FE_TONEAREST, value)  \
    ROUNDED(type, name##_rz, parameters, FE_TOWARDZERO, value) \
    ROUNDED(type, name##_ru, parameters, FE_UPWARD, value)     \
    ROUNDED(type, name##_rd, parameters, FE_DOWNWARD, value)
EACH_ROUNDING(float, __fadd, (volatile float a, volatile float b), a + b)
EACH_ROUNDING(float, __fsub, (volatile float a, volatile float b), a - b)
EACH_ROUNDING(float, __fmul, (volatile float a, volatile float b), a* b)
EACH_ROUNDING(float, __fdiv, (volatile float a, volatile float b), a / b)
EACH_ROUNDING(float, __fsqrt, (volatile float a), sqrtf(a))
EACH_ROUNDING(float, __frcp, (volatile float a), 1.0f / a)
EACH_ROUNDING(float, __fmaf, (volatile float a, volatile float b, volatile float c), fmaf(a, b, c))
EACH_ROUNDING(double, __dadd, (volatile double a, volatile double b), a + b)
EACH_ROUNDING(double, __dsub, (volatile double a, volatile double b), a - b)
EACH_ROUNDING(double, __dmul, (volatile double a, volatile double b), a* b)
EACH_ROUNDING(double, __ddiv, (volatile double a, volatile double b), a / b)
EACH_ROUNDING(double, __dsqrt, (volatile double a), sqrt(a))
EACH_ROUNDING(double, __drcp, (volatile double a), 1.0 / a)
EACH_ROUNDING(double, __fma, (volatile double a, volatile double b, volatile double c), fma(a, b, c))
EACH_ROUNDING(float, __int2float, (volatile int a), (float)a)
EACH_ROUNDING(float, __uint2float, (volatile unsigned a), (float)a)
EACH_ROUNDING(float, __ll2float, (volatile long long a), (float)a)
EACH_ROUNDING(float, __ull2float, (volatile unsigned long long a), (float)a)
EACH_ROUNDING(double, __ll2double, (volatile long long a), (double)a)
EACH_ROUNDING(double, __ull2double, (volatile unsigned long long a), (double)a)
EACH_ROUNDING(float, __double2float, (volatile double a), (float)a)

// To an integer: rounded, held in its range.  NaN is 0, or the highest bit alone where a double or 64 bits
// have part in it (PTX ISA, "cvt").
template <class T>
REF T integer(double whole, bool nan, bool from_double = false) {
    constexpr int width = 8 * sizeof(T);
    constexpr bool negative = (T)-1 < (T)0;
    const double bound = ldexp(1.0, width - negative);
    if (nan) return width == 64 || from_double ? (T)((unsigned long long)1 << (width - 1)) : (T)0;
    if (whole >= bound) return negative ? (T)(((unsigned long long)1 << (width - 1)) - 1) : (T)-1;
    if (whole < (negative ? -bound : 0.0)) return negative ? (T)((unsigned long long)1 << (width - 1)) : (T)0;
    return (T)whole;
}
#define TO_INTEGER(type, name, from)                                                                  \
    REF type name##_rn(from a) { return integer<type>(nearbyint((double)a), a != a, sizeof a == 8); } \
    REF type name##_rz(from a) { return integer<type>(trunc((double)a), a != a, sizeof a == 8); }     \
    REF type name##_ru(from a) { return integer<type>(ceil((double)a), a != a, sizeof a == 8); }      \
    REF type name##_rd(from a) { return integer<type>(floor((double)a), a != a, sizeof a == 8); }
TO_INTEGER(int, __float2int, float)
TO_INTEGER(unsigned, __float2uint, float)
TO_INTEGER(long long, __float2ll, float)
TO_INTEGER(unsigned long long, __float2ull, float)
TO_INTEGER(int, __double2int, double)
TO_INTEGER(unsigned, __double2uint, double)
TO_INTEGER(long long, __double2ll, double)
TO_INTEGER(unsigned long long, __double2ull, double)

REF float __saturatef(float a) { return a > 0 ? a < 1 ? a : 1 : 0; }
// Of zeros the negative one is the smaller; a NaN gives way to a number.
template <class F>
REF F least(F a, F b) {
    return a != a ? b : b != b ? a : a == b ? (signbit(a) ? a : b) : a < b ? a : b;
}
template <class F>
REF F greatest(F a, F b) {
    return a != a ? b : b != b ? a : a == b ? (signbit(a) ? b : a) : a > b ? a : b;
}
REF float min_of(float a, float b) { return least(a, b); }
REF float max_of(float a, float b) { return greatest(a, b); }
REF double min_of(double a, double b) { return least(a, b); }
REF double max_of(double a, double b) { return greatest(a, b); }

// --- half precision and bfloat16, by their definition: fraction bits, least exponent, greatest exponent ---
template <int FRACTION, int LEAST, int GREATEST>
REF unsigned short rounded_to(double a) {
    const unsigned sign = signbit(a) ? 0x8000 : 0;
    const unsigned infinite = (unsigned)(GREATEST - LEAST + 2) << FRACTION;
    if (a != a) return 0x7fff;
    a = fabs(a);
    int exponent = a == 0 ? LEAST : ilogb(a);
    if (exponent < LEAST) exponent = LEAST;
    const double units =
        nearbyint(ldexp(a, FRACTION - exponent));  // beyond a double's range it stays infinite
    if (!(ldexp(units, exponent - FRACTION) < ldexp(1.0, GREATEST + 1)))
        return (unsigned short)(sign | infinite);
    return (unsigned short)(sign | ((unsigned)(exponent - LEAST) * (1u << FRACTION) + (unsigned)units));
}
template <int FRACTION, int LEAST, int GREATEST>
REF double value_of(unsigned short a) {
    const int exponent = (a & 0x7fff) >> FRACTION, fraction = a & ((1 << FRACTION) - 1);
    double r = exponent == GREATEST - LEAST + 2 ? (fraction ? NAN : INFINITY)
               : exponent == 0 ? ldexp(fraction, LEAST - FRACTION)
                               : ldexp(fraction + (1 << FRACTION), exponent - 1 + LEAST - FRACTION);
    return a & 0x8000 ? -r : r;
}
// A sum that a later rounding to fewer bits does not round twice: the last bit says whether anything was cut
// off.
REF double sum_to_odd(double a, double b) {
    const double sum = a + b, part = sum - a, error = (a - (sum - part)) + (b - part);
    if (error == 0 || error != error || (reinterpret<unsigned long long>(sum) & 1)) return sum;
    return nextafter(sum, error > 0 ? INFINITY : -INFINITY);
}
