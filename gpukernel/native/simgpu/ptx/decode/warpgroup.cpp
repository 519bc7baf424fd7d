// Matrix instructions of a warpgroup: their shapes, registers and descriptors (PTX ISA 9.7.15).
#include <cstdio>

#include "simgpu/exec/matrix.h"
#include "simgpu/ptx/decode/decoder.h"

namespace gpukernel::simgpu::ptx {

namespace {

struct Kind {
    const char* name;
    Element element;
    uint32_t depth;   // in elements: 32 bytes
    const char* key;  // of the handler
};
constexpr Kind kKinds[] = {
    {"f16", Element::f16, 16, "wgmma.f16"},   {"bf16", Element::bf16, 16, "wgmma.bf16"},
    {"tf32", Element::tf32, 8, "wgmma.tf32"}, {"e4m3", Element::e4m3, 32, "wgmma.f8"},
    {"e5m2", Element::e5m2, 32, "wgmma.f8"},  {"s8", Element::s8, 32, "wgmma.s8"},
    {"u8", Element::u8, 32, "wgmma.s8"},      {"b1", Element::b1, 256, "wgmma.bits"},
};
const Kind* kind_named(const std::string& part) {
    for (const Kind& kind : kKinds)
        if (part == kind.name) return &kind;
    return nullptr;
}

}  // namespace

// All lanes meet here; a warp that is not whole by then is a fault (the qualifier .aligned).
void Decoder::emit_warpgroup(const std::string& key, Op op, WarpgroupPlan plan) {
    plan.text = here_->text;
    op.control = Control::warp_sync;
    op.aux = constant(4, kFull);
    op.extra = static_cast<uint32_t>(out_.warpgroups.size());
    out_.warpgroups.push_back(std::move(plan));
    emit(key, op);
}

void Decoder::warpgroup() {
    set_mode(0);
    if (has("fence")) return emit_warpgroup("wgmma.whole", fresh(), {});
    if (has("commit_group")) return emit_warpgroup("wgmma.commit", fresh(), {});
    if (has("wait_group")) {
        emit_warpgroup("wgmma.whole", fresh(), {});
        const Operand& left = operand(0);
        if (left.kind != Operand::integer || left.value < 0) wrong("it takes a number of groups");
        Op op = fresh();
        op.imm = left.value;
        op.control = Control::warpgroup_wait;
        out_.code.push_back(op);
        return;
    }
    if (has("sp")) lacking("sparse operands");
    multiply_by_warpgroup();
}

void Decoder::multiply_by_warpgroup() {
    // .shape.dtype.atype.btype
    const auto& parts = here_->parts;
    uint32_t m = 0, n = 0, k = 0;
    size_t at = 1;
    while (at < parts.size() && std::sscanf(parts[at].c_str(), "m%3un%3uk%3u", &m, &n, &k) != 3) ++at;
    if (at + 3 >= parts.size()) wrong("a shape and three types are needed");
    const std::string& d = parts[at + 1];
    const Kind *a = kind_named(parts[at + 2]), *b = kind_named(parts[at + 3]);
    if (!a || !b || std::string_view(a->key) != b->key) wrong("no such pair of types");
    const std::string_view key = a->key;
    const bool whole_numbers = key == "wgmma.s8" || key == "wgmma.bits", sixteen = a->depth == 16;
    const bool half = d == "f16";
    if (whole_numbers ? d != "s32" : half ? key != "wgmma.f16" && key != "wgmma.f8" : d != "f32")
        wrong("no sums of that type");
    const bool columns = n % 8 == 0 && n >= 8 && n <= 256 && (!whole_numbers || n <= 24 || n % 16 == 0);
    if (m != 64 || k != a->depth || !columns) wrong("no such shape");
    if (has("satfinite") && key != "wgmma.s8") wrong("no .satfinite");

    WarpgroupPlan plan;
    plan.columns = static_cast<uint16_t>(n);
    plan.a_element = a->element, plan.b_element = b->element;
    plan.d_element = half ? Element::f16 : whole_numbers ? Element::s32 : Element::f32;
    plan.saturate = has("satfinite");
    plan.a_in_registers = operand(1).kind == Operand::vector;
    const size_t scales = whole_numbers ? 0 : 2, turns = !sixteen ? 0 : plan.a_in_registers ? 1 : 2;
    if (here_->operands.size() != 4 + scales + turns) wrong("another number of operands is needed");
    auto number = [&](size_t i, int64_t one, int64_t other) {
        const Operand& o = operand(i);
        if (o.kind != Operand::integer || (o.value != one && o.value != other))
            wrong("operand " + std::to_string(i + 1) + " is " + std::to_string(one) + " or " +
                  std::to_string(other));
        return o.value == other;
    };
    if (scales) plan.adds_negated = number(4, 1, -1) != number(5, 1, -1);
    if (turns == 2) plan.a_transposed = number(6, 0, 1);
    if (turns) plan.b_transposed = number(5 + turns, 0, 1);

    Op op = fresh();
    if (plan.a_in_registers) {
        const std::vector<Operand>& list = operand(1).parts;
        if (list.size() != 4) wrong("a fragment of A has 4 registers, not " + std::to_string(list.size()));
        for (size_t i = 0; i < 4; ++i) plan.a[i] = source(list[i], Type::b32);
    } else {
        op.a = source(operand(1), Type::b64);
    }
    op.b = source(operand(2), Type::b64);
    const Operand& adds = operand(3);
    if (adds.kind == Operand::integer) {
        op.c = constant(0, adds.value ? ~0ull : 0);
    } else {
        op.c = source(adds, Type::pred);
        plan.negated_predicate = adds.negated;
    }
    const Operand& sums = operand(0);
    const size_t count = n / 8 * (half ? 2 : 4);
    if (sums.kind != Operand::vector || sums.parts.size() != count)
        wrong("a fragment of D has " + std::to_string(count) + " registers");
    for (const Operand& o : sums.parts) {
        if (o.kind != Operand::variable) wrong("a fragment of D is read and written: registers only");
        source(o, plan.d_element == Element::f32 ? Type::f32 : Type::b32);
        plan.d.push_back(destination(o, 4));
    }
    emit_warpgroup(a->key, op, std::move(plan));
}

}  // namespace gpukernel::simgpu::ptx
