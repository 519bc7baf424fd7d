// What generated kernels call, in every compiler's own words: arithmetic that is defined for all operands
// (signed sums wrap, nothing divides by zero), and bits of floating-point numbers in which all NaNs are one.
// Every path compiles this text.

using u8 = unsigned char;
using i8 = signed char;
using u16 = unsigned short;
using i16 = short;
using u32 = unsigned int;
using i32 = int;
using u64 = unsigned long long;
using i64 = long long;
using f32 = float;
using f64 = double;
using i128 = __int128;

#define FN static __device__ __forceinline__

// Width: an unsigned type in which the arithmetic of T is done, so that no promotion to int overflows.
template <class T>
struct Width {
    using type = u32;
};
template <>
struct Width<u64> {
    using type = u64;
};
template <>
struct Width<i64> {
    using type = u64;
};
template <class T>
using W = typename Width<T>::type;
template <class T>
constexpr u32 bits_of = 8 * sizeof(T);
template <class T>
constexpr bool is_signed = (T)-1 < (T)0;

template <class T>
FN T add(T a, T b) {
    return (T)((W<T>)a + (W<T>)b);
}
template <class T>
FN T sub(T a, T b) {
    return (T)((W<T>)a - (W<T>)b);
}
template <class T>
FN T mul(T a, T b) {
    return (T)((W<T>)a * (W<T>)b);
}
template <class T>
FN T mad(T a, T b, T c) {
    return (T)((W<T>)a * (W<T>)b + (W<T>)c);
}
template <class T>
FN T neg(T a) {
    return (T)(0 - (W<T>)a);
}
template <class T>
FN T shl(T a, u32 n) {
    return (T)((W<T>)a << (n & (bits_of<T> - 1)));
}
template <class T>
FN T shr(T a, u32 n) {
    return (T)(a >> (n & (bits_of<T> - 1)));
}
// As PTX shifts: by any distance.
template <class T>
FN T shl_far(T a, u32 n) {
    return n < bits_of<T> ? (T)((W<T>)a << n) : (T)0;
}
template <class T>
FN T shr_far(T a, u32 n) {
    return n < bits_of<T> ? (T)(a >> n) : a < 0 ? (T)-1 : (T)0;
}
template <class T>
FN T rotate(T a, u32 n) {
    n &= bits_of<T> - 1;
    return (T)(a << n | a >> ((0 - n) & (bits_of<T> - 1)));
}
template <class T>
FN bool divides(T a, T b) {
    return b != 0 && !(is_signed<T> && b == (T)-1);
}
template <class T>
FN T quotient(T a, T b) {
    return divides(a, b) ? (T)(a / b) : neg(a);
}
template <class T>
FN T remainder_of(T a, T b) {
    return divides(a, b) ? (T)(a % b) : a;
}
template <class T>
FN T smaller(T a, T b) {
    return a < b ? a : b;
}
template <class T>
FN T larger(T a, T b) {
    return a > b ? a : b;
}
template <class T>
FN T magnitude(T a) {
    return a < 0 ? neg(a) : a;
}
template <class T>
FN T field(T a, u32 at, u32 count) {
    return (T)((a >> (at & (bits_of<T> - 1))) & (T)((1u << (count & 7)) - 1));
}
FN i128 wide(u64 high, u64 low) { return (i128)((unsigned __int128)high << 64 | low); }
FN i128 wide_sum(i128 a, i128 b) { return (i128)((unsigned __int128)a + (unsigned __int128)b); }
FN i128 wide_difference(i128 a, i128 b) { return (i128)((unsigned __int128)a - (unsigned __int128)b); }
FN i128 wide_product(i128 a, i128 b) { return (i128)((unsigned __int128)a * (unsigned __int128)b); }
FN i128 wide_shift(i128 a, u32 n) { return (i128)((unsigned __int128)a << (n & 127)); }

// Halves and bfloat16: their bits; arithmetic is each path's own.
struct f16 {
    u16 bits;
};
struct bf16 {
    u16 bits;
};

// All NaNs are the GPU's one: a processor's has other bits, and another sign.
FN f32 one_nan(f32 a) { return a != a ? __int_as_float(0x7fffffff) : a; }
FN f64 one_nan(f64 a) { return a != a ? __longlong_as_double(0x7ff8000000000000ll) : a; }
template <class T>
FN T one_nan(T a) {
    return a;
}
FN u64 bits(f32 a) { return (u32)__float_as_int(one_nan(a)); }
FN u64 bits(f64 a) { return (u64)__double_as_longlong(one_nan(a)); }
FN u64 bits(f16 a) { return (a.bits & 0x7fff) > 0x7c00 ? 0x7fff : a.bits; }
FN u64 bits(bf16 a) { return (a.bits & 0x7fff) > 0x7f80 ? 0x7fff : a.bits; }
FN u64 bits(i128 a) { return (u64)a ^ (u64)(a >> 64) * 3; }
template <class T>
FN u64 bits(T a) {
    return (u64)a;
}
template <class T>
FN void fold(u64& sum, T a) {
    sum = (sum ^ bits(a)) * 0x9e3779b97f4a7c15ull + (sum >> 29);
}

// A plain conversion to an integer, which C++ defines for what fits only.
template <class T, class F>
FN T whole(F a) {
    constexpr F bound = (F)((u64)1 << (bits_of<T> - 2));
    return a > (is_signed<T> ? -bound : (F)0) && a < bound ? (T)a : (T)7;
}

// Shuffles in which a lane outside the mask is not read: its value is undefined.
FN u32 lane_of_warp(u32 thread) { return thread & 31; }
template <class T>
FN T shuffled(u32 mask, T value, u32 lane, u32 from, u32 width) {
    const T got = __shfl_sync(mask, value, (int)from, (int)width);
    const u32 source = (lane & ~(width - 1)) | (from & (width - 1));
    return mask >> source & 1 ? got : value;
}
template <class T>
FN T shuffled_up(u32 mask, T value, u32 lane, u32 delta, u32 width) {
    const T got = __shfl_up_sync(mask, value, delta, (int)width);
    const u32 source = (lane & (width - 1)) >= delta ? lane - delta : lane;
    return mask >> source & 1 ? got : value;
}
template <class T>
FN T shuffled_down(u32 mask, T value, u32 lane, u32 delta, u32 width) {
    const T got = __shfl_down_sync(mask, value, delta, (int)width);
    const u32 source = (lane & (width - 1)) + delta < width ? lane + delta : lane;
    return mask >> source & 1 ? got : value;
}
template <class T>
FN T shuffled_xor(u32 mask, T value, u32 lane, u32 other, u32 width) {
    const T got = __shfl_xor_sync(mask, value, (int)other, (int)width);
    const u32 source = (lane ^ other) <= (lane | (width - 1)) ? lane ^ other : lane;
    return mask >> source & 1 ? got : value;
}
FN u32 match_all(u32 mask, u32 value) {
    int all = 0;
    const u32 same = __match_all_sync(mask, value, &all);
    return same * 2 + (all != 0);
}

// What kernels read: numbers of every kind, some of them special; its size is 4 KiB.
struct Input {
    u32 words[256];
    f32 floats[256];
    f64 doubles[256];
};
// A thread's own 64 bytes of global memory.
struct alignas(16) Own {
    u8 bytes[64];
};
struct alignas(16) Quad {
    i32 x, y, z, w;
};
struct alignas(8) Pair {
    f32 x, y;
};
struct alignas(8) Four16 {
    u16 x, y, z, w;
};
struct alignas(4) Four8 {
    i8 x, y, z, w;
};
struct alignas(16) Pair64 {
    u64 x, y;
};
struct Mixed {
    u8 a;
    i16 b;
    f32 c;
    u64 d;
    i8 e[5];
};
struct Fields {
    u32 a : 5;
    i32 b : 11;
    u64 c : 33;
    i64 d : 20;
    u8 e : 3;
};
struct __attribute__((packed)) Packed {
    u8 a;
    u32 b;
    u16 c;
    u64 d;
    i8 e;
};
