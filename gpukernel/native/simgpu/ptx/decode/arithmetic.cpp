// Arithmetic, logic, comparison and selection: most instructions are a handler whose name is the instruction
// less what the decoder settles (rounding, saturation, flushing).
#include "simgpu/ptx/decode/decoder.h"

namespace gpukernel::simgpu::ptx {

void Decoder::arithmetic() {
    static const std::set<std::string_view> dropped = {"rn",     "rz",   "rm",  "rp",  "ftz",
                                                       "approx", "full", "uni", "relu"};
    // What an instruction takes, one letter a source: the instruction's type, a u32, slct's second type, a
    // predicate.
    static const std::map<std::string_view, std::string_view> shapes = {
        {"abs", "t"},    {"neg", "t"},    {"not", "t"},     {"cnot", "t"},   {"popc", "t"},
        {"clz", "t"},    {"brev", "t"},   {"bfind", "t"},   {"rcp", "t"},    {"sqrt", "t"},
        {"rsqrt", "t"},  {"sin", "t"},    {"cos", "t"},     {"lg2", "t"},    {"ex2", "t"},
        {"tanh", "t"},   {"testp", "t"},  {"add", "tt"},    {"sub", "tt"},   {"mul", "tt"},
        {"mul24", "tt"}, {"div", "tt"},   {"rem", "tt"},    {"and", "tt"},   {"or", "tt"},
        {"xor", "tt"},   {"addc", "tt"},  {"subc", "tt"},   {"shl", "tu"},   {"shr", "tu"},
        {"bmsk", "uu"},  {"mad", "ttt"},  {"mad24", "ttt"}, {"madc", "ttt"}, {"fma", "ttt"},
        {"sad", "ttt"},  {"slct", "tts"}, {"selp", "ttp"},  {"bfe", "tuu"},  {"prmt", "uuu"},
        {"shf", "uuu"},  {"dp4a", "uuu"}, {"dp2a", "uuu"},  {"bfi", "ttuu"}, {"copysign", "tt"},
        {"fns", "uuu"},  {"szext", "uu"}};
    const std::string& base = here_->parts[0];
    // Slot 0 is wide enough for whatever an instruction that is not listed reads without having been given
    // it.
    std::string_view shape = "tttt";
    if (here_->operands.empty()) wrong("too few operands");
    size_t sources = here_->operands.size() - 1;
    if (const auto known = shapes.find(base); known != shapes.end()) {
        shape = known->second;
        if (sources != shape.size()) wrong("wrong number of operands");
    }
    Type t = type();
    std::string key = base;
    bool saturate = has("sat") && is_float(t);  // follows, see finish()
    for (size_t i = 1; i < here_->parts.size(); ++i) {
        const std::string& p = here_->parts[i];
        if (dropped.count(p) || (saturate && p == "sat")) continue;
        key += "." + p;
    }
    if (base == "prmt") {  // whose type may stand before its mode or behind it
        key = "prmt.b32";
        for (const std::string& p : here_->parts)
            if (p != base && p != "b32") key += "." + p;
    }
    if (base == "rcp" || base == "rsqrt")
        if (t == Type::f64 && has("approx") && has("ftz")) key = base + ".ftz64.f64";
    if (base == "testp") {
        static const char* const kinds[] = {"finite",     "infinite", "number",
                                            "notanumber", "normal",   "subnormal"};
        Op op = fresh();
        for (uint8_t k = 0; k < 6; ++k)
            if (has(kinds[k])) op.sub = k;
        op.dst = destination(operand(0), 0);
        op.a = source(operand(1), t);
        return emit("testp." + std::string(name_of(t)), op);
    }
    if (base == "slct") {
        auto both = types();
        if (both.size() != 2) wrong("slct takes two types");
        key = "slct." + std::string(name_of(both[1])) + ".b" + bits(size_of(both[0]));
        t = both[0];
    }
    if (base == "selp") key = "selp.b" + bits(size_of(t));
    // What takes its time in the host's library runs in the host's usual mode, and halves know no other.
    static const std::set<std::string_view> library = {"sin", "cos", "lg2", "ex2", "tanh"};
    const bool half = is_float(t) && t != Type::f32 && t != Type::f64 && t != Type::f32x2;
    const bool flush_by_hand = has("ftz") && (half || library.count(base));
    const bool by_float = base == "slct" && types().back() == Type::f32;  // flushed or not, as it says itself
    set_mode(by_float                         ? wanted_mode()
             : !is_float(t)                   ? mode_
             : half || library.contains(base) ? 0
                                              : wanted_mode());
    bool wide = has("wide");
    Op op = fresh();
    uint32_t* slots[] = {&op.a, &op.b, &op.c, &op.extra};
    if (base == "lop3") {
        sources = 3, shape = "uuu";
        op.imm = operand(4).value;
    }
    if (sources > shape.size()) wrong("too many operands");
    bool pred = t == Type::pred;
    for (size_t n = 0; n < sources; ++n) {
        const Operand& o = operand(n + 1);
        if (wide && n == 2)
            *slots[n] = source(o, size_of(t) == 2 ? Type::u32 : Type::u64);
        else if (shape[n] == 'u')
            *slots[n] = source(o, Type::u32);
        else if (shape[n] == 's')
            *slots[n] = source(o, types()[1]);
        else if (shape[n] == 'p')
            *slots[n] = source(o, Type::pred), op.sub = o.negated;
        else
            *slots[n] = source(o, t);
        if (flush_by_hand && shape[n] == 't') {
            uint32_t flushed = temp(size_of(t));
            prepare("flush." + std::string(name_of(t)), flushed, *slots[n]);
            *slots[n] = flushed;
        }
        if (pred && o.negated) op.sub |= static_cast<uint8_t>(1 << n);
    }
    if (base == "addc" || base == "subc" || base == "madc" || has("cc")) op.extra = carry_;
    if (base == "lop3" && operand(0).kind == Operand::pair) return lop3_predicate(op);
    const bool counts = base == "popc" || base == "clz" || base == "bfind";  // a u32 whatever they count in
    op.dst = destination(operand(0), pred ? 0 : counts ? 4 : wide ? size_of(t) * 2 : size_of(t));
    if ((base == "fma" || base == "mul" || base == "add") && (op.a & 1) && !(op.b & 1)) std::swap(op.a, op.b);
    if (!(op.a & 1)) {
        const std::string with_constants = key + "@" + (op.b & 1 ? "b" : "") + (op.c & 1 ? "c" : "");
        if (find_handler(with_constants)) key = with_constants;
    }
    emit(key, op);
    finish(op.dst, t);
}

// Operations that follow the result: saturation, .relu, flushing.
void Decoder::finish(uint32_t slot, Type type) {
    auto follow = [&](const char* what, const char* of = nullptr) {
        Op op = fresh();
        op.dst = op.a = slot;
        emit(std::string(what) + "." + (of ? of : std::string(name_of(type))), op);
    };
    const std::string& base = here_->parts[0];
    if (has("ftz") && is_float(type) && type != Type::f64 && type != Type::f32x2)
        // Arithmetic flushes in the processor; what only moves bits does not.
        if (base == "cvt" ? type == Type::f32
                          : type != Type::f32 || base == "min" || base == "max" || base == "abs" ||
                                base == "neg" || base == "ex2" || base == "sin" || base == "tanh")
            follow("flush");
    if (has("sat") && is_float(type)) follow("sat");
    if (has("relu")) follow("relu", type == Type::tf32 ? "f32" : nullptr);
}

// lop3.BOOL d|p, a, b, c, table, q: the predicate says whether the result is not zero, joined with q.
void Decoder::lop3_predicate(Op op) {
    const Operand &d = operand(0), &q = operand(5);
    op.dst = d.parts[0].kind == Operand::sink ? temp(4) : destination(d.parts[0], 4);
    emit("lop3.b32", op);
    Op set = fresh();
    set.a = op.dst, set.b = constant(4, 0), set.dst = temp(0);
    emit("setp.ne.b32", set);
    Op join = fresh();
    join.a = set.dst, join.b = source(q, Type::pred), join.dst = destination(d.parts[1], 0);
    join.sub = q.negated ? 2 : 0;
    emit(has("and") ? "and.pred" : has("xor") ? "xor.pred" : "or.pred", join);
}

void Decoder::set_predicate(bool to_register) {
    static const std::set<std::string_view> comparisons = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",
                                                           "lo",  "ls",  "hi",  "hs",  "equ", "neu",
                                                           "ltu", "leu", "gtu", "geu", "num", "nan"};
    auto found = types();
    if (found.empty()) wrong("no type");
    Type t = found.back();
    std::string compare, combine;
    for (const std::string& p : here_->parts) {
        if (comparisons.count(p)) compare = p;
        if (p == "and" || p == "or" || p == "xor") combine = p;
    }
    set_mode(is_float(t) ? wanted_mode() : mode_);
    const Operand& d = operand(0);
    if (t == Type::f16x2 || t == Type::bf16x2) return compare_halves(compare, combine, to_register);
    bool pair = d.kind == Operand::pair;
    Op op = fresh();
    op.a = source(operand(1), t);
    op.b = source(operand(2), t);
    if (has("ftz") && t == Type::f16)  // which the processor's own mode does not flush
        for (uint32_t* side : {&op.a, &op.b}) {
            const uint32_t flushed = temp(2);
            prepare("flush.f16", flushed, *side);
            *side = flushed;
        }
    bool simple = !pair && combine.empty() && !to_register;
    op.dst = simple ? destination(d, 0) : temp(0);
    emit("setp." + compare + "." + std::string(name_of(t)), op);
    if (simple) return;
    uint32_t compared = op.dst, result = compared;
    auto join = [&](bool inverse, uint32_t to) {
        Op j = fresh();
        j.a = compared;
        j.sub = inverse ? 1 : 0;
        j.dst = to;
        if (combine.empty()) {
            j.sub = 0;
            return emit("mov.pred", j);
        }
        const Operand& c = operand(3);
        j.b = source(c, Type::pred);
        if (c.negated) j.sub |= 2;
        emit(combine + ".pred", j);
    };
    if (to_register) {
        if (!combine.empty()) join(false, result = temp(0));
        Type dt = found.front();
        Op set = fresh();
        set.a = result;
        set.imm = dt == Type::f32 ? 0x3f800000 : -1;
        if (dt == Type::f16) set.imm = 0x3c00;
        if (dt == Type::bf16) set.imm = 0x3f80;
        set.dst = destination(d, size_of(dt));
        return emit("set.b" + bits(size_of(dt)), set);
    }
    // Both results before either register is written: the third operand may be one of them.
    auto finish = [&](const Operand& to, bool inverse) -> std::pair<uint32_t, uint32_t> {
        uint32_t t0 = temp(0);
        if (combine.empty() && inverse) {
            Op n = fresh();
            n.a = compared, n.dst = t0;
            emit("not.pred", n);
        } else
            join(inverse, t0);
        return {destination(to, 0), t0};
    };
    std::vector<std::pair<uint32_t, uint32_t>> moves;
    moves.push_back(finish(pair ? d.parts[0] : d, false));
    if (pair) moves.push_back(finish(d.parts[1], true));
    for (auto [to, from] : moves) {
        Op m = fresh();
        m.dst = to, m.a = from;
        emit("mov.pred", m);
    }
}

// Both halves by themselves: p|q of setp, or two results side by side in the register of set.
void Decoder::compare_halves(const std::string& compare, const std::string& combine, bool to_register) {
    Type t = types().back(), dt = types().front(), half = t == Type::f16x2 ? Type::f16 : Type::bf16;
    uint32_t a = source(operand(1), t), b = source(operand(2), t), result[2];
    for (int n = 0; n < 2; ++n) {
        uint32_t sides[2] = {a, b};
        for (uint32_t& side : sides) {
            uint32_t part = temp(2);
            prepare(n ? "high.16.32" : "resize.16.32", part, side);
            if (has("ftz")) prepare("flush." + std::string(name_of(half)), part, part);
            side = part;
        }
        Op op = fresh();
        op.a = sides[0], op.b = sides[1], op.dst = result[n] = temp(0);
        emit("setp." + compare + "." + std::string(name_of(half)), op);
        if (combine.empty()) continue;
        Op join = fresh();
        join.a = result[n], join.b = source(operand(3), Type::pred), join.dst = result[n];
        join.sub = operand(3).negated ? 2 : 0;
        emit(combine + ".pred", join);
    }
    const Operand& d = operand(0);
    if (!to_register) {
        for (size_t n = 0; n < 2; ++n) {
            const Operand& to = d.kind == Operand::pair ? d.parts[n] : d;
            if (to.kind == Operand::sink || (n && d.kind != Operand::pair)) continue;
            Op move = fresh();
            move.a = result[n], move.dst = destination(to, 0);
            emit("mov.pred", move);
        }
        return;
    }
    uint32_t parts[2];
    for (int n = 0; n < 2; ++n) {
        Op set = fresh(false);
        set.a = result[n], set.dst = parts[n] = temp(2);
        set.imm = dt == Type::f16x2 ? 0x3c00 : dt == Type::bf16x2 ? 0x3f80 : -1;
        emit("set.b16", set);
    }
    Op pack = fresh();
    pack.a = parts[0], pack.b = parts[1], pack.dst = destination(d, 4);
    emit("pack.32.16", pack);
}

}  // namespace gpukernel::simgpu::ptx
