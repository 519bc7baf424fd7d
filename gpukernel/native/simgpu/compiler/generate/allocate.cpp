// Registers of the processor for the values that are used most; the others lie where the interpreter has
// them.
#include <algorithm>
#include <bitset>
#include <numeric>

#include "simgpu/compiler/generate/generator.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr int kTries = 8;  // to find a register that a value may inherit

// Whether each vector of the result is written when those of its operands that have its number have been
// read, and no other is read behind it: then it may be in the place of an operand that ends here.
bool inherits(const Flow& flow, uint32_t n) {
    const Signature& s = flow.signatures[n];
    const VectorOp* op = vector_op(s.key);
    return op && op->form != VectorOp::compare && op->form != VectorOp::predicate &&
           flow.function->code[n].guard == kNoGuard && !s.keeps;
}

}  // namespace

void allocate(Flow& flow) {
    const size_t count = flow.values.size();
    std::vector<bool> wanted(count);
    for (size_t v = 0; v < count; ++v) {
        const Value& value = flow.values[v];
        wanted[v] = value.shape.kind != LaneShape::line && value.bytes >= 2 && value.bytes <= 8;
    }
    // Who is alive with whom, or is written before an operand of the same operation has been read.
    std::vector<Set> with(count, flow.nothing());
    const auto apart = [&](uint32_t v, const Set& set) {
        for (size_t w = 0; w < set.size(); ++w) with[v][w] |= set[w];
        for (uint32_t other = 0; other < count; ++other)
            if (contains(set, other)) insert(with[other], v);
    };
    std::vector<std::pair<uint32_t, uint32_t>> heirs;
    for (const CodeBlock& block : flow.blocks) {
        const std::vector<Set> alive = flow.alive(block);
        for (uint32_t v = 0; v < count; ++v)
            if (contains(alive.front(), v))
                for (size_t w = 0; w < with[v].size(); ++w) with[v][w] |= alive.front()[w];
        for (uint32_t n = block.begin; n < block.end; ++n) {
            const Signature& s = flow.signatures[n];
            const Set &before = alive[n - block.begin], &behind = alive[n - block.begin + 1];
            Set around = behind;
            for (const Access& a : s.writes) insert(around, flow.value(a.operand));
            for (size_t w = 0; w < around.size(); ++w) around[w] |= before[w];
            if (inherits(flow, n))
                for (const Access& a : s.reads) {
                    if (a.operand & 1 || a.bytes != s.writes[0].bytes) continue;
                    const uint32_t from = flow.value(a.operand), to = flow.value(s.writes[0].operand);
                    if (contains(behind, from) || !wanted[from] || !wanted[to]) continue;
                    remove(around, from);
                    heirs.emplace_back(from, to);
                }
            for (const Access& a : s.writes) apart(flow.value(a.operand), around);
        }
    }
    // Of those, who may have all of the other's registers or none.
    std::vector<Set> alike(count, flow.nothing());
    for (const auto& [from, to] : heirs)
        if (from != to && !contains(with[from], to)) insert(alike[from], to), insert(alike[to], from);
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    auto worth = [&](uint32_t v) { return flow.values[v].weight; };
    std::stable_sort(order.begin(), order.end(), [&](uint32_t x, uint32_t y) { return worth(x) > worth(y); });
    for (uint32_t v : order) {
        if (!wanted[v]) continue;
        Value& value = flow.values[v];
        // Which registers others have, of those that may have the same ones only those that have not.
        const auto taken_by_others = [&](const std::vector<uint8_t>& but) {
            std::bitset<kVectors> taken;
            for (uint32_t other = 0; other < count; ++other) {
                if (other == v) continue;
                const std::vector<uint8_t>& its = flow.values[other].vectors;
                if (contains(with[v], other) || (contains(alike[v], other) && its != but))
                    for (uint8_t reg : its) taken.set(reg);
            }
            return taken;
        };
        int tries = kTries;
        for (uint32_t other = 0; other < count && tries && value.vectors.empty(); ++other) {
            const std::vector<uint8_t>& its = flow.values[other].vectors;
            if (its.empty() || !contains(alike[v], other)) continue;
            const auto taken = taken_by_others(its);
            if (std::none_of(its.begin(), its.end(), [&](uint8_t reg) { return taken[reg]; }))
                value.vectors = its;
            --tries;
        }
        if (!value.vectors.empty()) continue;
        const auto taken = taken_by_others({});
        std::vector<uint8_t> found;
        for (int reg = kFirstVector; reg < kVectors && found.size() < value.bytes / 2; ++reg)
            if (!taken[reg]) found.push_back(static_cast<uint8_t>(reg));
        if (found.size() == value.bytes / 2) value.vectors = std::move(found);
    }
}

}  // namespace gpukernel::simgpu::compiler
