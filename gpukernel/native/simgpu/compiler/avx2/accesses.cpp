// Stores, gathers and scatters.  Lanes that do not run read and write nothing.
#include "simgpu/compiler/avx2/avx2.h"
#include "simgpu/compiler/avx2/codes.h"

namespace gpukernel::simgpu::compiler {

namespace {

constexpr Gpr kTaken[] = {rax, rcx, rdx, rsi};
constexpr Encoding kStoreEight{vex::p66, 1, 0, 0xd6};  // vmovq

// Of a warp alone: what is there can be read and written again.
bool is_own(const Memory& m) { return m.base == rbx || m.base == r15; }

}  // namespace

// Calls `body` for each lane of the mask, whose number is in rcx.  rdx and rsi are free, and r11 is the
// body's.
void Avx2::each_lane_of(int k, int lanes, const std::function<void()>& body) {
    for (Gpr r : kTaken) a_.push(r);
    a_.load(rax, mask_place(k), false);
    if (lanes < 32) a_.alu(Assembler::bit_and, rax, lanes == 16 ? 0xffff : 0xff, false);
    Label next, none;
    a_.test(rax, rax, false);
    a_.jump_plainly(equal, none);
    a_.bind_plainly(next);
    a_.lowest_bit(rcx, rax);
    body();
    a_.drop_lowest_bit(rax);
    a_.jump_plainly(not_equal, next);
    a_.bind_plainly(none);
    for (int n = 3; n >= 0; --n) a_.pop(kTaken[n]);
}
// What lies in the first room to `to`, by elements of one byte or two.
void Avx2::store_lanes(Memory to, int k, int lanes, int bytes) {
    a_.place(r11, to);
    each_lane_of(k, lanes, [&] {
        Memory from = room_place(0), there{r11};
        from.scaled = there.scaled = rcx;
        from.shift = there.shift = static_cast<uint8_t>(bytes - 1);
        a_.load_sized(rdx, from, bytes, false, false);
        a_.store_narrow(there, rdx, bytes);
    });
}

void Avx2::store(int bytes) {
    for (int h = 0; h < count(); ++h) {
        const int from = read(to_, h);
        Memory at = second_.at;
        at.displacement += 32 * h;
        if (!k_) {
            op(vex::store, from, 0, at);
        } else if (is_own(at)) {
            const int mask = spread(k_, bytes, h), t = take();
            op(vex::load, t, 0, at);
            blend(t, t, from, mask, bytes);
            op(vex::store, t, 0, at);
        } else if (bytes >= 4) {
            op(bytes == 8 ? vex::masked_store_wide : vex::masked_store, from, spread(k_, bytes, h), at);
        } else {
            Memory room = room_place(0);
            room.displacement += 32 * h;
            op(vex::store, from, 0, room);
        }
        release();
    }
    if (k_ && bytes == 2 && !is_own(second_.at)) store_lanes(second_.at, k_, 32, 2);
}
// Elements cut to fewer bytes, to a register or to memory.
void Avx2::store_narrow() {
    constexpr int from_bytes[] = {2, 4, 8, 4, 8, 8}, to_bytes[] = {1, 1, 1, 2, 2, 4};
    const int from = from_bytes[i_.opcode - 0x30], to = to_bytes[i_.opcode - 0x30], lanes = 64 / from;
    int t = narrow(read(to_, 0), read(to_, 1), from);
    for (int now = from / 2; now > to; now /= 2) {
        const int next = narrow(t, t, now);
        give(t);
        t = next;
    }
    if (!second_.is_memory) {
        put(second_.v, 0, t);
        return drop_half(second_.v, 1);
    }
    const int whole = lanes * to;
    const auto write_to = [&](const Memory& m) {
        whole == 8 ? op(kStoreEight, t, 0, m, false) : op(vex::store, t, 0, m, whole == 32);
    };
    if (!k_) return write_to(second_.at);
    if (to == 4) return op(vex::masked_store, t, spread(k_, 4, 0), second_.at);
    write_to(room_place(0));
    store_lanes(second_.at, k_, lanes, to);
}

// Elements at addresses of `offset` bytes.
void Avx2::gather(int element, int offset) {
    Memory at = second_.at;
    const int index = at.index;
    const auto code = Encoding{vex::p66, 2, static_cast<uint8_t>(element == 8),
                               static_cast<uint8_t>(offset == 8 ? 0x91 : 0x90)};
    const auto upper = [&](int of, bool keeps) {
        const int t = take();
        op_with(vex::extract, of, 0, t, 1);
        if (!keeps) give(of);
        return t;
    };
    if (element == 4 && offset == 8) {  // half a half each time
        const int all = spread(k_, 4, 0), masks[] = {take(), upper(all, true)};
        op(vex::copy, masks[0], 0, all);
        const int low = copy(to_, 0), high = upper(low, true);
        give(all);
        for (int h : {0, 1}) {
            at.index = read(index, h);
            op(code, h ? high : low, masks[h], at);
        }
        op_with(vex::insert, low, low, high, 1);
        put(to_, 0, low);
        return drop_half(to_, 1);
    }
    for (int h : {0, 1}) {
        at.index = element == offset ? read(index, h) : read(index, 0);
        if (element != offset && h == 1) at.index = upper(at.index, true);
        const int all = spread(k_, element, h), mask = take(), to = copy(to_, h);
        op(vex::copy, mask, 0, all);
        op(code, to, mask, at);
        put(to_, h, to);
        release();
    }
}
void Avx2::scatter(int element, int offset) {
    Memory at = second_.at;
    const int lanes = element == 4 && offset == 4 ? 16 : 8;
    for (int h = 0; h < lanes * offset / 32; ++h) {
        Memory room = room_place(0);
        room.displacement += 32 * h;
        op(vex::store, read(at.index, h), 0, room);
        release();
    }
    for (int h = 0; h < lanes * element / 32; ++h) {
        Memory room = room_place(1);
        room.displacement += 32 * h;
        op(vex::store, read(to_, h), 0, room);
        release();
    }
    at.index = -1;
    a_.place(r11, at);
    each_lane_of(k_, lanes, [&] {
        Memory index = room_place(0), from = room_place(1), there{r11};
        index.scaled = from.scaled = rcx, there.scaled = rdx;
        index.shift = offset == 8 ? 3 : 2, from.shift = element == 8 ? 3 : 2;
        a_.load_sized(rdx, index, offset, true, true);
        a_.load(rsi, from, element == 8);
        a_.store(there, rsi, element == 8);
    });
}

bool Avx2::write_access() {
    const int key = i_.map << 16 | i_.prefix << 8 | i_.opcode;
    const int element = i_.wide ? 8 : 4;
    switch (key) {
        case 0x1'00'11:
        case 0x1'01'11:
            store(element);
            return true;
        case 0x1'03'7f:
            store(2);
            return true;
        case 0x2'02'30:
        case 0x2'02'31:
        case 0x2'02'32:
        case 0x2'02'33:
        case 0x2'02'34:
        case 0x2'02'35:
            store_narrow();
            return true;
        case 0x2'01'92:
            gather(element, 4);
            return true;
        case 0x2'01'93:
            gather(element, 8);
            return true;
        case 0x2'01'a2:
            scatter(element, 4);
            return true;
        case 0x2'01'a3:
            scatter(element, 8);
            return true;
        default:
            return false;
    }
}

}  // namespace gpukernel::simgpu::compiler
