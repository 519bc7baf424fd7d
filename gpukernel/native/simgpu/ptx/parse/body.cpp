// A function's body: blocks and the names that belong to them, labels, instructions.
#include <algorithm>
#include <charconv>
#include <set>

#include "simgpu/ptx/parse/parser.h"

namespace gpukernel::simgpu::ptx {

namespace {
constexpr std::string_view kElements[2] = {"xyzw", "rgba"};
}

std::optional<uint32_t> RegisterRange::number(std::string_view name) const {
    if (!name.starts_with(prefix)) return std::nullopt;
    const std::string_view digits = name.substr(prefix.size());
    uint32_t n = 0;
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
    if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() || n >= count ||
        (digits.size() > 1 && digits[0] == '0'))
        return std::nullopt;
    return n;
}

void Parser::open_block() {
    if (scopes_.size() >= kMostBlocks) fail("blocks are nested too deeply");
    Block inner;
    inner.parent = static_cast<int>(scopes_.back().block);
    scopes_.emplace_back();
    scopes_.back().block = static_cast<uint32_t>(function_->blocks.size());
    function_->blocks.push_back(std::move(inner));
}

void Parser::body() {
    for (;;) {
        if (here().kind == Tok::end) fail("the text ends inside a function");
        if (take("{")) {
            open_block();
        } else if (take("}")) {
            if (scopes_.size() == 1) return;
            scopes_.pop_back();
        } else if (here().kind == Tok::directive) {
            body_directive();
        } else if (here().kind == Tok::ident && ahead(1).text == ":" && ahead(1).kind == Tok::punct) {
            label();
        } else {
            stop_in_vain(here().line);
            instruction();
        }
    }
}

void Parser::label() {
    const std::string name = ident();
    claim(name);
    expect(":");
    Block& here = block();
    if (here.branch_targets.contains(name) || here.call_targets.contains(name) ||
        here.prototypes.contains(name))
        fail("'" + name + "' is declared twice in one block");
    auto names = [&](std::vector<std::string>& to) {
        do to.push_back(ident());
        while (take(","));
        expect(";");
    };
    if (take(".branchtargets"))
        names(here.branch_targets[name]);
    else if (take(".calltargets"))
        names(here.call_targets[name]);
    else if (take(".callprototype"))
        prototype(here.prototypes[name]);
    else
        here.labels[name] = static_cast<uint32_t>(function_->body.size());
}

const std::string* Parser::hoisted(std::string_view name) const {
    for (auto s = scopes_.rbegin(); s != scopes_.rend(); ++s) {
        if (auto it = s->hoisted.find(name); it != s->hoisted.end()) return &it->second;
        if (s->names.contains(name)) return nullptr;
    }
    return nullptr;
}

int Parser::lookup(std::string_view name) {
    for (auto s = scopes_.rbegin(); s != scopes_.rend(); ++s) {
        Scope& scope = *s;
        if (auto it = scope.names.find(name); it != scope.names.end()) return it->second;
        if (scope.hoisted.contains(name)) return -1;
        for (RegisterRange& range : scope.ranges) {
            const std::optional<uint32_t> n = range.number(name);
            if (!n) continue;
            auto [it, fresh] = range.made.try_emplace(*n, 0);
            if (fresh) {
                Variable variable = range.shape;
                variable.name = std::string(name);
                it->second = make(std::move(variable));
            }
            return it->second;
        }
    }
    return -1;
}

void Parser::instruction() {
    Instruction out;
    out.line = here().line;
    out.block = scopes_.back().block;
    if (take("@")) {
        out.guard_not = take("!");
        const std::string name = ident();
        out.guard = lookup(name);
        if (out.guard < 0) fail("unknown predicate " + name);
        const Variable& guard = function_->variables[static_cast<size_t>(out.guard)];
        if (guard.where != Where::reg || guard.type != Type::pred) fail("'" + name + "' is no predicate");
    }
    if (here().kind != Tok::ident) unexpected("an instruction");
    out.text = ident();
    out.parts.push_back(out.text);
    while (here().kind == Tok::directive) {
        out.text += here().text;
        out.parts.emplace_back(here().text.substr(1));
        step();
    }
    older_form(out);
    if (out.parts[0] == "call") {
        call(out);
    } else if (!is(";")) {
        do out.operands.push_back(operand());
        while (take(","));
    }
    expect(";");
    function_->body.push_back(std::move(out));
}

// What older texts leave out.  GPUs of compute capability 1.x had no subnormal f32 numbers, and their mad.f32
// is a fused multiply-add on any later one; .rn of mad.f32 could be left out up to PTX 3.1 (PTX ISA 9.7.3.1,
// .6, 11.1).
void Parser::older_form(Instruction& in) const {
    static const std::set<std::string_view> flushing = {"add",   "sub", "mul", "mad",  "div",  "rcp", "sqrt",
                                                        "rsqrt", "sin", "cos", "lg2",  "ex2",  "min", "max",
                                                        "abs",   "neg", "set", "setp", "slct", "cvt"};
    const bool first = unit_.target_sm && unit_.target_sm < 20;
    if (!first && unit_.version > 3.15) return;
    auto has = [&](std::string_view part) {
        return std::find(in.parts.begin(), in.parts.end(), part) != in.parts.end();
    };
    if (!has("f32") || !flushing.contains(in.parts[0])) return;
    const auto type = std::find_if(in.parts.begin() + 1, in.parts.end(), [](const std::string& part) {
        Type ignored;
        return part == "sat" || type_named(part, ignored);
    });
    if (first && !has("ftz")) in.parts.insert(type, "ftz");
    if (in.parts[0] == "mad" && !has("rn") && !has("rz") && !has("rm") && !has("rp"))
        in.parts.insert(in.parts.begin() + 1, "rn");
    in.text = in.parts[0];
    for (size_t n = 1; n < in.parts.size(); ++n) in.text += "." + in.parts[n];
}

// call [(results),] callee[, (arguments)][, prototype or list of callees];
void Parser::call(Instruction& out) {
    if (take("(")) {
        out.lists = true;
        list(")", [&] { out.rets.push_back(operand()); });
        expect(",");
    }
    out.operands.push_back(operand());
    if (!take(",")) return;
    if (take("(")) {
        out.lists = true;
        list(")", [&] { out.args.push_back(operand()); });
        if (!take(",")) return;
    }
    Operand prototype{};
    prototype.kind = Operand::symbol;
    prototype.name = ident();
    out.operands.push_back(std::move(prototype));
}

// Operands that name something.
Operand Parser::named() {
    Operand out{};
    const std::string name = ident();
    out.name = name;
    const bool part = here().kind == Tok::directive;
    if (name == "_") {
        out.kind = Operand::sink;
        return out;
    }
    if ((out.var = lookup(name)) < 0) {
        if (const std::string* own = hoisted(name)) out.name = *own;
        out.kind = name[0] == '%' ? Operand::special : Operand::symbol;
        if (out.kind == Operand::special && part) out.name += here().text, step();
        return out;
    }
    out.kind = Operand::variable;
    const Variable& variable = function_->variables[static_cast<size_t>(out.var)];
    if (variable.elements.empty()) {
        if (part) out.part = here().text.substr(1), step();
        return out;
    }
    if (part) {  // v.x, v.r
        const std::string_view which = here().text.substr(1);
        size_t n = std::string_view::npos;
        for (std::string_view names : kElements)
            if (which.size() == 1 && names.find(which) < variable.elements.size()) n = names.find(which);
        if (n == std::string_view::npos) fail("'" + name + "' has no element '" + std::string(which) + "'");
        step();
        out.var = variable.elements[n];
        out.name += "." + std::string(1, kElements[0][n]);
        return out;
    }
    out.kind = Operand::vector;  // the whole of it
    out.var = -1;
    for (size_t n = 0; n < variable.elements.size(); ++n) {
        Operand element{};
        element.kind = Operand::variable;
        element.var = variable.elements[n];
        element.name = name + "." + kElements[0][n];
        out.parts.push_back(std::move(element));
    }
    return out;
}

}  // namespace gpukernel::simgpu::ptx
