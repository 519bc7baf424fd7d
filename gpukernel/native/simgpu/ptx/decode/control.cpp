// Branches, calls and barriers, and the exchange between the lanes of a warp.
#include "simgpu/ptx/decode/decoder.h"

namespace gpukernel::simgpu::ptx {

void Decoder::control(const std::string& base) {
    if (base == "bar" || base == "barrier") return barrier();
    if (base == "call") return call();
    Op op = fresh();
    if (base == "bra") {
        op.control = Control::branch;
        fixups_.push_back({out_.code.size(), label(operand(0))});
    } else if (base == "brx") {
        op.a = source(operand(0), Type::u32);
        op.control = Control::branch_table;
        op.extra = static_cast<uint32_t>(table_fixups_.size());
        uint32_t block = 0;  // where the list stands, and so what its names mean
        const auto* names = tree_.find(here_->block, operand(1).name, &Block::branch_targets, &block);
        if (!names) wrong("no .branchtargets named " + operand(1).name);
        std::vector<uint32_t>& table = table_fixups_.emplace_back();
        for (const std::string& name : *names) table.push_back(label(name, block));
    } else if (base == "ret") {
        give_results();
        op.control = out_.kernel ? Control::exit : Control::ret;
    } else if (base == "exit") {
        op.control = Control::exit;
    } else if (base == "nanosleep") {
        source(operand(0), Type::u32);
        op.control = Control::yield;
    } else {
        op.control = Control::trap;
    }
    out_.code.push_back(op);
}

void Decoder::barrier() {
    Op op;
    if (has("cluster")) {
        op = fresh();
        op.control = has("arrive") ? Control::cluster_arrive : Control::cluster_wait;
        out_.code.push_back(op);
        return;
    }
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
    Type t = base == "elect" ? Type::b32 : type();
    Op op = fresh();
    if (base == "activemask") {
        op.dst = destination(operand(0), 4);
        return emit("activemask.b32", op);
    }
    size_t last = here_->operands.size() - 1;
    if (has("sync")) {
        op.control = Control::warp_sync;
        op.aux = source(operand(last), Type::u32);
    } else {  // before Volta: whichever lanes are here
        op.aux = constant(4, kFull);
    }
    const Operand& d = operand(0);
    const Operand& first = d.kind == Operand::pair ? d.parts[0] : d;
    if (d.kind == Operand::pair && d.parts[1].kind != Operand::sink)
        op.extra = destination(d.parts[1], 0), op.sub2 = 1;
    op.dst = destination(first, t == Type::pred ? 0 : base == "match" ? 4 : size_of(t));
    if (base == "elect") return emit("elect", op);
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

// One argument or result of a call: where it lies in the caller's frame.
uint32_t Decoder::passed(const Operand& o, const Variable& formal, bool result) {
    const auto bytes = static_cast<uint32_t>(formal.bytes());
    const bool variable_here = o.kind == Operand::variable;
    if (variable_here && variable(o).where == Where::param) {
        if (o.value) wrong("'" + o.name + "' is passed whole");
        if (variable(o).sides.empty() != formal.sides.empty())
            wrong("'" + o.name + "' is an array, and the parameter is none, or the other way round");
        if (variable(o).bytes() != bytes)
            wrong("'" + o.name + "' has " + std::to_string(variable(o).bytes()) + " bytes, and " +
                  std::to_string(bytes) + " are passed");
        return static_cast<uint32_t>(place(o.var));
    }
    if (variable_here && variable(o).where != Where::reg)
        wrong("'" + o.name + "' is no parameter and no register");
    const bool vector_here = o.kind == Operand::vector;  // a register that is one: both lie alike in memory
    if (!formal.sides.empty() && o.kind != Operand::sink)
        wrong("a register is passed, and the parameter is an array");
    if (vector_here && o.name.empty()) wrong("a vector is passed by the name of its register");
    if (formal.vector > 1 && !variable_here && !vector_here && o.kind != Operand::sink)
        wrong("a constant is passed, and the parameter is a vector");
    if (result && !variable_here && !vector_here && o.kind != Operand::sink)
        wrong("a result goes to a register");
    if (result && (o.negated || o.value)) wrong("a result goes to a register as it is");
    if (variable_here && (variable(o).type == Type::pred) != (formal.type == Type::pred))
        wrong("'" + o.name + "' and the parameter are not both predicates");
    uint32_t size = bytes;
    if (variable_here) size = size_of(variable(o).type);
    if (vector_here) size = static_cast<uint32_t>(o.parts.size()) * size_of(variable(o.parts[0]).type);
    if (size != bytes)
        wrong("'" + o.name + "' has not the size of the parameter, " + std::to_string(bytes) + " bytes");
    if (bytes > kMostLocal - std::min<uint64_t>(out_.local_bytes + 16, kMostLocal))
        wrong("a thread's variables are too large");
    out_.local_bytes = round_up(out_.local_bytes, std::max(bytes, 8u));
    const uint32_t at = out_.local_bytes;
    out_.local_bytes += bytes;
    if (result) return at;
    if (variable_here || vector_here)
        pass_register(false, at, o);
    else
        pass(false, at, source(o, formal.type), formal.type, true);
    return at;
}

// A register that a call names, or each element of a vector.
void Decoder::pass_register(bool load, uint64_t offset, const Operand& o) {
    if (o.kind != Operand::vector) {
        const Type type = variable(o).type;
        return pass(load, offset, load ? register_slot(o.var) : source(o, type), type, true);
    }
    for (const Operand& part : o.parts) {
        pass_register(load, offset, part);
        offset += size_of(variable(part).type);
    }
}

// Between a register and the function's frame, where a predicate is a number.
void Decoder::pass(bool load, uint64_t offset, uint32_t slot, Type type, bool guarded) {
    const uint32_t bytes = size_of(type), number = type == Type::pred ? temp(4) : slot;
    uint32_t address;
    if (type == Type::pred && !load) {
        Op select = fresh(guarded);
        select.a = constant(4, 1), select.b = constant(4, 0), select.c = slot, select.dst = number;
        emit("selp.b32", select);
    }
    if (out_.kernel) {
        address = constant(8, offset);
    } else {
        address = temp(8);
        prepare("local.64", address, 0, static_cast<int64_t>(offset));
    }
    Op op = fresh(guarded);
    op.a = address;
    (load ? op.dst : op.b) = number;
    op.access = load ? AccessKind::read : AccessKind::write;
    const std::string room = bits(std::max(2u, bytes));
    emit((load ? "ld.local.u" : "st.local.u") + bits(bytes) + "." + room, op);
    if (type == Type::pred && load) {
        Op compare = fresh(guarded);
        compare.a = number, compare.b = constant(4, 0), compare.dst = slot;
        emit("setp.ne.b32", compare);
    }
}

void Decoder::take_parameters() { own_parameters(true, tree_.params, out_.params); }
void Decoder::give_results() { own_parameters(false, tree_.rets, out_.rets); }
void Decoder::own_parameters(bool load, const std::vector<int>& which, const std::vector<Slot>& places) {
    if (out_.kernel) return;
    for (size_t n = 0; n < which.size(); ++n) {
        const Variable& parameter = tree_.variables[static_cast<size_t>(which[n])];
        if (parameter.where != Where::reg) continue;
        const std::vector<int> alone{which[n]};
        uint64_t offset = places[n].offset;
        for (int var : parameter.elements.empty() ? alone : parameter.elements) {
            pass(load, offset, register_slot(var), parameter.type, false);
            offset += size_of(parameter.type);
        }
    }
}

void Decoder::call() {
    static const std::map<std::string_view, Builtin> builtins = {
        {"vprintf", Builtin::vprintf},
        {"__assertfail", Builtin::assertfail},
        {"malloc", Builtin::malloc},
        {"free", Builtin::free},
        {"cudaGraphSetConditional", Builtin::set_condition}};
    // What these read and give, by size, whatever was declared.
    static const std::map<Builtin, std::vector<uint32_t>> sizes = {{Builtin::vprintf, {8, 8}},
                                                                   {Builtin::assertfail, {8, 8, 4, 8, 8}},
                                                                   {Builtin::malloc, {8}},
                                                                   {Builtin::free, {8}},
                                                                   {Builtin::set_condition, {8, 4}}};
    CallSite site;
    const Operand& callee = operand(0);
    std::vector<Variable> formal_rets, formal_args;
    size_t given = here_->rets.size();
    auto parameters = [](const FunctionTree& of, const std::vector<int>& list) {
        std::vector<Variable> out;
        for (int p : list) out.push_back(of.variables[static_cast<size_t>(p)]);
        return out;
    };
    uint32_t through = 0;
    if (callee.kind == Operand::variable) {
        through = source(callee, Type::u64);
        if (here_->operands.size() < 2) wrong("a call through a register names its prototype");
        const std::string& name = operand(1).name;
        const auto* listed = tree_.find(here_->block, name, &Block::call_targets);
        const FunctionTree* function = nullptr;
        if (listed)
            if (auto it = symbols_.find(listed->front()); it != symbols_.end()) function = it->second.tree;
        if (const Prototype* prototype = tree_.find(here_->block, name, &Block::prototypes)) {
            formal_rets = prototype->rets, formal_args = prototype->params;
        } else if (function) {
            formal_rets = parameters(*function, function->rets);
            formal_args = parameters(*function, function->params);
        } else {
            wrong("no prototype and no list of functions named '" + name + "'");
        }
    } else if (callee.kind != Operand::symbol || callee.value) {
        wrong("a function is called");
    } else if (auto it = symbols_.find(callee.name);
               it != symbols_.end() && it->second.kind == Symbol::function) {
        site.callee = static_cast<int>(it->second.value);
        const FunctionTree& function = *it->second.tree;
        if (function.kernel) wrong("'" + callee.name + "' is a kernel");
        formal_rets = parameters(function, function.rets),
        formal_args = parameters(function, function.params);
        if (here_->operands.size() > 1) wrong("only a call through a register names a prototype");
        // Linkers do not compare a function with what another text declares, and compilers declare a result
        // where there is none (Numba, for functions of type void): nobody gives it, and it stays what it was.
        if (function.text != tree_.text && formal_rets.empty()) given = 0;
    } else if (auto b = builtins.find(callee.name); b != builtins.end()) {
        site.builtin = b->second;
        auto formal = [](uint32_t bytes) {
            Variable v;
            v.type = bytes == 8 ? Type::b64 : Type::b32;
            return v;
        };
        for (uint32_t bytes : sizes.at(site.builtin)) formal_args.push_back(formal(bytes));
        if (!here_->rets.empty()) formal_rets.push_back(formal(site.builtin == Builtin::malloc ? 8 : 4));
    } else {
        throw SyntaxError{Status::not_found, here_->line, "unresolved function '" + callee.name + "'"};
    }
    if (here_->args.size() != formal_args.size() || given != formal_rets.size())
        wrong("'" + callee.name + "' has " + std::to_string(formal_args.size()) + " parameters and " +
              std::to_string(formal_rets.size()) + " results, and is called with " +
              std::to_string(here_->args.size()) + " and " + std::to_string(here_->rets.size()));
    for (size_t n = 0; n < formal_args.size(); ++n)
        site.args.push_back(passed(here_->args[n], formal_args[n], false));
    for (size_t n = 0; n < formal_rets.size(); ++n)
        site.rets.push_back(passed(here_->rets[n], formal_rets[n], true));
    Op op = fresh();
    op.a = through;
    op.control = Control::call;
    op.extra = static_cast<uint32_t>(out_.calls.size());
    const std::vector<uint32_t> rets = site.rets;
    out_.calls.push_back(std::move(site));
    out_.code.push_back(op);
    for (size_t n = 0; n < formal_rets.size(); ++n) {
        const Operand& o = here_->rets[n];
        if (o.kind == Operand::vector || (o.kind == Operand::variable && variable(o).where == Where::reg))
            pass_register(true, rets[n], o);
    }
}

}  // namespace gpukernel::simgpu::ptx
