// Accesses through one address, at offsets that are known: they are checked at once.  Where one of them does
// not lie where it may, code that checks each does them, and whose fault it is comes out as ever.
#include <algorithm>

#include "simgpu/compiler/generate/generator.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr int64_t kWidest = 1 << 14;    // bytes between the first and the last
constexpr int64_t kFarthest = 1 << 30;  // of an offset

}  // namespace

const Generator::Together* Generator::together() const {
    const int n = together_of_[at_];
    return apart_ || n < 0 ? nullptr : &together_[static_cast<size_t>(n)];
}

void Generator::find_together() {
    for (const CodeBlock& b : flow_.blocks) {
        std::map<std::pair<uint32_t, MemoryOp::Where>, size_t> open;  // by the address's register
        for (uint32_t n = b.begin; n < b.end; ++n) {
            const Op& op = function_.code[n];
            const Signature& s = flow_.signatures[n];
            MemoryOp m;
            if (!settled_[n] && memory_op(s.key, m) &&
                (checked_as_line(op, s, m) || checked_for_each_lane(op, s, m))) {
                const std::pair address{s.reads[0].operand, m.where};
                const int64_t span = span_of(m, step(address.first));
                Together one{n, op.imm, op.imm + span, m.whole(), -1, 1};
                const auto known = open.find(address);
                Together* all = known == open.end() ? nullptr : &together_[known->second];
                if (all && std::max(all->to, one.to) - std::min(all->from, one.from) <= kWidest) {
                    all->from = std::min(all->from, one.from), all->to = std::max(all->to, one.to);
                    all->align = std::max(all->align, one.align);
                    ++all->count;
                } else {
                    open[address] = together_.size();
                    together_.push_back(one);
                }
                together_of_[n] = static_cast<int>(open[address]);
            }
            for (const Access& a : s.writes)
                open.erase({a.operand, MemoryOp::global}), open.erase({a.operand, MemoryOp::shared});
        }
    }
    for (int& n : together_of_)
        if (n >= 0 && together_[static_cast<size_t>(n)].count == 1) n = -1;
    for (Together& all : together_) {
        MemoryOp m;
        memory_op(flow_.signatures[all.first].key, m);
        if (all.count > 1 && m.where == MemoryOp::global) all.site = new_site(all.to - all.from);
    }
}

// Whether the first lane's address, and the steps to the others', are all that is wanted of the addresses.
bool Generator::goes_by_line(const Op& op, const Signature& s, const MemoryOp& m) const {
    if (m.where == MemoryOp::local || !is_line(s.reads[0].operand)) return false;
    const int64_t by = step(s.reads[0].operand);
    if (m.count > 1) {
        if (by == 0) return m.loads && m.reg > 2;
        return m.where != MemoryOp::param && lies_apart(m) && by == m.whole();
    }
    if (by != 0)
        return m.where != MemoryOp::param && (by == m.memory || loads_part(m, by)) &&
               !(s.writes.size() == 1 && is_line(s.writes[0].operand));
    // Of what several lanes store, the last one's stays.
    return m.reg != 2 && (m.loads || (op.guard == kNoGuard && is_line(s.reads[1].operand) &&
                                      step(s.reads[1].operand) == 0));
}
// Elements that are the lower bytes of others, which stand side by side.
bool Generator::loads_part(const MemoryOp& m, int64_t by) {
    return m.loads && !m.is_signed && m.count == 1 && m.reg >= 4 && by > m.memory && by <= m.reg &&
           (by == 2 || by == 4 || by == 8);
}
// The bytes from the first address on that a warp wants.
int64_t Generator::span_of(const MemoryOp& m, int64_t by) { return by ? kLanes * by : int64_t{m.whole()}; }

// Whether the first lane's address says where all are, and a multiple of its size stays one with the offset.
bool Generator::checked_as_line(const Op& op, const Signature& s, const MemoryOp& m) const {
    const Access address = s.reads[0];
    if (op.guard != kNoGuard || op.imm < -kFarthest || op.imm > kFarthest) return false;
    if (m.where != MemoryOp::global && m.where != MemoryOp::shared) return false;
    if (address.operand & 1 || !is_line(address.operand)) return false;
    if (op.imm % m.whole() || (m.where == MemoryOp::shared && op.imm < 0)) return false;
    return goes_by_line(op, s, m);
}

// Whether each lane's address is looked at, and is a multiple of the size with the offset where it is one
// without.
bool Generator::checked_for_each_lane(const Op& op, const Signature& s, const MemoryOp& m) const {
    const Access address = s.reads[0];
    return op.guard == kNoGuard && op.imm >= -kFarthest && op.imm <= kFarthest &&
           m.where == MemoryOp::global && m.count == 1 && m.memory == m.reg && m.reg != 2 &&
           op.imm % m.memory == 0 && address.bytes == 8 && !is_line(address.operand);
}

// Where the accesses that the one at hand checks for are checked one by one.  A block has such code once,
// from the first of them on.
Label& Generator::each_apart() {
    if (apart_of_ != static_cast<int>(block_)) {
        apart_of_ = static_cast<int>(block_);
        cold_.push_back([this, block = block_, at = at_] {
            block_ = block;
            apart_ = true;
            operations(at, flow_.alive(this->block()));
            apart_ = false;
            if (block + 1 < flow_.blocks.size()) a_.jump(arrivals_[block + 1]);
        });
    }
    Label& label = apart_from_[at_];
    if (!must_write_back(before_)) return label;
    auto first = std::make_shared<Label>();
    cold_.push_back([this, first, &label, kept = kept_, before = before_] {
        a_.bind(*first);
        kept_ = kept;
        write_back(before);
        a_.jump(label);
    });
    return *first;
}

}  // namespace gpukernel::simgpu::compiler
