// Exchange between lanes (PTX ISA 9.7.9.5 to 9.7.13): the scheduler has seen to it that the named lanes are
// here.
#include <x86intrin.h>

#include "simgpu/exec/handlers/lanes.h"
#include "simgpu/exec/handlers/tables.h"

namespace gpukernel::simgpu {
namespace {

enum Mode { kUp, kDown, kBfly, kIdx };
template <Mode M>
void shfl(Warp& w, const Op& op) {
    const u32 *a = in<u32>(w, op.a), *b = in<u32>(w, op.b), *c = in<u32>(w, op.c);
    alignas(64) u32 t[kLanes];
    u32 inside = 0;
    for (int i = 0; i < kLanes; ++i) {
        int bv = static_cast<int>(b[i] & 31), cv = static_cast<int>(c[i] & 31),
            seg = static_cast<int>(c[i] >> 8 & 31);
        int top = (i & seg) | (cv & ~seg), bottom = i & seg, j;
        bool ok;
        if (M == kUp)
            j = i - bv, ok = j >= top;
        else if (M == kDown)
            j = i + bv, ok = j <= top;
        else if (M == kBfly)
            j = i ^ bv, ok = j <= top;
        else
            j = bottom | (bv & ~seg), ok = j <= top;
        if (!ok) j = i;
        t[i] = a[j & 31];
        inside |= u32(ok) << i;
    }
    blend(out<u32>(w, op.dst), t, w.exec);
    if (op.sub2 & 1) out_pred(w, op.extra, inside);
}
u32 member(Warp& w, const Op& op) { return in<u32>(w, op.aux)[__builtin_ctz(w.exec)]; }
void spread(Warp& w, const Op& op, u32 value) {
    u32* d = out<u32>(w, op.dst);
    u32 m = w.exec;
    LANES d[i] = (m >> i & 1) ? value : d[i];
}
u32 source(Warp& w, const Op& op) {
    u32 p = in_pred(w, op.a);
    return (op.sub & 1 ? ~p : p) & w.exec;
}
void ballot(Warp& w, const Op& op) { spread(w, op, source(w, op) & member(w, op)); }
void all(Warp& w, const Op& op) { out_pred(w, op.dst, source(w, op) == w.exec ? ~0u : 0); }
void any(Warp& w, const Op& op) { out_pred(w, op.dst, source(w, op) ? ~0u : 0); }
void uni(Warp& w, const Op& op) {
    u32 s = source(w, op);
    out_pred(w, op.dst, s == 0 || s == w.exec ? ~0u : 0);
}
void active(Warp& w, const Op& op) { spread(w, op, w.exec); }

template <class T>
void match_any(Warp& w, const Op& op) {
    const T* a = in<T>(w, op.a);
    u32* d = out<u32>(w, op.dst);
    alignas(64) u32 t[kLanes];
    for (int i = 0; i < kLanes; ++i) {
        t[i] = 0;
        for (int j = 0; j < kLanes; ++j) t[i] |= u32(a[i] == a[j]) << j;
        t[i] &= w.exec;
    }
    blend(d, t, w.exec);
}
template <class T>
void match_all(Warp& w, const Op& op) {
    const T* a = in<T>(w, op.a);
    T first = a[__builtin_ctz(w.exec)];
    bool same = true;
    for (u32 m = w.exec; m; m &= m - 1) same &= a[__builtin_ctz(m)] == first;
    spread(w, op, same ? w.exec : 0);
    if (op.sub2 & 1) out_pred(w, op.extra, same ? ~0u : 0);
}
template <class T, auto F>
void redux(Warp& w, const Op& op) {
    const T* a = in<T>(w, op.a);
    u32 m = w.exec;
    T r = a[__builtin_ctz(m)];
    for (m &= m - 1; m; m &= m - 1) r = F(r, a[__builtin_ctz(m)]);
    spread(w, op, static_cast<u32>(r));
}
void elect(Warp& w, const Op& op) {  // one lane of those named: the first
    u32 leader = static_cast<u32>(__builtin_ctz(w.exec));
    spread(w, op, leader);
    if (op.sub2 & 1) out_pred(w, op.extra, 1u << leader);
}
// The processor's rounding and subnormal mode for what follows.
void mode(Warp&, const Op& op) {
    asm volatile("" ::: "memory");
    _mm_setcsr(0x1f80u | static_cast<u32>(op.imm));
    asm volatile("" ::: "memory");
}
u32 rank_in_cluster(Warp& w) { return static_cast<u32>(special_register(w, 0, kClusterCtaRank)); }
template <class T>
void special(Warp& w, const Op& op) {
    T* d = out<T>(w, op.dst);
    int which = static_cast<int>(op.imm);
    if (which <= kTidZ) {
        const u32* t = w.tid[which];
        u32 m = w.exec;
        LANES d[i] = (m >> i & 1) ? static_cast<T>(t[i]) : d[i];
        return;
    }
    bool lanes = which == kLaneId || (which >= kLanemaskEq && which <= kLanemaskGt);
    T value = static_cast<T>(special_register(w, 0, which));
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        d[i] = lanes ? static_cast<T>(special_register(w, i, which)) : value;
    }
}
template <class T>
void local_address(Warp& w, const Op& op) {
    T* d = out<T>(w, op.dst);
    T value = static_cast<T>(w.frame->local_base + static_cast<u64>(op.imm));
    u32 m = w.exec;
    LANES d[i] = (m >> i & 1) ? value : d[i];
}
template <u64 Window>
void to_generic(Warp& w, const Op& op) {
    const u64* a = in<u64>(w, op.a);
    u64* d = out<u64>(w, op.dst);
    u32 m = w.exec;
    LANES d[i] = (m >> i & 1) ? (a[i] | Window) : d[i];
}
void from_generic(Warp& w, const Op& op) {
    const u64* a = in<u64>(w, op.a);
    u64* d = out<u64>(w, op.dst);
    u32 m = w.exec;
    LANES d[i] = (m >> i & 1) ? (a[i] & kOffsetMask) : d[i];
}
void is_space(Warp& w, const Op& op) {
    const u64* a = in<u64>(w, op.a);
    u32 r = 0;
    const int shift = op.sub ? kRankShift : kWindowShift;  // of the block itself: no other rank either
    for (int i = 0; i < kLanes; ++i) r |= u32((a[i] >> shift) == static_cast<u64>(op.imm)) << i;
    out_pred(w, op.dst, r);
}
// An address of the block's own shared memory as that of another block of the cluster.
template <class T>
void map_to_rank(Warp& w, const Op& op) {
    const T* a = in<T>(w, op.a);
    const u32 *rank = in<u32>(w, op.b), own = rank_in_cluster(w);
    T* d = out<T>(w, op.dst);
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        const u32 name = rank[i] == own ? 0 : rank[i] < 255 ? rank[i] + 1 : 255;
        d[i] = static_cast<T>(named_block(a[i], name));
    }
}
template <class T>
void rank_of(Warp& w, const Op& op) {
    const T* a = in<T>(w, op.a);
    const u32 own = rank_in_cluster(w);
    u32* d = out<u32>(w, op.dst);
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        const u32 named = static_cast<u32>(a[i] >> kRankShift) & 255;
        d[i] = named ? named - 1 : own;
    }
}
void nothing(Warp&, const Op&) {}
void touch(Warp& w, const Op&) { w.touched = true; }

#define REDUX(name, T, expr) {"redux." name, redux<T, [](T a, T b) -> T { return (expr); }>}
const HandlerEntry entries[] = {
    {"shfl.up.b32", shfl<kUp>},
    {"shfl.down.b32", shfl<kDown>},
    {"shfl.bfly.b32", shfl<kBfly>},
    {"shfl.idx.b32", shfl<kIdx>},
    {"vote.ballot.b32", ballot},
    {"vote.all.pred", all},
    {"vote.any.pred", any},
    {"vote.uni.pred", uni},
    {"activemask.b32", active},
    {"match.any.b32", match_any<u32>},
    {"match.any.b64", match_any<u64>},
    {"match.all.b32", match_all<u32>},
    {"match.all.b64", match_all<u64>},
    REDUX("add.u32", u32, a + b),
    REDUX("add.s32", u32, a + b),
    REDUX("min.u32", u32, a < b ? a : b),
    REDUX("max.u32", u32, a > b ? a : b),
    REDUX("min.s32", s32, a < b ? a : b),
    REDUX("max.s32", s32, a > b ? a : b),
    REDUX("and.b32", u32, a& b),
    REDUX("or.b32", u32, a | b),
    REDUX("xor.b32", u32, a ^ b),
    {"elect", elect},
    {"mode", mode},
    {"special.32", special<u32>},
    {"special.64", special<u64>},
    {"special.16", special<u16>},
    {"local.32", local_address<u32>},
    {"local.64", local_address<u64>},
    {"cvta.shared", to_generic<kSharedWindow>},
    {"cvta.local", to_generic<kLocalWindow>},
    {"cvta.param", to_generic<kParamWindow>},
    {"cvta.to", from_generic},
    {"isspacep", is_space},
    {"mapa.b32", map_to_rank<u32>},
    {"mapa.b64", map_to_rank<u64>},
    {"getctarank.b32", rank_of<u32>},
    {"getctarank.b64", rank_of<u64>},
    {"nothing", nothing},
    {"touch", touch},
};

}  // namespace
HANDLER_TABLE(warp)
}  // namespace gpukernel::simgpu
