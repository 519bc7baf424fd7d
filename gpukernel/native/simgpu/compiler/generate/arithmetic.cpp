// Operations that touch no memory: on lines with general registers, else with vectors.
#include <bit>
#include <cstddef>
#include <utility>

#include "simgpu/compiler/generate/generator.h"
#include "simgpu/compiler/generate/instructions.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr uint8_t kProductOfIntegers = 0x40;  // vpmulld, vpmullq

}  // namespace

void Generator::operation() {
    const std::string& key = s_->key;
    held_ = std::exchange(holds_, kNoGuard);
    const bool by_line = line_result() && line_op(key) != LineOp::none &&
                         (line_op(key) != LineOp::shift_left || s_->reads[1].operand & 1);
    if (!by_line)
        for (const Access& write : s_->writes) drop(write.operand);
    load_operands();
    if (op_->guard != kNoGuard) masks_ = Masks::unknown;
    if (key == "mode") {
        a_.load_mode(every(0x1f80u | static_cast<uint32_t>(op_->imm), 4));
        ++image_.native;
    } else if (key == "nothing") {
    } else if (key == "touch") {
        touches_ = true;
        a_.store(warp_field(offsetof(Warp, touched), 1), 1, false);
    } else if (key.starts_with("special.") && s_->writes[0].bytes >= 4 &&
               (op_->imm <= kTidZ || is_launch_constant(op_->imm) || line_result() || op_->imm == kWarpId ||
                (s_->writes[0].bytes == 4 &&
                 (op_->imm == kLaneId || (op_->imm >= kLanemaskEq && op_->imm <= kLanemaskGt))))) {
        special();
        ++image_.native;
    } else if (memory() || atomic()) {
        ++image_.native;
    } else if (key == "activemask.b32") {
        running_lanes(rax);
        same_for_all(s_->writes[0], rax);
        ++image_.native;
    } else if (by_line) {
        line_operation();
        ++image_.native;
    } else if (const VectorOp* vector = vector_op(key)) {
        vector_operation(*vector);
        ++image_.native;
    } else if (integer_form() || half_form()) {
        ++image_.native;
    } else {
        call();
        ++image_.called;
        image_.handlers.insert(s_->key);
    }
    for (const Access& write : s_->writes) drop_broadcast(write.operand), forget_place(write.operand);
    if (op_->guard != kNoGuard) masks_ = Masks::unknown;
}

bool Generator::line_result() { return s_->writes.size() == 1 && is_line(s_->writes[0].operand); }

void Generator::special() {
    const Access to = s_->writes[0];
    if (!line_result() && (op_->imm == kLaneId || op_->imm > kWarpId) && op_->imm <= kLanemaskGt &&
        to.bytes == 4) {
        const auto number = [&](uint32_t lane) {
            const uint32_t bit = 1u << lane;
            return op_->imm == kLaneId       ? lane
                   : op_->imm == kLanemaskEq ? bit
                   : op_->imm == kLanemaskLe ? bit | (bit - 1)
                   : op_->imm == kLanemaskLt ? bit - 1
                   : op_->imm == kLanemaskGe ? ~(bit - 1)
                                             : ~(bit | (bit - 1));
        };
        for (int unit = 0; unit < 2; ++unit) {
            a_.vector(kLoad, 0, 0, table_of(number, unit));
            finish(to, unit, 0);
        }
        return;
    }
    if (line_result() || op_->imm > kTidZ) {
        const Gpr here = line_result() ? register_for(to.operand, kNoGuard) : rax;
        if (op_->imm > kTidZ && op_->imm <= kNctaidZ)
            a_.load(here, field(offsetof(Context, special) + 4 * static_cast<size_t>(op_->imm)), false);
        else if (op_->imm <= kTidZ)
            a_.load(here,
                    warp_field(offsetof(Warp, tid) + sizeof(Warp::tid[0]) * static_cast<size_t>(op_->imm), 4),
                    false);
        else if (op_->imm == kDynamicBase)
            a_.load(here, field(offsetof(Context, dynamic_base)), false);
        else if (op_->imm == kWarpId)
            a_.load(here, warp_field(offsetof(Warp, index), 4), false);
        else  // the first lane's number, or nothing
            a_.alu(Assembler::bit_xor, here, here, false);
        if (line_result()) return put_line(to, here);
        a_.vector(to.bytes == 8 ? kBroadcastGprWide : kBroadcastGpr, 5, 0, static_cast<int>(here));
        for (int unit = 0; unit < units(to.bytes); ++unit) finish(to, unit, 5);
        return;
    }
    const auto tid =
        static_cast<int32_t>(offsetof(Warp, tid) + sizeof(uint32_t) * kLanes * static_cast<size_t>(op_->imm));
    for (int unit = 0; unit < units(to.bytes); ++unit) {
        const int reg = target(to, unit);
        if (to.bytes == 8)
            a_.vector(kZeroExtend, reg, 0, Memory{r14, tid + 32 * unit, -1, 32});
        else
            a_.vector(kLoad, reg, 0, Memory{r14, tid + 64 * unit, -1, 64});
        finish(to, unit, reg);
    }
}

// A line may leave its 32 bits between its first and its last lane: then the interpreter goes on.
void Generator::widened_reach(Access a, Gpr from) {
    const int64_t reach = step(a.operand) * (kLanes - 1);
    if (!reach) return;
    a_.move(rdx, from, false);
    if (reach > 0)
        a_.alu(Assembler::add, rdx, static_cast<int32_t>(reach), false);
    else
        a_.alu(Assembler::subtract, rdx, static_cast<int32_t>(-reach), false);
    a_.jump(widens_signed(s_->key) ? overflow : below, hand_over_label());
}

// to *= a constant.
void Generator::multiply_by(Gpr to, uint64_t with, bool wide) {
    if (std::has_single_bit(with))
        return a_.shift_left(to, static_cast<uint8_t>(std::countr_zero(with)), wide);
    if (const auto brief = static_cast<int32_t>(with); !wide || static_cast<uint64_t>(int64_t{brief}) == with)
        return a_.multiply(to, to, brief, wide);
    a_.immediate(rcx, with);
    a_.multiply(to, rcx);
}

void Generator::line_operation() {
    const std::string& key = s_->key;
    const bool wide = s_->writes[0].bytes == 8, extends = widens(key);
    // Of a sum or a product, the operand that rax has already is the first: the other one may be loaded
    // there.
    const bool commutes = line_op(key) == LineOp::add || line_op(key) == LineOp::multiply ||
                          line_op(key) == LineOp::multiply_add;
    const size_t first = commutes && s_->reads[1].operand == held_, second = 1 - first;
    const Gpr to = register_for(s_->writes[0].operand, s_->reads[first].operand);
    const auto load = [&](Gpr here, size_t n) {
        const Access a = s_->reads[n];
        const bool is_wide = a.bytes == 8;
        if (a.operand != held_)
            load_scalar(here, a.operand, is_wide);
        else if (here != rax)
            a_.move(here, rax, is_wide);
        if (!extends || is_wide) return;
        widened_reach(a, here);
        if (widens_signed(key)) a_.sign_extend(here, here);
    };
    load(to, first);
    switch (line_op(key)) {
        case LineOp::add:
            alu_scalar(Assembler::add, to, s_->reads[second].operand, wide);
            break;
        case LineOp::subtract:
            alu_scalar(Assembler::subtract, to, s_->reads[1].operand, wide);
            break;
        case LineOp::multiply:
        case LineOp::multiply_add: {
            const Access by = s_->reads[second];
            if (by.operand & 1) {
                const uint64_t with = constant(by.operand, by.bytes);
                const bool negative = extends && widens_signed(key) && static_cast<int32_t>(with) < 0;
                multiply_by(to, negative ? with | ~0ull << 32 : with, wide);
            } else if (extends) {
                load(rcx, second);
                a_.multiply(to, rcx);
            } else {
                a_.multiply(to, scalar(by.operand, 8), wide);
            }
            if (line_op(key) == LineOp::multiply_add)
                alu_scalar(Assembler::add, to, s_->reads[2].operand, wide);
            break;
        }
        case LineOp::shift_left: {
            const auto bits = static_cast<uint32_t>(constant(s_->reads[1].operand, 4));
            if (bits < (wide ? 64u : 32u))
                a_.shift_left(to, static_cast<uint8_t>(bits), wide);
            else
                a_.alu(Assembler::bit_xor, to, to, false);
            break;
        }
        default:
            // Whoever finds it there may take it for a number of 64 bits.
            if (!wide && s_->reads[0].bytes == 8) a_.move(to, to, false);
            break;
    }
    put_line(s_->writes[0], to);
}
void Generator::put_line(Access to, Gpr from) {
    put(to.operand, from);
    if (from == rax) holds_ = to.operand;
}

void Generator::vector_operation(const VectorOp& op) {
    if (op.form == VectorOp::compare) return compare(op);
    if (op.form == VectorOp::predicate) return predicate(op);
    const Access to = s_->writes[0];
    const int count = is_line(to.operand) ? 1 : units(to.bytes);
    if (op.form == VectorOp::fused && op.code.opcode != kProductOfIntegers) return fused(op, count);
    for (int unit = 0; unit < count; ++unit) finish(to, unit, compute(op, unit, target(to, unit)));
}

// to = a * b + c.  Of three forms the one whose result takes the place of an operand that lies there already;
// else one of them is loaded there.  Each has the first factor before the second and the summand, as which of
// several NaNs is the result goes by this order.
void Generator::fused(const VectorOp& op, int count) {
    const auto form = [&](uint8_t opcode) {
        return Encoding{op.code.prefix, op.code.map, op.code.wide, opcode};
    };
    const Encoding on_first = form(0x98), on_second = form(0xa8), on_sum = form(0xb8);  // 132, 213, 231
    const Access to = s_->writes[0], a = s_->reads[0], b = s_->reads[1], c = s_->reads[2];
    // What is the same for all lanes is loaded once.
    const auto once = [&](Access x, int unit, int scratch) {
        return unit && is_broadcast(x) && broadcast_of(x) < 0 ? scratch : in_register(x, unit, scratch);
    };
    for (int unit = 0; unit < count; ++unit) {
        const int home = home_of(to, unit);
        const int at_a = register_of(a, unit), at_b = register_of(b, unit), at_c = register_of(c, unit);
        int k = 0, result = home;
        if (home >= 0 && (home == at_c || home == at_a || home == at_b)) {
            k = merges(to.operand) ? mask_of(to, unit) : 0;
        } else if (home < 0 || merges(to.operand)) {
            result = 0;
        }
        const auto load = [&](Access x) {
            if (const int from = in_register(x, unit, result); from != result)
                a_.vector(kLoad, result, 0, from);
        };
        if (result == at_a && result != at_c) {
            apply(on_first, result, once(c, unit, 3), b, unit, 2, k);
        } else if (result == at_b && result != at_c) {
            apply(on_second, result, once(a, unit, 1), c, unit, 2, k);
        } else if (result != at_c && at_a < 0 && at_c >= 0) {
            load(a);
            apply(on_first, result, at_c, b, unit, 2);
        } else {
            if (result != at_c) load(c);
            apply(on_sum, result, once(a, unit, 1), b, unit, 2, k);
        }
        finish(to, unit, result);
    }
}

// Computes one vector of the result in `to` or another register, which is returned.
int Generator::compute(const VectorOp& op, int unit, int to) {
    const auto& in = s_->reads;
    const bool wide = op.bytes == 8, line = line_result();
    switch (op.form) {
        case VectorOp::two: {
            // Lanes that keep what they have keep it in its own vector.
            const Access result = s_->writes[0];
            const int home = home_of(result, unit),
                      k = home >= 0 && merges(result.operand) ? mask_of(result, unit) : 0;
            if (k) to = home;
            apply(op.code, to, in_register(in[0], unit, 1), in[1], unit, 2, k);
            return to;
        }
        case VectorOp::one:
            apply(op.code, to, 0, in[0], unit, 1);
            if (op.code.map == 3) a_.byte(op.detail);
            return to;
        case VectorOp::move:
            return in_register(in[0], unit, to);
        case VectorOp::fused: {  // of integers
            apply(op.code, 3, in_register(in[0], unit, 1), in[1], unit, 2);
            apply(wide ? kAddWide : kAdd, to, 3, in[2], unit, 2);
            return to;
        }
        case VectorOp::widened:
            a_.vector(op.code, to, 0, half_in_register(in[0], unit, 1));
            return to;
        case VectorOp::narrowed:
            for (int h = 0; h < (line ? 1 : 2); ++h) {
                const int from = in_register(in[0], 2 * unit + h, 1);
                if (op.code.opcode == kNarrow.opcode)
                    a_.vector(op.code, from, 0, 2 + h);
                else
                    a_.vector(op.code, 2 + h, 0, from);
            }
            if (line) return 2;
            a_.vector(kInsertHalf, to, 2, 3);
            a_.byte(1);
            return to;
        case VectorOp::product:
        case VectorOp::product_add: {
            const Encoding extend{k66, 2, 0, op.detail};
            a_.vector(extend, 1, 0, half_in_register(in[0], unit, 1));
            const int result = op.form == VectorOp::product ? to : 3;
            if (is_line(in[1].operand) && !step(in[1].operand)) {
                a_.vector(op.code, result, 1, scalar(in[1].operand, 8));
            } else {
                a_.vector(extend, 2, 0, half_in_register(in[1], unit, 2));
                a_.vector(op.code, result, 1, 2);
            }
            if (op.form == VectorOp::product_add) apply(kAddWide, to, 3, in[2], unit, 2);
            return to;
        }
        case VectorOp::sign: {
            const uint64_t top = wide ? 1ull << 63 : 1ull << 31;
            const uint64_t all[] = {top - 1,      top,          ~0ull,      kSharedWindow,
                                    kLocalWindow, kParamWindow, kOffsetMask};
            const uint64_t bits = all[op.detail];
            const Encoding code{k66, 1, static_cast<uint8_t>(wide), op.code.opcode};
            a_.vector(code, to, in_register(in[0], unit, 1), every(bits, op.bytes));
            return to;
        }
        case VectorOp::shift: {
            const int from = in_register(in[0], unit, 1);
            a_.vector(kZeroExtend, 2, 0, half_in_register(in[1], unit, 2));
            a_.vector(op.code, to, from, 2);
            return to;
        }
        case VectorOp::select: {
            const uint32_t p = in[2].operand;
            if (const int reg = kept(p); reg >= 0)
                a_.mask_from(5, static_cast<Gpr>(reg));
            else
                a_.mask_from(5, home(p));
            if (unit) a_.mask_shift_right(5, 5, static_cast<uint8_t>(unit * (wide ? 8 : 16)));
            const bool inverted = op_->sub & 1;
            apply(op.code, to, in_register(in[inverted ? 0 : 1], unit, 1), in[inverted ? 1 : 0], unit, 2, 5);
            return to;
        }
        case VectorOp::table:
            a_.vector(kLoad, 1, 0, in_register(in[0], unit, 1));
            apply(op.code, 1, in_register(in[1], unit, 2), in[2], unit, 3);
            a_.byte(static_cast<uint8_t>(op_->imm));
            return 1;
        case VectorOp::extreme:
            extreme(op, unit, to);
            return 3;
        case VectorOp::reciprocal: {
            Memory one = every(wide ? 0x3ff0000000000000 : 0x3f800000, op.bytes);
            one.broadcast = false;
            a_.vector(wide ? kBroadcastWide : kBroadcast, 1, 0, one);
            apply(op.code, to, 1, in[0], unit, 2);
            return to;
        }
        case VectorOp::root: {
            Memory one = every(0x3ff0000000000000, 8);
            one.broadcast = false;
            a_.vector(kBroadcastWide, 2, 0, one);
            for (int h = 0; h < (line ? 1 : 2); ++h) {
                a_.vector(kWiden, 1, 0, half_in_register(in[0], 2 * unit + h, 1));
                a_.vector(kRootWide, 1, 0, 1);
                a_.vector(kDivideWide, 1, 2, 1);
                a_.vector(kShorten, 3 + h, 0, 1);
            }
            if (line) return 3;
            a_.vector(kInsertHalf, to, 3, 4);
            a_.byte(1);
            return to;
        }
        case VectorOp::clamp: {
            int from = in_register(in[0], unit, 1);
            if (op.detail != 3) {
                a_.vector(kRound, 1, 0, from);
                a_.byte(static_cast<uint8_t>(8 | op.detail));
                from = 1;
            }
            a_.vector(op.code, 2, 0, from);
            if (op.code.opcode == 0x5b) {  // signed
                a_.vector(kCompareFloat, 5, from, every(0x4f000000, 4));
                a_.byte(13);
                Memory most = every(0x7fffffff, 4);
                most.broadcast = false;
                a_.vector(kBroadcast, 2, 0, most, 5);
                a_.vector(kCompareFloat, 5, from, from);
                a_.byte(3);
            } else {
                a_.vector(kCompareFloat, 5, from, every(0, 4));
                a_.byte(10);
            }
            a_.vector(kXor, 2, 2, 2, 5);
            return 2;
        }
        default:
            return to;
    }
}

// The smaller or the larger number, into register 3: of two zeros -0 is the smaller, and a NaN only where
// both are.
void Generator::extreme(const VectorOp& op, int unit, int) {
    const bool wide = op.bytes == 8, least = op.detail == 1;
    const Encoding compare = wide ? kCompareFloatWide : kCompareFloat, blend = wide ? kBlendWide : kBlend;
    const int a = in_register(s_->reads[0], unit, 1), b = in_register(s_->reads[1], unit, 2);
    auto test = [&](int k, int x, int y, uint8_t how) {
        a_.vector(compare, k, x, y);
        a_.byte(how);
    };
    test(5, a, b, op.detail);
    test(6, a, b, 0);
    a_.vector(wide ? kSignsWide : kSigns, 7, 0, least ? a : b);
    a_.mask(Assembler::mask_and, 6, 6, 7);
    a_.mask(Assembler::mask_or, 5, 5, 6);
    a_.vector(blend, 3, b, a, 5);
    test(5, b, b, 3);
    a_.vector(blend, 3, 3, a, 5);
    test(5, a, a, 3);
    a_.vector(blend, 3, 3, b, 5);
}

// Of two whole numbers that are the same for all lanes.
bool Generator::compare_scalars(const VectorOp& op) {
    if (op.code.map != 3 || !is_broadcast(s_->reads[0]) || !is_broadcast(s_->reads[1])) return false;
    constexpr Condition of_signed[] = {equal, less, less_equal, equal, not_equal, greater_equal, greater};
    constexpr Condition of_unsigned[] = {equal, below, below_equal, equal, not_equal, above_equal, above};
    const bool wide = op.bytes == 8, is_signed = op.code.opcode == 0x1f;
    const Access a = s_->reads[0], b = s_->reads[1];
    if (kept(a.operand) < 0) load_scalar(rax, a.operand, wide);
    const int from = kept(a.operand);
    const uint32_t to = s_->writes[0].operand;
    const Gpr result = register_for(to, kNoGuard), here = result == rax ? rcx : result;
    a_.immediate(here, 0);
    a_.immediate(rdx, ~0u);
    alu_scalar(Assembler::compare, from < 0 ? rax : static_cast<Gpr>(from), b.operand, wide);
    a_.move_if((is_signed ? of_signed : of_unsigned)[op.detail], here, rdx, false);
    if (result == rax) a_.move(rax, rcx, false);
    put(to, result);
    return true;
}

void Generator::compare(const VectorOp& op) {
    const uint32_t to = s_->writes[0].operand;
    auto unit = [&](int u, int k) {
        apply(op.code, k, in_register(s_->reads[0], u, 1), s_->reads[1], u, 2);
        a_.byte(op.detail);
    };
    if (is_line(to) && compare_scalars(op)) return;
    unit(0, 5);
    if (is_line(to)) {
        a_.mask_to(rax, 5);
        a_.alu(Assembler::bit_and, rax, 1, false);
        a_.negate(rax);
        return put_predicate(to, rax);
    }
    unit(1, 6);
    a_.mask_unpack(5, 6, 5, op.bytes == 4);
    if (op.bytes == 8) {
        unit(2, 6);
        unit(3, 7);
        a_.mask_unpack(6, 7, 6, false);
        a_.mask_unpack(5, 6, 5, true);
    }
    if (merges(to)) {
        a_.mask_to(rax, 5);
        return put_predicate(to, rax);
    }
    const Gpr here = register_for(to, kNoGuard);
    a_.mask_to(here, 5);
    put(to, here);
}

void Generator::predicate(const VectorOp& op) {
    const uint32_t to = s_->writes[0].operand, first = s_->reads[0].operand;
    const bool merged = !is_line(to) && merges(to);
    const Gpr here = merged ? rax : register_for(to, first);
    predicate_to(here, first, op_->sub & 1);
    if (op.detail < 3) {
        const auto what = op.detail == 0   ? Assembler::bit_and
                          : op.detail == 1 ? Assembler::bit_or
                                           : Assembler::bit_xor;
        const uint32_t second = s_->reads[1].operand;
        if (op_->sub & 2) {
            predicate_to(rcx, second, true);
            a_.alu(what, here, rcx, false);
        } else if (const int reg = kept(second); reg >= 0) {
            a_.alu(what, here, static_cast<Gpr>(reg), false);
        } else {
            a_.alu(what, here, home(second), false);
        }
    } else if (op.detail == 3) {
        a_.complement(here);
    }
    merged ? put_predicate(to, rax) : put(to, here);
}

}  // namespace gpukernel::simgpu::compiler
