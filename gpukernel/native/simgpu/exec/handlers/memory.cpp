// Loads and stores (PTX ISA 9.7.9).  M is the type in memory, R the register's.
#include "simgpu/exec/handlers/address.h"
#include "simgpu/exec/handlers/tables.h"

namespace gpukernel::simgpu {
namespace {

template <class M, class R, Space S>
void load(Warp& w, const Op& op) {
    alignas(64) u64 ad[kLanes];
    Shape shape;
    if (S != Space::shared || sizeof(M) > 8 || !locate_shared<sizeof(M)>(w, op, ad, shape))
        shape = locate<S, sizeof(M)>(w, op, ad);
    R* d = out<R>(w, op.dst);
    if (shape == Shape::rows) {
        for (int g = 0; g < kLanes; g += 8) {
            const M* p = reinterpret_cast<const M*>(ad[g]);
            for (int i = 0; i < 8; ++i) d[g + i] = static_cast<R>(p[i]);
        }
    } else if (shape == Shape::blocks) {
        for (int g = 0; g < kLanes; g += 8) {
            const R v = static_cast<R>(*reinterpret_cast<const M*>(ad[g]));
            for (int i = 0; i < 8; ++i) d[g + i] = v;
        }
    } else if (shape == Shape::contiguous) {
        const M* p = reinterpret_cast<const M*>(ad[0]);
        LANES d[i] = static_cast<R>(p[i]);
    } else if (shape == Shape::uniform) {
        R v = static_cast<R>(*reinterpret_cast<const M*>(ad[__builtin_ctz(w.exec)]));
        if (w.exec == kFull) {
            LANES d[i] = v;
        } else {
            u32 m = w.exec;
            LANES d[i] = (m >> i & 1) ? v : d[i];
        }
    } else if (w.exec == kFull) {
        for (int i = 0; i < kLanes; ++i) d[i] = static_cast<R>(*reinterpret_cast<const M*>(ad[i]));
    } else {
        for (u32 m = w.exec; m; m &= m - 1) {
            int i = __builtin_ctz(m);
            d[i] = static_cast<R>(*reinterpret_cast<const M*>(ad[i]));
        }
    }
}
template <class M, class R, Space S>
void store(Warp& w, const Op& op) {
    alignas(64) u64 ad[kLanes];
    Shape shape;
    if (S != Space::shared || sizeof(M) > 8 || !locate_shared<sizeof(M)>(w, op, ad, shape))
        shape = locate<S, sizeof(M)>(w, op, ad);
    const R* v = in<R>(w, op.b);
    if (shape == Shape::rows) {
        for (int g = 0; g < kLanes; g += 8) {
            M* p = reinterpret_cast<M*>(ad[g]);
            for (int i = 0; i < 8; ++i) p[i] = static_cast<M>(v[g + i]);
        }
    } else if (shape == Shape::blocks || shape == Shape::uniform) {
        // Several lanes write one place: the last of them stays, as where they write in turn.
        const u32 last = 31 - __builtin_clz(w.exec);
        if (shape == Shape::uniform)
            *reinterpret_cast<M*>(ad[last & ~7u]) = static_cast<M>(v[last]);
        else
            for (int g = 0; g < kLanes; g += 8) *reinterpret_cast<M*>(ad[g]) = static_cast<M>(v[g + 7]);
    } else if (shape == Shape::contiguous) {
        M* p = reinterpret_cast<M*>(ad[0]);
        LANES p[i] = static_cast<M>(v[i]);
    } else {
        for (u32 m = w.exec; m; m &= m - 1) {
            int i = __builtin_ctz(m);
            *reinterpret_cast<M*>(ad[i]) = static_cast<M>(v[i]);
        }
    }
}
constexpr u32 kSink = 0xfffffffeu;
// The registers of a vector are in the function's lists from `extra` on.
template <class M, class R, Space S, int N>
void load_vector(Warp& w, const Op& op) {
    alignas(64) u64 ad[kLanes];
    locate<S, sizeof(M) * N>(w, op, ad);
    const u32* list = w.frame->function->lists.data() + op.extra;
    alignas(64) M t[N][kLanes];
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        for (int n = 0; n < N; ++n) t[n][i] = reinterpret_cast<const M*>(ad[i])[n];
    }
    for (int n = 0; n < N; ++n) {
        if (list[n] == kSink) continue;
        R* d = out<R>(w, list[n]);
        u32 m = w.exec;
        LANES d[i] = (m >> i & 1) ? static_cast<R>(t[n][i]) : d[i];
    }
}
template <class M, class R, Space S, int N>
void store_vector(Warp& w, const Op& op) {
    alignas(64) u64 ad[kLanes];
    locate<S, sizeof(M) * N>(w, op, ad);
    const u32* list = w.frame->function->lists.data() + op.extra;
    for (int n = 0; n < N; ++n) {
        const R* v = in<R>(w, list[n]);
        for (u32 m = w.exec; m; m &= m - 1) {
            int i = __builtin_ctz(m);
            reinterpret_cast<M*>(ad[i])[n] = static_cast<M>(v[i]);
        }
    }
}

#define ONE(space, S, m, M, r, R) {"ld." space "." m "." r, load<M, R, S>}
#define PUT(space, S, m, M, r, R) {"st." space "." m "." r, store<M, R, S>}
#define VEC(space, S, m, M, r, R)                                 \
    {"ld." space ".v2." m "." r, load_vector<M, R, S, 2>},        \
        {"ld." space ".v4." m "." r, load_vector<M, R, S, 4>},    \
        {"st." space ".v2." m "." r, store_vector<M, R, S, 2>}, { \
        "st." space ".v4." m "." r, store_vector<M, R, S, 4>      \
    }
#define SPACE(n, S)                                                                                         \
    ONE(n, S, "u8", u8, "16", u16), ONE(n, S, "u8", u8, "32", u32), ONE(n, S, "u8", u8, "64", u64),         \
        ONE(n, S, "s8", s8, "16", s16), ONE(n, S, "s8", s8, "32", s32), ONE(n, S, "s8", s8, "64", s64),     \
        ONE(n, S, "u16", u16, "16", u16), ONE(n, S, "u16", u16, "32", u32),                                 \
        ONE(n, S, "u16", u16, "64", u64), ONE(n, S, "s16", s16, "32", s32),                                 \
        ONE(n, S, "s16", s16, "64", s64), ONE(n, S, "u32", u32, "32", u32),                                 \
        ONE(n, S, "u32", u32, "64", u64), ONE(n, S, "s32", s32, "64", s64),                                 \
        ONE(n, S, "u64", u64, "64", u64), PUT(n, S, "u8", u8, "16", u16), PUT(n, S, "u8", u8, "32", u32),   \
        PUT(n, S, "u8", u8, "64", u64), PUT(n, S, "u16", u16, "16", u16), PUT(n, S, "u16", u16, "32", u32), \
        PUT(n, S, "u16", u16, "64", u64), PUT(n, S, "u32", u32, "32", u32),                                 \
        PUT(n, S, "u32", u32, "64", u64), PUT(n, S, "u64", u64, "64", u64), VEC(n, S, "u8", u8, "16", u16), \
        VEC(n, S, "s8", s8, "16", s16), VEC(n, S, "s8", s8, "32", s32), VEC(n, S, "u16", u16, "32", u32),   \
        VEC(n, S, "s16", s16, "32", s32), ONE(n, S, "u128", u128, "128", u128),                             \
        PUT(n, S, "u128", u128, "128", u128), VEC(n, S, "u8", u8, "32", u32),                               \
        VEC(n, S, "u16", u16, "16", u16), VEC(n, S, "u32", u32, "32", u32), VEC(n, S, "u64", u64, "64", u64)

const HandlerEntry entries[] = {
    SPACE("global", Space::global), SPACE("shared", Space::shared),   SPACE("local", Space::local),
    SPACE("param", Space::param),   SPACE("generic", Space::generic),
};

}  // namespace
HANDLER_TABLE(memory)
}  // namespace gpukernel::simgpu
