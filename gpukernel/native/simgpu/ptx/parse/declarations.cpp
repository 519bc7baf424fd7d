// Declarations: of the module's variables, of a function's own, of parameters and registers (PTX ISA 5.4).
#include <algorithm>
#include <bit>

#include "simgpu/ptx/parse/parser.h"

namespace gpukernel::simgpu::ptx {

namespace {

struct TypeRow {
    std::string_view name;
    Type type;
    uint32_t size;
};
constexpr TypeRow kTypes[] = {
    {"b8", Type::b8, 1},
    {"u8", Type::u8, 1},
    {"s8", Type::s8, 1},
    {"b16", Type::b16, 2},
    {"u16", Type::u16, 2},
    {"s16", Type::s16, 2},
    {"f16", Type::f16, 2},
    {"bf16", Type::bf16, 2},
    {"b32", Type::b32, 4},
    {"u32", Type::u32, 4},
    {"s32", Type::s32, 4},
    {"f32", Type::f32, 4},
    {"f16x2", Type::f16x2, 4},
    {"bf16x2", Type::bf16x2, 4},
    {"u16x2", Type::u16x2, 4},
    {"s16x2", Type::s16x2, 4},
    {"tf32", Type::tf32, 4},
    {"e4m3x2", Type::e4m3x2, 2},
    {"e5m2x2", Type::e5m2x2, 2},
    {"b64", Type::b64, 8},
    {"u64", Type::u64, 8},
    {"s64", Type::s64, 8},
    {"f64", Type::f64, 8},
    {"f32x2", Type::f32x2, 8},
    {"b128", Type::b128, 16},
    {"pred", Type::pred, 4},
    {"texref", Type::texref, 8},
    {"surfref", Type::surfref, 8},
    {"samplerref", Type::samplerref, 8},
};

bool open_ended(const Variable& v) { return !v.sides.empty() && v.sides[0] == 0; }
bool opaque(Type t) { return t == Type::texref || t == Type::surfref || t == Type::samplerref; }
// Packed pairs and formats of tensor cores are types of instructions; what holds them is declared as bits.
bool declarable(Type t) {
    return t != Type::tf32 && t != Type::bf16 && t != Type::bf16x2 && t != Type::u16x2 && t != Type::s16x2 &&
           t != Type::e4m3x2 && t != Type::e5m2x2 && t != Type::f32x2;
}
const char* element_names[2] = {"xyzw", "rgba"};

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

bool Parser::space(Where& where) {
    constexpr std::pair<const char*, Where> spaces[] = {
        {".global", Where::global}, {".const", Where::constant},
        {".shared", Where::shared}, {".shared::cta", Where::shared},
        {".local", Where::local},   {".param", Where::param},
        {".reg", Where::reg}};
    for (auto& [text, named] : spaces)
        if (take(text)) return where = named, true;
    return false;
}

void Parser::attribute(Variable& shape) {
    expect("(");
    list(")", [&] {
        if (take(".managed")) {
            shape.managed = true;
        } else if (take(".unified")) {
            expect("(");
            list(")", [&] { integer(); });
        } else {
            unexpected("an attribute");
        }
    });
}

// .ptr[.space][.align N]: what the pointer points at; nothing about the parameter itself (PTX ISA 5.4.2).
void Parser::pointee() {
    Where ignored;
    space(ignored);
    if (take(".align")) alignment();
}

Variable Parser::shape(Where where, bool parameter) {
    Variable shape;
    shape.where = where;
    for (;;) {
        if (where != Where::reg && shape.type == Type::none && take(".align"))
            shape.align = alignment();
        else if (shape.vector == 1 && shape.type == Type::none && take(".v2"))
            shape.vector = 2;
        else if (shape.vector == 1 && shape.type == Type::none && take(".v4"))
            shape.vector = 4;
        else if (parameter && shape.type != Type::none && take(".ptr")) {
            if (!function_ || !function_->kernel) fail("only a kernel's parameter says what it points at");
            pointee();
        } else if (take(".attribute"))
            attribute(shape);
        else if (shape.type == Type::none && here().kind == Tok::directive &&
                 type_named(here().text, shape.type))
            step();
        else
            break;
    }
    if (shape.type == Type::none)
        fail("a declaration lacks its type before '" + std::string(here().text) + "'");
    if (!declarable(shape.type))
        fail("'." + std::string(name_of(shape.type)) + "' is no type of a variable: declare it as bits");
    if (shape.type == Type::pred && where != Where::reg) fail("a predicate is a register");
    if (shape.vector > 1 && where == Where::param) fail("a parameter in memory is no vector: it is an array");
    if (size_of(shape.type) * shape.vector > 16) fail("a vector has up to 16 bytes");
    if (shape.type == Type::pred && shape.vector > 1) fail("there are no vectors of predicates");
    return shape;
}

void Parser::declare(Where where, const Add& add, bool parameter, bool external) {
    const Variable common = shape(where, parameter);
    do {
        Variable variable = common;
        variable.line = here().line;
        variable.name = ident();
        variable.count = variable.vector;
        if (where == Where::reg && !parameter && is("<")) {
            registers(variable, variable.name);
            continue;
        }
        dimensions(variable, parameter);
        if (where == Where::reg && !variable.sides.empty()) fail("there are no arrays of registers");
        if (is("=")) {
            if (where != Where::global && where != Where::constant)
                fail("'" + variable.name +
                     "' cannot have an initial value: only .global and .const variables can");
            step();
            if (opaque(variable.type))
                skip_past("}");  // names and values: the driver sets them when it binds the reference
            else
                initialisers(variable);
        }
        if (!parameter && open_ended(variable) && !external)
            fail("'" + variable.name + "' has no length: it is not .extern");
        if (!variable.align) variable.align = size_of(variable.type) * variable.vector;
        add(std::move(variable));
    } while (!parameter && take(","));
}

void Parser::dimensions(Variable& variable, bool parameter) {
    bool open = false;
    while (take("[")) {
        uint64_t side = 0;  // as long as the initialiser, or as whoever declares it elsewhere says
        if (!is("]")) {
            const Constant length = expression();
            if (length.kind != Tok::integer) fail("an array's length is an integer");
            side = length.bits;
            if (!side && !parameter) fail("the array '" + variable.name + "' has no elements");
        } else if (!variable.sides.empty()) {
            fail("only the first side of an array may be left out");
        }
        expect("]");
        variable.sides.push_back(side);
        open |= !side;
        if (__builtin_mul_overflow(variable.count, std::max<uint64_t>(side, 1), &variable.count) ||
            variable.count > kMostElements)
            fail("'" + variable.name + "' is too large");
    }
    if (open) variable.count = 0;
}

uint32_t Parser::alignment() {
    const uint64_t n = integer();
    if (n == 0 || n > kMostAlign || (n & (n - 1))) fail("an alignment is a power of two up to 65536");
    return static_cast<uint32_t>(n);
}

// Each pair of braces is one row, whose elements that are left out are zeros.
void Parser::initialisers(Variable& variable) {
    if (variable.sides.empty() && variable.vector == 1) {
        const bool braces = take("{");
        variable.init.push_back(initialiser());
        if (braces) expect("}");
        return;
    }
    if (variable.sides.empty() && !is("{")) fail("a vector is initialised by a list");
    const bool open = !variable.sides.empty() && variable.sides[0] == 0;
    uint64_t row = variable.vector;
    for (size_t side = 1; side < variable.sides.size(); ++side) row *= variable.sides[side];
    expect("{");
    const uint64_t end = initialiser_list(variable, 0, open ? kMostElements : variable.count, 0, 0);
    if (!open) return;
    variable.sides[0] = (end + row - 1) / row;
    variable.count = variable.sides[0] * row;
}

// Reads up to `}` what fills `room` elements from `first` on, and returns where it ended.
uint64_t Parser::initialiser_list(Variable& variable, uint64_t first, uint64_t room, size_t side,
                                  int nesting) {
    if (nesting > kMostNesting) fail("an initialiser is nested too deeply");
    uint64_t part = variable.vector;  // the elements of one row of this one
    for (size_t s = side + 1; s < variable.sides.size(); ++s) part *= variable.sides[s];
    if (side >= variable.sides.size()) part = 1;
    uint64_t at = first;
    const bool one_vector = variable.vector > 1 && side >= variable.sides.size();
    if (variable.vector > 1 && !one_vector && !is("{") && !is("}"))
        fail("each vector is initialised by a list of its own");
    list("}", [&] {
        if (take("{")) {
            if (part == 1) fail("an element of an initialiser is no list");
            at = first + (at - first + part - 1) / part * part;
            if (at - first >= room) fail("'" + variable.name + "' has more initial values than elements");
            initialiser_list(variable, at, part, side + 1, nesting + 1);
            at += part;
            return;
        }
        if (at - first >= room) fail("'" + variable.name + "' has more initial values than elements");
        Initialiser value = initialiser();
        value.element = at++;
        variable.init.push_back(std::move(value));
    });
    if (one_vector && at - first != variable.vector)
        fail("the initial value of a vector has as many elements as it");
    return at;
}

// A constant, an address of something (name+4, generic(name)+4), or a byte of one (0xff00(name)).
Initialiser Parser::initialiser() {
    Initialiser value;
    if (here().kind == Tok::ident && !is("WARP_SZ")) {
        value.kind = Tok::ident;
        const bool generic = is("generic") && ahead(1).text == "(";
        if (generic) step(), step();
        value.name = ident();
        if (const std::string* own = hoisted(value.name)) value.name = *own;
        if (generic) {
            value.bits = sum();
            expect(")");
        }
        value.bits = wrapping_sum(value.bits, sum());
        return value;
    }
    if (!constant_here()) unexpected("a constant as an initial value");
    const Constant constant = expression();
    if (constant.kind == Tok::integer && take("(")) {
        const int lowest = constant.bits ? std::countr_zero(constant.bits) : 1;
        if (lowest % 8 || constant.bits >> lowest != 0xff) fail("a mask of an address has one byte");
        if (here().kind != Tok::ident) unexpected("a variable or function");
        value = initialiser();
        value.mask = constant.bits;
        expect(")");
        return value;
    }
    value.kind = constant.kind;
    value.bits = constant.bits;
    return value;
}

void Parser::parameter_list(std::vector<int>& out) {
    list(")", [&] {
        Where where;
        if (!space(where) || (where != Where::param && (where != Where::reg || function_->kernel)))
            unexpected("a parameter");
        declare(
            where,
            [&](Variable v) {
                const bool result = &out == &function_->rets;
                if (open_ended(v) && (result || function_->kernel))
                    fail("'" + v.name + "' has no length: only a function's parameter may lack it");
                out.push_back(add(std::move(v)));
            },
            true);
    });
}

void Parser::own_variable(Variable variable) {
    if (variable.where != Where::global && variable.where != Where::constant) {
        add(std::move(variable));
        return;
    }
    // It lives as long as the module, and only its block knows its name.
    claim(variable.name);
    const std::string name =
        function_->name + "::" + variable.name + "#" + std::to_string(unit_.variables.size());
    scopes_.back().hoisted[variable.name] = name;
    variable.name = name;
    variable.own = true;
    unit_.variables.push_back(std::move(variable));
}

void Parser::claim(const std::string& name) const {
    if (name == "_" || name == "%" || name == "WARP_SZ") fail("'" + name + "' is no name of a variable");
    const Scope& scope = scopes_.back();
    const Block& block = function_->blocks[scope.block];
    const bool in_range =
        std::any_of(scope.ranges.begin(), scope.ranges.end(),
                    [&](const RegisterRange& range) { return range.number(name).has_value(); });
    if (in_range || scope.names.contains(name) || scope.hoisted.contains(name) || block.labels.contains(name))
        fail("'" + name + "' is declared twice in one block");
}

int Parser::add(Variable variable) {
    // A kernel need not name a parameter that it does not use.
    const bool unnamed = variable.name == "_" && function_->kernel && variable.where == Where::param;
    if (!unnamed) claim(variable.name);
    const std::string name = variable.name;
    const int index = make(std::move(variable));
    scopes_.back().names[name] = index;
    return index;
}

int Parser::make(Variable variable) {
    const int index = static_cast<int>(function_->variables.size());
    const uint32_t elements = variable.where == Where::reg && variable.vector > 1 ? variable.vector : 0;
    function_->variables.push_back(variable);
    variable.vector = 1, variable.count = 1, variable.align = size_of(variable.type);
    const std::string name = variable.name;
    for (uint32_t n = 0; n < elements; ++n) {
        variable.name = name + "." + element_names[0][n];
        function_->variables[static_cast<size_t>(index)].elements.push_back(
            static_cast<int>(function_->variables.size()));
        function_->variables.push_back(variable);
    }
    return index;
}

void Parser::registers(const Variable& shape, const std::string& prefix) {
    expect("<");
    const uint32_t count = short_count();
    expect(">");
    const RegisterRange range{prefix, count, shape, {}};
    for (const auto& [name, index] : scopes_.back().names)
        if (range.number(name)) fail("'" + name + "' is declared twice in one block");
    for (const RegisterRange& other : scopes_.back().ranges)
        if (other.prefix == prefix) fail("'" + prefix + "0' is declared twice in one block");
    scopes_.back().ranges.push_back({prefix, count, shape, {}});
}

void Parser::body_directive() {
    if (is(".loc")) return location();
    if (is(".file")) return file();
    if (take(".pragma")) return strings();
    if (is(".extern")) fail("a variable of a function is not .extern");
    Where where;
    if (!space(where)) fail("unexpected '" + std::string(here().text) + "' in a function");
    declare(where, [&](Variable v) { own_variable(std::move(v)); }, false, false);
    expect(";");
}

void Parser::prototype(Prototype& out) {  // [(results)] _ [(parameters)] [.noreturn];
    auto parameters = [&](std::vector<Variable>& to) {
        list(")", [&] {
            Where where;
            if (!space(where) || (where != Where::param && where != Where::reg)) unexpected("a parameter");
            declare(where, [&](Variable v) { to.push_back(std::move(v)); }, true);
        });
    };
    if (take("(")) parameters(out.rets);
    if (!take("_")) unexpected("'_' in place of a function's name");
    if (take("(")) parameters(out.params);
    while ((is(".noreturn") && out.rets.empty() && take(".noreturn")) ||
           (take(".abi_preserve") && (integer(), true)) ||
           (take(".abi_preserve_control") && (integer(), true))) {
    }
    expect(";");
}

}  // namespace gpukernel::simgpu::ptx
