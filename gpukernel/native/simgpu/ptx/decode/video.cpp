// Video instructions: the plan of one, from its name and from the parts of registers that it names.
#include <cstring>

#include "simgpu/ptx/decode/decoder.h"

namespace gpukernel::simgpu::ptx {

namespace {

// "b2", "h1": where it begins and how long it is.
void scalar_part(const std::string& name, uint8_t& start, uint8_t& bytes) {
    bytes = name.empty() ? 4 : name[0] == 'b' ? 1 : 2;
    start = name.empty() ? 0 : static_cast<uint8_t>((name[1] - '0') * bytes);
}
// "b7610": the element that each element of the result takes, the highest first.
void choose(const std::string& name, uint32_t elements, uint32_t first, uint8_t (&start)[4]) {
    const uint32_t size = 4 / elements;
    for (uint32_t e = 0; e < elements; ++e) {
        uint32_t from = first + e;
        if (name.size() == elements + 1) from = static_cast<uint32_t>(name[elements - e] - '0');
        start[e] = static_cast<uint8_t>(from * size);
    }
}

}  // namespace

void Decoder::video() {
    static const std::map<std::string_view, VideoOp> names = {
        {"add", VideoOp::add}, {"sub", VideoOp::sub}, {"absdiff", VideoOp::absdiff},
        {"min", VideoOp::min}, {"max", VideoOp::max}, {"avrg", VideoOp::average},
        {"set", VideoOp::set}, {"shl", VideoOp::shl}, {"shr", VideoOp::shr},
        {"mad", VideoOp::mad}};
    static const std::map<std::string_view, VideoCompare> comparisons = {
        {"eq", VideoCompare::eq}, {"ne", VideoCompare::ne}, {"lt", VideoCompare::lt},
        {"le", VideoCompare::le}, {"gt", VideoCompare::gt}, {"ge", VideoCompare::ge}};
    std::string name = here_->parts[0].substr(1);
    VideoPlan plan{};
    plan.elements = 1;
    if (name.ends_with('2') || name.ends_with('4')) {
        plan.elements = static_cast<uint8_t>(name.back() - '0');
        name.pop_back();
    }
    auto known = names.find(name);
    if (known == names.end()) lacking();
    plan.what = known->second;
    const auto found = types();
    const bool compares = plan.what == VideoOp::set;
    if (found.size() < (compares ? 2u : 3u)) wrong("video instructions take their types");
    plan.d_signed = !compares && found[0] == Type::s32;
    plan.a_signed = found[compares ? 0 : 1] == Type::s32;
    plan.b_signed = found[compares ? 1 : 2] == Type::s32;
    plan.saturate = has("sat");
    plan.wrap = has("wrap");
    plan.plus_one = has("po");
    plan.shift = has("shr7") ? 7 : has("shr15") ? 15 : 0;
    for (auto& [text, compare] : comparisons)
        if (has(text)) plan.compare = compare;

    const Operand &d = operand(0), &a = operand(1), &b = operand(2);
    const bool third = here_->operands.size() > 3;
    plan.then = has("add")                                        ? VideoThen::add
                : has("min")                                      ? VideoThen::min
                : has("max")                                      ? VideoThen::max
                : third && (plan.elements > 1 || !d.part.empty()) ? VideoThen::merge
                                                                  : VideoThen::nothing;
    if (plan.elements == 1) {
        plan.mask = 1;
        scalar_part(d.part, plan.d_start, plan.d_bytes);
        scalar_part(a.part, plan.a_start[0], plan.a_bytes);
        scalar_part(b.part, plan.b_start[0], plan.b_bytes);
    } else {
        plan.d_bytes = plan.a_bytes = plan.b_bytes = static_cast<uint8_t>(4 / plan.elements);
        plan.mask = static_cast<uint8_t>((1 << plan.elements) - 1);
        if (!d.part.empty()) {
            plan.mask = 0;
            for (char c : d.part.substr(1)) plan.mask |= static_cast<uint8_t>(1 << (c - '0'));
        }
        choose(a.part, plan.elements, 0, plan.a_start);
        choose(b.part, plan.elements, plan.elements, plan.b_start);
    }
    Op op = fresh();
    op.a = source(a, Type::b32);
    op.b = source(b, Type::b32);
    op.c = third ? source(operand(3), Type::b32) : constant(4, 0);
    plan.negate_product = a.negated != b.negated;
    plan.negate_c = third && operand(3).negated;
    op.dst = destination(d, 4);
    op.extra = static_cast<uint32_t>(out_.lists.size());
    out_.lists.resize(out_.lists.size() + (sizeof plan + 3) / 4);
    std::memcpy(&out_.lists[op.extra], &plan, sizeof plan);
    emit("video", op);
}

}  // namespace gpukernel::simgpu::ptx
