// The registers of the processor as a cache of the frame.
#include <utility>

#include "simgpu/compiler/avx2/avx2.h"
#include "simgpu/compiler/avx2/codes.h"

namespace gpukernel::simgpu::compiler {

Avx2::Avx2(Assembler& a, uint32_t frame, uint32_t from, Literals literals)
    : a_(a), frame_(frame), from_(from), literals_(std::move(literals)) {
    known_.fill(0);
    like_.fill(-1);
    bits_.fill(32);
}

Memory Avx2::frame(int v, int h) const {
    return {r15, static_cast<int32_t>(frame_ + kVectorBytes * static_cast<uint32_t>(v)) + 32 * h};
}
Memory Avx2::mask_place(int k) const { return {r15, static_cast<int32_t>(frame_ + kMasks) + 4 * k}; }
// Where something lies for the length of one instruction.
Memory Avx2::room_place(int n) const { return {r15, static_cast<int32_t>(frame_ + kRooms) + 64 * n}; }

int Avx2::find(Kind kind, uint64_t what) const {
    for (size_t n = 0; n < kPool; ++n)
        if (held_[n].kind == kind && held_[n].what == what) return static_cast<int>(n);
    return -1;
}
void Avx2::evict(int reg) {
    Held& h = held_[static_cast<size_t>(reg)];
    if (h.kind == Kind::half && h.dirty)
        op(vex::store, reg, 0, frame(static_cast<int>(h.what / 2), static_cast<int>(h.what % 2)));
    h = {};
}
void Avx2::drop(Kind kind, uint64_t what) {
    if (const int reg = find(kind, what); reg >= 0) {
        Held& h = held_[static_cast<size_t>(reg)];
        h.kind = Kind::nothing, h.dirty = false;
    }
}
int Avx2::hold(int reg) {
    held_[static_cast<size_t>(reg)].locked = true;
    held_[static_cast<size_t>(reg)].used = ++clock_;
    return reg;
}
int Avx2::take() {
    int best = -1;
    for (int n = 0; n < kPool; ++n) {
        const Held& h = held_[static_cast<size_t>(n)];
        if (h.locked) continue;
        if (h.kind == Kind::nothing) {
            best = n;
            break;
        }
        if (best < 0 || h.used < held_[static_cast<size_t>(best)].used) best = n;
    }
    if (best < 0) {  // a mistake of an instruction's sequence: the kernel is refused
        failed_ = true;
        return 0;
    }
    evict(best);
    return hold(best);
}
void Avx2::release() {
    for (Held& h : held_) h.locked = false;
}

void Avx2::keep_only(const int* regs, int n) {
    release();
    for (; n > 0; --n) hold(regs[n - 1]);
}

int Avx2::read(int v, int h) {
    if (is_pinned(v)) return pin_of(v, h);
    if (const int reg = find(Kind::half, name(v, h)); reg >= 0) return hold(reg);
    const int reg = take();
    op(vex::load, reg, 0, frame(v, h));
    held_[static_cast<size_t>(reg)].kind = Kind::half;
    held_[static_cast<size_t>(reg)].what = name(v, h);
    return reg;
}
int Avx2::copy(int v, int h) {
    const Source from = source(v, h);
    const int to = take();
    op(from.reg >= 0 ? vex::copy : vex::load, to, 0, from);
    return to;
}
// Where all of a half is written at once.
int Avx2::target(int v, int h) {
    known_[static_cast<size_t>(v)] = 0;
    if (is_pinned(v)) return pin_of(v, h);
    int reg = find(Kind::half, name(v, h));
    if (reg < 0) reg = take();
    Held& held = held_[static_cast<size_t>(hold(reg))];
    held.kind = Kind::half, held.what = name(v, h), held.dirty = true;
    return reg;
}
// What the register has is the half from now on.
void Avx2::put(int v, int h, int reg) {
    known_[static_cast<size_t>(v)] = 0;
    if (is_pinned(v)) {
        if (reg != pin_of(v, h)) op(vex::copy, pin_of(v, h), 0, reg);
        return;
    }
    drop_half(v, h);
    Held& held = held_[static_cast<size_t>(reg)];
    held.kind = Kind::half, held.what = name(v, h), held.dirty = true;
}
void Avx2::put(int v, int h, int reg, int k, int bytes) {
    if (!k) return put(v, h, reg);
    const int mask = spread(k, bytes, h), old = read(v, h);
    blend(target(v, h), old, reg, mask, bytes);
}
Avx2::Source Avx2::source(int v, int h) {
    if (is_pinned(v)) return {pin_of(v, h)};
    if (const int reg = find(Kind::half, name(v, h)); reg >= 0) return {hold(reg)};
    return {-1, frame(v, h)};
}
Avx2::Source Avx2::second(int h, int bytes) {
    if (!second_.is_memory) return source(second_.v, h);
    if (second_.at.broadcast) return {constant(second_.at, bytes)};
    Memory at = second_.at;
    at.displacement += 32 * h;
    return {-1, at};
}
int Avx2::in_register(const Source& s) {
    if (s.reg >= 0) return s.reg;
    const int reg = take();
    op(vex::load, reg, 0, s.at);
    return reg;
}

// One number of memory in each lane.  Where nothing changes it stays in the cache.
int Avx2::constant(Memory m, int bytes) {
    const bool stays = m.base == r13 || (m.base == r15 && m.displacement >= static_cast<int32_t>(from_));
    const uint64_t what = static_cast<uint64_t>(m.base) << 40 |
                          static_cast<uint64_t>(static_cast<uint32_t>(m.displacement)) << 8 |
                          static_cast<uint64_t>(bytes);
    if (stays)
        if (const int reg = find(Kind::constant, what); reg >= 0) return hold(reg);
    const int reg = take();
    m.broadcast = false;
    op(bytes == 8 ? vex::broadcast_wide : vex::broadcast, reg, 0, m);
    if (stays) held_[static_cast<size_t>(reg)].kind = Kind::constant;
    held_[static_cast<size_t>(reg)].what = what;
    return reg;
}
int Avx2::every(uint64_t word, int bytes) {
    if (bytes < 8) word = (word & 0xffffffff) | word << 32;
    return constant(literals_.put({word, word, word, word, word, word, word, word}), bytes);
}
Memory Avx2::table(std::vector<uint64_t> words) { return literals_.put(std::move(words)); }

void Avx2::part() {
    for (size_t n = 0; n < kPool; ++n) {
        Held& h = held_[n];
        if (h.kind != Kind::half || !h.dirty) continue;
        op(vex::store, static_cast<int>(n), 0,
           frame(static_cast<int>(h.what / 2), static_cast<int>(h.what % 2)));
        h.dirty = false;
    }
}
void Avx2::meet() {
    part();
    forget();
}
void Avx2::forget() {
    for (Held& h : held_) h = {};
    known_.fill(0);
    like_.fill(-1);
    bits_.fill(32);
}
void Avx2::only(uint32_t alive) {
    for (Held& h : held_)
        if (h.kind == Kind::half && !(alive >> h.what / 2 & 1)) h = {};
}

}  // namespace gpukernel::simgpu::compiler
