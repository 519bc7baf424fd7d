// Arithmetic, logic, comparison and selection: most instructions are a handler whose name is the instruction
// less what the decoder settles (rounding, saturation, flushing).
#include "decoder.h"

namespace gpukernel::simgpu::ptx {

void Decoder::arithmetic() {
    static const std::set<std::string_view> dropped = {"rn",  "rz",     "rm",   "rp",
                                                       "ftz", "approx", "full", "uni"};
    // What an instruction takes, one letter a source: the instruction's type, a u32, slct's second type, a
    // predicate.
    static const std::map<std::string_view, std::string_view> shapes = {
        {"abs", "t"},     {"neg", "t"},    {"not", "t"},      {"cnot", "t"},   {"popc", "t"},
        {"clz", "t"},     {"brev", "t"},   {"bfind", "t"},    {"rcp", "t"},    {"sqrt", "t"},
        {"rsqrt", "t"},   {"sin", "t"},    {"cos", "t"},      {"lg2", "t"},    {"ex2", "t"},
        {"tanh", "t"},    {"testp", "t"},  {"add", "tt"},     {"sub", "tt"},   {"mul", "tt"},
        {"mul24", "tt"},  {"div", "tt"},   {"rem", "tt"},     {"min", "tt"},   {"max", "tt"},
        {"and", "tt"},    {"or", "tt"},    {"xor", "tt"},     {"addc", "tt"},  {"subc", "tt"},
        {"shl", "tu"},    {"shr", "tu"},   {"bmsk", "uu"},    {"mad", "ttt"},  {"mad24", "ttt"},
        {"madc", "ttt"},  {"fma", "ttt"},  {"sad", "ttt"},    {"slct", "tts"}, {"selp", "ttp"},
        {"bfe", "tuu"},   {"prmt", "uuu"}, {"shf", "uuu"},    {"dp4a", "uuu"}, {"dp2a", "uuu"},
        {"lop3", "uuuu"}, {"bfi", "ttuu"}, {"copysign", "tt"}};
    const std::string& base = here_->parts[0];
    const auto known = shapes.find(base);
    if (known == shapes.end()) lacking();
    const std::string_view shape = known->second;
    if (here_->operands.size() != shape.size() + 1) wrong("wrong number of operands");
    Type t = type();
    std::string key = base;
    bool saturate = has("sat") && is_float(t);
    for (size_t i = 1; i < here_->parts.size(); ++i) {
        const std::string& p = here_->parts[i];
        if (dropped.count(p) || (saturate && p == "sat")) continue;
        key += "." + p;
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
    set_mode(is_float(t) ? wanted_mode() : mode_);
    bool wide = has("wide");
    Op op = fresh();
    uint32_t* slots[] = {&op.a, &op.b, &op.c, &op.extra};
    size_t sources = shape.size();
    if (base == "lop3") {
        if (has("and") || has("or")) lacking("the predicate form");
        op.imm = operand(4).value;
        sources = 3;
    }
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
        if (pred && o.negated) op.sub |= static_cast<uint8_t>(1 << n);
    }
    if (base == "addc" || base == "subc" || base == "madc" || has("cc")) op.extra = carry_;
    const bool counts = base == "popc" || base == "clz" || base == "bfind";  // a u32 whatever they count in
    op.dst = destination(operand(0), pred ? 0 : counts ? 4 : wide ? size_of(t) * 2 : size_of(t));
    emit(key, op);
    if (saturate) {
        Op clip = fresh();
        clip.dst = clip.a = op.dst;
        emit("sat." + std::string(name_of(t)), clip);
    }
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
    bool pair = d.kind == Operand::pair;
    Op op = fresh();
    op.a = source(operand(1), t);
    op.b = source(operand(2), t);
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

}  // namespace gpukernel::simgpu::ptx
