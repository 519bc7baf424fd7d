// Values that are the same for all threads of a launch: parameters, the shapes of block and grid, and what is
// computed from those.  A launch computes them once for each thread of the host.
#include "simgpu/compiler/flow.h"
#include "simgpu/compiler/vector_ops.h"

namespace gpukernel::simgpu::compiler {
namespace {

// A parameter whose place is known, and lies where the kernel's parameters are.
bool loads_parameter(const Function& function, const Op& op, const Signature& s) {
    MemoryOp m;
    if (!memory_op(s.key, m) || m.where != MemoryOp::param || !loads_line(s.key)) return false;
    if (!(s.reads[0].operand & 1)) return false;
    const int64_t at = parameter_at(function, op, s);
    return at >= 0 && at % m.memory == 0 && at + m.memory <= int64_t{function.info.param_bytes};
}

constexpr int kRounds = 3;

bool computes(const Function& function, const Op& op, const Signature& s) {
    if (op.guard != kNoGuard || op.control != Control::none || s.writes.size() != 1) return false;
    if (s.writes[0].bytes < 4 || s.keeps) return false;
    if (s.key.starts_with("special."))
        return is_launch_constant(op.imm) && (op.imm < kCtaidX || op.imm > kCtaidZ);
    if (s.key.starts_with("ld.")) return loads_parameter(function, op, s);
    return line_op(s.key) != LineOp::none && (line_op(s.key) != LineOp::shift_left || s.reads[1].operand & 1);
}

}  // namespace

int64_t parameter_at(const Function& function, const Op& op, const Signature& s) {
    const char* at = function.constant_base + s.reads[0].operand;
    const int64_t begin = s.reads[0].bytes == 4 ? *reinterpret_cast<const uint32_t*>(at)
                                                : *reinterpret_cast<const int64_t*>(at);
    int64_t place;
    return __builtin_add_overflow(begin, op.imm, &place) ? -1 : place;
}

void find_settled(Flow& flow) {
    const std::vector<Op>& code = flow.function->code;
    std::vector<uint32_t> writers(flow.values.size());
    for (const Signature& s : flow.signatures)
        for (const Access& a : s.writes) ++writers[flow.value(a.operand)];
    // Most are found by going once, from the first operation to the last.
    for (int round = 0; round < kRounds; ++round) {
        for (uint32_t n = 0; n < code.size(); ++n) {
            const Signature& s = flow.signatures[n];
            if (!computes(*flow.function, code[n], s)) continue;
            Value& value = flow.values[flow.value(s.writes[0].operand)];
            if (value.settled || !value.shape.uniform() || writers[flow.value(s.writes[0].operand)] != 1)
                continue;
            bool all = true;
            for (const Access& a : s.reads)
                all &= a.operand & 1 || flow.values[flow.value(a.operand)].settled;
            if (!all) continue;
            value.settled = true;
            flow.settled.push_back(n);
        }
    }
}

}  // namespace gpukernel::simgpu::compiler
