// Operands: registers, constants, special registers and addresses of variables, each as a slot; and the
// making of operations.
#include <bit>
#include <cstring>

#include "common/checked.h"
#include "simgpu/ptx/decode/decoder.h"

namespace gpukernel::simgpu::ptx {

bool is_float(Type t) {
    return t == Type::f16 || t == Type::f32 || t == Type::f64 || t == Type::f16x2 || t == Type::bf16 ||
           t == Type::bf16x2 || t == Type::f32x2;
}
bool is_signed(Type t) { return t == Type::s8 || t == Type::s16 || t == Type::s32 || t == Type::s64; }

namespace {

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
    {"%envreg1", kWorkspaceHigh},
    {"%envreg2", kWorkspaceLow},
    {"%tid.w", kZero},
    {"%ntid.w", kZero},
    {"%ctaid.w", kZero},
    {"%nctaid.w", kZero},
    {"%clusterid.w", kZero},
    {"%nclusterid.w", kZero},
    {"%cluster_ctaid.w", kZero},
    {"%cluster_nctaid.w", kZero},
    {"%clusterid.x", kClusterIdX},
    {"%clusterid.y", kClusterIdY},
    {"%clusterid.z", kClusterIdZ},
    {"%nclusterid.x", kNclusterIdX},
    {"%nclusterid.y", kNclusterIdY},
    {"%nclusterid.z", kNclusterIdZ},
    {"%cluster_ctaid.x", kClusterCtaidX},
    {"%cluster_ctaid.y", kClusterCtaidY},
    {"%cluster_ctaid.z", kClusterCtaidZ},
    {"%cluster_nctaid.x", kClusterNctaidX},
    {"%cluster_nctaid.y", kClusterNctaidY},
    {"%cluster_nctaid.z", kClusterNctaidZ},
    {"%cluster_ctarank", kClusterCtaRank},
    {"%cluster_nctarank", kClusterNctaRank},
    {"%aggr_smem_size", kTotalSmem},
};

}  // namespace

bool Decoder::special(const std::string& name, int& which) const {
    for (auto& [known, number] : kSpecials)
        if (name == known) return which = number, true;
    // Counters and places that exist and hold nothing here.
    for (std::string_view start : {"%envreg", "%pm", "%reserved_smem_offset_", "%current_graph_exec"})
        if (name.starts_with(start)) return which = kZero, true;
    return false;
}

void Decoder::lacking(const std::string& why) const {
    throw SyntaxError{Status::unsupported, here_->line,
                      "instruction '" + here_->text + "' is not supported by the simulated GPU" +
                          (why.empty() ? "" : ": " + why)};
}

void Decoder::wrong(const std::string& why) const {
    throw SyntaxError{Status::invalid_ptx, here_->line, here_->text + ": " + why};
}

// The instruction behind a label, which `block` or one around it has.
uint32_t Decoder::label(const std::string& name, uint32_t block) const {
    const uint32_t* at = tree_.find(block, name, &Block::labels);
    if (!at) wrong("no label named " + name);
    return *at;
}
uint32_t Decoder::label(const Operand& o) const {
    if (o.kind != Operand::symbol || o.value) wrong("it goes to a label");
    return label(o.name, here_->block);
}

uint32_t Decoder::reserve(uint32_t bytes) {
    const uint32_t at = registers_, size = round_up(bytes == 4 ? 64 : bytes, 64);
    if (size > kMostRegisterBytes - at)
        throw SyntaxError{Status::unsupported, here_ ? here_->line : tree_.line,
                          "'" + out_.name +
                              "' uses more registers than the simulated GPU has for a function: " +
                              std::to_string(kMostRegisterBytes >> 20) + " MiB for the 32 threads of a warp"};
    registers_ += size;
    return at;
}

uint32_t Decoder::register_slot(int var) {
    auto v = static_cast<size_t>(var);
    const Variable& decl = tree_.variables[v];
    if (decl.where != Where::reg) wrong(decl.name + " is not a register");
    if (!placed_[v]) {
        slot_[v] = decl.type == Type::pred ? reserve(4) : reserve(std::max(2u, size_of(decl.type)) * kLanes);
        placed_[v] = true;
    }
    ++mentions_[static_cast<uint32_t>(slot_[v])];
    return static_cast<uint32_t>(slot_[v]);
}

uint32_t Decoder::width(const Operand& o) const {
    return o.kind == Operand::variable ? std::max(2u, size_of(variable(o).type)) : 0;
}

// The place of a function's own variable: an offset in its space.
uint64_t Decoder::place(int var) {
    auto v = static_cast<size_t>(var);
    const Variable& decl = tree_.variables[v];
    if (placed_[v]) return slot_[v];
    placed_[v] = true;
    if (decl.bytes() > kMostLocal) wrong("'" + decl.name + "' is too large");
    uint32_t align = std::max(1u, decl.align), size = static_cast<uint32_t>(decl.bytes());
    if (decl.where == Where::shared) {
        shared_at_ = round_up(shared_at_, align);
        slot_[v] = shared_at_;
        shared_at_ += size;
        if (shared_at_ > kMostShared) wrong("too much shared memory");
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
            if (out_.local_bytes > kMostLocal) wrong("a thread's variables are too large");
        }
    }
    return slot_[v];
}

uint32_t Decoder::constant(uint32_t bytes, uint64_t value) {  // 0 bytes: a predicate
    if (bytes && bytes < 8) value &= (1ull << bytes * 8) - 1;
    auto [it, fresh] = constants_.try_emplace({bytes, value}, 0);
    if (fresh) {
        size_t at = out_.constants.size();
        if (at >= kMostConstantBytes)
            throw SyntaxError{Status::unsupported, here_->line,
                              "'" + out_.name +
                                  "' uses more different constants than the simulated GPU has room for: " +
                                  std::to_string(kMostConstantBytes / (8 * kLanes))};
        it->second = static_cast<uint32_t>(at) | 1;
        if (!bytes) value = value ? kFull : 0, bytes = 4;
        out_.constants.resize(at + round_up(std::max(bytes, 2u) * kLanes, 64));
        for (int i = 0; i < kLanes; ++i)
            std::memcpy(&out_.constants[at + static_cast<size_t>(i) * bytes], &value,
                        std::min<size_t>(bytes, sizeof value));
    }
    return it->second;
}

uint64_t Decoder::immediate(const Operand& o, Type type) const {
    if (is_float(type)) {
        if (o.kind == Operand::integer && size_of(type) == 2) return static_cast<uint64_t>(o.value);
        double value = o.kind == Operand::floating32   ? std::bit_cast<float>(static_cast<uint32_t>(o.value))
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
uint32_t Decoder::source(const Operand& o, Type type, uint32_t bytes) {
    if (bytes == ~0u) bytes = type == Type::pred ? 0 : std::max(2u, size_of(type));
    switch (o.kind) {
        case Operand::variable: {
            const Variable& v = variable(o);
            if (v.where == Where::reg) {
                uint32_t slot = register_slot(o.var);
                if ((v.type == Type::pred) != (bytes == 0)) wrong(v.name + " has the wrong type");
                if (bytes == 0) {
                    if (o.value) wrong("nothing can be added to a predicate");
                    return slot;
                }
                if (o.value) slot = plus(slot, o.value, width(o));
                return fit(slot, width(o), bytes, false);
            }
            return address_of(o, bytes);
        }
        case Operand::integer:
        case Operand::floating32:
        case Operand::floating64:
            return constant(bytes, immediate(o, type));
        case Operand::special: {
            if (bytes == 0 && o.name == "%is_explicit_cluster") {
                const uint32_t word = temp(4), slot = temp(0);
                prepare("special.32", word, 0, kIsExplicitCluster);
                prepare("setp.ne.b32", slot, word, 0, constant(4, 0));
                return slot;
            }
            if (bytes == 0) wrong("unknown predicate " + o.name);
            uint32_t slot = temp(bytes);
            int which;
            if (special(o.name, which)) return prepare("special." + bits(bytes), slot, 0, which), slot;
            wrong("no special register '" + o.name + "'");
        }
        case Operand::symbol:
            return address_of(o, bytes);
        case Operand::element:
            return element_of(o, bytes);
        default:
            wrong("an operand of the wrong kind");
    }
}

// %r1+4 as an operand.
uint32_t Decoder::plus(uint32_t slot, int64_t addend, uint32_t bytes) {
    if (bytes > 8) wrong("nothing can be added to 128 bits");
    const uint32_t sum = temp(bytes);
    prepare("add.b" + bits(bytes), sum, slot, 0, constant(bytes, static_cast<uint64_t>(addend)));
    return sum;
}

uint32_t Decoder::fit(uint32_t slot, uint32_t from, uint32_t to, bool extend_sign) {
    if (from == to) return slot;
    uint32_t t = temp(to);
    prepare((extend_sign && to > from ? "resize.s" : "resize.") + bits(to) + "." + bits(from), t, slot);
    return t;
}

uint32_t Decoder::element_size(const Operand& o) const {
    if (o.var >= 0) return size_of(variable(o).type);
    const auto it = symbols_.find(o.name);
    return it == symbols_.end() ? 1 : it->second.element;
}

// name[3], name[%r1+3]: a register counts in its own width, and is extended by zeros.
uint32_t Decoder::element_of(const Operand& o, uint32_t bytes) {
    if (o.var >= 0 && variable(o).where == Where::reg) wrong("'" + o.name + "' is no array");
    const uint64_t size = element_size(o);
    Operand base = o;
    base.value =
        o.parts.empty() ? static_cast<int64_t>(wrapping_product(static_cast<uint64_t>(o.value), size)) : 0;
    const uint32_t begin = address_of(base, bytes);
    if (o.parts.empty()) return begin;
    const Operand& index = o.parts[0];
    if (index.kind != Operand::variable || variable(index).where != Where::reg ||
        is_float(variable(index).type) || variable(index).type == Type::pred || width(index) < 4 ||
        width(index) > 8)
        wrong("the index of '" + o.name + "' is no integer of 32 or 64 bits");
    uint32_t at = source(index, width(index) == 4 ? Type::b32 : Type::b64);
    const uint32_t wide = width(index);
    if (o.value) at = plus(at, o.value, wide);
    const uint32_t scaled = temp(wide);
    prepare("shl.b" + bits(wide), scaled, at, 0, constant(4, static_cast<uint64_t>(std::countr_zero(size))));
    const uint32_t sum = temp(bytes);
    prepare("add.b" + bits(bytes), sum, begin, 0, fit(scaled, wide, bytes, false));
    return sum;
}

// The address of a variable in its own space.
uint32_t Decoder::address_of(const Operand& o, uint32_t bytes) {
    if (o.var >= 0) {
        const Variable& v = variable(o);
        uint64_t at = wrapping_sum(place(o.var), static_cast<uint64_t>(o.value));
        bool frame =
            v.where == Where::local || (v.where == Where::param && !(out_.kernel && is_param_.count(o.var)));
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
    return constant(bytes, wrapping_sum(value, static_cast<uint64_t>(o.value)));
}

uint32_t Decoder::destination(const Operand& o, uint32_t bytes) {
    if (o.kind == Operand::sink) return temp(bytes);
    if (o.kind != Operand::variable) wrong("the destination is not a register");
    // A handler writes what its name says: into a smaller register it would write into the next one too.
    const uint32_t has = variable(o).type == Type::pred ? 0 : width(o);
    if (has != (bytes ? std::max(2u, bytes) : 0)) wrong(o.name + " does not have the size of the result");
    return register_slot(o.var);
}

const Operand& Decoder::operand(size_t n) const {
    if (n >= here_->operands.size()) wrong("too few operands");
    if (n < 64) read_ |= 1ull << n;
    return here_->operands[n];
}

bool Decoder::has(std::string_view part) const {
    for (const std::string& p : here_->parts)
        if (p == part) return true;
    return false;
}

std::vector<Type> Decoder::types() const {
    std::vector<Type> found;
    Type t;
    for (size_t i = 1; i < here_->parts.size(); ++i)
        if (type_named(here_->parts[i], t)) found.push_back(t);
    return found;
}

Type Decoder::type() const {
    auto found = types();
    if (found.empty()) wrong("no type");
    return found.back();
}

Op Decoder::fresh(bool guarded) {
    Op op;
    op.line = here_->line;
    if (guarded && here_->guard >= 0) {
        op.guard = register_slot(here_->guard);
        op.guard_not = here_->guard_not;
    }
    return op;
}

Handler Decoder::handler(const std::string& key) const {
    if (Handler fn = find_handler(key)) return fn;
    size_t dot = key.rfind('.');
    if (dot != std::string::npos && (key[dot + 1] == 's' || key[dot + 1] == 'u')) {
        std::string alias = key;
        alias[dot + 1] = 'b';
        if (Handler fn = find_handler(alias)) return fn;
    }
    lacking();
}

void Decoder::emit(const std::string& key, Op op) {
    op.fn = handler(key);
    out_.code.push_back(op);
}

// Operations that only prepare operands run for every lane: cheaper, and harmless.
void Decoder::prepare(const std::string& key, uint32_t dst, uint32_t a, int64_t imm, uint32_t b) {
    Op op = fresh(false);
    op.dst = dst, op.a = a, op.b = b, op.imm = imm;
    emit(key, op);
}

uint32_t Decoder::wanted_mode() const {
    uint32_t m = has("ftz") ? 0x8040 : 0;
    if (has("rz"))
        m |= 0x6000;
    else if (has("rm"))
        m |= 0x2000;
    else if (has("rp"))
        m |= 0x4000;
    return m;
}

void Decoder::set_mode(uint32_t wanted) {
    if (mode_ == wanted) return;
    mode_ = wanted;
    Op op;
    op.imm = wanted;
    op.fn = find_handler("mode");
    out_.code.push_back(op);
}

}  // namespace gpukernel::simgpu::ptx
