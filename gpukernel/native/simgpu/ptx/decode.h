// The decoder: makes the program that warps run from the syntax tree of one function.
#pragma once

#include <map>
#include <string>

#include "simgpu/exec/machine.h"
#include "simgpu/ptx/syntax.h"

namespace gpukernel::simgpu::ptx {

struct Symbol {
    enum Kind : uint8_t { global, shared, dynamic_shared, function } kind;
    uint64_t value;                      // an address, an offset in shared memory, an index of a function
    uint32_t element = 1;                // bytes of one element of a variable
    const FunctionTree* tree = nullptr;  // of a function
    Where where = Where::global;         // of a variable
};
using Symbols = std::map<std::string, Symbol, std::less<>>;

// What a device can hold at most: a block's shared memory, a thread's frames, a kernel's parameters (PTX
// ISA 5.1.6, CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").  More is refused
// before any sum of sizes could wrap around.
constexpr uint64_t kMostShared = 256 << 10, kMostLocal = 512 << 10, kMostParameters = 32764;
// All constant variables of a module (PTX ISA 5.1.3: 64 KiB, and ten regions of as much).
constexpr uint64_t kMostConstant = 11 * (64 << 10);
// A virtual register, and a different constant, takes up to 256 bytes of a warp.  A function that a compiler
// made uses some thousands.
constexpr uint32_t kMostRegisterBytes = 64 << 20, kMostConstantBytes = 64 << 20;

// Throws SyntaxError; Status::unsupported names what is lacking.  `shared_at` is where the function's own
// shared variables begin; it grows.
void decode(const FunctionTree& tree, const Symbols& symbols, Function& out, uint32_t& shared_at);
void lay_out_parameters(const FunctionTree& tree, Function& out);

}  // namespace gpukernel::simgpu::ptx
