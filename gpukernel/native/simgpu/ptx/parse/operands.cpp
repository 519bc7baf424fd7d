// Operands (PTX ISA 6): registers, constants, addresses, vectors, elements of arrays.
#include "simgpu/ptx/parse/parser.h"

namespace gpukernel::simgpu::ptx {

// One register, variable, special register or constant.
Operand Parser::simple() {
    if (here().kind == Tok::ident && !is("WARP_SZ")) return named();
    Operand out{};
    if (is("-") && ahead(1).kind == Tok::ident && ahead(1).text != "WARP_SZ") {  // video instructions
        step();
        out = named();
        out.negated = true;
        return out;
    }
    if (!constant_here()) fail("unexpected '" + std::string(here().text) + "' as an operand");
    const Constant value = expression();
    out.kind = value.kind == Tok::integer      ? Operand::integer
               : value.kind == Tok::floating32 ? Operand::floating32
                                               : Operand::floating64;
    out.value = static_cast<int64_t>(value.bits);
    return out;
}

// name[3], name[%r1], name[%r1+3]: bytes from the beginning where the index is a constant (PTX ISA 6.4.2).
void Parser::index(Operand& array) {
    expect("[");
    Operand place{};
    uint64_t elements = 0;
    if (here().kind == Tok::ident && !is("WARP_SZ")) {
        place = named();
        elements = sum();
        array.parts.push_back(std::move(place));
    } else {
        const Constant value = expression();
        if (value.kind != Tok::integer) fail("an index is an integer");
        elements = value.bits;
    }
    expect("]");
    array.kind = Operand::element;
    array.value = static_cast<int64_t>(elements);
}

void Parser::addend(Operand& to) {
    to.value = static_cast<int64_t>(wrapping_sum(static_cast<uint64_t>(to.value), sum()));
}

Operand Parser::vector() {
    Operand out{};
    out.kind = Operand::vector;
    list("}", [&] { out.parts.push_back(simple()); });
    if (out.parts.empty()) fail("a vector has elements");
    return out;
}

Operand Parser::address() {
    Operand out{};
    out.kind = Operand::address;
    Operand base = simple();
    out.value = static_cast<int64_t>(sum());
    out.parts.push_back(std::move(base));
    while (take(",")) out.parts.push_back(operand(true));
    expect("]");
    return out;
}

Operand Parser::operand(bool inside_address) {
    Operand out{};
    if (is("!") && ahead(1).kind == Tok::ident) {
        step();
        out = simple();
        out.negated = true;
        return out;
    }
    if (take("{"))
        out = vector();
    else if (!inside_address && take("["))
        return address();
    else
        out = simple();
    if (take("|")) {
        Operand both{};
        both.kind = Operand::pair;
        both.parts = {std::move(out), simple()};
        return both;
    }
    const bool names = out.kind == Operand::symbol || out.kind == Operand::variable;
    if (names && is("[")) {
        index(out);
    } else if (names) {
        addend(out);
    }
    return out;
}

}  // namespace gpukernel::simgpu::ptx
