// Lines and predicates in general registers.  What such a register has goes to memory where somebody looks
// for it there: at the end of a block of code, in code that seldom runs, or when the register is wanted for
// another.  Whoever dies before that is never stored.
#include <algorithm>
#include <cstddef>

#include "simgpu/compiler/generate/generator.h"
#include "simgpu/compiler/generate/instructions.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr uint32_t kSoon = 48;  // operations

}  // namespace

// Where it lies in memory.
Memory Generator::home(uint32_t operand) const {
    if (operand & 1) return {r13, static_cast<int32_t>(operand)};
    const Value& v = value(operand);
    if (!is_line(operand)) return slot(operand, 0, 4);  // a predicate
    const uint32_t place = v.settled ? image_.layout.settled : image_.layout.lines;
    return {v.settled ? r15 : rbx, static_cast<int32_t>(place) + 8 * v.scalar};
}

Generator::Keeping* Generator::keeping(uint32_t operand) {
    const auto at = std::find_if(kept_.begin(), kept_.end(),
                                 [operand](const Keeping& k) { return k.operand == operand; });
    return at == kept_.end() || operand & 1 ? nullptr : &*at;
}
int Generator::kept(uint32_t operand) {
    const Keeping* k = keeping(operand);
    return k ? kKeeping[k - kept_.data()] : -1;
}

bool Generator::read_soon(uint32_t operand) const {
    for (uint32_t n = at_ + 1; n < std::min(block().end, at_ + kSoon); ++n) {
        const Signature& s = flow_.signatures[n];
        const auto is = [operand](const Access& a) { return a.operand == operand; };
        if (function_.code[n].guard == operand || std::any_of(s.reads.begin(), s.reads.end(), is))
            return true;
        if (std::any_of(s.writes.begin(), s.writes.end(), is)) return false;
    }
    return false;
}

void Generator::write_back(Keeping& k) {
    if (!k.changed) return;
    a_.store(home(k.operand), kKeeping[&k - kept_.data()], value(k.operand).bytes == 8);
    k.changed = false;
}
void Generator::write_back(uint32_t operand) {
    if (Keeping* k = keeping(operand)) write_back(*k);
}
void Generator::write_back(const Set& alive) {
    for (Keeping& k : kept_)
        if (k.changed && contains(alive, flow_.value(k.operand))) write_back(k);
}
bool Generator::must_write_back(const Set& alive) const {
    return std::any_of(kept_.begin(), kept_.end(), [&](const Keeping& k) {
        return k.changed && contains(alive, flow_.value(k.operand));
    });
}

// The operation is about to overwrite it.
void Generator::drop(uint32_t operand) {
    Keeping* k = keeping(operand);
    if (!k) return;
    const auto is = [operand](const Access& a) { return a.operand == operand; };
    const bool read = op_->guard == operand || std::any_of(s_->reads.begin(), s_->reads.end(), is);
    if (read || merges(operand)) write_back(*k);
    *k = {};
}
// What follows uses these registers for something else.
void Generator::drop_all() {
    write_back(before_);
    write_back(behind_);
    forget_all();
}

// The register in which a result is to be computed: that of its first operand, where this ends there, or one
// that nobody wants any more.  rax where the result is not to be kept.
Gpr Generator::register_for(uint32_t operand, uint32_t first) {
    if (value(operand).settled || !read_soon(operand)) return rax;
    const auto reads = [this](uint32_t v) {
        return op_->guard == v || std::any_of(s_->reads.begin(), s_->reads.end(),
                                              [v](const Access& a) { return a.operand == v; });
    };
    const auto ends = [this, operand](uint32_t v) {
        return v == operand || is_pointer(v) || !contains(behind_, flow_.value(v));
    };
    if (const Keeping* k = keeping(first); k && ends(first)) {
        const auto same = [first](const Access& a) { return a.operand == first; };
        if (op_->guard != first && std::count_if(s_->reads.begin(), s_->reads.end(), same) == 1)
            return kKeeping[k - kept_.data()];
    }
    const auto free = [&](const Keeping& k) {
        return k.operand == kNoGuard || (ends(k.operand) && !reads(k.operand));
    };
    size_t n = static_cast<size_t>(std::find_if(kept_.begin(), kept_.end(), free) - kept_.begin());
    if (n == kept_.size()) {
        do n = next_kept_, next_kept_ = (next_kept_ + 1) % kept_.size();
        while (reads(kept_[n].operand));
        write_back(kept_[n]);
    }
    kept_[n] = {};
    return kKeeping[n];
}
// It has been computed there.
void Generator::put(uint32_t operand, Gpr from) {
    if (from == rax) {
        if (Keeping* k = keeping(operand)) *k = {};
        return a_.store(home(operand), rax, value(operand).bytes == 8);
    }
    for (size_t n = 0; n < kept_.size(); ++n) {
        if (kept_[n].operand == operand) kept_[n] = {};
        if (kKeeping[n] == from) kept_[n] = {operand, true};
    }
}

// What code that seldom runs has overwritten.
void Generator::keep_again(const Kept& kept) {
    for (size_t n = 0; n < kept.size(); ++n)
        if (const uint32_t operand = kept[n].operand; is_pointer(operand))
            load_pointer(kKeeping[n], operand);
        else if (operand != kNoGuard)
            a_.load(kKeeping[n], home(operand), value(operand).bytes == 8);
}

void Generator::load_scalar(Gpr to, uint32_t operand, bool wide) {
    const int reg = kept(operand);
    if (reg < 0) return a_.load(to, scalar(operand, 8), wide);
    if (reg != to) a_.move(to, static_cast<Gpr>(reg), wide);
}
void Generator::alu_scalar(Assembler::Alu what, Gpr to, uint32_t operand, bool wide) {
    if (const int reg = kept(operand); reg >= 0) return a_.alu(what, to, static_cast<Gpr>(reg), wide);
    a_.alu(what, to, scalar(operand, 8), wide);
}

}  // namespace gpukernel::simgpu::compiler
