// Constant expressions (PTX ISA 4.5.4): integers of 64 bits, signed until a U or a sign bit says otherwise,
// and floating point, with C's operators and their precedence.
#include <bit>

#include "simgpu/ptx/parse/parser.h"

namespace gpukernel::simgpu::ptx {

namespace {

// From the weakest to the strongest; longer ones stand before those that they begin with.
const std::vector<std::string_view> kLevels[] = {
    {"||"},       {"&&"},     {"|"},           {"^"}, {"&"}, {"==", "!="}, {"<=", ">=", "<", ">"},
    {"<<", ">>"}, {"+", "-"}, {"*", "/", "%"},
};
constexpr int kStrongest = static_cast<int>(std::size(kLevels));

double number(const Constant& c) {
    if (c.kind == Tok::floating32) return std::bit_cast<float>(static_cast<uint32_t>(c.bits));
    if (c.kind == Tok::floating64) return std::bit_cast<double>(c.bits);
    return c.is_unsigned ? static_cast<double>(c.bits) : static_cast<double>(static_cast<int64_t>(c.bits));
}
bool holds(const Constant& c) { return c.kind == Tok::integer ? c.bits != 0 : number(c) != 0; }

}  // namespace

bool Parser::constant_here() const {
    const Token& t = here();
    return t.kind == Tok::integer || t.kind == Tok::floating32 || t.kind == Tok::floating64 || is("(") ||
           is("-") || is("+") || is("~") || (is("!") && ahead(1).kind != Tok::ident) || is("WARP_SZ");
}

// Takes `text`, whose characters are tokens of their own, unless they begin a longer operator.
bool Parser::operator_here(std::string_view text) {
    for (size_t n = 0; n < text.size(); ++n)
        if (ahead(n).text != text.substr(n, 1) || (n && !ahead(n).glued)) return false;
    const Token& next = ahead(text.size());
    const bool longer = next.glued && next.kind == Tok::punct &&
                        (((text == "<" || text == ">") && (next.text == "=" || next.text == text)) ||
                         ((text == "|" || text == "&") && next.text == text));
    if (longer) return false;
    for (size_t n = 0; n < text.size(); ++n) step();
    return true;
}

Constant Parser::expression(int nesting) {
    if (nesting > kMostNesting) fail("an expression is nested too deeply");
    Constant condition = binary(0, nesting);
    if (!take("?")) return condition;
    Constant yes = expression(nesting + 1);
    expect(":");
    Constant no = expression(nesting + 1);
    return holds(condition) ? yes : no;
}

Constant Parser::binary(int level, int nesting) {
    if (level == kStrongest) return unary(nesting);
    Constant left = binary(level + 1, nesting);
    for (;;) {
        std::string_view found;
        for (std::string_view text : kLevels[level])
            if (operator_here(text)) {
                found = text;
                break;
            }
        if (found.empty()) return left;
        left = apply(found, left, binary(level + 1, nesting));
    }
}

uint64_t Parser::sum() {
    if (!take("+")) return 0;
    const Constant addend = expression();
    if (addend.kind != Tok::integer) fail("an integer is added to an address or a register");
    return addend.bits;
}

Constant Parser::unary(int nesting) {
    if (nesting > kMostNesting) fail("an expression is nested too deeply");
    if (take("+")) return unary(nesting + 1);
    const bool minus = is("-"), bits = is("~"), no = is("!");
    if (!minus && !bits && !no) return primary(nesting);
    step();
    Constant value = unary(nesting + 1);
    if (no) return {Tok::integer, !holds(value)};
    if (value.kind == Tok::integer) {
        value.bits = minus ? wrapping_negative(value.bits) : ~value.bits;
        return value;
    }
    if (bits) fail("'~' takes an integer");
    value.bits ^= value.kind == Tok::floating32 ? 1ull << 31 : 1ull << 63;
    return value;
}

Constant Parser::primary(int nesting) {
    if (take("(")) {
        if (is(".s64") || is(".u64")) {  // a cast
            const bool is_unsigned = is(".u64");
            step();
            expect(")");
            Constant value = unary(nesting + 1);
            if (value.kind != Tok::integer) fail("a cast takes an integer");
            value.is_unsigned = is_unsigned;
            return value;
        }
        Constant value = expression(nesting + 1);
        expect(")");
        return value;
    }
    if (take("WARP_SZ")) return {Tok::integer, 32};
    const Token token = here();
    if (token.kind != Tok::integer && token.kind != Tok::floating32 && token.kind != Tok::floating64)
        unexpected("a constant");
    step();
    return {token.kind, token.bits,
            token.kind == Tok::integer && (token.text.back() == 'U' || token.bits > INT64_MAX)};
}

Constant Parser::apply(std::string_view what, const Constant& a, const Constant& b) const {
    auto truth = [](bool value) { return Constant{Tok::integer, value}; };
    if (what == "||") return truth(holds(a) || holds(b));
    if (what == "&&") return truth(holds(a) && holds(b));
    if (a.kind != Tok::integer || b.kind != Tok::integer) {
        const double x = number(a), y = number(b);
        if (what == "==") return truth(x == y);
        if (what == "!=") return truth(x != y);
        if (what == "<") return truth(x < y);
        if (what == ">") return truth(x > y);
        if (what == "<=") return truth(x <= y);
        if (what == ">=") return truth(x >= y);
        if (what != "+" && what != "-" && what != "*" && what != "/")
            fail("'" + std::string(what) + "' takes integers");
        return {Tok::floating64, std::bit_cast<uint64_t>(what == "+"   ? x + y
                                                         : what == "-" ? x - y
                                                         : what == "*" ? x * y
                                                                       : x / y)};
    }
    const bool is_unsigned = a.is_unsigned || b.is_unsigned;
    const uint64_t x = a.bits, y = b.bits;
    const auto sx = static_cast<int64_t>(x), sy = static_cast<int64_t>(y);
    auto integer = [&](uint64_t bits) { return Constant{Tok::integer, bits, is_unsigned}; };
    auto shifted = [&](uint64_t bits) { return Constant{Tok::integer, bits, a.is_unsigned}; };
    if (what == "|") return integer(x | y);
    if (what == "^") return integer(x ^ y);
    if (what == "&") return integer(x & y);
    if (what == "==") return truth(x == y);
    if (what == "!=") return truth(x != y);
    if (what == "<") return truth(is_unsigned ? x < y : sx < sy);
    if (what == ">") return truth(is_unsigned ? x > y : sx > sy);
    if (what == "<=") return truth(is_unsigned ? x <= y : sx <= sy);
    if (what == ">=") return truth(is_unsigned ? x >= y : sx >= sy);
    if (what == "<<") return shifted(y > 63 ? 0 : x << y);
    if (what == ">>") {
        const uint64_t n = y > 63 ? 63 : y;
        return shifted(a.is_unsigned ? (y > 63 ? 0 : x >> n) : static_cast<uint64_t>(sx >> n));
    }
    if (what == "+") return integer(wrapping_sum(x, y));
    if (what == "-") return integer(wrapping_sum(x, wrapping_negative(y)));
    if (what == "*") return integer(wrapping_product(x, y));
    if (y == 0) fail("a constant is divided by zero");
    if (!is_unsigned && sy == -1) return integer(what == "/" ? wrapping_negative(x) : 0);
    if (what == "/") return integer(is_unsigned ? x / y : static_cast<uint64_t>(sx / sy));
    return integer(is_unsigned ? x % y : static_cast<uint64_t>(sx % sy));
}

}  // namespace gpukernel::simgpu::ptx
