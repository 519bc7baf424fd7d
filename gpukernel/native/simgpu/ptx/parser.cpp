// Tokens to a tree, with names of registers and other function variables resolved in their scopes.
#include <charconv>
#include <cstdlib>

#include "common/checked.h"
#include "simgpu/ptx/syntax.h"

namespace gpukernel::simgpu::ptx {
namespace {

struct TypeRow {
    std::string_view name;
    Type type;
    uint32_t size;
};
constexpr uint64_t kMostElements = 1ull << 40;  // so that no product or sum of sizes wraps around
constexpr uint32_t kMostAlign = 1u << 16;
constexpr int kMostNesting = 16;  // of braces in an initialiser

constexpr TypeRow kTypes[] = {
    {"b8", Type::b8, 1},           {"u8", Type::u8, 1},
    {"s8", Type::s8, 1},           {"b16", Type::b16, 2},
    {"u16", Type::u16, 2},         {"s16", Type::s16, 2},
    {"f16", Type::f16, 2},         {"bf16", Type::bf16, 2},
    {"b32", Type::b32, 4},         {"u32", Type::u32, 4},
    {"s32", Type::s32, 4},         {"f32", Type::f32, 4},
    {"f16x2", Type::f16x2, 4},     {"bf16x2", Type::bf16x2, 4},
    {"u16x2", Type::u16x2, 4},     {"s16x2", Type::s16x2, 4},
    {"tf32", Type::tf32, 4},       {"e4m3x2", Type::e4m3x2, 2},
    {"e5m2x2", Type::e5m2x2, 2},   {"b64", Type::b64, 8},
    {"u64", Type::u64, 8},         {"s64", Type::s64, 8},
    {"f64", Type::f64, 8},         {"b128", Type::b128, 16},
    {"pred", Type::pred, 4},       {"texref", Type::texref, 8},
    {"surfref", Type::surfref, 8}, {"samplerref", Type::samplerref, 8},
};

// A run of registers, `%r<100>`, takes its names lazily.
struct RegisterRange {
    std::string prefix;
    uint32_t count;
    Type type;
    std::map<uint32_t, int> made;
};
struct Scope {
    std::map<std::string, int, std::less<>> names;
    std::vector<RegisterRange> ranges;
};

class Parser {
  public:
    explicit Parser(std::string_view text) : tokens_(lex(text)) {}

    Unit run() {
        if (!is(".version")) fail("PTX begins with .version, not '" + std::string(here().text) + "'");
        while (here().kind != Tok::end) module_item();
        return std::move(unit_);
    }

  private:
    std::vector<Token> tokens_;
    size_t at_ = 0;
    Unit unit_;
    FunctionTree* function_ = nullptr;
    std::vector<Scope> scopes_;

    const Token& here() const { return tokens_[at_]; }
    const Token& ahead(size_t n) const { return tokens_[std::min(at_ + n, tokens_.size() - 1)]; }
    void step() { at_ = std::min(at_ + 1, tokens_.size() - 1); }
    bool is(std::string_view text) const { return here().text == text && here().kind != Tok::string; }
    bool take(std::string_view text) { return is(text) && here().kind != Tok::end ? (step(), true) : false; }
    [[noreturn]] void fail(std::string message) const {
        throw SyntaxError{Status::invalid_ptx, here().line, std::move(message)};
    }
    void expect(std::string_view text) {
        if (!take(text))
            fail("expected '" + std::string(text) + "' before '" + std::string(here().text) + "'");
    }
    std::string ident() {
        if (here().kind != Tok::ident) fail("expected a name, not '" + std::string(here().text) + "'");
        std::string name(here().text);
        step();
        return name;
    }
    uint64_t integer() {
        bool negative = take("-");
        if (here().kind != Tok::integer) fail("expected a number, not '" + std::string(here().text) + "'");
        uint64_t bits = here().bits;
        step();
        return negative ? wrapping_negative(bits) : bits;
    }
    void skip_past(std::string_view text) {
        while (!take(text)) {
            if (here().kind == Tok::end) fail("the text ends before '" + std::string(text) + "'");
            step();
        }
    }
    bool attributes_say(std::string_view text) {
        bool found = false;
        while (!take(")")) {
            if (here().kind == Tok::end) fail("the text ends before ')'");
            found |= here().text == text;
            step();
        }
        return found;
    }
    void skip_line() {
        uint32_t line = here().line;
        while (here().kind != Tok::end && here().line == line) step();
    }

    void file() {  // .file 1 "path"
        if (ahead(1).kind == Tok::integer && ahead(2).kind == Tok::string) {
            std::string_view name = ahead(2).text;
            if (name.size() >= 2)
                unit_.files[static_cast<uint32_t>(ahead(1).bits)] = name.substr(1, name.size() - 2);
        }
        skip_line();
    }
    void location() {  // .loc file line column, function_name name, inlined_at file line column
        if (ahead(1).kind == Tok::integer && ahead(2).kind == Tok::integer)
            function_->locations.push_back(
                {here().line, static_cast<uint32_t>(ahead(1).bits), static_cast<uint32_t>(ahead(2).bits)});
        const uint32_t line = here().line;
        for (; here().kind != Tok::end && here().line == line; step())
            if (is("inlined_at") && !function_->locations.empty())
                function_->locations.back().caller_file = static_cast<uint32_t>(ahead(1).bits),
                function_->locations.back().caller_line = static_cast<uint32_t>(ahead(2).bits);
    }

    void module_item() {
        if (take(".version")) return step();
        if (take(".target")) {
            do {
                std::string name = ident();
                if (name.starts_with("sm_")) unit_.target_sm = std::atoi(name.c_str() + 3);
            } while (take(","));
            return;
        }
        if (take(".address_size")) {
            unit_.address64 = integer() == 64;
            return;
        }
        if (is(".file")) return file();
        if (is(".loc")) return skip_line();
        if (take(".section")) return skip_past("}");
        if (take(".pragma") || take(".alias")) return skip_past(";");
        if (take(";")) return;
        bool external = false, weak = false, visible = false;
        for (;;) {
            if (take(".extern"))
                external = true;
            else if (take(".weak") || take(".common"))
                weak = true;
            else if (take(".visible"))
                visible = true;
            else
                break;
        }
        if (is(".entry") || is(".func")) return function(weak, visible);
        Where where;
        if (!space(where)) fail("unexpected '" + std::string(here().text) + "'");
        declare(where, [&](Variable variable) {
            variable.external = external;
            variable.weak = weak;
            unit_.variables.push_back(std::move(variable));
        });
        expect(";");
    }

    bool space(Where& where) {
        if (take(".global"))
            where = Where::global;
        else if (take(".const"))
            where = Where::constant;
        else if (take(".shared") || take(".shared::cta"))
            where = Where::shared;
        else if (take(".local"))
            where = Where::local;
        else if (take(".param"))
            where = Where::param;
        else if (take(".reg"))
            where = Where::reg;
        else
            return false;
        return true;
    }

    template <class Add>
    void declare(Where where, Add add, bool several = true) {
        Variable shape;
        shape.where = where;
        uint32_t vector = 1;
        for (;;) {
            Where ignored;
            if (take(".align"))
                shape.align = alignment();
            else if (take(".v2"))
                vector = 2;
            else if (take(".v4"))
                vector = 4;
            else if (take(".ptr") || space(ignored))
                continue;
            else if (take(".attribute"))
                shape.managed |= attributes_say(".managed");
            else if (here().kind == Tok::directive && type_named(here().text, shape.type))
                step();
            else
                break;
        }
        if (shape.type == Type::none)
            fail("a declaration lacks its type before '" + std::string(here().text) + "'");
        do {
            Variable variable = shape;
            variable.line = here().line;
            variable.name = ident();
            variable.count = vector;
            if (take("<")) {
                uint64_t n = integer();
                expect(">");
                if (scopes_.empty() || n > UINT32_MAX) fail("a range of registers stands in a function");
                scopes_.back().ranges.push_back({variable.name, static_cast<uint32_t>(n), variable.type, {}});
                continue;
            }
            while (take("[")) {
                variable.array = true;
                if (take("]")) {
                    variable.count = 0;
                    continue;
                }
                if (__builtin_mul_overflow(variable.count, integer(), &variable.count) ||
                    variable.count > kMostElements)
                    fail("'" + variable.name + "' is too large");
                expect("]");
            }
            const bool opaque = variable.type == Type::texref || variable.type == Type::surfref ||
                                variable.type == Type::samplerref;
            if (opaque && take("=")) {  // names and values: the driver sets them when it binds the reference
                skip_past("}");
            } else if (take("=")) {
                initialisers(variable);
                if (variable.count == 0) variable.count = variable.init.size();
            }
            if (!variable.align) variable.align = size_of(variable.type) * vector;
            add(std::move(variable));
        } while (several && take(","));
    }

    uint32_t alignment() {
        const uint64_t n = integer();
        if (n == 0 || n > kMostAlign || (n & (n - 1))) fail("an alignment is a power of two up to 65536");
        return static_cast<uint32_t>(n);
    }

    void initialisers(Variable& variable, int nesting = 0) {
        if (nesting > kMostNesting) fail("an initialiser is nested too deeply");
        if (!take("{")) {
            variable.init.push_back(initialiser());
            return;
        }
        while (!take("}")) {
            initialisers(variable, nesting + 1);
            take(",");
        }
    }
    Initialiser initialiser() {
        Initialiser value;
        bool negative = take("-");
        if (here().kind == Tok::ident) {
            value.symbol = true;
            value.name = ident();
            if (value.name == "generic") {
                expect("(");
                value.name = ident();
                expect(")");
            }
            if (take("+") || is("-")) value.bits = integer();
            return value;
        }
        Tok kind = here().kind;
        if (kind != Tok::floating32 && kind != Tok::floating64 && kind != Tok::integer)
            fail("an initialiser is not a constant: '" + std::string(here().text) + "'");
        value.bits = here().bits;
        step();
        if (is("("))
            throw SyntaxError{Status::unsupported, here().line,
                              "initialisers that take single bytes of an address are not supported"};
        if (kind == Tok::floating64) value.name = "d";
        if (negative)
            value.bits = kind == Tok::integer
                             ? wrapping_negative(value.bits)
                             : value.bits ^ (kind == Tok::floating32 ? 1ull << 31 : 1ull << 63);
        return value;
    }

    void function(bool weak, bool visible) {
        FunctionTree tree;
        tree.line = here().line;
        tree.kernel = is(".entry");
        tree.weak = weak;
        tree.visible = visible;
        step();
        function_ = &tree;
        scopes_.assign(1, {});
        if (!tree.kernel && take("(")) parameter_list(tree.rets);
        tree.name = ident();
        if (take("(")) parameter_list(tree.params);
        while (here().kind == Tok::directive) {
            if (take(".maxntid") || take(".reqntid")) {
                uint32_t n = static_cast<uint32_t>(integer());
                while (take(",")) n *= static_cast<uint32_t>(integer());
                tree.max_threads = n;
            } else if (take(".reqnctapercluster")) {
                tree.cluster[0] = static_cast<uint32_t>(integer());
                for (int side = 1; side < 3; ++side)
                    tree.cluster[side] = take(",") ? static_cast<uint32_t>(integer()) : 1;
            } else if (take(".maxclusterrank")) {
                tree.max_cluster = static_cast<uint32_t>(integer());
            } else if (take(".explicitcluster")) {
                tree.explicit_cluster = true;
            } else if (take(".pragma")) {
                skip_past(";");
            } else {
                step();  // .minnctapersm N, .noreturn, ...
                while (here().kind == Tok::integer) step(), take(",");
            }
        }
        if (!take(";")) {
            tree.defined = true;
            expect("{");
            body();
        }
        function_ = nullptr;
        unit_.functions.push_back(std::move(tree));
    }

    void parameter_list(std::vector<int>& out) {
        while (!take(")")) {
            Where where;
            if (!space(where)) fail("expected a parameter, not '" + std::string(here().text) + "'");
            declare(where, [&](Variable v) { out.push_back(add(std::move(v))); }, false);
            take(",");
        }
    }
    int add(Variable variable) {
        int index = static_cast<int>(function_->variables.size());
        scopes_.back().names[variable.name] = index;
        function_->variables.push_back(std::move(variable));
        return index;
    }

    int lookup(std::string_view name) {
        for (auto s = scopes_.rbegin(); s != scopes_.rend(); ++s) {
            Scope& scope = *s;
            if (auto it = scope.names.find(name); it != scope.names.end()) return it->second;
            for (RegisterRange& range : scope.ranges) {
                if (!name.starts_with(range.prefix)) continue;
                std::string_view digits = name.substr(range.prefix.size());
                uint32_t n = 0;
                auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
                if (digits.empty() || error != std::errc() || end != digits.data() + digits.size() ||
                    n >= range.count)
                    continue;
                auto [it, fresh] = range.made.try_emplace(n, 0);
                if (fresh) {
                    Variable variable;
                    variable.name = std::string(name);
                    variable.where = Where::reg;
                    variable.type = range.type;
                    it->second = static_cast<int>(function_->variables.size());
                    function_->variables.push_back(std::move(variable));
                }
                return it->second;
            }
        }
        return -1;
    }

    void body() {
        for (;;) {
            if (here().kind == Tok::end) fail("the text ends inside a function");
            if (take("{")) {
                scopes_.emplace_back();
            } else if (take("}")) {
                scopes_.pop_back();
                if (scopes_.empty()) return;
            } else if (take(";")) {
            } else if (here().kind == Tok::directive) {
                body_directive();
            } else if (here().kind == Tok::ident && ahead(1).text == ":") {
                label();
            } else {
                stop_in_vain(here().line), instruction();
            }
        }
    }

    void label() {
        std::string name = ident();
        expect(":");
        if (take(".branchtargets")) {
            auto& list = function_->branch_targets[name];
            do list.push_back(ident());
            while (take(","));
            expect(";");
        } else if (is(".callprototype") || is(".calltargets")) {
            skip_past(";");
        } else {
            function_->labels[name] = static_cast<uint32_t>(function_->body.size());
        }
    }

    void body_directive() {
        if (is(".loc")) return location();
        if (is(".file")) return file();
        if (take(".pragma")) return skip_past(";");
        Where where;
        if (!space(where)) fail("unexpected '" + std::string(here().text) + "' in a function");
        declare(where, [&](Variable v) { add(std::move(v)); });
        expect(";");
    }

    void instruction() {
        Instruction out;
        out.line = here().line;
        if (take("@")) {
            out.guard_not = take("!");
            std::string name = ident();
            out.guard = lookup(name);
            if (out.guard < 0) fail("unknown predicate " + name);
        }
        out.text = ident();
        out.parts.push_back(out.text);
        while (here().kind == Tok::directive) {
            out.text += here().text;
            out.parts.emplace_back(here().text.substr(1));
            step();
        }
        if (out.parts[0] == "call") {
            call(out);
        } else if (!is(";")) {
            do out.operands.push_back(operand());
            while (take(","));
        }
        expect(";");
        function_->body.push_back(std::move(out));
    }

    void call(Instruction& out) {
        auto list = [&](std::vector<Operand>& to) {
            while (!take(")")) {
                to.push_back(operand());
                take(",");
            }
        };
        if (take("(")) {
            list(out.rets);
            expect(",");
        }
        out.operands.push_back(operand());
        while (take(",")) {
            if (take("("))
                list(out.args);
            else
                ident();  // the prototype of an indirect call
        }
    }

    Operand simple() {
        Operand out{};
        bool negative = take("-");
        if (take("~")) {
            out.kind = Operand::integer;
            out.value = ~static_cast<int64_t>(integer());
            return out;
        }
        Token token = here();
        switch (token.kind) {
            case Tok::integer:
                out.kind = Operand::integer;
                break;
            case Tok::floating32:
                out.kind = Operand::floating32;
                break;
            case Tok::floating64:
                out.kind = Operand::floating64;
                break;
            case Tok::ident:
                out.negated = negative;
                return named(out);
            default:
                fail("unexpected '" + std::string(token.text) + "' as an operand");
        }
        step();
        out.value = static_cast<int64_t>(token.bits);
        if (negative)
            out.value = static_cast<int64_t>(
                out.kind == Operand::integer
                    ? wrapping_negative(token.bits)
                    : token.bits ^ (out.kind == Operand::floating32 ? 1ull << 31 : 1ull << 63));
        return out;
    }
    Operand named(Operand out) {
        std::string name = ident();
        out.name = name;
        if (name == "_") {
            out.kind = Operand::sink;
        } else if (name == "WARP_SZ") {
            out.kind = Operand::integer;
            out.value = 32;
        } else if ((out.var = lookup(name)) >= 0) {
            out.kind = Operand::variable;
            if (here().kind == Tok::directive && here().glued) out.part = here().text.substr(1), step();
        } else {
            out.kind = name[0] == '%' ? Operand::special : Operand::symbol;
            if (out.kind == Operand::special && here().kind == Tok::directive && here().glued)
                out.name += here().text, step();
        }
        return out;
    }

    Operand operand(bool inside_address = false) {
        Operand out{};
        if (take("!")) {
            out = simple();
            out.negated = true;
            return out;
        }
        if (take("{")) {
            out.kind = Operand::vector;
            while (!take("}")) {
                out.parts.push_back(simple());
                take(",");
            }
            if (!take("|")) return out;
            Operand both{};  // {…}|p
            both.kind = Operand::pair;
            both.parts = {std::move(out), simple()};
            return both;
        }
        if (is("[") && !inside_address) {
            step();
            out.kind = Operand::address;
            out.parts.push_back(simple());
            if (take("+") || is("-")) out.value = static_cast<int64_t>(integer());
            while (take(",")) out.parts.push_back(operand(true));
            expect("]");
            return out;
        }
        Operand first = simple();
        if (take("|")) {
            out.kind = Operand::pair;
            out.parts = {first, simple()};
            return out;
        }
        if (first.kind == Operand::symbol || first.kind == Operand::variable)
            if (take("+") || is("-")) first.value = static_cast<int64_t>(integer());
        return first;
    }
};

}  // namespace

uint32_t size_of(Type type) {
    for (const TypeRow& row : kTypes)
        if (row.type == type) return row.size;
    return 0;
}
bool type_named(std::string_view name, Type& type) {
    if (name.starts_with(".")) name.remove_prefix(1);
    for (const TypeRow& row : kTypes)
        if (row.name == name) return type = row.type, true;
    return false;
}
std::string_view name_of(Type type) {
    for (const TypeRow& row : kTypes)
        if (row.type == type) return row.name;
    return "?";
}

Unit parse(std::string_view text) { return Parser(text).run(); }

}  // namespace gpukernel::simgpu::ptx
