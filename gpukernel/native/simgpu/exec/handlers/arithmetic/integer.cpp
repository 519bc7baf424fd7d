// Integer arithmetic, logic and shifts (PTX ISA 9.7.1, 9.7.2, 9.7.8).
#include "simgpu/exec/handlers/lanes.h"
#include "simgpu/exec/handlers/tables.h"

namespace gpukernel::simgpu {
namespace {

template <class T>
constexpr int bits = sizeof(T) * 8;

template <class T, class W>
T high(T a, T b) {
    return static_cast<T>((static_cast<W>(a) * static_cast<W>(b)) >> bits<T>);
}
inline u64 high_u64(u64 a, u64 b) { return static_cast<u64>((static_cast<unsigned __int128>(a) * b) >> 64); }
inline s64 high_s64(s64 a, s64 b) { return static_cast<s64>((static_cast<__int128>(a) * b) >> 64); }

// 32-bit quotients are exact in double: they are at least 2^-32 away from the next integer, relatively.
inline u32 div_u32(u32 a, u32 b) {
    return b ? static_cast<u32>(static_cast<s64>(static_cast<f64>(a) / static_cast<f64>(b ? b : 1))) : ~0u;
}
inline s32 div_s32(s32 a, s32 b) {
    return b ? static_cast<s32>(static_cast<s64>(static_cast<f64>(a) / static_cast<f64>(b ? b : 1))) : -1;
}
inline u64 div_u64(u64 a, u64 b) { return b ? ((a | b) >> 32 ? a / b : u64(u32(a) / u32(b))) : ~0ull; }
inline s64 div_s64(s64 a, s64 b) {
    return !b ? -1 : b == -1 ? static_cast<s64>(0 - static_cast<u64>(a)) : a / b;
}
template <class T>
T div16(T a, T b) {
    return b ? static_cast<T>(a / b) : static_cast<T>(-1);
}

template <class T>
T shl(T a, u32 n) {
    return n >= u32(bits<T>) ? T(0) : static_cast<T>(a << n);
}
template <class T>
T shr(T a, u32 n) {
    if constexpr (T(-1) < T(0)) return static_cast<T>(a >> (n >= u32(bits<T>) ? bits<T> - 1 : n));
    return n >= u32(bits<T>) ? T(0) : static_cast<T>(a >> n);
}
template <class T, class U>
T bfe(T a, u32 pos, u32 len) {
    pos &= 255, len &= 255;
    constexpr u32 top = bits<T> - 1;
    if (len == 0) return 0;
    u32 end = pos + len - 1;
    bool sign = T(-1) < T(0) && (static_cast<U>(a) >> (end < top ? end : top) & 1);
    U field = pos > top ? 0 : static_cast<U>(a) >> pos;
    u32 kept = pos > top ? 0 : (len < bits<T> - pos ? len : bits<T> - pos);
    U mask = kept >= u32(bits<T>) ? ~U(0) : (U(1) << kept) - 1;
    return static_cast<T>((field & mask) | (sign ? ~mask : U(0)));
}
template <class U>
U bfi(U a, U b, u32 pos, u32 len) {
    pos &= 255, len &= 255;
    if (pos >= u32(bits<U>) || len == 0) return b;
    U mask = len >= u32(bits<U>) ? ~U(0) : (U(1) << len) - 1;
    mask <<= pos;
    return (b & ~mask) | ((a << pos) & mask);
}
template <class T, class U>
u32 bfind(T a, bool amount) {
    U v = static_cast<U>(a);
    if (T(-1) < T(0) && a < 0) v = ~v;
    if (!v) return ~0u;
    u32 at = bits<U> - 1 - std::countl_zero(v);
    return amount ? bits<U> - 1 - at : at;
}
inline u32 brev32(u32 v) {
    v = (v >> 1 & 0x55555555) | (v & 0x55555555) << 1;
    v = (v >> 2 & 0x33333333) | (v & 0x33333333) << 2;
    v = (v >> 4 & 0x0f0f0f0f) | (v & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(v);
}
inline u64 brev64(u64 v) { return u64(brev32(u32(v))) << 32 | brev32(u32(v >> 32)); }

inline u32 prmt(u32 a, u32 b, u32 c) {
    u64 bytes = u64(b) << 32 | a;
    u32 r = 0;
    for (int n = 0; n < 4; ++n) {
        u32 sel = c >> (4 * n) & 15;
        u32 byte = static_cast<u32>(bytes >> ((sel & 7) * 8)) & 255;
        if (sel & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << (8 * n);
    }
    return r;
}
template <int Mode>
u32 prmt_mode(u32 a, u32 b, u32 c) {
    c &= 3;
    constexpr u32 tables[6][4] = {{0x3210, 0x4321, 0x5432, 0x6543}, {0x3210, 0x2107, 0x1076, 0x0765},
                                  {0x0000, 0x1111, 0x2222, 0x3333}, {0x3210, 0x3211, 0x3222, 0x3333},
                                  {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232}};
    return prmt(a, b, tables[Mode][c]);
}
void lop3(Warp& w, const Op& op) {
    const u32 *a = in<u32>(w, op.a), *b = in<u32>(w, op.b), *c = in<u32>(w, op.c);
    u32* d = out<u32>(w, op.dst);
    u32 m[8];
    for (int n = 0; n < 8; ++n) m[n] = op.imm >> n & 1 ? ~0u : 0;
    alignas(64) u32 t[kLanes];
    LANES t[i] = (~a[i] & ~b[i] & ~c[i] & m[0]) | (~a[i] & ~b[i] & c[i] & m[1]) |
                 (~a[i] & b[i] & ~c[i] & m[2]) | (~a[i] & b[i] & c[i] & m[3]) |
                 (a[i] & ~b[i] & ~c[i] & m[4]) | (a[i] & ~b[i] & c[i] & m[5]) | (a[i] & b[i] & ~c[i] & m[6]) |
                 (a[i] & b[i] & c[i] & m[7]);
    blend(d, t, w.exec);
}
template <class U>
void bfi_op(Warp& w, const Op& op) {
    const U *a = in<U>(w, op.a), *b = in<U>(w, op.b);
    const u32 *pos = in<u32>(w, op.c), *len = in<u32>(w, op.extra);
    alignas(64) U t[kLanes];
    LANES t[i] = bfi<U>(a[i], b[i], pos[i], len[i]);
    blend(out<U>(w, op.dst), t, w.exec);
}
template <class A, class B>
s32 dp4(u32 a, u32 b, s32 c) {
    for (int n = 0; n < 4; ++n)
        c += static_cast<s32>(static_cast<A>(a >> 8 * n)) * static_cast<s32>(static_cast<B>(b >> 8 * n));
    return c;
}
template <class A, class B, bool Hi>
s32 dp2(u32 a, u32 b, s32 c) {
    for (int n = 0; n < 2; ++n)
        c += static_cast<s32>(static_cast<A>(a >> 16 * n)) *
             static_cast<s32>(static_cast<B>(b >> (8 * n + (Hi ? 16 : 0))));
    return c;
}
template <class T>
u32 fields(u32 a, u32 b, T f) {  // two halves of 16 bits
    return u32(u16(f(a & 0xffff, b & 0xffff))) | u32(u16(f(a >> 16, b >> 16))) << 16;
}
// The n-th set bit from `base` on, upwards or downwards (9.7.1.16).
inline u32 nth_set(u32 mask, u32 base, s32 offset) {
    if (offset == 0) return base < 32 && (mask >> base & 1) ? base : ~0u;
    s64 left = offset < 0 ? -s64(offset) : offset, at = base;
    for (s32 step = offset < 0 ? -1 : 1; at >= 0 && at < 32; at += step)
        if ((mask >> at & 1) && --left == 0) return static_cast<u32>(at);
    return ~0u;
}
template <bool Clamp, bool Signed>
u32 extend(u32 a, u32 width) {  // szext
    bool whole = Clamp && width >= 32;
    width &= 31;
    u32 above = whole ? 0 : ~0u << width;
    bool sign = Signed && width && !whole && (a >> (width - 1) & 1);
    return (a & ~above) | (sign ? above : 0);
}
inline s32 clamp32(s64 r) {
    return static_cast<s32>(r > 2147483647 ? 2147483647 : r < -2147483648LL ? -2147483648LL : r);
}
inline s32 high24(s32 a, s32 b) { return s32(s64(a << 8 >> 8) * s64(b << 8 >> 8) >> 16); }
inline u32 high24(u32 a, u32 b) { return u32(u64(a & 0xffffff) * (b & 0xffffff) >> 16); }

template <class T>
T sat_add(T a, T b) {
    s64 r = s64(a) + b;
    return static_cast<T>(r > 2147483647 ? 2147483647 : r < -2147483648LL ? -2147483648LL : r);
}
template <class T>
T sat_sub(T a, T b) {
    s64 r = s64(a) - b;
    return static_cast<T>(r > 2147483647 ? 2147483647 : r < -2147483648LL ? -2147483648LL : r);
}

// Carry chains keep one flag per lane beside the registers: slot `extra`, a predicate.  It is the adder's own
// carry: a subtraction adds the complement, so that no borrow sets it, as on every GPU (what follows sub.cc
// by addc, or add.cc by subc, can tell).
template <class T, bool In, bool Out, bool Sub>
void carry(Warp& w, const Op& op) {
    const T *a = in<T>(w, op.a), *b = in<T>(w, op.b);
    u32 cc = in_pred(w, op.extra), next = 0;
    alignas(64) T t[kLanes];
    for (int i = 0; i < kLanes; ++i) {
        unsigned __int128 r;
        const T second = Sub ? static_cast<T>(~b[i]) : b[i];
        r = static_cast<unsigned __int128>(a[i]) + second + (In ? cc >> i & 1 : Sub ? 1 : 0);
        t[i] = static_cast<T>(r);
        next |= static_cast<u32>(r >> bits<T> & 1) << i;
    }
    blend(out<T>(w, op.dst), t, w.exec);
    if (Out) out_pred(w, op.extra, next);
}
template <class S, bool Hi, bool In, bool Out>
void carry_mad(Warp& w, const Op& op) {
    using T = std::make_unsigned_t<S>;
    using Wide = std::conditional_t<std::is_signed_v<S>, __int128, unsigned __int128>;
    const S *a = in<S>(w, op.a), *b = in<S>(w, op.b);
    const T* c = in<T>(w, op.c);
    u32 cc = in_pred(w, op.extra), next = 0;
    alignas(64) T t[kLanes];
    for (int i = 0; i < kLanes; ++i) {
        Wide p = static_cast<Wide>(a[i]) * b[i];
        T part = static_cast<T>(Hi ? p >> bits<T> : p);
        unsigned __int128 r = static_cast<unsigned __int128>(part) + c[i] + (In ? cc >> i & 1 : 0);
        t[i] = static_cast<T>(r);
        next |= static_cast<u32>(r >> bits<T> & 1) << i;
    }
    blend(out<T>(w, op.dst), t, w.exec);
    if (Out) out_pred(w, op.extra, next);
}
template <class F>
void pred_op(Warp& w, const Op& op, F f) {
    u32 a = in_pred(w, op.a), b = in_pred(w, op.b);
    if (op.sub & 1) a = ~a;
    if (op.sub & 2) b = ~b;
    out_pred(w, op.dst, f(a, b));
}
template <class T>
void selp(Warp& w, const Op& op) {
    const T *a = in<T>(w, op.a), *b = in<T>(w, op.b);
    u32 p = in_pred(w, op.c);
    if (op.sub & 1) p = ~p;
    T* d = out<T>(w, op.dst);
    alignas(64) T t[kLanes];
    LANES t[i] = (p >> i & 1) ? a[i] : b[i];
    if (w.exec == kFull) {
        LANES d[i] = t[i];
    } else
        blend(d, t, w.exec);
}
template <class T>
void set_to(Warp& w, const Op& op) {  // a predicate as 0 or all ones / 1.0
    u32 p = in_pred(w, op.a);
    T yes = static_cast<T>(op.imm);
    if constexpr (sizeof(T) == 4) yes = static_cast<T>(op.imm);
    alignas(64) T t[kLanes];
    LANES t[i] = (p >> i & 1) ? yes : T(0);
    blend(out<T>(w, op.dst), t, w.exec);
}

#define UN(name, D, A, expr) {name, un<D, A, [](A a) -> D { return (expr); }>, true}
#define BIN(name, D, A, B, expr) {name, bin<D, A, B, [](A a, B b) -> D { return (expr); }>, true}
#define TRI(name, D, A, B, C, expr) {name, tri<D, A, B, C, [](A a, B b, C c) -> D { return (expr); }>, true}
#define PRED(name, expr)                   \
    {name, [](Warp& w, const Op& op) {     \
         pred_op(w, op, [](u32 a, u32 b) { \
             (void)b;                      \
             return (expr);                \
         });                               \
     }}
#define ALL_SIZES(n, U)                                                                               \
    BIN("add.b" n, U, U, U, static_cast<U>(a + b)), BIN("sub.b" n, U, U, U, static_cast<U>(a - b)),   \
        BIN("mul.lo.b" n, U, U, U, static_cast<U>(u64(a) * b)),                                       \
        TRI("mad.lo.b" n, U, U, U, U, static_cast<U>(u64(a) * b + c)), BIN("and.b" n, U, U, U, a& b), \
        BIN("or.b" n, U, U, U, a | b), BIN("xor.b" n, U, U, U, a ^ b),                                \
        UN("not.b" n, U, U, static_cast<U>(~a)), UN("cnot.b" n, U, U, U(a == 0)),                     \
        BIN("shl.b" n, U, U, u32, shl<U>(a, b)), BIN("shr.b" n, U, U, u32, shr<U>(a, b)),             \
        UN("neg.b" n, U, U, static_cast<U>(0 - a)), UN("mov.b" n, U, U, a), {"selp.b" n, selp<U>},    \
        TRI("slct.s32.b" n, U, U, U, s32, c >= 0 ? a : b),                                            \
        TRI("slct.f32.b" n, U, U, U, f32, c >= 0 ? a : b), {                                          \
        "set.b" n, set_to<U>                                                                          \
    }
#define SIGNED(k, T, U)                                                           \
    BIN("min." k, T, T, T, a < b ? a : b), BIN("max." k, T, T, T, a > b ? a : b), \
        BIN("shr." k, T, T, u32, shr<T>(a, b)),                                   \
        TRI("sad." k, U, T, T, U, static_cast<U>(c + static_cast<U>(a < b ? U(b) - U(a) : U(a) - U(b))))

const HandlerEntry entries[] = {
    ALL_SIZES("16", u16),
    ALL_SIZES("32", u32),
    ALL_SIZES("64", u64),
    SIGNED("u16", u16, u16),
    SIGNED("s16", s16, u16),
    SIGNED("u32", u32, u32),
    SIGNED("s32", s32, u32),
    SIGNED("u64", u64, u64),
    SIGNED("s64", s64, u64),
    BIN("mul.hi.u16", u16, u16, u16, (high<u16, u32>(a, b))),
    BIN("mul.hi.s16", s16, s16, s16, (high<s16, s32>(a, b))),
    BIN("mul.hi.u32", u32, u32, u32, (high<u32, u64>(a, b))),
    BIN("mul.hi.s32", s32, s32, s32, (high<s32, s64>(a, b))),
    BIN("mul.hi.u64", u64, u64, u64, high_u64(a, b)),
    BIN("mul.hi.s64", s64, s64, s64, high_s64(a, b)),
    BIN("mul.wide.u16", u32, u16, u16, u32(a) * b),
    BIN("mul.wide.s16", s32, s16, s16, s32(a) * b),
    BIN("mul.wide.u32", u64, u32, u32, u64(a) * b),
    BIN("mul.wide.s32", s64, s32, s32, s64(a) * b),
    TRI("mad.hi.u16", u16, u16, u16, u16, static_cast<u16>(high<u16, u32>(a, b) + c)),
    TRI("mad.hi.s16", u16, s16, s16, u16, static_cast<u16>(high<s16, s32>(a, b) + c)),
    TRI("mad.hi.sat.s32", s32, s32, s32, s32, clamp32(s64(high<s32, s64>(a, b)) + c)),
    TRI("mad.hi.u32", u32, u32, u32, u32, (high<u32, u64>(a, b)) + c),
    TRI("mad.hi.s32", u32, s32, s32, u32, u32(high<s32, s64>(a, b)) + c),
    TRI("mad.hi.u64", u64, u64, u64, u64, high_u64(a, b) + c),
    TRI("mad.hi.s64", u64, s64, s64, u64, u64(high_s64(a, b)) + c),
    TRI("mad.wide.u16", u32, u16, u16, u32, u32(a) * b + c),
    TRI("mad.wide.s16", u32, s16, s16, u32, u32(s32(a) * b) + c),
    TRI("mad.wide.u32", u64, u32, u32, u64, u64(a) * b + c),
    TRI("mad.wide.s32", u64, s32, s32, u64, u64(s64(a) * b) + c),
    BIN("mul24.lo.u32", u32, u32, u32, (a & 0xffffff) * (b & 0xffffff)),
    BIN("mul24.lo.s32", u32, s32, s32, u32(a << 8 >> 8) * u32(b << 8 >> 8)),
    TRI("mad24.lo.u32", u32, u32, u32, u32, (a & 0xffffff) * (b & 0xffffff) + c),
    TRI("mad24.lo.s32", u32, s32, s32, u32, u32(a << 8 >> 8) * u32(b << 8 >> 8) + c),
    BIN("mul24.hi.u32", u32, u32, u32, high24(a, b)),
    BIN("mul24.hi.s32", s32, s32, s32, high24(a, b)),
    TRI("mad24.hi.u32", u32, u32, u32, u32, high24(a, b) + c),
    TRI("mad24.hi.s32", u32, s32, s32, u32, u32(high24(a, b)) + c),
    TRI("mad24.hi.sat.s32", s32, s32, s32, s32, clamp32(s64(high24(a, b)) + c)),
    UN("relu.s32", s32, s32, a > 0 ? a : 0),
    UN("relu.s16x2", u32, u32, fields(a, 0, [](u32 x, u32) { return s16(x) > 0 ? x : 0; })),
    BIN("add.u16x2", u32, u32, u32, fields(a, b, [](u32 x, u32 y) { return x + y; })),
    BIN("add.s16x2", u32, u32, u32, fields(a, b, [](u32 x, u32 y) { return x + y; })),
    BIN("min.u16x2", u32, u32, u32, fields(a, b, [](u32 x, u32 y) { return x < y ? x : y; })),
    BIN("max.u16x2", u32, u32, u32, fields(a, b, [](u32 x, u32 y) { return x > y ? x : y; })),
    BIN("min.s16x2", u32, u32, u32, fields(a, b, [](u32 x, u32 y) { return s16(x) < s16(y) ? x : y; })),
    BIN("max.s16x2", u32, u32, u32, fields(a, b, [](u32 x, u32 y) { return s16(x) > s16(y) ? x : y; })),
    TRI("fns.b32", u32, u32, u32, s32, nth_set(a, b, c)),
    BIN("szext.clamp.u32", u32, u32, u32, (extend<true, false>(a, b))),
    BIN("szext.clamp.s32", u32, u32, u32, (extend<true, true>(a, b))),
    BIN("szext.wrap.u32", u32, u32, u32, (extend<false, false>(a, b))),
    BIN("szext.wrap.s32", u32, u32, u32, (extend<false, true>(a, b))),
    BIN("div.u16", u16, u16, u16, div16(a, b)),
    BIN("div.s16", s16, s16, s16, div16(a, b)),
    BIN("div.u32", u32, u32, u32, div_u32(a, b)),
    BIN("div.s32", s32, s32, s32, div_s32(a, b)),
    BIN("div.u64", u64, u64, u64, div_u64(a, b)),
    BIN("div.s64", s64, s64, s64, div_s64(a, b)),
    BIN("rem.u16", u16, u16, u16, b ? static_cast<u16>(a % b) : u16(-1)),
    BIN("rem.s16", s16, s16, s16, b ? static_cast<s16>(a % b) : s16(-1)),
    BIN("rem.u32", u32, u32, u32, b ? a - div_u32(a, b) * b : u32(-1)),
    BIN("rem.s32", s32, s32, s32, b ? s32(u32(a) - u32(div_s32(a, b)) * u32(b)) : -1),
    BIN("rem.u64", u64, u64, u64, b ? a - div_u64(a, b) * b : u64(-1)),
    BIN("rem.s64", s64, s64, s64, b ? s64(u64(a) - u64(div_s64(a, b)) * u64(b)) : -1),
    UN("abs.s16", s16, s16, static_cast<s16>(a < 0 ? -a : a)),
    UN("abs.s32", s32, s32, s32(a < 0 ? 0 - u32(a) : u32(a))),
    UN("abs.s64", s64, s64, s64(a < 0 ? 0 - u64(a) : u64(a))),
    BIN("add.sat.s32", s32, s32, s32, sat_add(a, b)),
    BIN("sub.sat.s32", s32, s32, s32, sat_sub(a, b)),
    UN("popc.b32", u32, u32, u32(std::popcount(a))),
    UN("popc.b64", u32, u64, u32(std::popcount(a))),
    UN("clz.b32", u32, u32, u32(std::countl_zero(a))),
    UN("clz.b64", u32, u64, u32(std::countl_zero(a))),
    UN("brev.b32", u32, u32, brev32(a)),
    UN("brev.b64", u64, u64, brev64(a)),
    UN("bfind.u32", u32, u32, (bfind<u32, u32>(a, false))),
    UN("bfind.s32", u32, s32, (bfind<s32, u32>(a, false))),
    UN("bfind.u64", u32, u64, (bfind<u64, u64>(a, false))),
    UN("bfind.s64", u32, s64, (bfind<s64, u64>(a, false))),
    UN("bfind.shiftamt.u32", u32, u32, (bfind<u32, u32>(a, true))),
    UN("bfind.shiftamt.s32", u32, s32, (bfind<s32, u32>(a, true))),
    UN("bfind.shiftamt.u64", u32, u64, (bfind<u64, u64>(a, true))),
    UN("bfind.shiftamt.s64", u32, s64, (bfind<s64, u64>(a, true))),
    TRI("bfe.u32", u32, u32, u32, u32, (bfe<u32, u32>(a, b, c))),
    TRI("bfe.s32", s32, s32, u32, u32, (bfe<s32, u32>(a, b, c))),
    TRI("bfe.u64", u64, u64, u32, u32, (bfe<u64, u64>(a, b, c))),
    TRI("bfe.s64", s64, s64, u32, u32, (bfe<s64, u64>(a, b, c))),
    {"bfi.b32", bfi_op<u32>},
    {"bfi.b64", bfi_op<u64>},
    BIN("bmsk.clamp.b32", u32, u32, u32, bfi<u32>(~0u, 0, a > 255 ? 255 : a, b > 255 ? 255 : b)),
    BIN("bmsk.wrap.b32", u32, u32, u32, bfi<u32>(~0u, 0, a & 31, b & 31)),
    TRI("prmt.b32", u32, u32, u32, u32, prmt(a, b, c)),
    TRI("prmt.b32.f4e", u32, u32, u32, u32, prmt_mode<0>(a, b, c)),
    TRI("prmt.b32.b4e", u32, u32, u32, u32, prmt_mode<1>(a, b, c)),
    TRI("prmt.b32.rc8", u32, u32, u32, u32, prmt_mode<2>(a, b, c)),
    TRI("prmt.b32.ecl", u32, u32, u32, u32, prmt_mode<3>(a, b, c)),
    TRI("prmt.b32.ecr", u32, u32, u32, u32, prmt_mode<4>(a, b, c)),
    TRI("prmt.b32.rc16", u32, u32, u32, u32, prmt_mode<5>(a, b, c)),
    TRI("shf.l.clamp.b32", u32, u32, u32, u32,
        c >= 32 ? a
        : c     ? b << c | a >> (32 - c)
                : b),
    TRI("shf.r.clamp.b32", u32, u32, u32, u32,
        c >= 32 ? b
        : c     ? b << (32 - c) | a >> c
                : a),
    TRI("shf.l.wrap.b32", u32, u32, u32, u32, static_cast<u32>(((u64(b) << 32 | a) << (c & 31)) >> 32)),
    TRI("shf.r.wrap.b32", u32, u32, u32, u32, static_cast<u32>((u64(b) << 32 | a) >> (c & 31))),
    {"lop3.b32", lop3},
    TRI("dp4a.u32.u32", s32, u32, u32, s32, (dp4<u8, u8>(a, b, c))),
    TRI("dp4a.s32.s32", s32, u32, u32, s32, (dp4<s8, s8>(a, b, c))),
    TRI("dp4a.u32.s32", s32, u32, u32, s32, (dp4<u8, s8>(a, b, c))),
    TRI("dp4a.s32.u32", s32, u32, u32, s32, (dp4<s8, u8>(a, b, c))),
    TRI("dp2a.lo.u32.u32", s32, u32, u32, s32, (dp2<u16, u8, false>(a, b, c))),
    TRI("dp2a.lo.s32.s32", s32, u32, u32, s32, (dp2<s16, s8, false>(a, b, c))),
    TRI("dp2a.hi.u32.u32", s32, u32, u32, s32, (dp2<u16, u8, true>(a, b, c))),
    TRI("dp2a.hi.s32.s32", s32, u32, u32, s32, (dp2<s16, s8, true>(a, b, c))),
    TRI("dp2a.lo.u32.s32", s32, u32, u32, s32, (dp2<u16, s8, false>(a, b, c))),
    TRI("dp2a.lo.s32.u32", s32, u32, u32, s32, (dp2<s16, u8, false>(a, b, c))),
    TRI("dp2a.hi.u32.s32", s32, u32, u32, s32, (dp2<u16, s8, true>(a, b, c))),
    TRI("dp2a.hi.s32.u32", s32, u32, u32, s32, (dp2<s16, u8, true>(a, b, c))),
    {"add.cc.b32", carry<u32, false, true, false>},
    {"addc.b32", carry<u32, true, false, false>},
    {"addc.cc.b32", carry<u32, true, true, false>},
    {"sub.cc.b32", carry<u32, false, true, true>},
    {"subc.b32", carry<u32, true, false, true>},
    {"subc.cc.b32", carry<u32, true, true, true>},
    {"add.cc.b64", carry<u64, false, true, false>},
    {"addc.b64", carry<u64, true, false, false>},
    {"addc.cc.b64", carry<u64, true, true, false>},
    {"sub.cc.b64", carry<u64, false, true, true>},
    {"subc.b64", carry<u64, true, false, true>},
    {"subc.cc.b64", carry<u64, true, true, true>},
    {"mad.lo.cc.b32", carry_mad<u32, false, false, true>},
    {"madc.lo.b32", carry_mad<u32, false, true, false>},
    {"madc.lo.cc.b32", carry_mad<u32, false, true, true>},
    {"mad.hi.cc.u32", carry_mad<u32, true, false, true>},
    {"madc.hi.u32", carry_mad<u32, true, true, false>},
    {"madc.hi.cc.u32", carry_mad<u32, true, true, true>},
    {"mad.hi.cc.s32", carry_mad<s32, true, false, true>},
    {"madc.hi.s32", carry_mad<s32, true, true, false>},
    {"madc.hi.cc.s32", carry_mad<s32, true, true, true>},
    {"mad.hi.cc.s64", carry_mad<s64, true, false, true>},
    {"madc.hi.s64", carry_mad<s64, true, true, false>},
    {"madc.hi.cc.s64", carry_mad<s64, true, true, true>},
    {"mad.lo.cc.b64", carry_mad<u64, false, false, true>},
    {"madc.lo.b64", carry_mad<u64, false, true, false>},
    {"madc.lo.cc.b64", carry_mad<u64, false, true, true>},
    {"mad.hi.cc.u64", carry_mad<u64, true, false, true>},
    {"madc.hi.u64", carry_mad<u64, true, true, false>},
    {"madc.hi.cc.u64", carry_mad<u64, true, true, true>},
    UN("mov.b128", u128, u128, a),
    PRED("and.pred", a& b),
    PRED("or.pred", a | b),
    PRED("xor.pred", a ^ b),
    PRED("not.pred", ~a),
    PRED("mov.pred", a),
};

}  // namespace
HANDLER_TABLE(integer)
}  // namespace gpukernel::simgpu
