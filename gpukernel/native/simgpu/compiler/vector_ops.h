// Which operations the compiler writes code for itself; the others it knows are calls of their handlers.
#pragma once

#include <cstdint>
#include <string>

#include "simgpu/compiler/assembler.h"

namespace gpukernel::simgpu::compiler {

// Operations on lines that give lines.
enum class LineOp : uint8_t { none, copy, add, subtract, multiply, multiply_add, shift_left };
LineOp line_op(const std::string& key);
bool widens(const std::string& key);  // 32 bits to 64: a line may end where 32 bits do
bool widens_signed(const std::string& key);

// An operation that is a vector instruction or a few of them.
struct VectorOp {
    enum Form : uint8_t {
        two,       // to = op(a, b)
        one,       // to = op(a)
        fused,     // to = a * b + c
        widened,   // to = op(a), elements twice as wide
        narrowed,  // to = op(a), half as wide
        product,   // 64 bits of 32
        product_add,
        sign,   // a combined with a constant: a sign bit, the window of a space
        shift,  // of 64 bits by a number of 32
        compare,
        select,
        table,    // lop3
        extreme,  // min and max of floating-point numbers
        root,     // 1 / sqrt(a), in double precision
        reciprocal,
        predicate,
        move,
        clamp,  // to an integer, what is out of range at its ends
    } form;
    uint8_t bytes;  // of an element: that of the operands
    Encoding code{};
    uint8_t detail = 0;  // a comparison, a rounding, a kind of predicate
};
const VectorOp* vector_op(const std::string& key);
inline bool is_vector_op(const std::string& key) { return vector_op(key) != nullptr; }

// One of several vector instructions, of which the same operands have one result (generate/integers.cpp).
bool is_composed(const std::string& key);

// An atomic operation that is code.
struct AtomicOp {
    enum Kind : uint8_t {
        add,
        bit_and,
        bit_or,
        bit_xor,
        exchange,
        compare,
        least,
        most,
        increment,
        decrement
    } kind;
    bool is_signed, is_float;
    uint8_t bytes;
};
bool atomic_op(const std::string& key, AtomicOp& out);
// A .sync operation whose result is the same for all lanes.
bool gives_one(const std::string& key);

bool loads_line(const std::string& key);  // of one address for all lanes
bool is_launch_constant(int64_t special);
struct MemoryOp {
    enum Where : uint8_t { global, shared, param, local } where;
    bool loads;
    bool is_signed;
    uint8_t memory, reg;  // bytes of an element
    uint8_t count;        // elements
    uint32_t whole() const { return uint32_t{memory} * count; }
};
bool memory_op(const std::string& key, MemoryOp& out);

}  // namespace gpukernel::simgpu::compiler
