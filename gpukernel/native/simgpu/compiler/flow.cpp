#include "simgpu/compiler/flow.h"

#include <algorithm>

#include "simgpu/compiler/vector_ops.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr size_t kMostOperations = 4096, kMostValues = 2048, kMostBlocks = 512;
// What a student's kernel may have the compiler look at: some tenths of a second, and no more
// than its tables may take.
constexpr uint64_t kMostSteps = 1 << 22;
constexpr size_t kMostWaits = kMostOfOne / kNode, kMostWays = 1 << 13;
constexpr double kSeldom = 1.0 / 16;
constexpr uint32_t kDeepest = 6;  // loops within each other that count for a value's weight

// What leaves the lanes that run it somewhere else than behind it.
bool ends_block(const Op& op) { return op.control != Control::none; }
bool goes_on(const Op& op) {  // some lanes may continue with the next operation
    switch (op.control) {
        case Control::branch:
        case Control::branch_table:
        case Control::exit:
        case Control::ret:
        case Control::trap:
            return op.guard != kNoGuard;
        default:
            return true;
    }
}

// Finds the blocks; false: they lead to too many others.
bool find_blocks(Flow& flow) {
    const std::vector<Op>& code = flow.function->code;
    std::set<uint32_t> leaders = {0}, entries = {0};
    std::map<uint32_t, std::set<uint32_t>> tables;  // each is looked at once, however long and often used
    for (uint32_t n = 0; n < code.size(); ++n) {
        const Op& op = code[n];
        if (!ends_block(op)) continue;
        if (n + 1 < code.size()) leaders.insert(n + 1);
        if (op.control == Control::branch) {
            leaders.insert(op.aux);
            if (op.aux <= n) entries.insert(op.aux);
            // What is behind a loop: warps that run it side by side go on there.
            if (op.aux <= n && op.guard != kNoGuard && n + 1 < code.size()) entries.insert(n + 1);
        } else if (op.control == Control::branch_table) {
            const auto [at, fresh] = tables.try_emplace(op.extra);
            const std::vector<uint32_t>& all = flow.function->tables[op.extra];
            if (fresh) at->second.insert(all.begin(), all.end());
            if (fresh) leaders.insert(at->second.begin(), at->second.end());
            if (fresh) entries.insert(at->second.begin(), at->second.end());
        } else if (n + 1 < code.size() && goes_on(op)) {
            entries.insert(n + 1);
        }
    }
    flow.block_of.resize(code.size());
    for (auto at = leaders.begin(); at != leaders.end(); ++at) {
        const auto behind = std::next(at);
        CodeBlock block;
        block.begin = *at;
        block.end = behind == leaders.end() ? static_cast<uint32_t>(code.size()) : *behind;
        block.entry = entries.contains(*at);
        std::fill(flow.block_of.begin() + block.begin, flow.block_of.begin() + block.end,
                  static_cast<uint32_t>(flow.blocks.size()));
        flow.blocks.push_back(std::move(block));
    }
    size_t ways = 0;
    for (CodeBlock& block : flow.blocks) {
        const Op& last = code[block.end - 1];
        if (goes_on(last) && block.end < code.size()) block.next.push_back(flow.block_of[block.end]);
        if (last.control == Control::branch) block.next.push_back(flow.block_of[last.aux]);
        if (last.control == Control::branch_table)
            for (uint32_t to : tables[last.extra]) block.next.push_back(flow.block_of[to]);
        if ((ways += block.next.size()) > kMostWays) return false;
    }
    if (flow.blocks.size() > kMostBlocks) return true;
    for (uint32_t b = 0; b < flow.blocks.size(); ++b)
        for (uint32_t to : flow.blocks[b].next)
            if (to <= b)
                for (uint32_t n = to; n <= b; ++n) ++flow.blocks[n].depth;
    return true;
}

// Gives each register a number; a register has one size wherever it stands.
bool find_values(Flow& flow) {
    auto add = [&](uint32_t operand, uint32_t bytes, double weight) {
        if (operand & 1) return true;
        auto [at, fresh] = flow.by_slot.try_emplace(operand, static_cast<uint32_t>(flow.values.size()));
        if (fresh) flow.values.emplace_back().slot = operand, flow.values.back().bytes = bytes;
        Value& value = flow.values[at->second];
        value.weight += weight;
        return value.bytes == bytes;
    };
    for (uint32_t n = 0; n < flow.function->code.size(); ++n) {
        double weight = 1;
        for (uint32_t d = 0; d < std::min(flow.blocks[flow.block_of[n]].depth, kDeepest); ++d) weight *= 8;
        const Op& op = flow.function->code[n];
        if (op.guard != kNoGuard && !add(op.guard, 0, weight)) return false;
        const Signature& s = flow.signatures[n];
        // Of an address in shared memory it is most often known where it leads: nobody looks at it.
        MemoryOp m;
        const bool shared = memory_op(s.key, m) && m.where == MemoryOp::shared;
        for (size_t i = 0; i < s.reads.size(); ++i)
            if (!add(s.reads[i].operand, s.reads[i].bytes, shared && i == 0 ? weight * kSeldom : weight))
                return false;
        for (const Access& access : s.writes)
            if (!add(access.operand, access.bytes, weight)) return false;
    }
    return true;
}

// Backwards over one operation.
void step_back(const Flow& flow, uint32_t n, Set& live) {
    const Op& op = flow.function->code[n];
    const Signature& s = flow.signatures[n];
    if (op.guard == kNoGuard && !s.keeps)
        for (const Access& a : s.writes) remove(live, flow.value(a.operand));
    for (const Access& a : s.reads)
        if (!(a.operand & 1)) insert(live, flow.value(a.operand));
    if (op.guard != kNoGuard) insert(live, flow.value(op.guard));
}

Set live_behind(const Flow& flow, const CodeBlock& block) {
    Set live = flow.nothing();
    for (uint32_t to : block.next)
        for (size_t w = 0; w < live.size(); ++w) live[w] |= flow.blocks[to].live[w];
    return live;
}

void find_live(Flow& flow) {
    for (CodeBlock& block : flow.blocks) block.live = block.kept = flow.nothing();
    for (bool changed = true; changed && !flow.endless();) {
        changed = false;
        for (size_t behind = flow.blocks.size(); behind > 0; --behind) {
            CodeBlock& block = flow.blocks[behind - 1];
            flow.steps += block.end - block.begin + block.next.size();
            Set live = live_behind(flow, block);
            for (uint32_t n = block.end; n > block.begin; --n) step_back(flow, n - 1, live);
            if (live != block.live) block.live = std::move(live), changed = true;
        }
    }
}

// Lanes wait at `at` from when `first` runs: so does all that can be reached from there without passing `at`.
bool wait_at(Flow& flow, uint32_t at, uint32_t first) {
    bool changed = !flow.blocks[at].waitable;
    flow.blocks[at].waitable = true;
    std::vector<uint32_t> left = {first};
    while (!left.empty() && !flow.endless()) {
        const uint32_t b = left.back();
        left.pop_back();
        ++flow.steps;
        if (b >= at || !flow.blocks[b].waited_for.insert(at).second) continue;
        changed = true, ++flow.waits;
        left.insert(left.end(), flow.blocks[b].next.begin(), flow.blocks[b].next.end());
    }
    return changed;
}

// Which blocks run while lanes wait elsewhere, given which branches lanes take apart.
bool find_waiting(Flow& flow) {
    bool changed = false;
    for (bool more = true; more && !flow.endless();) {
        more = false;
        for (uint32_t b = 0; b < flow.blocks.size() && !flow.endless(); ++b) {
            const CodeBlock& block = flow.blocks[b];
            flow.steps += 1 + block.waited_for.size() * (1 + block.next.size());
            if (flow.diverges(block) && !block.next.empty()) {
                const auto [low, high] = std::minmax_element(block.next.begin(), block.next.end());
                const uint32_t first = *low;
                for (uint32_t to : std::vector<uint32_t>(block.next))
                    if (to != first) more |= wait_at(flow, to, first);
                (void)high;
            }
            for (uint32_t waiting : std::set<uint32_t>(block.waited_for))
                for (uint32_t to : std::vector<uint32_t>(block.next))
                    if (to > waiting) more |= wait_at(flow, to, waiting);
        }
        changed |= more;
    }
    for (CodeBlock& block : flow.blocks) {
        block.alone = block.waited_for.empty();
        for (uint32_t at : block.waited_for)
            for (size_t w = 0; w < block.kept.size(); ++w) block.kept[w] |= flow.blocks[at].live[w];
    }
    return changed;
}

}  // namespace

std::string too_large() {
    return "its code and tables would take more than " + std::to_string(kMostOfOne >> 10) + " KiB";
}

bool Flow::endless() const { return steps > kMostSteps || waits > kMostWaits; }

bool Flow::diverges(const CodeBlock& block) const {
    const Op& last = function->code[block.end - 1];
    if (last.control == Control::branch_table) return true;
    if (last.control == Control::none || last.guard == kNoGuard) return false;
    return !shape_of(*this, last.guard).uniform();
}

std::vector<Set> Flow::alive(const CodeBlock& block) const {
    std::vector<Set> all(block.end - block.begin + 1);
    Set live = live_behind(*this, block);
    auto with_kept = [&] {
        Set out = live;
        for (size_t w = 0; w < out.size(); ++w) out[w] |= block.kept[w];
        return out;
    };
    all.back() = with_kept();
    for (uint32_t n = block.end; n > block.begin; --n) {
        step_back(*this, n - 1, live);
        all[n - 1 - block.begin] = with_kept();
    }
    return all;
}

Flow analyse(const Function& function, bool rows) {
    Flow flow;
    flow.function = &function;
    auto refuse = [&](std::string why) {
        flow.refused = std::move(why);
        return flow;
    };
    if (function.code.size() > kMostOperations)
        return refuse("it has " + std::to_string(function.code.size()) + " operations, more than " +
                      std::to_string(kMostOperations));
    for (const Op& op : function.code) {
        std::optional<Signature> signature = signature_of(function, op);
        if (!signature)
            return refuse("line " + std::to_string(op.line) + " of its PTX: the compiler does not know '" +
                          std::string(handler_name(op.fn)) + "'");
        if (op.control == Control::warpgroup_wait)
            return refuse("line " + std::to_string(op.line) + " of its PTX: warpgroups");
        flow.signatures.push_back(std::move(*signature));
    }
    if (!find_blocks(flow)) return refuse("its branches lead to too many places");
    if (flow.blocks.size() > kMostBlocks)
        return refuse("it has " + std::to_string(flow.blocks.size()) + " blocks of code, more than " +
                      std::to_string(kMostBlocks));
    if (!find_values(flow)) return refuse("a register is used in two sizes");
    if (flow.values.size() > kMostValues)
        return refuse("it has " + std::to_string(flow.values.size()) + " registers, more than " +
                      std::to_string(kMostValues));
    find_live(flow);
    do find_shapes(flow, rows);
    while (find_waiting(flow) && !flow.endless());
    if (flow.waits > kMostWaits) return refuse(too_large());
    if (flow.endless()) return refuse("it takes too long to find out which lanes wait for which");
    find_settled(flow);
    return flow;
}

}  // namespace gpukernel::simgpu::compiler
