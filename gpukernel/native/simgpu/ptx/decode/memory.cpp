// Loads, stores, atomics and the conversion of addresses between spaces.
#include "decoder.h"

namespace gpukernel::simgpu::ptx {

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

static const char* name_of(Space s) {
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

}  // namespace gpukernel::simgpu::ptx
