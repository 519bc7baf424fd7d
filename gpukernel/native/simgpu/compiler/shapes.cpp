// What the lanes of a register hold: all the same, a line (each lane a fixed step more than the last), or
// anything.  Lines are computed once for a warp.
#include "simgpu/compiler/flow.h"
#include "simgpu/compiler/vector_ops.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr int64_t kSteepest = 1 << 20;  // so that a warp's lanes stay within 32 bits of each other

int64_t truncate(int64_t step, uint32_t bytes) { return bytes == 4 ? static_cast<int32_t>(step) : step; }

int64_t constant_of(const Flow& flow, Access access, bool is_unsigned = false) {
    const char* at = flow.function->constant_base + access.operand;
    if (access.bytes == 4 && is_unsigned) return *reinterpret_cast<const uint32_t*>(at);
    return access.bytes == 4 ? *reinterpret_cast<const int32_t*>(at) : *reinterpret_cast<const int64_t*>(at);
}

struct Rules {
    const Flow& flow;
    const Op& op;
    const Signature& s;
    bool rows;

    LaneShape in(size_t n) const { return shape_of(flow, s.reads[n].operand); }
    bool known() const {  // every operand has been looked at
        for (size_t n = 0; n < s.reads.size(); ++n)
            if (in(n).kind == LaneShape::unknown) return false;
        return true;
    }
    bool all_uniform() const {
        for (size_t n = 0; n < s.reads.size(); ++n)
            if (!in(n).uniform()) return false;
        return true;
    }
    LaneShape line(int64_t step) const {
        step = truncate(step, s.writes[0].bytes);
        return step > -kSteepest && step < kSteepest ? LaneShape{LaneShape::line, step} : any;
    }
    static bool is_line(LaneShape a) { return a.kind == LaneShape::line; }
    static constexpr LaneShape any{LaneShape::any, 0};

    LaneShape product(size_t a, size_t b) const {
        if (in(a).uniform() && in(b).uniform()) return line(0);
        const bool is_unsigned = widens(s.key) && !widens_signed(s.key);
        const auto times = [&](size_t line_at, size_t constant_at) {
            int64_t step;
            if (__builtin_mul_overflow(in(line_at).step, constant_of(flow, s.reads[constant_at], is_unsigned),
                                       &step))
                return any;
            return line(step);
        };
        if (is_line(in(a)) && s.reads[b].operand & 1) return times(a, b);
        if (is_line(in(b)) && s.reads[a].operand & 1) return times(b, a);
        return any;
    }
    LaneShape sum(LaneShape a, LaneShape b, int64_t sign = 1) const {
        return is_line(a) && is_line(b) ? line(a.step + sign * b.step) : any;
    }
    LaneShape special() const {
        if (s.writes[0].bytes == 2) return any;
        if (op.imm == kTidX) return rows ? line(1) : any;
        if (op.imm == kTidY || op.imm == kTidZ) return rows ? line(0) : any;
        if (op.imm == kLaneId) return line(1);
        if (op.imm == kWarpId) return line(0);
        return is_launch_constant(op.imm) ? line(0) : any;
    }
    LaneShape result() const {
        const std::string& key = s.key;
        if (op.guard != kNoGuard || s.writes.size() != 1 || s.writes[0].bytes == 2) return any;
        if (gives_one(key)) return line(0);
        if (key == "cvta.local") return any;  // one number, but a place of its own for each lane
        if (op.control != Control::none) return any;
        if (!known()) return {};
        if (key.starts_with("special.")) return special();
        if (key.starts_with("ld.")) return all_uniform() && loads_line(key) ? line(0) : any;
        switch (line_op(key)) {
            case LineOp::copy:
                return is_line(in(0)) ? line(in(0).step) : any;
            case LineOp::add:
                return sum(in(0), in(1));
            case LineOp::subtract:
                return sum(in(0), in(1), -1);
            case LineOp::multiply:
                return product(0, 1);
            case LineOp::multiply_add:
                return sum(product(0, 1), in(2));
            case LineOp::shift_left:
                if (!(s.reads[1].operand & 1)) break;
                if (const int64_t bits = constant_of(flow, s.reads[1]);
                    bits >= 0 && bits < 8 * static_cast<int64_t>(s.writes[0].bytes))
                    return is_line(in(0))
                               ? line(static_cast<int64_t>(static_cast<uint64_t>(in(0).step) << bits))
                               : any;
                break;
            case LineOp::none:
                break;
        }
        return all_uniform() && (is_vector_op(key) || is_composed(key)) ? line(0) : any;
    }
};

}  // namespace

LaneShape shape_of(const Flow& flow, uint32_t operand) {
    return operand & 1 ? LaneShape{LaneShape::line, 0} : flow.values[flow.value(operand)].shape;
}

void find_shapes(Flow& flow, bool rows) {
    // What is there when the kernel begins was written by nobody.
    for (uint32_t v = 0; v < flow.values.size(); ++v)
        if (contains(flow.blocks[0].live, v)) flow.values[v].shape = {LaneShape::any, 0};
    for (bool changed = true; changed && !flow.endless();) {
        changed = false;
        flow.steps += 8 * flow.signatures.size();  // as dear as eight of the others
        for (const CodeBlock& block : flow.blocks)
            for (uint32_t n = block.begin; n < block.end; ++n) {
                const Signature& s = flow.signatures[n];
                for (const Access& write : s.writes) {
                    const uint32_t v = flow.value(write.operand);
                    LaneShape& shape = flow.values[v].shape;
                    if (shape.kind == LaneShape::any) continue;
                    LaneShape now = Rules{flow, flow.function->code[n], s, rows}.result();
                    if (now.kind == LaneShape::unknown) continue;
                    if (contains(block.kept, v) || (shape.kind == LaneShape::line && shape != now))
                        now = {LaneShape::any, 0};
                    if (shape == now) continue;
                    shape = now, changed = true;
                }
            }
    }
}

}  // namespace gpukernel::simgpu::compiler
