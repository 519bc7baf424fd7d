// PTX as written: tokens, and the tree that the parser makes of them (PTX ISA, chapters 4, 5 and 10).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "simgpu/engine.h"
#include "simgpu/in_vain.h"

namespace gpukernel::simgpu::ptx {

enum class Tok : uint8_t { end, ident, directive, integer, floating32, floating64, string, punct };
struct Token {
    Tok kind;
    std::string_view text;
    uint64_t bits = 0;
    uint32_t line = 0;
    bool glued = false;  // no white space before it
};
struct SyntaxError {
    Status status;
    uint32_t line;
    std::string message;
};
std::vector<Token> lex(std::string_view text, uint32_t line = 1);  // `line`: its first one's number

// Ends the reading of a text that nobody waits for any more.
inline void stop_in_vain(uint32_t line) {
    if (in_vain && in_vain->load(std::memory_order_relaxed))
        throw SyntaxError{Status::out_of_memory, line, "the program that loads it has gone"};
}

enum class Type : uint8_t {
    none,
    b8,
    u8,
    s8,
    b16,
    u16,
    s16,
    f16,
    bf16,
    b32,
    u32,
    s32,
    f32,
    f16x2,
    bf16x2,
    f32x2,
    u16x2,
    s16x2,
    tf32,
    e4m3x2,
    e5m2x2,
    b64,
    u64,
    s64,
    f64,
    b128,
    pred,
    texref,
    surfref,
    samplerref
};
uint32_t size_of(Type type);
bool type_named(std::string_view name, Type& type);  // ".u32" or "u32"
std::string_view name_of(Type type);

constexpr double kNewestVersion = 9.0;  // of PTX that check/ has the forms of

enum class Where : uint8_t { reg, local, shared, global, constant, param };
struct Initialiser {
    uint64_t element = 0;     // its place in the variable
    Tok kind = Tok::integer;  // a constant of that kind; Tok::ident: the address of a variable or function
    std::string name;
    uint64_t bits = 0;  // the value, or the addend
    uint64_t mask = 0;  // 0xff00(name): one byte of an address
};
struct Variable {
    std::string name;
    Where where;
    Type type = Type::none;
    uint32_t align = 0;
    uint64_t count = 1;           // elements, those of vectors among them
    uint32_t vector = 1;          // .v2, .v4
    std::vector<uint64_t> sides;  // of an array
    std::vector<int> elements;    // of a register that is a vector: each by itself
    bool external = false, weak = false, managed = false;
    bool own = false;  // of a function: no other function and no program sees its name
    std::vector<Initialiser> init;
    uint32_t line = 0;
    uint64_t bytes() const { return size_of(type) * count; }
};

struct Operand {
    enum Kind : uint8_t {
        variable,
        symbol,
        integer,
        floating32,
        floating64,
        address,
        element,  // of an array: name[3], name[%r1]
        vector,
        special,
        sink,
        pair
    } kind;
    bool negated = false;  // !p, -r
    int var = -1;          // index into FunctionTree::variables
    std::string name;
    std::string part;            // video instructions: %r1.b0, %r1.h32
    int64_t value = 0;           // immediate bits, or what is added: to an address, a register
    std::vector<Operand> parts;  // vector elements; the base of an address; p|q; the register of an index
};
struct Instruction {
    int guard = -1;
    bool guard_not = false;
    std::string text;                // "add.rn.f32"
    std::vector<std::string> parts;  // "add", "rn", "f32"
    std::vector<Operand> operands;
    std::vector<Operand> rets, args;  // call
    bool lists = false;               // a call that names its results or arguments
    uint32_t line = 0;
    uint32_t block = 0;  // where it stands: FunctionTree::blocks
};
struct Prototype {  // the parameters of .callprototype
    std::vector<Variable> rets, params;
};
// { … }: labels, lists of labels and prototypes belong to it; its registers and variables are resolved while
// it is read (PTX ISA 4.4, 5.4).
struct Block {
    int parent = -1;
    std::map<std::string, uint32_t, std::less<>> labels;  // the instruction that follows
    std::map<std::string, std::vector<std::string>, std::less<>> branch_targets;
    std::map<std::string, std::vector<std::string>, std::less<>> call_targets;
    std::map<std::string, Prototype, std::less<>> prototypes;
};
struct FunctionTree {
    std::string name;
    bool kernel = false, defined = false, weak = false, visible = false;
    std::vector<int> rets, params;
    std::vector<Variable> variables;
    std::vector<Instruction> body;
    std::vector<Block> blocks;  // the body is the first
    struct Location {
        uint32_t ptx_line, file, line;              // .loc; the file by its number
        uint32_t caller_file = 0, caller_line = 0;  // where it was inlined
    };
    std::vector<Location> locations;
    uint32_t max_threads = 0;
    uint32_t max_registers = 0;  // .maxnreg; 0: no limit
    uint32_t cluster[3] = {};    // .reqnctapercluster
    uint32_t max_cluster = 0;
    bool explicit_cluster = false;
    bool newer = false;  // than the tables of forms: its text's .version says so
    double version = 0;  // of its text, and what its text is for
    int target_sm = 0;
    uint32_t line = 0;
    size_t text = 0;  // of those that are linked, which one defines it

    // What `name` means in `block`: the nearest block around it that has the name.  nullptr: nothing.
    template <class Table>
    auto* find(uint32_t block, std::string_view name, Table table, uint32_t* in = nullptr) const {
        for (int at = static_cast<int>(block); at >= 0; at = blocks[static_cast<size_t>(at)].parent) {
            const auto& names = blocks[static_cast<size_t>(at)].*table;
            if (auto it = names.find(name); it != names.end()) {
                if (in) *in = static_cast<uint32_t>(at);
                return &it->second;
            }
        }
        return static_cast<decltype(&(blocks[0].*table).begin()->second)>(nullptr);
    }
};
struct Alias {
    std::string name, of;
    uint32_t line = 0;
};
struct Unit {
    std::vector<Variable> variables;
    std::vector<FunctionTree> functions;
    std::vector<Alias> aliases;
    std::map<uint32_t, std::string> files;  // .file
    double version = 0;
    int target_sm = 0;
    char target_kind = 0;  // 'a': for this compute capability alone, 'f': for its family
    bool address64 = true;
};
Unit parse(std::string_view text);  // throws SyntaxError

}  // namespace gpukernel::simgpu::ptx
