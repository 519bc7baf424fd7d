// Matrix instructions: their shapes and fragments (PTX ISA 9.7.14), and the loads and stores of fragments.
#include "simgpu/exec/matrix.h"

#include <cstdio>

#include "simgpu/ptx/decode/decoder.h"

namespace gpukernel::simgpu::ptx {

namespace {

constexpr std::pair<const char*, Element> kElements[] = {
    {"f16", Element::f16},   {"bf16", Element::bf16}, {"tf32", Element::tf32}, {"e4m3", Element::e4m3},
    {"e5m2", Element::e5m2}, {"s8", Element::s8},     {"u8", Element::u8},     {"s4", Element::s4},
    {"u4", Element::u4},     {"b1", Element::b1},     {"f64", Element::f64},   {"f32", Element::f32},
    {"s32", Element::s32},
};

struct MatrixShape {
    uint32_t m = 0, n = 0, k = 0;
    bool operator==(const MatrixShape&) const = default;
};
bool shape_named(const std::string& text, MatrixShape& shape) {
    int end = 0;
    return std::sscanf(text.c_str(), "m%3un%3uk%3u%n", &shape.m, &shape.n, &shape.k, &end) == 3 &&
           static_cast<size_t>(end) == text.size();
}

// Which shapes there are of a type of multiplicand: of mma (the rows are 8 or 16, the columns 8), of wmma.
bool shape_of_mma(Element e, MatrixShape s) {
    if (s.n != 8) return false;
    const bool small = s.m == 8, large = s.m == 16;
    switch (e) {
        case Element::f16:
            return (small && s.k == 4) || (large && (s.k == 8 || s.k == 16));
        case Element::bf16:
            return large && (s.k == 8 || s.k == 16);
        case Element::tf32:
            return large && (s.k == 4 || s.k == 8);
        case Element::f64:
            return (small && s.k == 4) || (large && (s.k == 4 || s.k == 8 || s.k == 16));
        case Element::e4m3:
        case Element::e5m2:
            return large && (s.k == 16 || s.k == 32);
        case Element::s8:
        case Element::u8:
            return (small && s.k == 16) || (large && (s.k == 16 || s.k == 32));
        case Element::s4:
        case Element::u4:
            return (small && s.k == 32) || (large && (s.k == 32 || s.k == 64));
        case Element::b1:
            return (small && s.k == 128) || (large && (s.k == 128 || s.k == 256));
        default:
            return false;
    }
}
bool shape_of_wmma(Element e, MatrixShape s) {
    switch (e) {
        case Element::f16:
        case Element::bf16:
        case Element::s8:
        case Element::u8:
            return s == MatrixShape{16, 16, 16} || s == MatrixShape{32, 8, 16} || s == MatrixShape{8, 32, 16};
        case Element::tf32:
            return s == MatrixShape{16, 16, 8};
        case Element::f64:
            return s == MatrixShape{8, 8, 4};
        case Element::s4:
        case Element::u4:
            return s == MatrixShape{8, 8, 32};
        case Element::b1:
            return s == MatrixShape{8, 8, 128};
        default:
            return false;
    }
}

bool is_float8(Element e) { return e == Element::e4m3 || e == Element::e5m2; }
bool is_integer(Element e) {
    return e == Element::s8 || e == Element::u8 || e == Element::s4 || e == Element::u4 || e == Element::b1;
}
bool together(Element a, Element b) {
    return a == b || (is_float8(a) && is_float8(b)) ||
           (is_integer(a) && is_integer(b) && bits_of(a) == bits_of(b));
}
bool accumulates(Element of, Element in) {
    if (is_integer(of)) return in == Element::s32;
    if (of == Element::f64) return in == Element::f64;
    return in == Element::f32 || (in == Element::f16 && (of == Element::f16 || is_float8(of)));
}

uint32_t block_depth(Element e) { return e == Element::f64 ? 4 : 128 / bits_of(e); }
uint32_t accumulators(Element e, uint32_t blocks) { return blocks * (e == Element::f16 ? 1 : 2); }
Type register_type(Element e) {
    return e == Element::f64 ? Type::f64 : e == Element::f32 ? Type::f32 : Type::b32;
}

}  // namespace

void Decoder::fragment(const Operand& o, Element element, uint32_t count, bool destinations, Fragment& to) {
    if (o.kind != Operand::vector) wrong("a fragment is a vector, of one register too: {%r1}");
    const std::vector<Operand>& list = o.parts;
    if (list.size() != count)
        wrong("a fragment of " + std::to_string(count) + " registers is needed, not of " +
              std::to_string(list.size()));
    const Type t = register_type(element);
    to.element = element;
    to.count = count;
    for (uint32_t i = 0; i < count; ++i)
        to.slot[i] = destinations ? destination(list[i], size_of(t)) : source(list[i], t);
}

// All lanes meet here; a warp that is not whole by then is a fault (the qualifier .aligned).
void Decoder::emit_matrix(const std::string& key, Op op, MatrixPlan plan) {
    if (!has("sync") || !has("aligned")) wrong("the whole warp executes it: .sync.aligned");
    plan.text = here_->text;
    op.control = Control::warp_sync;
    op.aux = constant(4, kFull);
    op.extra = static_cast<uint32_t>(out_.matrices.size());
    out_.matrices.push_back(std::move(plan));
    emit(key, op);
}

void Decoder::matrix() {
    set_mode(0);
    const std::string& base = here_->parts[0];
    if (base == "ldmatrix" || base == "stmatrix") return matrix_rows(base == "ldmatrix");
    if (base == "movmatrix") {
        if (!has("m8n8") || !has("trans") || !has("b16")) lacking();
        MatrixPlan plan;
        plan.d.element = plan.a.element = Element::s32;
        plan.d.count = plan.a.count = 1;
        plan.d.slot[0] = destination(operand(0), 4);
        plan.a.slot[0] = source(operand(1), Type::b32);
        return emit_matrix("movmatrix", fresh(), std::move(plan));
    }
    MatrixShape shape;
    std::vector<Element> elements;
    for (size_t i = 1; i < here_->parts.size(); ++i) {
        shape_named(here_->parts[i], shape);
        for (auto& [name, element] : kElements)
            if (here_->parts[i] == name) elements.push_back(element);
    }
    if (base == "mma") {
        for (const std::string& part : here_->parts)
            if (part.starts_with("sp") || part.starts_with("kind::") || part == "block_scale") lacking();
        if (elements.size() != 4 || !shape_of_mma(elements[1], {shape.m, shape.n, shape.k})) lacking();
        return multiply(elements, shape.m, shape.n, shape.k);
    }
    if (has("load") || has("store")) {
        if (elements.size() != 1) lacking();
        return matrix_memory(has("load"), elements[0], shape.m, shape.n, shape.k);
    }
    if (!has("mma")) lacking();
    if (elements.size() == 2) elements = {elements[0], Element::f16, Element::f16, elements[1]};
    if (elements.size() != 4 || !shape_of_wmma(elements[1], shape)) lacking();
    multiply(elements, shape.m, shape.n, shape.k);
}

// mma and wmma.mma: d, a, b, c.
void Decoder::multiply(const std::vector<Element>& elements, uint32_t m, uint32_t n, uint32_t k) {
    const Element d = elements[0], a = elements[1], b = elements[2], c = elements[3];
    if (!together(a, b) || !accumulates(a, c) || !accumulates(a, d)) lacking();
    const bool wmma = here_->parts[0] == "wmma", quads = a == Element::f16 && m == 8 && k == 4;
    MatrixPlan plan;
    plan.saturate = has("satfinite");
    if (!wmma && !quads && c != d) wrong("D has the type of C");
    if (plan.saturate && !is_integer(a) && (!wmma || tree_.version >= 6.45))
        wrong("no .satfinite of floating-point numbers since PTX 6.5");
    plan.xors = has("xor");
    if (a == Element::b1 && !has("popc")) wrong("single bits take .xor.popc or .and.popc");
    if (a == Element::f64) plan.mode = wanted_mode();
    // Two layouts are named, of A and of B.
    std::vector<bool> by_columns;
    for (const std::string& part : here_->parts)
        if (part == "row" || part == "col") by_columns.push_back(part == "col");
    if (by_columns.size() != 2) wrong("the layouts of both operands are needed");
    plan.a_columns = by_columns[0], plan.b_columns = by_columns[1];
    if (!wmma && !quads && (plan.a_columns || !plan.b_columns)) wrong("the layouts are .row.col");
    uint32_t count_a = 2, count_b = 2, count_c = c == Element::f16 ? 4 : 8,
             count_d = d == Element::f16 ? 4 : 8;
    if (!quads) {
        plan.rows = static_cast<uint8_t>(m / 8), plan.columns = static_cast<uint8_t>(n / 8);
        plan.depth = static_cast<uint8_t>(k / block_depth(a));
        count_a = wmma && a == Element::f16 ? 8 : plan.rows * plan.depth;
        count_b = wmma && a == Element::f16 ? 8 : plan.columns * plan.depth;
        count_c = accumulators(c, plan.rows * plan.columns),
        count_d = accumulators(d, plan.rows * plan.columns);
    }
    Op op = fresh();
    if (here_->operands.size() != 4) wrong("four fragments are needed");
    fragment(operand(1), a, count_a, false, plan.a);
    fragment(operand(2), b, count_b, false, plan.b);
    fragment(operand(3), c, count_c, false, plan.c);
    fragment(operand(0), d, count_d, true, plan.d);
    const char* key = quads                ? "mma.quads"
                      : is_float8(a)       ? "mma.f8"
                      : bits_of(a) == 8    ? "mma.s8"
                      : bits_of(a) == 4    ? "mma.s4"
                      : a == Element::b1   ? "mma.bits"
                      : a == Element::f64  ? "mma.f64"
                      : a == Element::f16  ? "mma.f16"
                      : a == Element::bf16 ? "mma.bf16"
                                           : "mma.tf32";
    emit_matrix(key, op, std::move(plan));
}

// wmma.load and wmma.store: a fragment and the rows or columns of a matrix in memory.
void Decoder::matrix_memory(bool load, Element element, uint32_t m, uint32_t n, uint32_t k) {
    MatrixPlan plan;
    const std::string use = here_->parts.size() > 2 ? here_->parts[2] : "";
    const bool a = use == "a", b = use == "b", c = load ? use == "c" : use == "d";
    if ((!a && !b && !c) || (!load && !c)) lacking();
    plan.use = a ? MatrixUse::a : b ? MatrixUse::b : MatrixUse::c;
    const bool by_columns = has("col");
    if (by_columns == has("row")) wrong("a layout, .row or .col, is needed");
    // An accumulator's type does not tell the multiplicands', so every shape that has it is taken.
    const MatrixShape shape{m, n, k};
    bool known = !c && shape_of_wmma(element, shape);
    if (c)
        for (Element of : {Element::f16, Element::bf16, Element::tf32, Element::f64, Element::s8, Element::s4,
                           Element::b1})
            known |= accumulates(of, element) && shape_of_wmma(of, shape);
    if (!known) lacking();
    if (bits_of(element) < 8 && by_columns != b) lacking();
    uint32_t count;
    if (c) {
        plan.rows = static_cast<uint8_t>(m / 8), plan.columns = static_cast<uint8_t>(n / 8);
        count = accumulators(element, plan.rows * plan.columns);
        plan.vectors = by_columns ? n : m;
        plan.bytes = (by_columns ? m : n) * bits_of(element) / 8;
        plan.transposed = by_columns;
    } else {
        plan.depth = static_cast<uint8_t>(k / block_depth(element));
        plan.rows = static_cast<uint8_t>((a ? m : n) / 8);
        count = element == Element::f16 ? 8 : plan.rows * plan.depth;
        plan.transposed = a == by_columns;
        plan.vectors = plan.transposed ? k : a ? m : n;
        plan.bytes = (plan.transposed ? (a ? m : n) : k) * bits_of(element) / 8;
    }
    // The ISA asks for the size of a fragment; GPUs and the CUDA C++ guide are content with 16 bytes of it.
    plan.align = std::min(16u, count * (element == Element::f64 ? 8 : 4));
    const Operand &address = operand(load ? 1 : 0), &list = operand(load ? 0 : 1);
    const uint32_t at = generic_address(address);
    const uint32_t length = plan.bytes * 8 / bits_of(element);
    const uint32_t stride = here_->operands.size() > 2 ? source(operand(2), Type::u32) : constant(4, length);
    Op op = fresh();
    op.a = at, op.b = stride;
    op.access = load ? AccessKind::read : AccessKind::write;
    fragment(list, element, count, load, plan.d);
    emit_matrix(load ? "wmma.load" : "wmma.store", op, std::move(plan));
}

// ldmatrix and stmatrix: one, two or four blocks of eight rows, each lane naming one row.
void Decoder::matrix_rows(bool load) {
    if (!has("m8n8") || !has("b16")) lacking();
    const uint32_t count = has("x4") ? 4 : has("x2") ? 2 : has("x1") ? 1 : 0;
    if (!count) wrong("how many matrices, .x1, .x2 or .x4, is needed");
    MatrixPlan plan;
    plan.transposed = has("trans");
    const Operand& address = operand(load ? 1 : 0);
    const uint32_t at = generic_address(address);
    Op op = fresh();
    op.a = at;
    op.access = load ? AccessKind::read : AccessKind::write;
    fragment(operand(load ? 0 : 1), Element::s32, count, load, plan.d);
    emit_matrix(load ? "ldmatrix" : "stmatrix", op, std::move(plan));
}

}  // namespace gpukernel::simgpu::ptx
