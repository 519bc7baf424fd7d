// Asynchronous copies, done at once; mbarrier objects; and the stack that a thread grows itself.
#include "simgpu/exec/handlers/bulk.h"
#include "simgpu/exec/handlers/tables.h"

namespace gpukernel::simgpu {
namespace {

void copy(Warp& w, const Op& op) {
    const u32 size = static_cast<u32>(op.imm);
    const u32* limit = in<u32>(w, op.c);
    alignas(64) u64 from[kLanes], to[kLanes];
    if (w.exec == kFull && size == 16) {  // what pipelines of tiles are made of
        memcpy(to, in<u64>(w, op.a), sizeof to);
        memcpy(from, in<u64>(w, op.b), sizeof from);
        u32 least = limit[0];
        for (int i = 1; i < kLanes; ++i) least = limit[i] < least ? limit[i] : least;
        if (least >= size && locate_shared_at_once(w, to, kLanes, size, size) &&
            locate_global_at_once(w, from, kLanes, size, size)) {
            for (int i = 0; i < kLanes; ++i)
                memcpy(reinterpret_cast<char*>(to[i]), reinterpret_cast<const char*>(from[i]), 16);
            return;
        }
    }
    pointers(w, op, op.a, w.exec, size, to, AccessKind::write);
    u32 whole = 0;
    for (u32 m = w.exec; m; m &= m - 1)
        if (limit[__builtin_ctz(m)] >= size) whole |= m & -m;
    if (whole) pointers(w, op, op.b, whole, size, from);
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        char* d = reinterpret_cast<char*>(to[i]);
        if (whole >> i & 1) {
            memcpy(d, reinterpret_cast<const char*>(from[i]), size);
            continue;
        }
        memset(d, 0, size);
        alignas(64) u64 byte[kLanes];
        for (u32 n = 0; n < limit[i]; ++n) {
            byte[i] = in<u64>(w, op.b)[i] + n;
            u32 exec = w.exec;
            w.exec = 1u << i;
            resolve_slowly(w, op, byte, 1, Space::generic);
            w.exec = exec;
            d[n] = *reinterpret_cast<const char*>(byte[i]);
        }
    }
}

enum class Act { init, invalidate, arrive, drop, expect, complete, arrive_expect };
template <Act A>
void change(Warp& w, const Op& op) {
    alignas(64) u64 ad[kLanes];
    pointers(w, op, op.a, w.exec, 8, ad, AccessKind::atomic);
    const u32* value = in<u32>(w, op.b);
    w.touched = true;
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        u64* object = reinterpret_cast<u64*>(ad[i]);
        Phase p{*object};
        u64 v = value[i];
        u64 now = 0;
        switch (A) {
            case Act::init:
                now = Phase::make(v, v, 0, 0);
                break;
            case Act::invalidate:
                break;
            case Act::arrive:
                now = p.next(p.pending() - v, p.expected(), p.bytes());
                break;
            case Act::drop:
                now = p.next(p.pending() - v, p.expected() - v, p.bytes());
                break;
            case Act::expect:
                now = Phase::make(p.pending(), p.expected(), p.bytes() + static_cast<s64>(v), p.number());
                break;
            case Act::complete:
                now = without(p, static_cast<u32>(v));
                break;
            case Act::arrive_expect:
                now = p.next(p.pending() - 1, p.expected(), p.bytes() + static_cast<s64>(v));
                break;
        }
        *object = now;
        if (op.sub2 & 1) out<u64>(w, op.dst)[i] = p.bits;
    }
}

u32 bulk_size(Warp& w, const Op& op, int lane) {
    const u32 size = in<u32>(w, op.c)[lane];
    if (size % 16) not_a_bulk_size(w, op, lane, size);
    return size;
}
void copy_bulk(Warp& w, const Op& op) {
    const u64 *to = in<u64>(w, op.a), *from = in<u64>(w, op.b);
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        if (const u32 size = bulk_size(w, op, i))
            memmove(stretch(w, op, i, to[i], size, AccessKind::write),
                    stretch(w, op, i, from[i], size, AccessKind::read), size);
    }
}
// To the same place in several blocks of the cluster, each of which hears of it at a barrier in the same
// place.
void copy_to_many(Warp& w, const Op& op) {
    const u64 *to = in<u64>(w, op.a), *from = in<u64>(w, op.b), *barrier = in<u64>(w, op.extra);
    const u16* ranks = in<u16>(w, op.aux);
    w.touched = true;
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        const u32 size = bulk_size(w, op, i);
        for (u32 r = ranks[i]; r && size; r &= r - 1) {
            const u64 name = static_cast<u64>(__builtin_ctz(r)) + 1;
            memmove(stretch(w, op, i, named_block(to[i], name), size, AccessKind::write),
                    stretch(w, op, i, from[i], size, AccessKind::read), size);
            u64* object = reinterpret_cast<u64*>(
                stretch(w, op, i, named_block(barrier[i], name), 8, AccessKind::atomic, 8));
            *object = without(Phase{*object}, size);
        }
    }
}
// Element by element, 32 at a time as if each lane had one.
void reduce_bulk(Warp& w, const Op& op) {
    const u64 *to = in<u64>(w, op.a), *from = in<u64>(w, op.b);
    Op each = op;
    each.fn = reinterpret_cast<Handler>(static_cast<uintptr_t>(op.imm));
    each.a = op.dst, each.b = op.extra, each.imm = 0, each.sub = each.sub2 = 0;
    each.access = AccessKind::atomic;
    const u32 exec = w.exec, bytes = op.sub;
    u64* places = out<u64>(w, op.dst);
    char* values = reinterpret_cast<char*>(out<u64>(w, op.extra));
    for (u32 m = exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        const u32 size = bulk_size(w, op, i);
        if (!size) continue;
        stretch(w, op, i, to[i], size, AccessKind::atomic);
        const char* source = stretch(w, op, i, from[i], size, AccessKind::read);
        for (u32 at = 0; at < size; at += kLanes * bytes) {
            const u32 count = (size - at) / bytes < kLanes ? (size - at) / bytes : kLanes;
            for (u32 n = 0; n < count; ++n) places[n] = to[i] + at + n * bytes;
            memcpy(values, source + at, count * bytes);
            w.exec = count == kLanes ? kFull : (1u << count) - 1;
            each.fn(w, each);
        }
        w.exec = exec;
    }
}
// Whether the phase of a token, or of a parity, has ended.
template <bool Parity>
void ended(Warp& w, const Op& op) {
    alignas(64) u64 ad[kLanes];
    pointers(w, op, op.a, w.exec, 8, ad);
    w.touched = true;
    u32 r = 0;
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        u64 now = Phase{*reinterpret_cast<u64*>(ad[i])}.number();
        u64 then = Parity ? in<u32>(w, op.b)[i] & 1 : Phase{in<u64>(w, op.b)[i]}.number();
        r |= u32(now != then) << i;
    }
    if (op.sub2 & 1) out_pred(w, op.dst, r);
}

void grow_stack(Warp& w, const Op& op) {
    const u64* size = in<u64>(w, op.b);
    const u32* align = in<u32>(w, op.c);
    u64 *top = out<u64>(w, op.a), *d = out<u64>(w, op.dst);
    for (u32 m = w.exec; m; m &= m - 1) {
        int i = __builtin_ctz(m);
        u64 at = (top[i] + align[i] - 1) & ~u64(align[i] - 1);
        if (size[i] > static_cast<u64>(op.imm) ||
            at - w.frame->local_base + size[i] > static_cast<u64>(op.imm))
            stack_overflow(w, i);
        d[i] = at;
        top[i] = at + size[i];
    }
}

// What createpolicy makes is opaque, and the same for all kernels: NVIDIA's, which CUTLASS has as constants,
// begin with 0001 and end with 32 zeros.  A GPU takes no other for an instruction; here there is also none,
// 0.
void check_policy(Warp& w, const Op& op) {
    const u64* policy = in<u64>(w, op.a);
    for (u32 m = w.exec; m; m &= m - 1) {
        const int i = __builtin_ctz(m);
        if (policy[i] && (policy[i] >> 60 != 1 || policy[i] << 32)) not_a_cache_policy(w, op, i, policy[i]);
    }
}

const HandlerEntry entries[] = {
    {"cp.async", copy},
    {"cp.async.bulk", copy_bulk},
    {"cp.async.bulk.multicast", copy_to_many},
    {"cp.reduce.async.bulk", reduce_bulk},
    {"mbarrier.init", change<Act::init>},
    {"mbarrier.inval", change<Act::invalidate>},
    {"mbarrier.arrive", change<Act::arrive>},
    {"mbarrier.arrive_drop", change<Act::drop>},
    {"mbarrier.expect_tx", change<Act::expect>},
    {"mbarrier.complete_tx", change<Act::complete>},
    {"mbarrier.arrive.expect_tx", change<Act::arrive_expect>},
    {"mbarrier.wait", ended<false>},
    {"mbarrier.wait.parity", ended<true>},
    {"mbarrier.pending_count",
     un<u32, u64, [](u64 a) -> u32 { return static_cast<u32>(Phase{a}.pending()); }>},
    {"alloca", grow_stack},
    {"cache_policy", check_policy},
};

}  // namespace
HANDLER_TABLE(async)
}  // namespace gpukernel::simgpu
