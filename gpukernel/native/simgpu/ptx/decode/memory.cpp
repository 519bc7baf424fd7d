// Loads, stores, atomics and the conversion of addresses between spaces.
#include "simgpu/ptx/decode/decoder.h"

namespace gpukernel::simgpu::ptx {

// Fills in the address operand; says in which space it lies when the name tells more than the instruction.
Space Decoder::space_of(Op& op, const Operand& address) {
    if (address.kind != Operand::address && address.kind != Operand::element)
        wrong("expected an address in brackets");
    Space space = has("global") || has("const")                               ? Space::global
                  : in_shared()                                               ? Space::shared
                  : has("local")                                              ? Space::local
                  : has("param") || has("param::entry") || has("param::func") ? Space::param
                                                                              : Space::generic;
    const bool indexed = address.kind == Operand::element;  // a[3], which stands without brackets
    const Operand& base = indexed ? address : address.parts[0];
    op.imm = indexed ? 0 : address.value;
    if (base.kind == Operand::variable && variable(base).where == Where::reg) {
        if (variable(base).type == Type::pred || size_of(variable(base).type) < 4)
            wrong("an address has 32 or 64 bits");
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
        op.a = indexed ? element_of(base, 8) : address_of(base, 8);
        if (v.where == Where::shared) return Space::shared;
        if (v.where == Where::param && out_.kernel && is_param_.count(base.var)) return Space::param;
        return Space::local;
    }
    if (!indexed && base.kind != Operand::symbol) wrong("'" + base.name + "' is no address");
    op.a = indexed ? element_of(base, 8) : address_of(base, 8);
    if (auto it = symbols_.find(base.name); it != symbols_.end())
        if (it->second.kind == Symbol::shared || it->second.kind == Symbol::dynamic_shared)
            return Space::shared;
    return space == Space::generic ? Space::global : space;
}

static const char* name_of(Space s) {
    constexpr const char* names[] = {"generic", "global", "shared", "local", "param"};
    return names[static_cast<int>(s)];
}

// A named variable lies where the instruction says, or where generic addresses reach.
void Decoder::same_space(const Operand& address, bool writes) const {
    const Operand& base = address.kind == Operand::address ? address.parts[0] : address;
    Where where;
    if (base.var >= 0 && variable(base).where != Where::reg) {
        where = variable(base).where;
    } else if (const auto it = symbols_.find(base.name);
               base.kind == Operand::symbol || base.kind == Operand::element) {
        if (it == symbols_.end()) return;
        where = it->second.kind == Symbol::global     ? it->second.where
                : it->second.kind == Symbol::function ? Where::reg
                                                      : Where::shared;
    } else {
        if (base.kind == Operand::integer && !has("local"))
            wrong("only .local memory has constant addresses");
        return;
    }
    const bool param = has("param") || has("param::entry") || has("param::func");
    const bool generic = !has("global") && !has("const") && !in_shared() && !has("local") && !param;
    const bool fits = where == Where::global     ? has("global") || generic
                      : where == Where::constant ? has("const")
                      : where == Where::shared   ? in_shared() || generic
                      : where == Where::local    ? has("local") || generic
                                                 : where == Where::param && param;
    if (!fits) wrong("'" + base.name + "' does not lie in that memory");
    if (writes && param && is_param_.contains(base.var))
        wrong("'" + base.name + "' is a parameter, which is only read");
}

void Decoder::load_store(bool load) {
    Type t = type();
    same_space(operand(load ? 1 : 0), !load);
    if (has("volatile") || has("acquire") || has("relaxed") || has("release")) emit("touch", fresh(false));
    const Operand &address = operand(load ? 1 : 0), &given = operand(load ? 0 : 1);
    // Triton writes braces around one register, too.
    const Operand& value = given.kind == Operand::vector && given.parts.size() == 1 ? given.parts[0] : given;
    if (has("L2::cache_hint")) operand(2);
    Op op = fresh();
    Space space = space_of(op, address);
    op.access = load ? AccessKind::read : AccessKind::write;
    op.named = has("const") ? Named::constant
               : space == Space::param || has("param") || has("param::entry") || has("param::func")
                   ? Named::parameter
                   : Named::memory;
    std::string key = std::string(load ? "ld." : "st.") + name_of(space) + ".";
    uint32_t size = size_of(t);
    std::vector<Operand> list = value.kind == Operand::vector ? value.parts : std::vector<Operand>{value};
    uint32_t room = 0;
    for (const Operand& o : list)
        if (o.kind == Operand::variable) room = width(o);
    if (!room || (load && room < size)) room = std::max(2u, size);
    if (room < size && !load) wrong("the register is smaller than what is stored");
    std::string element = (load && is_signed(t) && room > size ? "s" : "u") + bits(size) + "." + bits(room);
    Type room_type = room == 16 ? Type::b128 : room == 2 ? Type::b16 : room == 4 ? Type::b32 : Type::b64;
    if (value.kind == Operand::vector) {
        key += "v" + std::to_string(list.size()) + ".";
        // Registers that no handler takes: what was loaded is extended behind it, what is stored is cut
        // before.
        const uint32_t natural = std::max(2u, size), taken = find_handler(key + element) ? room : natural;
        const bool sign = load && is_signed(t);
        if (taken < room) element = (sign && size < taken ? "s" : "u") + bits(size) + "." + bits(taken);
        std::vector<uint32_t> slots;
        for (const Operand& o : list)
            slots.push_back(!load                     ? source(o, is_float(t) ? t : room_type, taken)
                            : o.kind == Operand::sink ? kSink
                            : taken < room            ? temp(taken)
                                                      : destination(o, room));
        op.extra = static_cast<uint32_t>(out_.lists.size());
        out_.lists.insert(out_.lists.end(), slots.begin(), slots.end());
        op.pattern = load ? kClobbers : 0;
        emit(key + element, op);
        for (size_t n = 0; load && taken < room && n < list.size(); ++n) {
            if (slots[n] == kSink) continue;
            Op wider = fresh();
            wider.dst = destination(list[n], room), wider.a = slots[n];
            emit((sign ? "resize.s" : "resize.") + bits(room) + "." + bits(taken), wider);
        }
    } else {
        if (load)
            op.dst = destination(value, room);
        else
            op.b = source(value, is_float(t) ? t : room_type, room);
        if (space == Space::shared && size <= 8) op.pattern = static_cast<uint8_t>(size);
        emit(key + element, op);
    }
    if (has("async")) transaction(2, size * static_cast<uint32_t>(list.size()));
}

// st.async and red.async count at a barrier of the block that they write to (9.7.9.9).
void Decoder::transaction(size_t barrier, uint32_t bytes) {
    barrier_object("complete_tx", nullptr, operand(barrier), constant(4, bytes));
}

void Decoder::atomic() {
    bool result = here_->parts[0] == "atom";
    if (has("L2::cache_hint")) operand(here_->operands.size() - 1);
    Type t = type();
    same_space(operand(result ? 1 : 0), false);
    std::string what;
    for (const std::string& p : here_->parts)
        for (const char* name : {"add", "and", "or", "xor", "cas", "exch", "min", "max", "inc", "dec"})
            if (p == name) what = name;
    const Operand& address = operand(result ? 1 : 0);
    set_mode(0);
    const uint32_t at = generic_address(address);
    size_t first = result ? 2 : 1;
    auto update = [&](uint32_t offset, const Operand& value, const Operand* to) {
        Op op = fresh();
        op.a = at, op.imm = offset;
        op.access = AccessKind::atomic;
        op.b = source(value, t);
        if (what == "cas") op.c = source(operand(first + 1), t);
        if (to && to->kind != Operand::sink) op.dst = destination(*to, size_of(t)), op.sub2 = 1;
        emit("atom." + what + "." + std::string(name_of(t)), op);
    };
    const Operand& value = operand(first);
    if (value.kind != Operand::vector) {
        update(0, value, result ? &operand(0) : nullptr);
        if (has("async")) transaction(2, size_of(t));
        return;
    }
    // A vector is no single update on a GPU either: each element by itself (9.7.13.5).
    for (uint32_t n = 0; n < value.parts.size(); ++n)
        update(n * size_of(t), value.parts[n], result ? &operand(0).parts.at(n) : nullptr);
}

// The generic address of an operand, its offset included: a slot of 64 bits.
uint32_t Decoder::generic_address(const Operand& address) {
    Op op;
    Space space = space_of(op, address);
    uint32_t slot = op.sub ? fit(op.a, 4, 8, false) : op.a;
    if (op.imm) {
        uint32_t sum = temp(8);
        prepare("add.b64", sum, slot, 0, constant(8, static_cast<uint64_t>(op.imm)));
        slot = sum;
    }
    if (space == Space::shared || space == Space::local) {
        uint32_t wide = temp(8);
        prepare(space == Space::shared ? "cvta.shared" : "cvta.local", wide, slot);
        slot = wide;
    }
    return slot;
}

// The same where the instruction names spaces for several operands.
uint32_t Decoder::address_in(const Operand& address, bool shared) {
    Op op;
    space_of(op, address);
    uint32_t slot = temp(8);
    prepare("add.b64", slot, op.sub ? fit(op.a, 4, 8, false) : op.a, 0,
            constant(8, static_cast<uint64_t>(op.imm)));
    if (!shared) return slot;
    const uint32_t wide = temp(8);
    prepare("cvta.shared", wide, slot);
    return wide;
}

void Decoder::address_conversion() {
    Op op = fresh();
    if (here_->parts[0] == "isspacep") {
        op.dst = destination(operand(0), 0);
        op.a = source(operand(1), Type::u64);
        op.imm = in_shared() ? 1 : has("local") ? 2 : has("param") ? 3 : has("const") ? 99 : 0;
        if (in_shared() && !has("shared::cluster")) op.sub = 1, op.imm <<= kWindowShift - kRankShift;
        return emit("isspacep", op);
    }
    if (here_->parts[0] == "mapa" || here_->parts[0] == "getctarank") {
        const bool maps = here_->parts[0] == "mapa";
        const uint32_t bytes = size_of(type());
        if (bytes != 4 && bytes != 8) wrong("an address has 32 or 64 bits");
        op.a = source(operand(1), bytes == 8 ? Type::u64 : Type::u32);
        if (maps) op.b = source(operand(2), Type::u32);
        op.dst = destination(operand(0), maps ? bytes : 4);
        return emit(here_->parts[0] + ".b" + bits(bytes), op);
    }
    if (size_of(type()) != 8) lacking("32-bit generic addresses");
    if (!has("to")) same_space(operand(1), false);
    op.a = source(operand(1), Type::u64);
    op.dst = destination(operand(0), 8);
    bool window = in_shared() || has("local") || has("param") || has("param::entry");
    if (!window) return emit("mov.b64", op);
    if (has("to")) return emit("cvta.to", op);
    emit(has("local")                          ? "cvta.local"
         : has("param") || has("param::entry") ? (out_.kernel ? "cvta.param" : "cvta.local")
                                               : "cvta.shared",
         op);
}

// Copies that CUDA may finish later are finished at once; waiting for them is nothing (9.7.9.25).
void Decoder::copy_async() {
    if (has("commit_group") || has("wait_group") || has("wait_all")) {
        read_ = ~0ull;
        return;
    }
    if (has("tensor")) return copy_tensor();
    if (has("bulk")) return copy_bulk();
    if (has("L2::cache_hint")) operand(here_->operands.size() - 1);
    if (has("mbarrier") || has("mbarrier::arrive")) {
        const Operand& barrier = operand(0);
        if (!has("noinc")) return;  // what it announces it also does
        return barrier_object("arrive", nullptr, barrier, constant(4, 1));
    }
    const auto named = std::find_if(here_->parts.begin(), here_->parts.end(), [](const std::string& part) {
        return part == "global" || part.starts_with("shared");
    });
    if (named == here_->parts.end() || *named == "global") wrong("it copies from global to shared memory");
    Op op = fresh();
    const int64_t bytes = operand(2).kind == Operand::integer ? operand(2).value : 0;
    if (bytes != 16 && (has("cg") || (bytes != 4 && bytes != 8)))
        wrong("a copy has 16 bytes, or with .ca 4 or 8");
    const uint32_t size = static_cast<uint32_t>(bytes);
    op.b = generic_address(operand(1));
    op.a = address_in(operand(0), true);
    op.imm = size;
    op.c = constant(4, size);
    size_t extra = here_->operands.size() - (has("L2::cache_hint") ? 1 : 0);
    if (extra > 3) {  // how much to read, the rest is zeros; or a predicate: read nothing
        const Operand& limit = operand(3);
        const bool pred = limit.kind == Operand::variable && variable(limit).type == Type::pred;
        if (pred) {
            Op select = fresh(false);
            select.a = constant(4, 0), select.b = op.c, select.c = source(limit, Type::pred);
            select.sub = limit.negated, select.dst = op.c = temp(4);
            emit("selp.b32", select);
        } else {
            op.c = source(limit, Type::u32);
        }
    }
    emit("cp.async", op);
}

void Decoder::cache_policy() {
    Op op = fresh();
    op.a = source(operand(here_->operands.size() - 1), Type::b64);
    emit("cache_policy", op);
}

// Copies and reductions of many bytes at a time, without a tensor's map (9.7.9.25.4): done at once, too.
void Decoder::copy_bulk() {
    if (has("prefetch")) {
        read_ = ~0ull;
        return;
    }
    if (has("cp_mask")) lacking("byte masks");
    if (has("L2::cache_hint")) cache_policy();
    std::vector<bool> shared;  // to and from
    for (const std::string& part : here_->parts)
        if (part == "global" || part == "shared::cta" || part == "shared::cluster")
            shared.push_back(part != "global");
    if (shared.size() < 2) wrong("a bulk copy says from where and to where");
    Op op = fresh();
    op.a = address_in(operand(0), shared[0]);
    op.b = address_in(operand(1), shared[1]);
    op.c = source(operand(2), Type::u32);
    if (has("reduce")) {  // element by element, with the handler of the atomic operation
        const Type t = type();
        for (const char* what : {"add", "and", "or", "xor", "min", "max", "inc", "dec"})
            if (has(what))
                op.imm = static_cast<int64_t>(reinterpret_cast<uintptr_t>(
                    handler("atom." + std::string(what) + "." + std::string(name_of(t)))));
        if (!op.imm) wrong("no operation");
        op.dst = temp(8), op.extra = temp(size_of(t));
        op.sub = static_cast<uint8_t>(size_of(t));
        emit("cp.reduce.async.bulk", op);
    } else if (has("multicast::cluster")) {
        op.extra = address_in(operand(3), true);
        op.aux = source(operand(4), Type::u16);
        return emit("cp.async.bulk.multicast", op);
    } else {
        emit("cp.async.bulk", op);
    }
    if (has("mbarrier::complete_tx::bytes")) barrier_object("complete_tx", nullptr, operand(3), op.c);
}

// mbarrier objects (9.7.13.15): 64 bits in shared memory.
void Decoder::mbarrier() {
    read_ = ~0ull;  // how long a wait may take is only a hint
    const std::string& what = here_->parts[1];
    if (what == "pending_count") {
        Op op = fresh();
        op.a = source(operand(1), Type::b64);
        op.dst = destination(operand(0), 4);
        return emit("mbarrier.pending_count", op);
    }
    if (what == "init" || what == "inval" || what == "expect_tx" || what == "complete_tx")
        return barrier_object(what, nullptr, operand(0),
                              what == "inval" ? constant(4, 0) : source(operand(1), Type::u32));
    const bool waits = what == "test_wait" || what == "try_wait";
    const bool returns = operand(0).kind != Operand::address;
    const size_t at = returns ? 1 : 0;
    std::string key = what;
    if (has("expect_tx")) key += ".expect_tx";
    if (waits) key = has("parity") ? "wait.parity" : "wait";
    uint32_t value = waits ? source(operand(at + 1), has("parity") ? Type::u32 : Type::b64)
                     : here_->operands.size() > at + 1 ? source(operand(at + 1), Type::u32)
                                                       : constant(4, 1);
    barrier_object(key, returns ? &operand(0) : nullptr, operand(at), value);
}

void Decoder::barrier_object(const std::string& what, const Operand* result, const Operand& address,
                             uint32_t value) {
    Op op = fresh();
    Op place;
    op.a = address_in(address, space_of(place, address) == Space::shared || in_shared());
    op.b = value;
    if (result && result->kind != Operand::sink)
        op.dst = destination(*result, what.starts_with("wait") ? 0 : 8), op.sub2 = 1;
    emit("mbarrier." + what, op);
}

// A thread's own stack (9.7.15): its top is kept in a register of each lane, from the function's frame
// upwards.
void Decoder::stack() {
    constexpr uint32_t kRoom = 16 << 10;
    if (!stack_top_) {
        out_.local_bytes = round_up(out_.local_bytes, 16);
        stack_begin_ = out_.local_bytes;
        out_.local_bytes += kRoom;
        stack_top_ = temp(8);
    }
    Op op = fresh();
    const std::string& base = here_->parts[0];
    if (base == "stackrestore") {
        op.a = source(operand(0), Type::u64), op.dst = stack_top_;
        return emit("mov.b64", op);
    }
    op.dst = destination(operand(0), 8);
    op.a = stack_top_;
    if (base == "stacksave") return emit("mov.b64", op);
    op.b = source(operand(1), Type::u64);
    op.c = constant(4, here_->operands.size() > 2 ? static_cast<uint64_t>(operand(2).value) : 8);
    op.imm = stack_begin_ + kRoom;
    emit("alloca", op);
}

}  // namespace gpukernel::simgpu::ptx
