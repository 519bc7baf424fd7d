// Registers of the processor for the values that are used most; the others lie where the interpreter has
// them.
#include <algorithm>
#include <numeric>

#include "simgpu/compiler/generate/generator.h"

namespace gpukernel::simgpu::compiler {

void allocate(Flow& flow) {
    const size_t count = flow.values.size();
    std::vector<bool> wanted(count);
    for (size_t v = 0; v < count; ++v) {
        const Value& value = flow.values[v];
        wanted[v] = value.shape.kind != LaneShape::line && value.bytes >= 2 && value.bytes <= 8;
    }
    // Who is alive with whom; a result never shares a register with an operand, so that it may be written
    // before they have been read.
    std::vector<Set> with(count, flow.nothing());
    auto meet = [&](Set set) {
        for (uint32_t v = 0; v < count; ++v)
            if (contains(set, v))
                for (size_t w = 0; w < set.size(); ++w) with[v][w] |= set[w];
    };
    for (const CodeBlock& block : flow.blocks) {
        const std::vector<Set> alive = flow.alive(block);
        for (uint32_t n = block.begin; n < block.end; ++n) {
            Set around = alive[n - block.begin];
            const Set& behind = alive[n - block.begin + 1];
            for (size_t w = 0; w < around.size(); ++w) around[w] |= behind[w];
            for (const Access& a : flow.signatures[n].writes) insert(around, flow.value(a.operand));
            meet(std::move(around));
        }
    }
    std::vector<uint32_t> order(count);
    std::iota(order.begin(), order.end(), 0u);
    auto worth = [&](uint32_t v) { return flow.values[v].weight; };
    std::stable_sort(order.begin(), order.end(), [&](uint32_t x, uint32_t y) { return worth(x) > worth(y); });
    for (uint32_t v : order) {
        if (!wanted[v]) continue;
        Value& value = flow.values[v];
        bool taken[kVectors] = {};
        for (uint32_t other = 0; other < count; ++other)
            if (other != v && contains(with[v], other))
                for (uint8_t reg : flow.values[other].vectors) taken[reg] = true;
        std::vector<uint8_t> found;
        for (int reg = kFirstVector; reg < kVectors && found.size() < value.bytes / 2; ++reg)
            if (!taken[reg]) found.push_back(static_cast<uint8_t>(reg));
        if (found.size() == value.bytes / 2) value.vectors = std::move(found);
    }
}

}  // namespace gpukernel::simgpu::compiler
