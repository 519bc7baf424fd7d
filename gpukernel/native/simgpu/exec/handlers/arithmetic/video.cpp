// Video instructions: arithmetic on bytes and halves of registers, scalar (PTX ISA 9.7.16) and two or four
// side by side (9.7.17).  All of them are one plan and one handler: they are rare, so plainness comes before
// speed.
#include "simgpu/exec/handlers/lanes.h"
#include "simgpu/exec/handlers/tables.h"

namespace gpukernel::simgpu {
namespace {

inline s64 part(u64 both, u32 start, u32 bytes, bool is_signed) {
    u64 v = both >> 8 * start;
    if (bytes == 4) return is_signed ? s64(s32(v)) : s64(u32(v));
    if (bytes == 2) return is_signed ? s64(s16(v)) : s64(u16(v));
    return is_signed ? s64(s8(v)) : s64(u8(v));
}
inline s64 fit(s64 v, u32 bytes, bool is_signed) {
    s64 top = (s64(1) << (8 * bytes - (is_signed ? 1 : 0))) - 1, bottom = is_signed ? -top - 1 : 0;
    return v < bottom ? bottom : v > top ? top : v;
}
inline bool holds(VideoCompare c, s64 a, s64 b) {
    switch (c) {
        case VideoCompare::eq:
            return a == b;
        case VideoCompare::ne:
            return a != b;
        case VideoCompare::lt:
            return a < b;
        case VideoCompare::le:
            return a <= b;
        case VideoCompare::gt:
            return a > b;
        default:
            return a >= b;
    }
}
inline s64 compute(const VideoPlan& p, s64 a, s64 b) {
    switch (p.what) {
        case VideoOp::add:
            return a + b;
        case VideoOp::sub:
            return a - b;
        case VideoOp::absdiff:
            return a < b ? b - a : a - b;
        case VideoOp::min:
            return a < b ? a : b;
        case VideoOp::max:
            return a > b ? a : b;
        case VideoOp::average:
            return (a + b + (a + b >= 0)) >> 1;
        case VideoOp::set:
            return holds(p.compare, a, b);
        case VideoOp::shl:
        case VideoOp::shr: {
            u64 n = p.wrap ? static_cast<u64>(b) & 31 : static_cast<u64>(b) > 32 ? 32 : static_cast<u64>(b);
            return p.what == VideoOp::shl ? a << n : a >> n;
        }
        default:
            return 0;
    }
}
u32 multiply_add(const VideoPlan& p, s64 a, s64 b, u32 c) {
    bool negative = p.negate_product, minus_c = p.negate_c;
    bool is_signed = p.a_signed || p.b_signed || negative || minus_c;
    __int128 r = static_cast<__int128>(a) * b, addend = is_signed ? static_cast<__int128>(s32(c)) : c;
    if (p.plus_one)
        r += 1;
    else if (negative)
        r = -r;
    r += minus_c && !p.plus_one && !negative ? -addend : addend;
    s64 out = static_cast<s64>(r >> p.shift);
    if (p.saturate) out = fit(out, 4, is_signed);
    return static_cast<u32>(out);
}

void video(Warp& w, const Op& op) {
    VideoPlan p;
    memcpy(&p, w.frame->function->lists.data() + op.extra, sizeof p);
    const u32 *a = in<u32>(w, op.a), *b = in<u32>(w, op.b), *c = in<u32>(w, op.c);
    u32* d = out<u32>(w, op.dst);
    u32 size = 4 / p.elements;
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        u64 both = p.elements == 1 ? 0 : u64(b[i]) << 32 | a[i];
        if (p.what == VideoOp::mad) {
            d[i] = multiply_add(p, part(a[i], p.a_start[0], p.a_bytes, p.a_signed),
                                part(b[i], p.b_start[0], p.b_bytes, p.b_signed), c[i]);
            continue;
        }
        u32 result = p.then == VideoThen::merge ? c[i] : 0;
        s64 sum = 0;
        for (u32 e = 0; e < p.elements; ++e) {
            if (!(p.mask >> e & 1)) continue;
            s64 x = part(p.elements == 1 ? a[i] : both, p.a_start[e], p.a_bytes, p.a_signed),
                y = part(p.elements == 1 ? b[i] : both, p.b_start[e], p.b_bytes, p.b_signed),
                v = compute(p, x, y);
            if (p.saturate) v = fit(v, p.d_bytes, p.d_signed);
            sum += v;
            u32 start = p.elements == 1 ? p.d_start : e * size;
            u32 keep = p.d_bytes == 4 ? ~0u : ((1u << 8 * p.d_bytes) - 1) << 8 * start;
            result = (result & ~keep) | (static_cast<u32>(v) << 8 * start & keep);
        }
        s64 value = p.d_signed ? s64(s32(result)) : s64(result),
            third = p.d_signed ? s64(s32(c[i])) : s64(c[i]);
        switch (p.then) {
            case VideoThen::add:
                d[i] = static_cast<u32>(c[i] + sum);
                break;
            case VideoThen::min:
                d[i] = static_cast<u32>(value < third ? value : third);
                break;
            case VideoThen::max:
                d[i] = static_cast<u32>(value > third ? value : third);
                break;
            default:
                d[i] = result;
        }
    }
}

const HandlerEntry entries[] = {
    {"video", video},
};

}  // namespace
HANDLER_TABLE(video)
}  // namespace gpukernel::simgpu
