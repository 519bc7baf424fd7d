// Operations that are done lane after lane, as their handlers do them: atomic updates, and loads and stores
// that no vector instruction does.
#include <cstddef>

#include "simgpu/compiler/generate/generator.h"
#include "simgpu/compiler/generate/instructions.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr Assembler::Alu kPlainUpdates[] = {Assembler::add, Assembler::bit_and, Assembler::bit_or,
                                            Assembler::bit_xor};

}  // namespace

// Where the n-th operand of the lane in rdx lies.
Memory Generator::lane_place(int n, uint32_t bytes) const {
    Memory place = field(offsetof(Context, lanes) + sizeof(Context::lanes[0]) * static_cast<size_t>(n),
                         static_cast<uint8_t>(bytes));
    place.scaled = rdx;
    place.shift = bytes == 8 ? 3 : bytes == 4 ? 2 : 1;
    return place;
}
void Generator::spill(Access access, int n) {
    for (int unit = 0; unit < units(access.bytes); ++unit) {
        Memory place =
            field(offsetof(Context, lanes) + sizeof(Context::lanes[0]) * static_cast<size_t>(n), 64);
        place.displacement += 64 * unit;
        a_.vector(kStore, in_register(access, unit, 0), 0, place);
    }
}
void Generator::unspill(Access write, int n) {
    for (int unit = 0; unit < units(write.bytes); ++unit) {
        Memory place =
            field(offsetof(Context, lanes) + sizeof(Context::lanes[0]) * static_cast<size_t>(n), 64);
        place.displacement += 64 * unit;
        const int to = target(write, unit);
        a_.vector(kLoad, to, 0, place);
        finish(write, unit, to);
    }
}
void Generator::each_lane(const std::function<void()>& body) {
    drop_all();  // for the body takes what it wants
    Label next, none;
    running_lanes(rcx);
    a_.test(rcx, rcx, false);
    a_.jump(equal, none);
    a_.bind(next);
    a_.lowest_bit(rdx, rcx);
    body();
    a_.drop_lowest_bit(rcx);
    a_.jump(not_equal, next);
    a_.bind(none);
}

// Whether the address at hand has been made of one of shared memory, in this very stretch.
bool Generator::address_in_shared_window() const {
    for (uint32_t n = at_; n > block().begin; --n) {
        const Signature& s = flow_.signatures[n - 1];
        for (const Access& write : s.writes)
            if (write.operand == op_->a)
                return s.key == "cvta.shared" && function_.code[n - 1].guard == kNoGuard;
    }
    return false;
}

// What one lane loads or stores, eight or sixteen bytes at rsi, from or to where those of all lanes lie side
// by side.
void Generator::copy_chunk(const MemoryOp& m, bool to_lanes) {
    Memory side = field(offsetof(Context, lanes) + sizeof(Context::lanes[0]));
    if (m.whole() == 8) {
        side.scaled = rdx, side.shift = 3;
        a_.load(rax, to_lanes ? Memory{rsi} : side, true);
        return a_.store(to_lanes ? side : Memory{rsi}, rax, true);
    }
    a_.move(rdi, rdx, true);
    a_.shift_left(rdi, 4, true);
    side.scaled = rdi;
    a_.sixteen_bytes(false, 0, to_lanes ? Memory{rsi} : side);
    a_.sixteen_bytes(true, 0, to_lanes ? side : Memory{rsi});
}

bool Generator::lane_access(const MemoryOp& m) {
    const Access address = s_->reads[0];
    const bool narrow = address.bytes == 4;
    const auto whole = static_cast<int32_t>(m.whole());
    if (op_->imm % whole || (narrow && m.where == MemoryOp::global)) return false;
    const auto slow = slow_for(m.where == MemoryOp::global, m.whole());
    constexpr Reach reaches[] = {Reach::site, Reach::shared, Reach::param, Reach::local};
    constexpr size_t bases[] = {0, offsetof(Warp, shared), offsetof(Warp, params), offsetof(Warp, local)};
    check_lanes(address, m.whole(), op_->imm, reaches[m.where], slow->site, slow->begin);
    const bool chunks = lies_apart(m);
    spill(address, 0);
    const Memory side = field(offsetof(Context, lanes) + sizeof(Context::lanes[0]), 64);
    if (!m.loads && chunks) put_together(m, side);
    if (!m.loads && !chunks)
        for (uint32_t n = 0; n < m.count; ++n) spill(element(m, n), static_cast<int>(n + 1));
    drop_all();
    if (m.where != MemoryOp::global) a_.load(r9, warp_field(bases[m.where]), true);
    if (m.where == MemoryOp::local) a_.load(r10, warp_field(offsetof(Warp, local_stride)), true);
    each_lane([&] {
        a_.load(rsi, lane_place(0, address.bytes), !narrow);
        if (op_->imm) a_.alu(Assembler::add, rsi, static_cast<int32_t>(op_->imm), !narrow);
        if (m.where != MemoryOp::global) a_.alu(Assembler::add, rsi, r9, true);
        if (m.where == MemoryOp::local) {
            a_.move(rdi, r10, true);
            a_.multiply(rdi, rdx);
            a_.alu(Assembler::add, rsi, rdi, true);
        }
        if (chunks) return copy_chunk(m, m.loads);
        for (uint32_t n = 0; n < m.count; ++n) {
            const Memory there{rsi, static_cast<int32_t>(n * m.memory)};
            const Memory here = lane_place(static_cast<int>(n + 1), m.reg);
            if (m.loads) {
                a_.load_sized(rax, there, m.memory, m.is_signed, m.reg == 8);
                a_.store_narrow(here, rax, m.reg);
            } else {
                a_.load_sized(rax, here, m.reg, false, m.reg == 8);
                a_.store_narrow(there, rax, m.memory);
            }
        }
    });
    if (m.loads && chunks) take_apart(m, side);
    if (m.loads && !chunks)
        for (uint32_t n = 0; n < m.count; ++n)
            if (const Access to = element(m, n); to.bytes) unspill(to, static_cast<int>(n + 1));
    slow_path(slow);
    return true;
}

bool Generator::atomic() {
    AtomicOp m;
    if (!atomic_op(s_->key, m) || op_->imm) return false;
    const bool shared = address_in_shared_window();
    const auto slow = slow_for(!shared, m.bytes);
    check_lanes(s_->reads[0], m.bytes, 0, shared ? Reach::shared_window : Reach::site, slow->site,
                slow->begin);
    a_.store(warp_field(offsetof(Warp, touched), 1), 1, false);
    touches_ = true;
    for (size_t n = 0; n < s_->reads.size(); ++n) spill(s_->reads[n], static_cast<int>(n));
    // A block's shared memory is its own thread's, so that nobody can come between.
    drop_all();
    if (shared) {
        a_.load(r9, warp_field(offsetof(Warp, shared)), true);
        a_.immediate(rax, kSharedWindow);
        a_.alu(Assembler::subtract, r9, rax, true);
    }
    // Nobody may want what was there before.
    const bool wanted = !s_->writes.empty() && contains(behind_, flow_.value(s_->writes[0].operand));
    const bool plain = !m.is_float && m.kind <= AtomicOp::bit_xor;
    Label some, done;
    if (shared && plain && !wanted && op_->guard == kNoGuard) {
        a_.alu(Assembler::compare, r12, -1, false);
        a_.jump(not_equal, some);
        update_all_lanes(m);
        a_.jump(done);
        a_.bind(some);
    }
    each_lane([&] {
        a_.load(rsi, lane_place(0, 8), true);
        if (shared) a_.alu(Assembler::add, rsi, r9, true);
        update_lane(m, wanted, !shared);
        if (wanted) a_.store(lane_place(3, m.bytes), rax, m.bytes == 8);
    });
    a_.bind(done);
    if (wanted) unspill(s_->writes[0], 3);
    slow_path(slow);
    return true;
}

// The same for all lanes of a warp, one after the other without a loop, from r9 on.
void Generator::update_all_lanes(const AtomicOp& m) {
    drop_all();
    const bool wide = m.bytes == 8;
    const Access with = s_->reads[1];
    const bool one = is_line(with.operand) && step(with.operand) == 0;
    if (one) a_.load(rdi, scalar(with.operand, 8), wide);
    a_.move(rcx, r9, true);
    const auto place = [this](int n, uint32_t bytes, uint32_t lane) {
        Memory at = lane_place(n, bytes);
        at.scaled = -1;
        at.displacement += static_cast<int32_t>(bytes * lane);
        return at;
    };
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
        a_.load(rsi, place(0, 8, lane), true);
        if (!one) a_.load(rdi, place(1, m.bytes, lane), wide);
        a_.alu(kPlainUpdates[m.kind], Memory{rsi, 0, -1, 64, false, rcx}, rdi, wide);
    }
}

// A subnormal number in r becomes the zero of its sign.
void Generator::flush(Gpr r) {
    Label normal;
    a_.test(r, 0x7f800000);
    a_.jump(not_equal, normal);
    a_.alu(Assembler::bit_and, r, INT32_MIN, false);
    a_.bind(normal);
}

// What lies at rsi is updated with the lane's operands; what was there before comes into rax, where it is
// wanted.  `locks`: other threads may do so, too.
void Generator::update_lane(const AtomicOp& m, bool wanted, bool locks) {
    const bool wide = m.bytes == 8;
    const Memory at{rsi}, with = lane_place(1, m.bytes);
    if (m.kind == AtomicOp::compare) {
        a_.load(rax, with, wide);
        a_.load(rdi, lane_place(2, m.bytes), wide);
        return a_.exchange(Assembler::compare_exchange, at, rdi, wide, locks);
    }
    if (!m.is_float) a_.load(rdi, with, wide);
    if (m.kind == AtomicOp::exchange) {
        a_.exchange(at, rdi, wide);  // always seen whole
        return a_.move(rax, rdi, wide);
    }
    const bool plain = !m.is_float && m.kind <= AtomicOp::bit_xor;
    if (plain && m.kind == AtomicOp::add && wanted) {
        a_.exchange(Assembler::exchange_add, at, rdi, wide, locks);
        return a_.move(rax, rdi, wide);
    }
    if (plain && !wanted) {
        if (locks) a_.lock();
        return a_.alu(kPlainUpdates[m.kind], at, rdi, wide);
    }
    // Its operands are read again for each attempt.
    a_.load(rax, at, wide);
    Label again;
    a_.bind(again);
    if (m.is_float) {
        const Encoding sum{wide ? kF2 : kF3, 1, wide, 0x58};  // vaddss, vaddsd
        if (locks && !wide) {
            // On global memory, though not on shared one, additions flush (the ISA's note on atom and red).
            a_.move(rdi, rax, false);
            a_.load(r8, with, false);
            flush(rdi), flush(r8);
            a_.vector_from(0, rdi, false);
            a_.vector_from(1, r8, false);
            a_.vector(sum, 0, 0, 1);
            a_.vector_to(rdi, 0, false);
            flush(rdi);
        } else {
            a_.vector_from(0, rax, wide);
            a_.vector(sum, 0, 0, with);
            a_.vector_to(rdi, 0, wide);
        }
    } else if (plain) {
        a_.load(rdi, with, wide);
        a_.alu(kPlainUpdates[m.kind], rdi, rax, wide);
    } else if (m.kind == AtomicOp::least || m.kind == AtomicOp::most) {
        a_.load(rdi, with, wide);
        a_.alu(Assembler::compare, rax, rdi, wide);
        a_.move_if(m.kind == AtomicOp::least ? (m.is_signed ? less : below) : (m.is_signed ? greater : above),
                   rdi, rax, wide);
    } else if (m.kind == AtomicOp::increment) {  // a >= b ? 0 : a + 1
        a_.load(r8, with, wide);
        a_.move(rdi, rax, wide);
        a_.alu(Assembler::add, rdi, 1, wide);
        a_.immediate(r10, 0);
        a_.alu(Assembler::compare, rax, r8, wide);
        a_.move_if(above_equal, rdi, r10, wide);
    } else {  // a == 0 || a > b ? b : a - 1
        a_.load(r8, with, wide);
        a_.move(rdi, rax, wide);
        a_.alu(Assembler::subtract, rdi, 1, wide);
        a_.alu(Assembler::compare, rdi, r8, wide);  // of 0 it is the largest number
        a_.move_if(above_equal, rdi, r8, wide);
    }
    if (!locks) return a_.store(at, rdi, wide);
    a_.exchange(Assembler::compare_exchange, at, rdi, wide, true);
    a_.jump(not_equal, again);
}

}  // namespace gpukernel::simgpu::compiler
