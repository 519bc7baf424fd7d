// The shape of a function: its blocks, what lives at each operation, and which lanes may wait where.
//
// Compiled code runs a warp in the interpreter's order: the lanes that are furthest behind run first, and
// meet the others where those wait.  So while a block runs, lanes can only wait at blocks that stand behind
// it, and what such lanes still need must not be touched by whoever runs.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "simgpu/compiler/signature.h"

namespace gpukernel::simgpu::compiler {

constexpr size_t kMostOfOne = 4 << 20;  // bytes of a kernel's code and tables
constexpr size_t kNode = 48;            // bytes of a set's or map's entry, with the allocator's own
std::string too_large();                // the sentence about a kernel that would take more

// What the 32 lanes of a register hold, as far as it is known before the kernel runs.
struct LaneShape {
    enum Kind : uint8_t { unknown, line, any } kind = unknown;
    int64_t step = 0;  // of a line, from lane to lane; 0: all lanes hold the same
    bool uniform() const { return kind == line && step == 0; }
    bool operator==(const LaneShape&) const = default;
};

struct Value {             // a register of the program
    uint32_t slot, bytes;  // 0 bytes: a predicate
    LaneShape shape;
    double weight = 0;             // how often it is used, loops counting more
    std::vector<uint8_t> vectors;  // registers of the processor that hold it; none: it lies in memory
    bool settled = false;          // a launch computes it once
    int32_t scalar = -1;           // where a line lies, among those of a warp or of a launch
};

using Set = std::vector<uint64_t>;  // of values
inline bool contains(const Set& set, uint32_t n) { return set[n / 64] >> n % 64 & 1; }
inline void insert(Set& set, uint32_t n) { set[n / 64] |= 1ull << n % 64; }
inline void remove(Set& set, uint32_t n) { set[n / 64] &= ~(1ull << n % 64); }

struct CodeBlock {
    uint32_t begin, end;            // operations
    std::vector<uint32_t> next;     // blocks
    Set live;                       // where it begins
    Set kept;                       // what lanes that wait elsewhere need
    std::set<uint32_t> waited_for;  // blocks where lanes may wait meanwhile
    bool waitable = false;          // lanes may wait here
    bool alone = true;              // nobody waits anywhere while it runs
    bool entry = false;             // the interpreter may hand a warp over here
    uint32_t depth = 0;             // of loops
};

struct Flow {
    const Function* function;
    std::vector<Signature> signatures;  // of each operation
    std::vector<CodeBlock> blocks;
    std::vector<uint32_t> block_of;  // of each operation
    std::vector<Value> values;
    std::map<uint32_t, uint32_t> by_slot;
    std::vector<uint32_t> settled;  // operations, in an order in which they can be done
    std::string refused;            // why not; empty: it can be compiled
    uint64_t steps = 0;             // that were taken to find all this out
    size_t waits = 0;               // entries of all `waited_for`
    bool endless() const;           // too many of them: it is not looked at any further

    uint32_t value(uint32_t operand) const { return by_slot.at(operand); }
    Set nothing() const { return Set((values.size() + 63) / 64); }
    // What is alive before each operation of a block, with what waiting lanes need.
    std::vector<Set> alive(const CodeBlock& block) const;
    bool diverges(const CodeBlock& block) const;  // it ends with a branch that lanes may take apart
};

// `rows`: the lanes of a warp stand side by side in x, and alike in y and z.
Flow analyse(const Function& function, bool rows);

// shapes.cpp: what each register holds; it depends on who may wait where, and the other way round.
void find_shapes(Flow& flow, bool rows);
LaneShape shape_of(const Flow& flow, uint32_t operand);
bool computed_as_line(const std::string& key);

// settled.cpp: what is the same for a whole launch.
void find_settled(Flow& flow);
int64_t parameter_at(const Function& function, const Op& op, const Signature& s);  // of a constant address

}  // namespace gpukernel::simgpu::compiler
