// One function's instructions become operations: a handler by normalised name, and operands as slots.
#include "decode.h"

#include <bit>
#include <cstring>
#include <set>

namespace gpukernel::simgpu::ptx {
namespace {

constexpr uint32_t kSink = 0xfffffffeu;
uint32_t round_up(uint32_t n, uint32_t to) { return (n + to - 1) / to * to; }
bool is_float(Type t) {
    return t == Type::f16 || t == Type::f32 || t == Type::f64 || t == Type::f16x2 || t == Type::bf16 ||
           t == Type::bf16x2;
}
bool is_signed(Type t) { return t == Type::s8 || t == Type::s16 || t == Type::s32 || t == Type::s64; }
std::string bits(uint32_t bytes) { return std::to_string(bytes * 8); }

constexpr std::pair<const char*, int> kSpecials[] = {
    {"%tid.x", kTidX},
    {"%tid.y", kTidY},
    {"%tid.z", kTidZ},
    {"%ntid.x", kNtidX},
    {"%ntid.y", kNtidY},
    {"%ntid.z", kNtidZ},
    {"%ctaid.x", kCtaidX},
    {"%ctaid.y", kCtaidY},
    {"%ctaid.z", kCtaidZ},
    {"%nctaid.x", kNctaidX},
    {"%nctaid.y", kNctaidY},
    {"%nctaid.z", kNctaidZ},
    {"%laneid", kLaneId},
    {"%warpid", kWarpId},
    {"%nwarpid", kNwarpId},
    {"%smid", kSmId},
    {"%nsmid", kNsmId},
    {"%gridid", kGridId},
    {"%lanemask_eq", kLanemaskEq},
    {"%lanemask_le", kLanemaskLe},
    {"%lanemask_lt", kLanemaskLt},
    {"%lanemask_ge", kLanemaskGe},
    {"%lanemask_gt", kLanemaskGt},
    {"%clock", kClock},
    {"%clock_hi", kClockHi},
    {"%clock64", kClock64},
    {"%globaltimer", kGlobalTimer},
    {"%globaltimer_lo", kGlobalTimerLo},
    {"%globaltimer_hi", kGlobalTimerHi},
    {"%dynamic_smem_size", kDynamicSmem},
    {"%total_smem_size", kTotalSmem},
    {"%envreg0", kZero},
    {"%envreg1", kZero},
    {"%envreg2", kZero},
    {"%clusterid.x", kZero},
    {"%nclusterid.x", kOne},
    {"%is_explicit_cluster", kZero},
    {"%cluster_ctarank", kZero},
    {"%cluster_nctarank", kOne},
};

class Decoder {
  public:
    Decoder(const FunctionTree& tree, const Symbols& symbols, Function& out, uint32_t& shared_at)
        : tree_(tree),
          symbols_(symbols),
          out_(out),
          shared_at_(shared_at),
          slot_(tree.variables.size(), 0),
          placed_(tree.variables.size(), false) {}

    void run() {
        carry_ = reserve(4);
        for (int p : tree_.params) is_param_.insert(p);
        std::multimap<uint32_t, std::string> leaders;
        for (auto& [name, at] : tree_.labels) leaders.emplace(at, name);
        for (uint32_t n = 0; n <= tree_.body.size(); ++n) {
            auto [first, last] = leaders.equal_range(n);
            if (first != last) set_mode(0);
            for (; first != last; ++first) label_at_[first->second] = static_cast<uint32_t>(out_.code.size());
            if (n == tree_.body.size()) break;
            here_ = &tree_.body[n];
            instruction(*here_);
        }
        set_mode(0);
        Op end;
        end.control = out_.kernel ? Control::exit : Control::ret;
        out_.code.push_back(end);
        for (auto& [op, name, line] : fixups_) out_.code[op].aux = target(name, line);
        for (auto& [name, line] : table_fixups_) {
            std::vector<uint32_t> table;
            auto it = tree_.branch_targets.find(name);
            if (it == tree_.branch_targets.end())
                throw SyntaxError{Status::invalid_ptx, line, "no .branchtargets named " + name};
            for (const std::string& label : it->second) table.push_back(target(label, line));
            out_.tables.push_back(std::move(table));
        }
        out_.register_bytes = registers_;
        size_t size = out_.constants.size();
        out_.constant_store = std::make_unique<char[]>(size + 128);
        auto base = (reinterpret_cast<uintptr_t>(out_.constant_store.get()) + 63) / 64 * 64;
        std::memcpy(reinterpret_cast<void*>(base), out_.constants.data(), size);
        out_.constant_base = reinterpret_cast<const char*>(base) - 1;
        out_.constants = {};
    }

  private:
    const FunctionTree& tree_;
    const Symbols& symbols_;
    Function& out_;
    uint32_t& shared_at_;
    std::vector<uint64_t> slot_;
    std::vector<bool> placed_;
    std::set<int> is_param_;
    uint32_t registers_ = 0, carry_ = 0;
    std::map<std::pair<uint32_t, uint64_t>, uint32_t> constants_;
    std::map<std::string, uint32_t> label_at_;
    struct Fixup {
        size_t op;
        std::string name;
        uint32_t line;
    };
    std::vector<Fixup> fixups_;
    std::vector<std::pair<std::string, uint32_t>> table_fixups_;
    const Instruction* here_ = nullptr;
    uint32_t mode_ = 0;

    [[noreturn]] void lacking(const std::string& why = "") const {
        throw SyntaxError{Status::unsupported, here_->line,
                          "instruction '" + here_->text + "' is not supported by the simulated GPU" +
                              (why.empty() ? "" : ": " + why)};
    }
    [[noreturn]] void wrong(const std::string& why) const {
        throw SyntaxError{Status::invalid_ptx, here_->line, here_->text + ": " + why};
    }
    uint32_t target(const std::string& name, uint32_t line) const {
        auto it = label_at_.find(name);
        if (it == label_at_.end()) throw SyntaxError{Status::invalid_ptx, line, "no label named " + name};
        return it->second;
    }

    uint32_t reserve(uint32_t bytes) {
        uint32_t at = registers_;
        registers_ += round_up(bytes == 4 ? 64 : bytes, 64);
        return at;
    }
    uint32_t temp(uint32_t element) {
        return reserve(element == 0 ? 4 : element * kLanes);
    }  // 0: a predicate
    const Variable& variable(const Operand& o) const { return tree_.variables[static_cast<size_t>(o.var)]; }
    uint32_t register_slot(int var) {
        auto v = static_cast<size_t>(var);
        const Variable& decl = tree_.variables[v];
        if (decl.where != Where::reg) wrong(decl.name + " is not a register");
        if (!placed_[v]) {
            slot_[v] =
                decl.type == Type::pred ? reserve(4) : reserve(std::max(2u, size_of(decl.type)) * kLanes);
            placed_[v] = true;
        }
        return static_cast<uint32_t>(slot_[v]);
    }
    uint32_t width(const Operand& o) const {
        return o.kind == Operand::variable ? std::max(2u, size_of(variable(o).type)) : 0;
    }

    // Where a function's own variable lies: an offset in its space.
    uint64_t place(int var) {
        auto v = static_cast<size_t>(var);
        const Variable& decl = tree_.variables[v];
        if (placed_[v]) return slot_[v];
        placed_[v] = true;
        uint32_t align = std::max(1u, decl.align), size = static_cast<uint32_t>(decl.bytes());
        if (decl.where == Where::shared) {
            shared_at_ = round_up(shared_at_, align);
            slot_[v] = shared_at_;
            shared_at_ += size;
        } else if (is_param_.count(var) && out_.kernel) {
            for (size_t p = 0; p < tree_.params.size(); ++p)
                if (tree_.params[p] == var) slot_[v] = out_.info.params[p].offset;
        } else {
            slot_[v] = UINT64_MAX;
            for (size_t p = 0; p < tree_.params.size(); ++p)
                if (tree_.params[p] == var) slot_[v] = out_.params[p].offset;
            for (size_t p = 0; p < tree_.rets.size(); ++p)
                if (tree_.rets[p] == var) slot_[v] = out_.rets[p].offset;
            if (slot_[v] == UINT64_MAX) {
                out_.local_bytes = round_up(out_.local_bytes, std::max(align, 8u));
                slot_[v] = out_.local_bytes;
                out_.local_bytes += size;
            }
        }
        return slot_[v];
    }

    uint32_t constant(uint32_t bytes, uint64_t value) {  // 0 bytes: a predicate
        if (bytes && bytes < 8) value &= (1ull << bytes * 8) - 1;
        auto [it, fresh] = constants_.try_emplace({bytes, value}, 0);
        if (fresh) {
            size_t at = out_.constants.size();
            it->second = static_cast<uint32_t>(at) | 1;
            out_.constants.resize(at + round_up(std::max(bytes, 2u) * kLanes, 64));
            if (!bytes) value = value ? kFull : 0, bytes = 4;
            for (int i = 0; i < kLanes; ++i)
                std::memcpy(&out_.constants[at + static_cast<size_t>(i) * bytes], &value, bytes);
        }
        return it->second;
    }

    Op fresh(bool guarded = true) {
        Op op;
        op.line = here_->line;
        if (guarded && here_->guard >= 0) {
            op.guard = register_slot(here_->guard);
            op.guard_not = here_->guard_not;
        }
        return op;
    }
    Handler handler(const std::string& key) {
        if (Handler fn = find_handler(key)) return fn;
        size_t dot = key.rfind('.');
        if (dot != std::string::npos && (key[dot + 1] == 's' || key[dot + 1] == 'u')) {
            std::string alias = key;
            alias[dot + 1] = 'b';
            if (Handler fn = find_handler(alias)) return fn;
        }
        lacking();
    }
    void emit(const std::string& key, Op op) {
        op.fn = handler(key);
        out_.code.push_back(op);
    }
    // Operations that only prepare operands run for every lane: cheaper, and harmless.
    void prepare(const std::string& key, uint32_t dst, uint32_t a, int64_t imm = 0, uint32_t b = 0) {
        Op op = fresh(false);
        op.dst = dst, op.a = a, op.b = b, op.imm = imm;
        emit(key, op);
    }
    void set_mode(uint32_t wanted) {
        if (mode_ == wanted) return;
        mode_ = wanted;
        Op op;
        op.imm = wanted;
        op.fn = find_handler("mode");
        out_.code.push_back(op);
    }

    uint64_t immediate(const Operand& o, Type type) {
        if (is_float(type)) {
            if (o.kind == Operand::integer && size_of(type) == 2) return static_cast<uint64_t>(o.value);
            double value = o.kind == Operand::floating32
                               ? std::bit_cast<float>(static_cast<uint32_t>(o.value))
                           : o.kind == Operand::floating64 ? std::bit_cast<double>(o.value)
                                                           : static_cast<double>(o.value);
            if (type == Type::f64) return std::bit_cast<uint64_t>(value);
            if (type == Type::f32)
                return o.kind == Operand::floating32 ? static_cast<uint64_t>(o.value)
                                                     : std::bit_cast<uint32_t>(static_cast<float>(value));
            if (type == Type::f16) return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
        }
        return static_cast<uint64_t>(o.value);
    }

    // A source operand, as a slot of `bytes` (0: a predicate).
    uint32_t source(const Operand& o, Type type, uint32_t bytes = ~0u) {
        if (bytes == ~0u) bytes = type == Type::pred ? 0 : std::max(2u, size_of(type));
        switch (o.kind) {
            case Operand::variable: {
                const Variable& v = variable(o);
                if (v.where == Where::reg) {
                    uint32_t slot = register_slot(o.var);
                    if (v.type == Type::pred || bytes == 0) return slot;
                    return fit(slot, width(o), bytes, false);
                }
                return address_of(o, bytes);
            }
            case Operand::integer:
            case Operand::floating32:
            case Operand::floating64:
                return constant(bytes, immediate(o, type));
            case Operand::special: {
                if (o.name == "%p" || bytes == 0) wrong("unknown predicate " + o.name);
                uint32_t slot = temp(bytes);
                for (auto& [name, which] : kSpecials)
                    if (o.name == name) return prepare("special." + bits(bytes), slot, 0, which), slot;
                lacking("special register " + o.name);
            }
            case Operand::symbol:
                return address_of(o, bytes);
            default:
                wrong("an operand of the wrong kind");
        }
    }
    uint32_t fit(uint32_t slot, uint32_t from, uint32_t to, bool extend_sign) {
        if (from == to) return slot;
        uint32_t t = temp(to);
        prepare((extend_sign && to > from ? "resize.s" : "resize.") + bits(to) + "." + bits(from), t, slot);
        return t;
    }
    // The address of a variable in its own space.
    uint32_t address_of(const Operand& o, uint32_t bytes) {
        if (o.var >= 0) {
            const Variable& v = variable(o);
            uint64_t at = place(o.var) + static_cast<uint64_t>(o.value);
            bool frame = v.where == Where::local ||
                         (v.where == Where::param && !(out_.kernel && is_param_.count(o.var)));
            if (!frame || out_.kernel) return constant(bytes, at);
            uint32_t slot = temp(bytes);
            prepare("local." + bits(bytes), slot, 0, static_cast<int64_t>(at));
            return slot;
        }
        auto it = symbols_.find(o.name);
        if (it == symbols_.end())
            throw SyntaxError{Status::not_found, here_->line, "unresolved symbol '" + o.name + "'"};
        const Symbol& s = it->second;
        if (s.kind == Symbol::dynamic_shared) {
            uint32_t slot = temp(bytes);
            prepare("special." + bits(bytes), slot, 0, kDynamicBase);
            if (!o.value) return slot;
            uint32_t sum = temp(bytes);
            prepare("add.b" + bits(bytes), sum, slot, 0, constant(bytes, static_cast<uint64_t>(o.value)));
            return sum;
        }
        uint64_t value = s.kind == Symbol::function ? kFunctionWindow | s.value : s.value;
        return constant(bytes, value + static_cast<uint64_t>(o.value));
    }

    uint32_t destination(const Operand& o, uint32_t bytes) {
        if (o.kind == Operand::sink) return temp(bytes);
        if (o.kind != Operand::variable) wrong("the destination is not a register");
        return register_slot(o.var);
    }

    const Operand& operand(size_t n) const {
        if (n >= here_->operands.size()) wrong("too few operands");
        return here_->operands[n];
    }
    bool has(std::string_view part) const {
        for (const std::string& p : here_->parts)
            if (p == part) return true;
        return false;
    }
    std::vector<Type> types() const {
        std::vector<Type> found;
        Type t;
        for (size_t i = 1; i < here_->parts.size(); ++i)
            if (type_named(here_->parts[i], t)) found.push_back(t);
        return found;
    }
    Type type() const {
        auto found = types();
        if (found.empty()) wrong("no type");
        return found.back();
    }
    uint32_t wanted_mode() const {
        uint32_t m = has("ftz") ? 0x8040 : 0;
        if (has("rz"))
            m |= 0x6000;
        else if (has("rm"))
            m |= 0x2000;
        else if (has("rp"))
            m |= 0x4000;
        return m;
    }

    void instruction(const Instruction& in);
    void arithmetic();
    void set_predicate(bool to_register);
    void convert();
    void move();
    void load_store(bool load);
    void atomic();
    void address_conversion();
    void control(const std::string& base);
    void barrier();
    void warp(const std::string& base);
    void call();
    Space space_of(Op& op, const Operand& address);
};

void Decoder::instruction(const Instruction& in) {
    const std::string& base = in.parts[0];
    static const std::set<std::string> controls = {"bra", "brx",     "ret",  "exit",  "call",
                                                   "bar", "barrier", "trap", "brkpt", "nanosleep"};
    static const std::set<std::string> warps = {"shfl", "vote", "match", "redux", "activemask"};
    if (controls.count(base) || warps.count(base)) {
        set_mode(0);
        if (warps.count(base)) return warp(base);
        return control(base);
    }
    if (base == "ld" || base == "ldu") return load_store(true);
    if (base == "st") return load_store(false);
    if (base == "atom" || base == "red") return atomic();
    if (base == "mov") return move();
    if (base == "cvta" || base == "isspacep") return address_conversion();
    if (base == "membar" || base == "fence") return emit("touch", fresh(false));
    if (base == "prefetch" || base == "prefetchu" || base == "pmevent" || base == "discard" ||
        base == "applypriority" || base == "setmaxnreg")
        return;
    if (base == "setp") return set_predicate(false);
    if (base == "set") return set_predicate(true);
    if (base == "cvt") return convert();
    arithmetic();
}

void Decoder::arithmetic() {
    static const std::set<std::string_view> dropped = {"rn",  "rz",     "rm",   "rp",
                                                       "ftz", "approx", "full", "uni"};
    static const std::map<std::string_view, std::string_view> shapes = {
        {"shl", "tu"},    {"shr", "tu"},   {"bfe", "tuu"},  {"bfi", "ttuu"}, {"prmt", "uuu"}, {"shf", "uuu"},
        {"lop3", "uuuu"}, {"dp4a", "uuu"}, {"dp2a", "uuu"}, {"slct", "tts"}, {"selp", "ttp"}, {"bmsk", "uu"}};
    const std::string& base = here_->parts[0];
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
    std::string_view shape = "tttt";
    if (auto it = shapes.find(base); it != shapes.end()) shape = it->second;
    bool wide = has("wide");
    Op op = fresh();
    uint32_t* slots[] = {&op.a, &op.b, &op.c, &op.extra};
    size_t sources = here_->operands.size() - 1;
    if (base == "lop3") {
        if (has("and") || has("or")) lacking("the predicate form");
        op.imm = operand(4).value;
        sources = 3;
    }
    if (sources > 4) lacking();
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
    op.dst = destination(operand(0), pred ? 0 : wide ? size_of(t) * 2 : size_of(t));
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

void Decoder::convert() {
    auto found = types();
    if (found.size() != 2) lacking();
    Type d = found[0], s = found[1];
    auto plain = [](Type t) {  // b32 converts as u32
        switch (t) {
            case Type::b8:
                return Type::u8;
            case Type::b16:
                return Type::u16;
            case Type::b32:
                return Type::u32;
            case Type::b64:
                return Type::u64;
            default:
                return t;
        }
    };
    d = plain(d), s = plain(s);
    std::string round;
    for (const char* r : {"rni", "rzi", "rmi", "rpi"})
        if (has(r)) round = r;
    std::string key = "cvt.";
    if (is_float(s) && !is_float(d) && round.empty()) round = "rzi";
    if (!round.empty()) key += round + ".";
    if (has("sat") && !is_float(d) && !is_float(s)) key += "sat.";
    key += std::string(name_of(d)) + "." + std::string(name_of(s));
    if (is_float(d) || is_float(s)) set_mode(wanted_mode());
    Op op = fresh();
    op.a = source(operand(1), s);
    if (here_->operands.size() > 2) op.b = source(operand(2), s);
    uint32_t value = std::max(2u, size_of(d));
    uint32_t real = destination(operand(0), value),
             room = operand(0).kind == Operand::sink ? value : width(operand(0));
    op.dst = room == value ? real : temp(value);
    emit(key, op);
    if (has("sat") && is_float(d)) {
        Op clip = fresh();
        clip.dst = clip.a = op.dst;
        emit("sat." + std::string(name_of(d)), clip);
    }
    if (room != value) {
        Op grow = fresh();
        grow.dst = real, grow.a = op.dst;
        emit((is_signed(d) && room > value ? "resize.s" : "resize.") + bits(room) + "." + bits(value), grow);
    }
}

void Decoder::move() {
    Type t = type();
    const Operand &d = operand(0), &s = operand(1);
    uint32_t bytes = t == Type::pred ? 0 : std::max(2u, size_of(t));
    auto put = [&](const std::string& key, uint32_t to, uint32_t a, uint32_t b = 0) {
        Op op = fresh();
        op.dst = to, op.a = a, op.b = b;
        emit(key, op);
    };
    if (s.kind == Operand::vector) {  // pack, low element first
        std::vector<uint32_t> parts;
        uint32_t part = bytes / static_cast<uint32_t>(s.parts.size());
        Type pt = part == 2 ? Type::b16 : Type::b32;
        if (part < 2) lacking("packing bytes");
        for (const Operand& o : s.parts) parts.push_back(source(o, pt));
        while (parts.size() > 1) {
            std::vector<uint32_t> next;
            for (size_t i = 0; i + 1 < parts.size(); i += 2) {
                uint32_t to = parts.size() == 2 ? destination(d, bytes) : temp(part * 2);
                put("pack." + bits(part * 2) + "." + bits(part), to, parts[i], parts[i + 1]);
                next.push_back(to);
            }
            parts = next;
            part *= 2;
        }
        return;
    }
    if (d.kind == Operand::vector) {
        uint32_t part = bytes / static_cast<uint32_t>(d.parts.size());
        if (part < 2) lacking("unpacking bytes");
        std::vector<uint32_t> values = {source(s, t)};
        uint32_t size = bytes;
        while (size > part) {
            std::vector<uint32_t> next;
            for (uint32_t v : values)
                for (bool high : {false, true}) {
                    uint32_t to = temp(size / 2);
                    put((high ? "high." : "resize.") + bits(size / 2) + "." + bits(size), to, v);
                    next.push_back(to);
                }
            values = next;
            size /= 2;
        }
        for (size_t i = 0; i < d.parts.size(); ++i)
            if (d.parts[i].kind != Operand::sink)
                put("mov.b" + bits(part), destination(d.parts[i], part), values[i]);
        return;
    }
    if (s.kind == Operand::special && d.kind == Operand::variable) {
        for (auto& [name, which] : kSpecials)
            if (s.name == name) {
                Op op = fresh();
                op.dst = destination(d, bytes);
                op.imm = which;
                return emit("special." + bits(bytes), op);
            }
    }
    Op op = fresh();
    op.a = source(s, t);
    if (s.negated) op.sub |= 1;
    op.dst = destination(d, bytes);
    emit(bytes ? "mov.b" + bits(bytes) : "mov.pred", op);
}

// Fills in the address operand; says in which space it lies when the name tells more than the instruction.
Space Decoder::space_of(Op& op, const Operand& address) {
    Space space = has("global") || has("const")                               ? Space::global
                  : has("shared") || has("shared::cta")                       ? Space::shared
                  : has("local")                                              ? Space::local
                  : has("param") || has("param::entry") || has("param::func") ? Space::param
                                                                              : Space::generic;
    const Operand& base = address.parts[0];
    op.imm = address.value;
    if (base.kind == Operand::variable && variable(base).where == Where::reg) {
        op.a = register_slot(base.var);
        op.sub = size_of(variable(base).type) == 4;
        return space == Space::param && !out_.kernel ? Space::local : space;
    }
    if (base.kind == Operand::integer) {
        op.a = constant(8, static_cast<uint64_t>(base.value));
        return space;
    }
    if (base.var >= 0) {
        const Variable& v = variable(base);
        op.a = address_of(base, 8);
        if (v.where == Where::shared) return Space::shared;
        if (v.where == Where::param && out_.kernel && is_param_.count(base.var)) return Space::param;
        return Space::local;
    }
    op.a = address_of(base, 8);
    if (auto it = symbols_.find(base.name); it != symbols_.end())
        if (it->second.kind == Symbol::shared || it->second.kind == Symbol::dynamic_shared)
            return Space::shared;
    return space == Space::generic ? Space::global : space;
}
const char* name_of(Space s) {
    constexpr const char* names[] = {"generic", "global", "shared", "local", "param"};
    return names[static_cast<int>(s)];
}

void Decoder::load_store(bool load) {
    Type t = type();
    if (has("volatile") || has("acquire") || has("relaxed") || has("release")) emit("touch", fresh(false));
    const Operand &address = operand(load ? 0 + 1 : 0), &value = operand(load ? 0 : 1);
    if (address.kind != Operand::address) wrong("expected an address in brackets");
    Op op = fresh();
    Space space = space_of(op, address);
    std::string key = std::string(load ? "ld." : "st.") + name_of(space) + ".";
    uint32_t size = size_of(t);
    std::vector<Operand> list = value.kind == Operand::vector ? value.parts : std::vector<Operand>{value};
    uint32_t room = 0;
    for (const Operand& o : list)
        if (o.kind == Operand::variable) room = width(o);
    if (!room || (load && room < size)) room = std::max(2u, size);
    if (room < size && !load) wrong("the register is smaller than what is stored");
    std::string element = (load && is_signed(t) && room > size ? "s" : "u") + bits(size) + "." + bits(room);
    Type room_type = room == 2 ? Type::b16 : room == 4 ? Type::b32 : Type::b64;
    if (value.kind == Operand::vector) {
        key += "v" + std::to_string(list.size()) + "." + element;
        op.extra = 0;
        std::vector<uint32_t> slots;
        for (const Operand& o : list)
            slots.push_back(load ? (o.kind == Operand::sink ? kSink : destination(o, room))
                                 : source(o, is_float(t) ? t : room_type, room));
        op.extra = static_cast<uint32_t>(out_.lists.size());
        out_.lists.insert(out_.lists.end(), slots.begin(), slots.end());
    } else if (load) {
        op.dst = destination(value, room);
    } else {
        op.b = source(value, is_float(t) ? t : room_type, room);
    }
    if (value.kind != Operand::vector) key += element;
    emit(key, op);
}

void Decoder::atomic() {
    bool result = here_->parts[0] == "atom";
    Type t = type();
    std::string what;
    for (const std::string& p : here_->parts)
        for (const char* name : {"add", "and", "or", "xor", "cas", "exch", "min", "max", "inc", "dec"})
            if (p == name) what = name;
    const Operand& address = operand(result ? 1 : 0);
    if (address.kind != Operand::address) wrong("expected an address in brackets");
    set_mode(0);
    Op op = fresh();
    Space space = space_of(op, address);
    if (op.sub) op.a = fit(op.a, 4, 8, false), op.sub = 0;
    if (space == Space::shared || space == Space::local) {
        uint32_t wide = temp(8);
        uint32_t sum = temp(8);
        prepare("add.b64", sum, op.a, 0, constant(8, static_cast<uint64_t>(op.imm)));
        prepare(space == Space::shared ? "cvta.shared" : "cvta.local", wide, sum);
        op.a = wide, op.imm = 0;
    }
    size_t first = result ? 2 : 1;
    op.b = source(operand(first), t);
    if (what == "cas") op.c = source(operand(first + 1), t);
    if (result && operand(0).kind != Operand::sink) op.dst = destination(operand(0), size_of(t)), op.sub2 = 1;
    emit("atom." + what + "." + std::string(name_of(t)), op);
}

void Decoder::address_conversion() {
    Op op = fresh();
    if (here_->parts[0] == "isspacep") {
        op.dst = destination(operand(0), 0);
        op.a = source(operand(1), Type::u64);
        op.imm = has("shared") || has("shared::cta") ? 1
                 : has("local")                      ? 2
                 : has("param")                      ? 3
                 : has("const")                      ? 99
                                                     : 0;
        return emit("isspacep", op);
    }
    if (size_of(type()) != 8) lacking("32-bit generic addresses");
    op.a = source(operand(1), Type::u64);
    op.dst = destination(operand(0), 8);
    bool window = has("shared") || has("shared::cta") || has("local") || has("param") || has("param::entry");
    if (!window) return emit("mov.b64", op);
    if (has("to")) return emit("cvta.to", op);
    emit(has("local")                          ? "cvta.local"
         : has("param") || has("param::entry") ? (out_.kernel ? "cvta.param" : "cvta.local")
                                               : "cvta.shared",
         op);
}

void Decoder::control(const std::string& base) {
    if (base == "bar" || base == "barrier") return barrier();
    if (base == "call") return call();
    Op op = fresh();
    if (base == "bra") {
        op.control = Control::branch;
        fixups_.push_back({out_.code.size(), operand(0).name, here_->line});
    } else if (base == "brx") {
        op.a = source(operand(0), Type::u32);
        op.control = Control::branch_table;
        op.extra = static_cast<uint32_t>(table_fixups_.size());
        table_fixups_.emplace_back(operand(1).name, here_->line);
    } else if (base == "ret") {
        op.control = out_.kernel ? Control::exit : Control::ret;
    } else if (base == "exit") {
        op.control = Control::exit;
    } else if (base == "nanosleep") {
        op.control = Control::yield;
    } else {
        op.control = Control::trap;
    }
    out_.code.push_back(op);
}

void Decoder::barrier() {
    Op op;
    if (has("warp")) {
        uint32_t mask = source(operand(0), Type::u32);
        op = fresh();
        op.control = Control::warp_sync;
        op.aux = mask;
        out_.code.push_back(op);
        return;
    }
    bool red = has("red");
    size_t n = red ? 1 : 0;
    size_t last = here_->operands.size() - (red ? 1 : 0);
    uint32_t id = constant(4, 0), count = 0, vote = 0;
    if (n < last) id = source(operand(n), Type::u32);
    if (n + 1 < last) count = source(operand(n + 1), Type::u32);
    if (red) vote = source(operand(last), Type::pred);
    op = fresh();
    op.control = has("arrive") ? Control::barrier_arrive : Control::barrier;
    op.a = id, op.b = count, op.c = vote;
    if (n + 1 < last) op.sub2 |= 1;
    if (red) {
        if (operand(last).negated) op.sub2 |= 2;
        op.sub = has("popc") ? 1 : has("and") ? 2 : 3;
        op.dst = destination(operand(0), has("popc") ? 4 : 0);
    }
    out_.code.push_back(op);
}

void Decoder::warp(const std::string& base) {
    Type t = type();
    Op op = fresh();
    if (base == "activemask") {
        op.dst = destination(operand(0), 4);
        return emit("activemask.b32", op);
    }
    if (!has("sync")) lacking("only the .sync form");
    op.control = Control::warp_sync;
    size_t last = here_->operands.size() - 1;
    op.aux = source(operand(last), Type::u32);
    const Operand& d = operand(0);
    const Operand& first = d.kind == Operand::pair ? d.parts[0] : d;
    if (d.kind == Operand::pair && d.parts[1].kind != Operand::sink)
        op.extra = destination(d.parts[1], 0), op.sub2 = 1;
    op.dst = destination(first, t == Type::pred ? 0 : base == "match" ? 4 : size_of(t));
    op.a = source(operand(1), base == "vote" ? Type::pred : t);
    if (operand(1).negated) op.sub = 1;
    if (base == "shfl") {
        op.b = source(operand(2), Type::u32);
        op.c = source(operand(3), Type::u32);
    }
    std::string key = base;
    for (size_t i = 1; i < here_->parts.size(); ++i)
        if (here_->parts[i] != "sync") key += "." + here_->parts[i];
    emit(key, op);
}

void Decoder::call() {
    static const std::map<std::string_view, Builtin> builtins = {{"vprintf", Builtin::vprintf},
                                                                 {"__assertfail", Builtin::assertfail},
                                                                 {"malloc", Builtin::malloc},
                                                                 {"free", Builtin::free}};
    CallSite site;
    const Operand& callee = operand(0);
    Op op = fresh();
    if (callee.var >= 0) {
        op.a = source(callee, Type::u64);
    } else if (auto it = symbols_.find(callee.name);
               it != symbols_.end() && it->second.kind == Symbol::function) {
        site.callee = static_cast<int>(it->second.value);
    } else if (auto b = builtins.find(callee.name); b != builtins.end()) {
        site.builtin = b->second;
    } else {
        throw SyntaxError{Status::not_found, here_->line, "unresolved function '" + callee.name + "'"};
    }
    auto offsets = [&](const std::vector<Operand>& from, std::vector<uint32_t>& to) {
        for (const Operand& o : from) {
            if (o.var < 0 || variable(o).where != Where::param)
                lacking("call arguments that are not .param variables");
            to.push_back(static_cast<uint32_t>(place(o.var)));
        }
    };
    offsets(here_->args, site.args);
    offsets(here_->rets, site.rets);
    op.control = Control::call;
    op.extra = static_cast<uint32_t>(out_.calls.size());
    out_.calls.push_back(std::move(site));
    out_.code.push_back(op);
}

}  // namespace

void lay_out_parameters(const FunctionTree& tree, Function& out) {
    out.name = tree.name;
    out.kernel = tree.kernel;
    uint32_t at = 0;
    auto lay = [&](const std::vector<int>& list, std::vector<Slot>& to) {
        for (int p : list) {
            const Variable& v = tree.variables[static_cast<size_t>(p)];
            at = round_up(at, std::max(v.align, 1u));
            uint32_t size = static_cast<uint32_t>(v.bytes());
            to.push_back({at, size});
            at += size;
        }
    };
    if (!tree.kernel) lay(tree.rets, out.rets), at = round_up(at, 16);
    std::vector<Slot> params;
    lay(tree.params, params);
    if (tree.kernel) {
        for (Slot s : params) out.info.params.push_back({s.offset, s.size});
        out.info.param_bytes = at;
        out.info.name = tree.name;
        out.info.max_threads = tree.max_threads ? tree.max_threads : 1024;
    } else {
        out.params = std::move(params);
        out.local_bytes = at;
    }
}

void decode(const FunctionTree& tree, const Symbols& symbols, Function& out, uint32_t& shared_at) {
    Decoder(tree, symbols, out, shared_at).run();
}

}  // namespace gpukernel::simgpu::ptx
