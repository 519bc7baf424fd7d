// Comparison and selection (PTX ISA 9.7.6): predicates are one bit per lane.
#include "simgpu/exec/handlers/lanes.h"
#include "simgpu/exec/handlers/tables.h"

namespace gpukernel::simgpu {
namespace {

#define CMP(name, T, expr) {name, compare<T, [](T a, T b) { return (expr); }>}
#define ORDERED(k, T)                                                                        \
    CMP("setp.eq." k, T, a == b), CMP("setp.ne." k, T, a != b), CMP("setp.lt." k, T, a < b), \
        CMP("setp.le." k, T, a <= b), CMP("setp.gt." k, T, a > b), CMP("setp.ge." k, T, a >= b)
#define UNSIGNED(k, T)                                                                      \
    CMP("setp.lo." k, T, a < b), CMP("setp.ls." k, T, a <= b), CMP("setp.hi." k, T, a > b), \
        CMP("setp.hs." k, T, a >= b)
// For numbers, ne is false where either is NaN; the u forms are true there.
#define FLOATING(k, T)                                                                                       \
    CMP("setp.eq." k, T, a == b), CMP("setp.ne." k, T, a<b || a> b), CMP("setp.lt." k, T, a < b),            \
        CMP("setp.le." k, T, a <= b), CMP("setp.gt." k, T, a > b), CMP("setp.ge." k, T, a >= b),             \
        CMP("setp.equ." k, T, !(a < b || a > b)), CMP("setp.neu." k, T, a != b),                             \
        CMP("setp.ltu." k, T, !(a >= b)), CMP("setp.leu." k, T, !(a > b)), CMP("setp.gtu." k, T, !(a <= b)), \
        CMP("setp.geu." k, T, !(a < b)), CMP("setp.num." k, T, a == a && b == b),                            \
        CMP("setp.nan." k, T, a != a || b != b)

struct bf16 {
    u16 bits;
    operator f32() const { return std::bit_cast<f32>(u32(bits) << 16); }
};

template <class T, class U>
void testp(Warp& w, const Op& op) {
    const U* a = in<U>(w, op.a);
    constexpr int mantissa = sizeof(U) == 4 ? 23 : 52;
    constexpr U exponent_mask = sizeof(U) == 4 ? 0xff : 0x7ff;
    u32 m = 0;
    for (int i = 0; i < kLanes; ++i) {
        U e = a[i] >> mantissa & exponent_mask, f = a[i] & ((U(1) << mantissa) - 1);
        bool r = false;
        switch (op.sub) {
            case 0:
                r = e != exponent_mask;
                break;  // finite
            case 1:
                r = e == exponent_mask && !f;
                break;  // infinite
            case 2:
                r = !(e == exponent_mask && f);
                break;  // number
            case 3:
                r = e == exponent_mask && f;
                break;  // notanumber
            case 4:
                r = e && e != exponent_mask;
                break;  // normal
            case 5:
                r = !e && f;
                break;  // subnormal
        }
        m |= u32(r) << i;
    }
    out_pred(w, op.dst, m);
}

const HandlerEntry entries[] = {
    ORDERED("s16", s16),
    ORDERED("u16", u16),
    ORDERED("b16", u16),
    ORDERED("s32", s32),
    ORDERED("u32", u32),
    ORDERED("b32", u32),
    ORDERED("s64", s64),
    ORDERED("u64", u64),
    ORDERED("b64", u64),
    UNSIGNED("u16", u16),
    UNSIGNED("u32", u32),
    UNSIGNED("u64", u64),
    FLOATING("f32", f32),
    FLOATING("f64", f64),
    FLOATING("f16", f16),
    FLOATING("bf16", bf16),
    {"testp.f32", testp<f32, u32>},
    {"testp.f64", testp<f64, u64>},
};

}  // namespace
HANDLER_TABLE(compare)
}  // namespace gpukernel::simgpu
