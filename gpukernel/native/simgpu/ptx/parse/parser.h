// The parser: tokens become a tree, with the names of registers and of a function's other variables resolved
// in their blocks.  What it does not understand is an error that names it and its line.  Its members are
// grouped by subject in the files of this folder.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/checked.h"
#include "simgpu/ptx/syntax.h"

namespace gpukernel::simgpu::ptx {

constexpr uint64_t kMostElements = 1ull << 40;  // so that no product or sum of sizes wraps around
constexpr uint32_t kMostAlign = 1u << 16;
constexpr int kMostNesting = 16;          // of braces in an initialiser, of parentheses in an expression
constexpr uint32_t kMostBlocks = 1 << 8;  // within each other

// A run of registers, `%r<100>`, takes its names lazily.
struct RegisterRange {
    std::string prefix;
    uint32_t count;
    Variable shape;
    std::map<uint32_t, int> made;
    std::optional<uint32_t> number(std::string_view name) const;  // of the register that has this name
};
struct Scope {
    std::map<std::string, int, std::less<>> names;
    std::map<std::string, std::string, std::less<>>
        hoisted;  // variables with an address for the whole launch
    std::vector<RegisterRange> ranges;
    uint32_t block = 0;
};
struct Constant {  // an expression's value (PTX ISA 4.5)
    Tok kind = Tok::integer;
    uint64_t bits = 0;
    bool is_unsigned = false;
};

class Parser {
  public:
    explicit Parser(std::string_view text, uint32_t line = 1) : tokens_(lex(text, line)) {}
    Unit run();
    FunctionTree kernel(const Unit& of);  // the text is that of one of its kernels alone

  private:
    std::vector<Token> tokens_;
    size_t at_ = 0;
    std::map<std::string, size_t> variables_, functions_;  // of the module, in unit_
    Unit unit_;
    FunctionTree* function_ = nullptr;
    std::vector<Scope> scopes_;

    // Tokens.
    const Token& here() const { return tokens_[at_]; }
    const Token& ahead(size_t n) const { return tokens_[std::min(at_ + n, tokens_.size() - 1)]; }
    void step() { at_ = std::min(at_ + 1, tokens_.size() - 1); }
    bool is(std::string_view text) const { return here().text == text && here().kind != Tok::string; }
    bool take(std::string_view text) { return is(text) && here().kind != Tok::end ? (step(), true) : false; }
    [[noreturn]] void fail(std::string message) const;
    [[noreturn]] void unexpected(const char* wanted) const;
    void expect(std::string_view text);
    std::string ident();
    uint64_t integer();      // a literal
    uint32_t short_count();  // a literal of 32 bits
    void skip_past(std::string_view text);
    void skip_line();
    void strings();  // of .pragma
    // Items with commas between them, up to `close`, which is taken.
    template <class Item>
    void list(std::string_view close, Item item) {
        if (take(close)) return;
        do item();
        while (take(","));
        expect(close);
    }

    // module.cpp
    void module_item();
    void version();
    void target();
    void file();
    void location();
    void alias();
    void function(bool weak, bool visible, bool external);
    void one_function(const FunctionTree& tree);
    void function_directives(FunctionTree& tree);

    // declarations.cpp
    bool space(Where& where);
    using Add = std::function<void(Variable)>;
    void declare(Where where, const Add& add, bool parameter = false, bool external = false);
    Variable shape(Where where, bool parameter);
    void attribute(Variable& shape);
    void pointee();
    void dimensions(Variable& variable, bool parameter);
    uint32_t alignment();
    void initialisers(Variable& variable);
    uint64_t initialiser_list(Variable& variable, uint64_t first, uint64_t room, size_t side, int nesting);
    Initialiser initialiser();
    void module_variable(Where where, Variable variable);
    void parameter_list(std::vector<int>& out);
    void own_variable(Variable variable);
    int add(Variable variable);
    void claim(const std::string& name) const;  // fails where the block has the name already
    void registers(const Variable& shape, const std::string& prefix);
    int make(Variable variable);  // and the elements of a vector

    // body.cpp
    void body();
    Block& block() { return function_->blocks[scopes_.back().block]; }
    void open_block();
    void label();
    void body_directive();
    void prototype(Prototype& out);
    void instruction();
    void older_form(Instruction& in) const;
    void call(Instruction& out);
    int lookup(std::string_view name);
    const std::string* hoisted(std::string_view name) const;

    // operands.cpp
    Operand operand(bool inside_address = false);
    Operand simple();
    Operand named();
    Operand vector();
    Operand address();
    void index(Operand& array);
    void addend(Operand& to);
    bool constant_here() const;

    // expressions.cpp
    Constant expression(int nesting = 0);
    Constant binary(int level, int nesting);
    Constant unary(int nesting);
    Constant primary(int nesting);
    bool operator_here(std::string_view text);
    uint64_t sum();  // what a + adds to an address or a register
    Constant apply(std::string_view what, const Constant& a, const Constant& b) const;
};

}  // namespace gpukernel::simgpu::ptx
