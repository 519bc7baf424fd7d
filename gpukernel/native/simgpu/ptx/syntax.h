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
std::vector<Token> lex(std::string_view text);

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

enum class Where : uint8_t { reg, local, shared, global, constant, param };
struct Initialiser {
    bool symbol = false;
    std::string name;
    uint64_t bits = 0;  // the value, or the addend
};
struct Variable {
    std::string name;
    Where where;
    Type type = Type::none;
    uint32_t align = 0;
    uint64_t count = 1;  // elements
    bool array = false, external = false, weak = false, managed = false;
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
        vector,
        special,
        sink,
        pair
    } kind;
    bool negated = false;  // !p, -r
    int var = -1;          // index into FunctionTree::variables
    std::string name;
    std::string part;            // video instructions: %r1.b0, %r1.h32
    int64_t value = 0;           // immediate bits, or the address offset
    std::vector<Operand> parts;  // vector elements; the base of an address; p|q
};
struct Instruction {
    int guard = -1;
    bool guard_not = false;
    std::string text;                // "add.rn.f32"
    std::vector<std::string> parts;  // "add", "rn", "f32"
    std::vector<Operand> operands;
    std::vector<Operand> rets, args;  // call
    uint32_t line = 0;
};
struct FunctionTree {
    std::string name;
    bool kernel = false, defined = false, weak = false, visible = false;
    std::vector<int> rets, params;
    std::vector<Variable> variables;
    std::vector<Instruction> body;
    std::map<std::string, uint32_t, std::less<>> labels;
    std::map<std::string, std::vector<std::string>, std::less<>> branch_targets;
    struct Location {
        uint32_t ptx_line, file, line;              // .loc; the file by its number
        uint32_t caller_file = 0, caller_line = 0;  // where it was inlined
    };
    std::vector<Location> locations;
    uint32_t max_threads = 0;
    uint32_t cluster[3] = {};  // .reqnctapercluster
    uint32_t max_cluster = 0;
    bool explicit_cluster = false;
    uint32_t line = 0;
};
struct Unit {
    std::vector<Variable> variables;
    std::vector<FunctionTree> functions;
    std::map<uint32_t, std::string> files;  // .file
    int target_sm = 0;
    bool address64 = true;
};
Unit parse(std::string_view text);  // throws SyntaxError

}  // namespace gpukernel::simgpu::ptx
