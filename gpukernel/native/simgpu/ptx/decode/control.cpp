// Branches, calls and barriers, and the exchange between the lanes of a warp.
#include "simgpu/ptx/decode/decoder.h"

namespace gpukernel::simgpu::ptx {

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
    if (site.builtin != Builtin::none) {  // these read their arguments by size, whatever was declared
        static const std::map<Builtin, std::vector<uint32_t>> sizes = {{Builtin::vprintf, {8, 8}},
                                                                       {Builtin::assertfail, {8, 8, 4, 8, 8}},
                                                                       {Builtin::malloc, {8}},
                                                                       {Builtin::free, {8}}};
        const std::vector<uint32_t>& wanted = sizes.at(site.builtin);
        bool fits = here_->args.size() == wanted.size();
        for (size_t i = 0; fits && i < wanted.size(); ++i)
            fits = variable(here_->args[i]).bytes() >= wanted[i];
        const uint32_t result = site.builtin == Builtin::malloc ? 8 : 4;
        if (!fits || (!here_->rets.empty() && variable(here_->rets[0]).bytes() < result))
            wrong("'" + callee.name + "' is called with other arguments than it has");
    }
    op.control = Control::call;
    op.extra = static_cast<uint32_t>(out_.calls.size());
    out_.calls.push_back(std::move(site));
    out_.code.push_back(op);
}

}  // namespace gpukernel::simgpu::ptx
