// The text as a whole: directives of the module, its variables and its functions.
#include <algorithm>
#include <bit>
#include <cstdlib>

#include "simgpu/ptx/outline.h"
#include "simgpu/ptx/parse/parser.h"

namespace gpukernel::simgpu::ptx {

Unit Parser::run() {
    if (!is(".version")) fail("PTX begins with .version, not '" + std::string(here().text) + "'");
    version();
    if (!is(".target")) fail(".target comes after .version, not '" + std::string(here().text) + "'");
    while (here().kind != Tok::end) module_item();
    return std::move(unit_);
}

void Parser::fail(std::string message) const {
    throw SyntaxError{Status::invalid_ptx, here().line, std::move(message)};
}
void Parser::unexpected(const char* wanted) const {
    fail(std::string("expected ") + wanted + ", not '" + std::string(here().text) + "'");
}
void Parser::expect(std::string_view text) {
    if (!take(text)) fail("expected '" + std::string(text) + "' before '" + std::string(here().text) + "'");
}
std::string Parser::ident() {
    if (here().kind != Tok::ident) unexpected("a name");
    std::string name(here().text);
    step();
    return name;
}
uint64_t Parser::integer() {
    if (here().kind != Tok::integer) unexpected("a number");
    const uint64_t bits = here().bits;
    step();
    return bits;
}
uint32_t Parser::short_count() {
    if (here().kind == Tok::integer && here().bits > UINT32_MAX)
        fail("'" + std::string(here().text) + "' is too large");
    return static_cast<uint32_t>(integer());
}
void Parser::skip_past(std::string_view text) {
    while (!take(text)) {
        if (here().kind == Tok::end) fail("the text ends before '" + std::string(text) + "'");
        step();
    }
}
void Parser::skip_line() {
    const uint32_t line = here().line;
    while (here().kind != Tok::end && here().line == line) step();
}
void Parser::strings() {
    do {
        if (here().kind != Tok::string) unexpected("a string");
        step();
    } while (take(","));
    expect(";");
}

void Parser::version() {
    step();
    if (here().kind != Tok::floating64) unexpected("a version like 8.7");
    unit_.version = std::bit_cast<double>(here().bits);
    step();
}

void Parser::target() {
    do {
        const std::string name = ident();
        if (name.starts_with("sm_") && name.size() > 3 && name[3] >= '0' && name[3] <= '9')
            unit_.target_sm = std::atoi(name.c_str() + 3),
            unit_.target_kind = name.back() == 'a' || name.back() == 'f' ? name.back() : 0;
        else if (name != "texmode_unified" && name != "texmode_independent" && name != "debug" &&
                 name != "map_f64_to_f32")
            fail("unknown target '" + name + "'");
    } while (take(","));
}

void Parser::file() {  // .file 1 "path"[, timestamp, size]
    step();
    const auto number = short_count();
    if (here().kind != Tok::string) unexpected("the name of a file");
    const std::string_view name = here().text;
    if (name.size() >= 2) unit_.files[number] = name.substr(1, name.size() - 2);
    step();
    if (!take(",")) return;
    integer();
    expect(",");
    integer();
}

void Parser::location() {  // .loc file line column[, function_name name[+offset], inlined_at file line
                           // column]
    FunctionTree::Location at;
    at.ptx_line = here().line;
    step();
    at.file = short_count(), at.line = short_count();
    integer();
    if (take(",")) {
        if (!take("function_name")) unexpected("function_name");
        ident();
        if (take("+")) integer();
        expect(",");
        if (!take("inlined_at")) unexpected("inlined_at");
        at.caller_file = short_count(), at.caller_line = short_count();
        integer();
    }
    if (function_) function_->locations.push_back(at);
}

void Parser::alias() {  // .alias name, of;
    Alias out;
    out.line = here().line;
    out.name = ident();
    expect(",");
    out.of = ident();
    expect(";");
    unit_.aliases.push_back(std::move(out));
}

void Parser::module_item() {
    if (is(".version")) return version();
    if (take(".target")) return target();
    if (take(".address_size")) {
        const uint64_t size = integer();
        if (size != 32 && size != 64) fail("an address has 32 or 64 bits");
        unit_.address64 = size == 64;
        return;
    }
    if (is(".file")) return file();
    if (is(".loc")) return location();
    if (take(".section")) return skip_past("}");  // for debuggers
    if (take(".pragma")) return strings();
    if (take(".alias")) return alias();
    if (take(";")) return;
    bool external = false, weak = false, visible = false;
    if (take(".extern"))
        external = true;
    else if (take(".weak") || take(".common"))
        weak = true;
    else if (take(".visible"))
        visible = true;
    if (is(".entry") || is(".func")) return function(weak, visible, external);
    Where where = Where::global;
    const bool texture = unit_.version < 1.45 && take(".tex");  // up to PTX 1.4 what is .global .texref since
    if (!texture && !space(where)) fail("unexpected '" + std::string(here().text) + "'");
    if (where == Where::reg || where == Where::local)
        fail("registers and local variables stand in a function, not outside of all");
    declare(
        where,
        [&](Variable variable) {
            variable.external = external;
            variable.weak = weak;
            if (texture) variable.type = Type::texref;
            module_variable(where, std::move(variable));
        },
        false, external);
    expect(";");
}

void Parser::module_variable(Where where, Variable variable) {
    if (variable.external && !variable.init.empty()) fail("'" + variable.name + "' is defined elsewhere");
    if (where == Where::shared && !variable.init.empty()) fail("shared memory has no initial values");
    if (functions_.contains(variable.name)) fail("'" + variable.name + "' is a function already");
    if (auto [it, fresh] = variables_.try_emplace(variable.name, unit_.variables.size()); !fresh) {
        const Variable& other = unit_.variables[it->second];
        if (other.where != where || other.type != variable.type || other.vector != variable.vector ||
            (other.count && variable.count && other.sides != variable.sides))
            fail("'" + variable.name + "' was declared as something else");
        if (!other.external && !variable.external && !other.weak && !variable.weak)
            fail("'" + variable.name + "' is defined twice");
    }
    unit_.variables.push_back(std::move(variable));
}

void Parser::function_directives(FunctionTree& tree) {
    auto sides = [&] {  // one to three numbers
        uint64_t product = integer();
        for (int side = 1; side < 3 && take(","); ++side)
            if (__builtin_mul_overflow(product, integer(), &product)) fail("a block is too large");
        return product;
    };
    std::string_view size;  // which of both directives said it
    while (here().kind == Tok::directive) {
        if (is(".maxntid") || is(".reqntid")) {
            if (!size.empty() && size != here().text) fail(".maxntid and .reqntid exclude each other");
            size = here().text;
            step();
            tree.max_threads = static_cast<uint32_t>(std::min<uint64_t>(sides(), UINT32_MAX));
            if (!tree.max_threads) fail("a block has at least one thread");
        } else if (take(".reqnctapercluster")) {
            tree.cluster[0] = short_count();
            for (int side = 1; side < 3; ++side) tree.cluster[side] = take(",") ? short_count() : 1;
        } else if (take(".maxclusterrank")) {
            tree.max_cluster = short_count();
        } else if (take(".explicitcluster")) {
            tree.explicit_cluster = true;
        } else if (take(".maxnreg")) {
            tree.max_registers = static_cast<uint32_t>(std::clamp<int64_t>(integer(), 1, 255));
        } else if (take(".pragma")) {
            strings();
        } else if (take(".minnctapersm") || (unit_.version < 2.05 && take(".maxnctapersm")) ||
                   take(".abi_preserve") || take(".abi_preserve_control")) {
            integer();
        } else if (is(".noreturn") && (tree.kernel || !tree.rets.empty())) {
            fail("only a function without results never returns");
        } else if (!take(".noreturn") && !take(".blocksareclusters")) {
            fail("unknown directive '" + std::string(here().text) + "' of a function");
        }
    }
    if (tree.cluster[0] && tree.max_cluster)
        fail(".reqnctapercluster and .maxclusterrank exclude each other");
}

// A function may be declared before it is defined, and is then the same.
void Parser::one_function(const FunctionTree& tree) {
    if (variables_.contains(tree.name)) fail("'" + tree.name + "' is a variable already");
    auto [it, fresh] = functions_.try_emplace(tree.name, unit_.functions.size());
    if (fresh) return;
    const FunctionTree& other = unit_.functions[it->second];
    if (other.defined) fail("'" + tree.name + "' is defined twice");
    if (other.kernel != tree.kernel) fail("'" + tree.name + "' was declared as a function, or a kernel");
    auto alike = [&](const std::vector<int>& these, const std::vector<int>& those) {
        return std::equal(these.begin(), these.end(), those.begin(), those.end(), [&](int a, int b) {
            const Variable &one = tree.variables[static_cast<size_t>(a)],
                           &two = other.variables[static_cast<size_t>(b)];
            return one.where == two.where && one.type == two.type && one.vector == two.vector &&
                   one.sides == two.sides;
        });
    };
    if (!alike(tree.params, other.params) || !alike(tree.rets, other.rets))
        fail("'" + tree.name + "' was declared with other parameters");
    it->second = unit_.functions.size();
}

void Parser::function(bool weak, bool visible, bool external) {
    FunctionTree tree;
    tree.line = here().line;
    tree.kernel = is(".entry");
    tree.weak = weak;
    tree.visible = visible;
    tree.newer = unit_.version > kNewestVersion;
    tree.version = unit_.version, tree.target_sm = unit_.target_sm;
    step();
    if (take(".attribute")) skip_past(")");
    function_ = &tree;
    scopes_.assign(1, {});
    tree.blocks.emplace_back();
    if (!tree.kernel && take("(")) parameter_list(tree.rets);
    tree.name = ident();
    if (tree.name == "_") fail("'_' is no name of a function");
    if (take("(")) parameter_list(tree.params);
    function_directives(tree);
    const bool declared = take(";");
    if (external && !declared) fail("'" + tree.name + "' is .extern, and so defined elsewhere");
    tree.defined = !declared;
    one_function(tree);
    if (!declared) {
        expect("{");
        body();
    }
    function_ = nullptr;
    scopes_.clear();
    unit_.functions.push_back(std::move(tree));
}

FunctionTree Parser::kernel(const Unit& of) {
    unit_.version = of.version;
    unit_.target_sm = of.target_sm, unit_.target_kind = of.target_kind;
    unit_.address64 = of.address64;
    function(false, false, false);
    if (here().kind != Tok::end) unexpected("the end of a kernel");
    return std::move(unit_.functions.front());
}

Unit parse(std::string_view text) { return Parser(text).run(); }
FunctionTree parse_kernel(const Unit& unit, const KernelText& kernel) {
    return Parser(kernel.text, kernel.line).kernel(unit);
}

}  // namespace gpukernel::simgpu::ptx
