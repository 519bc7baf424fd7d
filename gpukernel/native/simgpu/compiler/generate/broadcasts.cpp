// Numbers that all lanes share, and lines, in vectors of the processor that no value of the block has.
//
// A block keeps those that it reads most often, each from the first operation that computes with it on.  One
// that is a loop by itself has them in its vectors before it begins, and goes back behind that place.  Code
// that seldom runs has none of them: it takes such numbers from memory, and a handler, which may use every
// vector, has them loaded again.
#include <algorithm>
#include <utility>

#include "simgpu/compiler/generate/generator.h"
#include "simgpu/compiler/generate/instructions.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr uint32_t kOften = 2;  // reads that are worth a vector where the block runs once

}  // namespace

// Whether the operation is one for vectors, which takes its operands at once or not at all.
bool Generator::takes_broadcasts(uint32_t n) const {
    const Signature& s = flow_.signatures[n];
    if (settled_[n] || function_.code[n].control != Control::none) return false;
    return s.writes.size() == 1 && (vector_op(s.key) || is_composed(s.key)) &&
           (!is_line(s.writes[0].operand) || line_op(s.key) == LineOp::none);
}
bool Generator::is_broadcast(Access a) const {
    return a.bytes >= 4 && is_line(a.operand) && step(a.operand) == 0;
}

void Generator::find_broadcasts(uint32_t from, const Set& alive, const std::set<uint8_t>& others) {
    const CodeBlock& b = block();
    bool taken[kVectors] = {};
    for (uint8_t reg : others) taken[reg] = true;
    const auto take = [&](uint32_t v) {
        for (uint8_t reg : flow_.values[v].vectors) taken[reg] = true;
    };
    for (uint32_t v = 0; v < flow_.values.size(); ++v)
        if (contains(alive, v)) take(v);
    std::map<std::pair<uint32_t, uint32_t>, uint32_t> reads;  // by operand and bytes
    std::set<uint32_t> written;
    for (uint32_t n = b.begin; n < b.end; ++n) {
        const Signature& s = flow_.signatures[n];
        for (const Access& a : s.writes) {
            take(flow_.value(a.operand));
            if (!settled_[n]) written.insert(a.operand);
        }
        if (n < from || !takes_broadcasts(n)) continue;
        for (const Access& a : s.reads)
            if (a.bytes >= 4 && is_line(a.operand)) ++reads[{a.operand, a.bytes}];
    }
    std::vector<std::pair<uint32_t, Access>> best;
    for (const auto& [of, count] : reads)
        if (count >= (repeats() ? 1 : kOften)) best.push_back({count, {of.first, of.second}});
    std::stable_sort(best.begin(), best.end(), [](auto& x, auto& y) { return x.first > y.first; });
    int reg = kFirstVector;
    for (const auto& [count, of] : best) {
        const bool one = is_broadcast(of);
        for (int unit = one ? -1 : 0; unit < (one ? 0 : units(of.bytes)); ++unit) {
            while (reg < kVectors && taken[reg]) ++reg;
            if (reg == kVectors) return;
            broadcasts_.push_back({of, unit, reg++, false, !written.contains(of.operand)});
        }
    }
}

// The block goes back to itself.
bool Generator::repeats() const {
    const Op& last = function_.code[block().end - 1];
    return last.control == Control::branch && flow_.block_of[last.aux] == block_;
}

void Generator::load_broadcast(Broadcast& each) {
    const bool wide = each.of.bytes == 8;
    each.loaded = true;
    if (const int reg = kept(each.of.operand); reg >= 0) {
        a_.vector(wide ? kBroadcastGprWide : kBroadcastGpr, each.reg, 0, reg);
    } else {
        Memory from = scalar(each.of.operand, static_cast<uint8_t>(each.of.bytes));
        from.broadcast = false;
        a_.vector(wide ? kBroadcastWide : kBroadcast, each.reg, 0, from);
    }
    if (each.unit >= 0)
        a_.vector(wide ? kAddWide : kAdd, each.reg, each.reg,
                  lanes_of(step(each.of.operand), each.of.bytes, each.unit));
}
// Those that a loop begins with.
void Generator::load_what_stays() {
    for (Broadcast& each : broadcasts_)
        if (each.stays && !each.loaded) load_broadcast(each);
}
void Generator::load_operands() {
    if (broadcasts_.empty() || !takes_broadcasts(at_)) return;
    for (const Access& a : s_->reads)
        for (Broadcast& each : broadcasts_)
            if (each.of.operand == a.operand && each.of.bytes == a.bytes && !each.loaded)
                load_broadcast(each);
}
// The vector that has the number in each of its lanes, or -1.
int Generator::broadcast_of(Access a, int unit) const {
    for (const Broadcast& each : broadcasts_)
        if (each.loaded && each.of.operand == a.operand && each.of.bytes == a.bytes &&
            (each.unit < 0 || each.unit == unit))
            return each.reg;
    return -1;
}
void Generator::drop_broadcast(uint32_t operand) {
    for (Broadcast& each : broadcasts_)
        if (each.of.operand == operand) each.loaded = false;
}
void Generator::drop_broadcasts() {
    for (Broadcast& each : broadcasts_) each.loaded = false;
}
// What a handler has overwritten.
void Generator::load_again(std::vector<Broadcast> broadcasts) {
    for (Broadcast& each : broadcasts)
        if (each.loaded) load_broadcast(each);
}

}  // namespace gpukernel::simgpu::compiler
