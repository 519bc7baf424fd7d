// What copies that go on by themselves share: stretches of memory of one lane, and mbarrier objects.
#pragma once
#include "simgpu/exec/handlers/address.h"

namespace gpukernel::simgpu {
namespace {

// The lanes in `lanes` read or write `size` bytes at their own addresses: host pointers, or the fault.
inline void pointers(Warp& w, const Op& of, u32 slot, u32 lanes, u32 size, u64* ad,
                     AccessKind access = AccessKind::read) {
    const u64* a = in<u64>(w, slot);
    LANES ad[i] = a[i];
    Op op = of;
    op.access = access;
    u32 exec = w.exec;
    w.exec = lanes;
    resolve_slowly(w, op, ad, size, Space::generic);
    w.exec = exec;
}

// An mbarrier's 64 bits: arrivals still awaited in this phase, arrivals of a phase, bytes still awaited, the
// phase. One thread runs a whole block, so plain memory is enough.
struct Phase {
    static constexpr u64 kCount = (1u << 20) - 1;
    u64 bits;
    u64 pending() const { return bits & kCount; }
    u64 expected() const { return bits >> 20 & kCount; }
    s64 bytes() const { return static_cast<s64>(bits << 1) >> 41; }
    u64 number() const { return bits >> 63; }
    static u64 make(u64 pending, u64 expected, s64 bytes, u64 number) {
        return pending | expected << 20 | (static_cast<u64>(bytes) << 40 & ~(1ull << 63)) | number << 63;
    }
    u64 next(u64 pending, u64 expected, s64 bytes) const {
        if (pending == 0 && bytes == 0) return make(expected, expected, 0, number() ^ 1);
        return make(pending, expected, bytes, number());
    }
};
inline u64 without(Phase p, u32 bytes) {  // so many bytes have come
    return p.next(p.pending(), p.expected(), p.bytes() - static_cast<s64>(bytes));
}

// One lane's stretch of memory: a host pointer, or the fault.
inline char* stretch(Warp& w, const Op& of, int lane, u64 address, u32 size, AccessKind access,
                     u32 align = 16) {
    alignas(64) u64 ad[kLanes];
    ad[lane] = address;
    Op op = of;
    op.access = access;
    const u32 exec = w.exec;
    w.exec = 1u << lane;
    resolve_slowly(w, op, ad, size, Space::generic, align);
    w.exec = exec;
    return reinterpret_cast<char*>(ad[lane]);
}

}  // namespace
}  // namespace gpukernel::simgpu
