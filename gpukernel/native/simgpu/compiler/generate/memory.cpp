// Loads and stores.  A warp's addresses are checked at once; where they do not lie in one allocation that the
// access has found before, its handler looks at each, and says what is wrong.
#include <cstddef>

#include "simgpu/compiler/generate/generator.h"
#include "simgpu/compiler/generate/instructions.h"

namespace gpukernel::simgpu::compiler {

// The handler does the operation.  In the slow path of an access with a site it is asked to learn the
// allocation, too.
void Generator::call(const Slow* slow) {
    drop_all();
    drop_broadcasts();
    Label skip;
    if (op_->guard != kNoGuard) {
        running_lanes(rax);
        a_.test(rax, rax, false);
        a_.jump(equal, skip);
    }
    Set all = before_;
    for (size_t w = 0; w < all.size(); ++w) all[w] |= behind_[w];
    Set vectors = flow_.nothing();
    for (uint32_t v = 0; v < flow_.values.size(); ++v)
        if (contains(before_, v) && !flow_.values[v].vectors.empty()) insert(vectors, v);
    flush(vectors, changed_);
    for (const Access& a : s_->reads)
        if (!(a.operand & 1) && is_line(a.operand)) line_to_slot(a.operand);
    touches_ = true;  // handlers of atomics say so
    a_.move(rdi, r14);
    a_.immediate(rsi, reinterpret_cast<uint64_t>(op_));
    running_lanes(rdx);
    if (slow && slow->site >= 0) {
        a_.immediate(rcx, static_cast<uint64_t>(slow->site));
        a_.immediate(rax, reinterpret_cast<uint64_t>(&call_and_learn));
    } else {
        a_.immediate(rax, reinterpret_cast<uint64_t>(&call_handler));
    }
    a_.call(rax);
    a_.test(rax, rax, false);
    a_.jump(equal, faulted_);
    for (const Access& a : s_->writes) {
        if (!is_line(a.operand)) continue;  // of a load from one address: what a lane that runs has got
        a_.lowest_bit(rcx, r12);
        a_.multiply(rcx, rcx, static_cast<int32_t>(a.bytes), true);
        a_.alu(Assembler::add, rcx, rbx, true);
        a_.load(rax, Memory{rcx, static_cast<int32_t>(a.operand)}, a.bytes == 8);
        a_.store(home(a.operand), rax, a.bytes == 8);
    }
    for (const Access& a : s_->writes)
        if (!is_line(a.operand)) insert(vectors, flow_.value(a.operand));
    Set wanted = flow_.nothing();
    for (uint32_t v = 0; v < flow_.values.size(); ++v)
        if (contains(vectors, v) && contains(behind_, v)) insert(wanted, v);
    reload(wanted);
    masks_ = Masks::unknown;
    a_.bind(skip);
}

int Generator::new_site(int64_t span) {
    image_.wanted.push_back({static_cast<uint32_t>(span)});
    return static_cast<int>(image_.wanted.size() - 1);
}

// `at_a_site`: of an access of global memory, which looks at the allocation that it found last, where it
// wants `span` bytes.
std::shared_ptr<Generator::Slow> Generator::slow_for(bool at_a_site, int64_t span) {
    auto slow = std::make_shared<Slow>();
    slow->kept = kept_;
    if (!at_a_site) return slow;
    slow->site = new_site(span);
    const int all = together_of_[at_];
    if (apart_ && all >= 0 && together_[static_cast<size_t>(all)].first == at_)
        image_.wanted.back().also = together_[static_cast<size_t>(all)].site;
    return slow;
}

// Code for what seldom is, behind the rest.  It goes back to where the handler does.
Label& Generator::aside(std::function<void()> write, std::shared_ptr<Slow> slow) {
    auto label = std::make_shared<Label>();
    // The state of the generator, as it is now, is wanted again when the cold code is written.
    cold_.push_back([this, label, slow, write = std::move(write), kept = kept_, block = block_, at = at_,
                     before = before_, behind = behind_, changed = changed_] {
        kept_ = kept, block_ = block, at_ = at, before_ = before, behind_ = behind, changed_ = changed;
        op_ = &function_.code[at], s_ = &flow_.signatures[at];
        masks_ = Masks::unknown;
        a_.bind(*label);
        write();
        need_masks();  // as the code that it goes back to may have them
        a_.jump(slow->back);
    });
    return *label;
}

// The handler may do the operation instead of the code before this place.
void Generator::slow_path(std::shared_ptr<Slow> slow) {
    a_.bind(slow->back);
    if (slow->never) return;
    slow->kept_behind = kept_;
    cold_.push_back([this, slow, broadcasts = broadcasts_, block = block_, at = at_, before = before_,
                     behind = behind_, changed = changed_] {
        kept_ = slow->kept, block_ = block, at_ = at;
        before_ = before, behind_ = behind, changed_ = changed;
        op_ = &function_.code[at], s_ = &flow_.signatures[at];
        masks_ = Masks::unknown;
        a_.bind(slow->begin);
        if (s_->key.starts_with("ld.generic.") && line_result()) {
            // One address of local memory is another place for each lane, so their values are not one.
            a_.move(rdx, rax);
            a_.shift_right(rdx, kWindowShift, true);
            a_.alu(Assembler::compare, rdx, static_cast<int32_t>(kLocalWindow >> kWindowShift), true);
            a_.jump(equal, hand_over_label());
        }
        call(slow.get());
        masks_ = Masks::unknown;
        need_masks();  // as the code that it goes back to may have them
        keep_again(slow->kept_behind);
        load_again(broadcasts);
        a_.jump(slow->back);
    });
}

// An address of 32 bits: the program's sum with the offset wraps around, a gather's and a scatter's does not.
// Both are the same for each address within shared memory unless the offset is far below zero.
bool Generator::sums_alike(const MemoryOp& m) const {
    constexpr int64_t kMostShared = 1 << 30;  // bytes; more than any device has
    return m.where == MemoryOp::shared && op_->imm >= -kMostShared;
}

// The n-th register of a load or store; nobody's (0 bytes): what is loaded is thrown away.
Access Generator::element(const MemoryOp& m, uint32_t n) const {
    constexpr uint32_t kSink = 0xfffffffeu;
    if (m.count == 1) return m.loads ? s_->writes[0] : s_->reads[1];
    const uint32_t operand = function_.lists[op_->extra + n];
    return {operand, operand == kSink ? 0u : m.reg};
}

bool Generator::memory() {
    MemoryOp m;
    if (!memory_op(s_->key, m)) return false;
    // An instruction's displacement has 32 bits, and so has that of the last part of a row or of a vector.
    constexpr int64_t kMostBehind = 1 << 12;
    if (op_->imm < INT32_MIN || op_->imm > INT32_MAX - kMostBehind) return false;
    if (m.where == MemoryOp::param && !m.loads) return false;
    if (m.count == 1 ? plain_access(m) : vector_access(m)) return true;
    return lane_access(m);
}

void Generator::parameter() {
    MemoryOp m;
    memory_op(s_->key, m);
    const auto at = static_cast<int32_t>(parameter_at(function_, *op_, *s_));
    a_.load(rax, field(offsetof(Context, params)), true);
    a_.load_sized(rax, Memory{rax, at}, m.memory, m.is_signed, m.reg == 8);
    put_line(s_->writes[0], rax);
    ++image_.native;
}

bool Generator::plain_access(const MemoryOp& m) {
    if (m.where == MemoryOp::local) return false;
    const Access address = s_->reads[0];
    const bool line = is_line(address.operand);
    const int64_t by = line ? step(address.operand) : 0;
    if (goes_by_line(*op_, *s_, m)) return line_access(m), true;
    if ((line && by == 0) || line_result() || m.where == MemoryOp::param) return false;
    if (m.memory != m.reg || m.reg == 2 || op_->imm % m.memory) return false;
    if (address.bytes == 4 && !sums_alike(m)) return false;
    if (!shared_access(m)) scattered_access(m);
    return true;
}

namespace {

// A row of elements that are narrower in memory than in registers, or as wide.
Encoding load_of(const MemoryOp& m) {
    if (m.memory == m.reg) return kLoad;
    const int to = m.reg == 2 ? 0 : m.reg == 4 ? 1 : 2;
    const int opcode = m.memory == 1 ? 0x30 + to : m.memory == 2 ? 0x32 + to : 0x35;
    return {k66, 2, 0, static_cast<uint8_t>(opcode - (m.is_signed ? 0x10 : 0))};
}
Encoding store_of(const MemoryOp& m) {
    if (m.memory == m.reg) return m.reg == 8 ? kStoreWide : m.reg == 4 ? kStore : kStoreWords;
    const int to = m.reg == 2 ? 0 : m.reg == 4 ? 1 : 2;
    const int opcode = m.memory == 1 ? 0x30 + to : m.memory == 2 ? 0x32 + to : 0x35;
    return {kF3, 2, 0, static_cast<uint8_t>(opcode)};
}

}  // namespace

// The address in rdx is one from which on all that a site wants lies in its allocation.
void Generator::in_site(int site, Label& elsewhere) {
    a_.alu(Assembler::subtract, rdx, site_field(site, offsetof(Site, begin)), true);
    a_.alu(Assembler::compare, rdx, site_field(site, offsetof(Site, places)), true);
    a_.jump(above_equal, elsewhere);
}
// From an address on, `span` bytes are in a room of so many.
void Generator::in_room(Gpr from, bool narrow, Memory room, int64_t span, Label& elsewhere) {
    if (narrow) {  // of 32 bits: no sum is beyond 64
        a_.place(rdx, Memory{from, static_cast<int32_t>(span)});
        a_.alu(Assembler::compare, rdx, room, true);
    } else {
        a_.load(rdx, room, true);
        a_.alu(Assembler::subtract, rdx, static_cast<int32_t>(span), true);
        a_.jump(below, elsewhere);
        a_.alu(Assembler::compare, from, rdx, true);
    }
    a_.jump(above, elsewhere);
}

// The first lane's address, of which `span` bytes are wanted: the place in the host's memory.
Memory Generator::line_address(const MemoryOp& m, int64_t span, Slow& slow) {
    const Access address = s_->reads[0];
    const bool narrow = address.bytes == 4, global = m.where == MemoryOp::global;
    const auto imm = static_cast<int32_t>(op_->imm);
    const Together* all = together();
    // Where nothing is added to it, it may stay in its register.
    const bool stays =
        kept(address.operand) >= 0 && (all || !imm) && !(s_->key.starts_with("ld.generic.") && line_result());
    const Gpr from = stays ? static_cast<Gpr>(kept(address.operand)) : rax;
    if (!stays && address.operand != held_) load_scalar(rax, address.operand, !narrow);
    const auto of_block = [&](size_t base, int32_t at) {
        if (from != rax) a_.move(rax, from, true);
        a_.alu(Assembler::add, rax, warp_field(base), true);
        return Memory{rax, at};
    };
    if (all) {
        slow.never = true;
        if (all->first == at_) {
            Label& apart = each_apart();
            if (all->align > 1) {
                a_.test(from, static_cast<int32_t>(all->align - 1));
                a_.jump(not_equal, apart);
            }
            if (global) {
                a_.place(rdx, Memory{from, static_cast<int32_t>(all->from)});
                in_site(all->site, apart);
            } else {
                in_room(from, narrow, warp_field(offsetof(Warp, shared_bytes)), all->to, apart);
            }
        }
        return global ? Memory{from, imm} : of_block(offsetof(Warp, shared), imm);
    }
    if (imm) a_.alu(Assembler::add, rax, imm, !narrow);
    if (m.whole() > 1) {
        a_.test(from, static_cast<int32_t>(m.whole() - 1));
        a_.jump(not_equal, slow.begin);
    }
    if (global) {
        a_.move(rdx, from);
        in_site(slow.site, slow.begin);
        return Memory{from};
    }
    const bool shared = m.where == MemoryOp::shared;
    in_room(from, narrow, warp_field(shared ? offsetof(Warp, shared_bytes) : offsetof(Warp, param_bytes)),
            span, slow.begin);
    return of_block(shared ? offsetof(Warp, shared) : offsetof(Warp, params), 0);
}

void Generator::line_access(const MemoryOp& m) {
    const Access address = s_->reads[0], data = m.loads ? s_->writes[0] : s_->reads[1];
    const bool guarded = op_->guard != kNoGuard;
    const int64_t by = step(address.operand), span = span_of(m, by);
    const bool one = by == 0;
    const auto slow = slow_for(m.where == MemoryOp::global, span);
    if (!one && (m.loads ? merges(data.operand) : guarded)) need_masks();
    const Memory from = line_address(m, span, *slow);
    const auto at = [from](int32_t behind, int bytes) {
        return Memory{from.base, from.displacement + behind, -1, static_cast<uint8_t>(bytes)};
    };
    // What comes behind a row is most likely what the next warp or block wants.  Rows that are stored have
    // been measured to be no faster for it.
    constexpr int32_t kLine = 64;
    if (m.where == MemoryOp::global && m.loads && !one && (!together() || together()->first == at_))
        for (auto behind = static_cast<int32_t>(span); behind < 2 * span; behind += kLine)
            a_.prefetch(at(behind, 64), false);
    if (one && m.loads) {
        const Gpr here = is_line(data.operand) ? register_for(data.operand, kNoGuard) : rax;
        a_.load_sized(here, from, m.memory, m.is_signed, m.reg == 8);
        if (is_line(data.operand)) {
            put(data.operand, here);
        } else {
            a_.vector(m.reg == 8 ? kBroadcastGprWide : kBroadcastGpr, 5, 0, static_cast<int>(rax));
            for (int unit = 0; unit < units(data.bytes); ++unit) finish(data, unit, 5);
        }
    } else if (one) {
        load_scalar(rcx, data.operand, m.reg == 8);
        a_.store_narrow(from, rcx, m.memory);
    } else if (m.loads) {
        MemoryOp row = m;
        row.memory = static_cast<uint8_t>(by);
        for (int unit = 0; unit < units(data.bytes); ++unit) {
            const int to = target(data, unit), bytes = 64 * row.memory / m.reg;
            a_.vector(load_of(row), to, 0, at(bytes * unit, bytes));
            if (by != m.memory) {
                const Encoding part{k66, 1, static_cast<uint8_t>(m.reg == 8), kAnd.opcode};
                a_.vector(part, to, to, every((1ull << 8 * m.memory) - 1, m.reg));
            }
            finish(data, unit, to);
        }
    } else {
        const auto store = [this, m, data, at](bool masked) {
            for (int unit = 0, bytes = 64 * m.memory / m.reg; unit < units(data.bytes); ++unit)
                a_.vector(store_of(m), in_register(data, unit, 1), 0, at(bytes * unit, bytes),
                          masked ? mask_of(data, unit) : 0);
        };
        if (!guarded) {
            // Most often all lanes run, and need no masks.
            Label& some = aside([store] { store(true); }, slow);
            a_.alu(Assembler::compare, r12, -1, false);
            a_.jump(not_equal, some);
        }
        store(guarded);
    }
    slow_path(slow);
}

// The lanes of a tile's row often stand side by side, or at one place, where a gather would take ten times as
// long: then they are loaded into `to` here.  `index`: sixteen addresses of 32 bits, or eight of 64.
void Generator::side_by_side(int index, bool wide, int32_t imm, int to, int site, Label& done) {
    Label gather, row;
    a_.alu(Assembler::compare, r12, -1, false);
    a_.jump(not_equal, gather);
    const Memory first = field(offsetof(Context, first), wide ? 8 : 4);
    a_.vector(wide ? kStoreFirstWide : kStoreFirst, index, 0, first);
    a_.vector(wide ? kBroadcastWide : kBroadcast, 4, 0, index);
    a_.vector(wide ? kSubtractWide : kSubtract, 4, index, 4);
    a_.vector(wide ? kCompareUnsignedWide : kCompareUnsigned, 6, 4, lanes_of(4, wide ? 8 : 4, 0));
    a_.byte(0);
    a_.mask_to(rdx, 6);
    a_.load_sized(rcx, first, wide ? 8 : 4, true, true);
    a_.alu(Assembler::add, rcx, rax, true);
    a_.alu(Assembler::compare, rdx, wide ? 0xff : 0xffff, false);
    a_.jump(equal, row);
    a_.vector(wide ? kTestWide : kTest, 6, 4, 4);
    a_.mask_to(rdx, 6);
    a_.test(rdx, rdx, false);
    a_.jump(not_equal, gather);
    if (site >= 0) a_.store(site_field(site, offsetof(Site, row)), Site::kNoRow, true);
    a_.vector(kBroadcast, to, 0, Memory{rcx, imm, -1, 4});
    a_.jump(done);
    a_.bind(row);
    if (site >= 0) a_.store(site_field(site, offsetof(Site, row)), Site::kNoRow, true);
    a_.vector(kLoad, to, 0, Memory{rcx, imm, -1, static_cast<uint8_t>(wide ? 32 : 64)}, 0, wide);
    a_.jump(done);
    a_.bind(gather);
}

// Whether each lane that runs has an address, without the offset of the instruction, where it may be.
void Generator::check_lanes(Access address, uint32_t bytes, int64_t imm, Reach reach, int site,
                            Label& otherwise) {
    need_masks();
    const bool narrow = address.bytes == 4;
    if (reach == Reach::site) {
        a_.load(rax, site_field(site, offsetof(Site, begin)), true);
        a_.load(rcx, site_field(site, offsetof(Site, places)), true);
        if (imm) a_.alu(Assembler::subtract, rax, static_cast<int32_t>(imm), true);
    } else {
        const int64_t from = reach == Reach::shared_window ? static_cast<int64_t>(kSharedWindow) : 0;
        a_.immediate(rax, static_cast<uint64_t>(from - imm));
        a_.load(rcx,
                warp_field(reach == Reach::local   ? offsetof(Warp, local_stride)
                           : reach == Reach::param ? offsetof(Warp, param_bytes)
                                                   : offsetof(Warp, shared_bytes)),
                true);
        a_.alu(Assembler::subtract, rcx, static_cast<int32_t>(bytes) - 1, true);
        a_.jump(below_equal, otherwise);
    }
    a_.vector(narrow ? kBroadcastGpr : kBroadcastGprWide, 4, 0, static_cast<int>(rax));
    a_.vector(narrow ? kBroadcastGpr : kBroadcastGprWide, 5, 0, static_cast<int>(rcx));
    const Encoding subtract = narrow ? kSubtract : kSubtractWide;
    const int count = units(address.bytes);
    for (int unit = 0; unit < count; ++unit) {
        const int from = in_register(address, unit, 1), k = mask_of(address, unit);
        const int out = unit ? 6 : 5;
        a_.vector(subtract, 0, from, 4);
        a_.vector(narrow ? kCompareUnsigned : kCompareUnsignedWide, out, 0, 5, k);
        a_.byte(5);
        if (unit) a_.mask(Assembler::mask_or, 5, 5, 6);
        if (bytes == 1) continue;
        // The address with its offset is a multiple of the size where the offset is.
        a_.vector(narrow ? kTest : kTestWide, 6, from, every(bytes - 1, narrow ? 4 : 8), k);
        a_.mask(Assembler::mask_or, 5, 5, 6);
    }
    a_.mask_to(rax, 5);
    a_.test(rax, rax, false);
    a_.jump(not_equal, otherwise);
}

// Elements of four bytes at addresses of 64 bits, of which rax has the base.  Of several accesses through one
// address the first finds out how the lanes lie.
void Generator::load_far(Access address, Access data, int32_t imm) {
    const Together* all = together();
    const bool first = !all || all->first == at_;
    const int site = all ? all->site : -1;
    Label apart, scattered, done;
    const auto by = [&](Gpr from) {
        for (int unit = 0; unit < 2; ++unit) {
            const int to = target(data, unit);
            a_.vector(kLoad, to, 0, Memory{from, imm + 64 * unit});
            finish(data, unit, to);
        }
        a_.jump(done);
    };
    const auto eights = [&](bool look, bool tells) {
        constexpr int masks[] = {1, 3, 2, 4};
        for (int unit = 0; unit < 4; ++unit) {
            const int index = in_register(address, unit, 1), to = 2 + unit % 2;
            Label whole;
            a_.mask(Assembler::mask_and, 5, masks[unit], masks[unit]);
            if (look) side_by_side(index, true, imm, to, tells ? site : -1, whole);
            a_.vector(kGatherFar, to, 0, Memory{rax, imm, index, 4}, 5);
            a_.bind(whole);
            if (unit % 2 == 0) continue;
            a_.vector(kInsertHalf, 0, 2, 3);
            a_.byte(1);
            finish(data, unit / 2, 0);
        }
    };
    if (first) {
        a_.alu(Assembler::compare, r12, -1, false);
        a_.jump(not_equal, apart);
        const Memory at = field(offsetof(Context, first), 8);
        for (int unit = 0; unit < 4; ++unit) {
            const int index = in_register(address, unit, 1);
            if (unit == 0) {
                a_.vector(kStoreFirstWide, index, 0, at);
                a_.vector(kBroadcastWide, 4, 0, index);
            }
            a_.vector(kSubtractWide, 5, index, 4);
            a_.vector(kCompareUnsignedWide, unit ? 6 : 5, 5, lanes_of(4, 8, unit));
            a_.byte(4);  // not equal
            if (unit) a_.mask(Assembler::mask_or, 5, 5, 6);
        }
        a_.load(rcx, at, true);
        a_.alu(Assembler::add, rcx, rax, true);
        a_.mask_to(rdx, 5);
        a_.test(rdx, rdx, false);
        a_.jump(not_equal, apart);
        if (all) a_.store(site_field(site, offsetof(Site, row)), rcx, true);
        by(rcx);
        a_.bind(apart);
        if (all) a_.store(site_field(site, offsetof(Site, row)), Site::kAllApart, true);
        eights(true, all != nullptr);
    } else {
        a_.load(rcx, site_field(site, offsetof(Site, row)), true);
        a_.alu(Assembler::compare, rcx, Site::kAllApart, true);
        a_.jump(equal, scattered);
        a_.jump(below, apart);
        by(rcx);
        a_.bind(apart);
        eights(true, false);
        a_.jump(done);
        a_.bind(scattered);
        eights(false, false);
    }
    a_.bind(done);
}

void Generator::scattered_access(const MemoryOp& m) {
    const Access address = s_->reads[0], data = m.loads ? s_->writes[0] : s_->reads[1];
    const auto slow = slow_for(m.where == MemoryOp::global, m.memory);
    const bool narrow = address.bytes == 4;
    const auto imm = static_cast<int32_t>(op_->imm);
    if (const Together* all = together()) {
        slow->never = true;
        if (all->first == at_)
            check_lanes(address, all->align, all->from, Reach::site, all->site, each_apart());
        need_masks();
    } else {
        check_lanes(address, m.memory, imm, slow->site < 0 ? Reach::shared : Reach::site, slow->site,
                    slow->begin);
    }
    if (m.where == MemoryOp::global)
        a_.immediate(rax, 0);
    else
        a_.load(rax, warp_field(offsetof(Warp, shared)), true);
    const Memory base{rax, imm, 1, 4};
    auto running = [&](int k) { a_.mask(Assembler::mask_and, 5, k, k); };
    const bool wide = m.memory == 8;
    auto at = [&](int index) {
        Memory place = base;
        place.index = index, place.bytes = m.memory;
        return place;
    };
    if (narrow && !wide) {  // sixteen lanes at once
        for (int unit = 0; unit < 2; ++unit) {
            const int index = in_register(address, unit, 1);
            running(mask_of(address, unit));
            if (m.loads) {
                Label whole;
                if (op_->guard == kNoGuard) side_by_side(index, false, imm, 0, -1, whole);
                a_.vector(kGather, 0, 0, at(index), 5);
                a_.bind(whole);
                finish(data, unit, 0);
            } else {
                a_.vector(kScatter, in_register(data, unit, 2), 0, at(index), 5);
            }
        }
    } else if (m.loads && !wide && op_->guard == kNoGuard) {
        load_far(address, data, imm);
    } else {  // eight: whose addresses or whose elements have 64 bits
        constexpr int masks[] = {1, 3, 2, 4};
        for (int unit = 0; unit < 4; ++unit) {
            const int index = narrow ? half_in_register(address, unit, 1) : in_register(address, unit, 1);
            running(masks[unit]);
            if (m.loads && wide) {
                a_.vector(narrow ? kGatherWide : kGatherFarWide, 0, 0, at(index), 5);
                finish(data, unit, 0);
            } else if (m.loads) {
                a_.vector(kGatherFar, 2 + unit % 2, 0, at(index), 5);
                if (unit % 2 == 0) continue;
                a_.vector(kInsertHalf, 0, 2, 3);
                a_.byte(1);
                finish(data, unit / 2, 0);
            } else if (wide) {
                a_.vector(narrow ? kScatterWide : kScatterFarWide, in_register(data, unit, 2), 0, at(index),
                          5);
            } else {
                a_.vector(kScatterFar, half_in_register(data, unit, 2), 0, at(index), 5);
            }
        }
    }
    slow_path(slow);
}

}  // namespace gpukernel::simgpu::compiler
