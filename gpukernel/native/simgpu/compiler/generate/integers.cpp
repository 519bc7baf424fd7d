// Operations on integers that are a few vector instructions each: quotients, high halves of products, fields
// of bits, halves of registers.
#include <cstddef>
#include <set>

#include "simgpu/compiler/generate/generator.h"
#include "simgpu/compiler/generate/instructions.h"
#include "simgpu/exec/processor.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr Encoding kFloatOf{kF3, 1, 0, 0xe6}, kFloatOfUnsigned{kF3, 1, 0, 0x7a};  // vcvtdq2pd, vcvtudq2pd
constexpr Encoding kWhole{k66, 1, 1, 0xe6}, kWholeUnsigned{kPlain, 1, 1, 0x78};   // vcvttpd2dq, vcvttpd2udq
constexpr Encoding kFloatOfWide{kF3, 1, 1, 0x7a}, kWholeWide{k66, 1, 1, 0x78};    // vcvtuqq2pd, vcvttpd2uqq
constexpr Encoding kProduct{k66, 2, 0, 0x40}, kProductOfLows{k66, 1, 1, 0xf4};    // vpmulld, vpmuludq
constexpr Encoding kSignedProductOfLows{k66, 2, 1, 0x28};                         // vpmuldq
constexpr Encoding kAndWide{k66, 1, 1, 0xdb}, kOrWide{k66, 1, 1, 0xeb};
constexpr Encoding kRightWide{k66, 2, 1, 0x45}, kLeftWide{k66, 2, 1, 0x47};  // vpsrlvq, vpsllvq
constexpr Encoding kZerosWide{kF3, 2, 1, 0x27};                              // vptestnmq
constexpr Encoding kShuffleBytes{k66, 2, 0, 0x00};
constexpr Encoding kCountBits{k66, 2, 0, 0x55}, kCountLeading{k66, 2, 0, 0x44};  // vpopcntd, vplzcntd
constexpr Encoding kMagnitude{k66, 2, 0, 0x1e}, kMagnitudeWide{k66, 2, 1, 0x1f};

}  // namespace

bool is_composed(const std::string& key) {
    static const auto& keys = *new std::set<std::string>{
        "div.u32", "div.s32",    "rem.u32",    "rem.s32",        "div.u64",        "div.s64", "rem.u64",
        "rem.s64", "mul.hi.u32", "mul.hi.s32", "neg.b32",        "neg.b64",        "abs.s32", "abs.s64",
        "clz.b32", "high.32.64", "pack.64.32", "shf.l.wrap.b32", "shf.r.wrap.b32", "bfe.u32", "bfe.s32",
        "bfi.b32", "bfi.b64",    "prmt.b32",   "popc.b32"};
    return keys.contains(key);
}

uint64_t Generator::constant(uint32_t operand, uint32_t bytes) const {
    const char* at = function_.constant_base + operand;
    return bytes == 8 ? *reinterpret_cast<const uint64_t*>(at) : *reinterpret_cast<const uint32_t*>(at);
}

// Writes each vector of the result; `compute` leaves it in the register that it returns.
void Generator::each_unit(const std::function<int(int unit)>& compute) {
    const Access to = s_->writes[0];
    for (int unit = 0; unit < (is_line(to.operand) ? 1 : units(to.bytes)); ++unit)
        finish(to, unit, compute(unit));
}

bool Generator::integer_form() {
    const std::string& key = s_->key;
    if (!is_composed(key)) return false;
    const auto& in = s_->reads;
    const bool wide = s_->writes[0].bytes == 8;
    if (key.starts_with("div.") || key.starts_with("rem.")) {
        wide ? wide_quotient(key.starts_with("rem.")) : quotient(key.starts_with("rem."), key[4] == 's');
    } else if (key.starts_with("mul.hi.")) {
        const Encoding product = key[7] == 's' ? kSignedProductOfLows : kProductOfLows;
        each_unit([&](int unit) {
            const int a = in_register(in[0], unit, 1), b = in_register(in[1], unit, 2);
            a_.vector(product, 0, a, b);
            a_.vector(kRightWide, 3, a, every(32, 8));
            a_.vector(kRightWide, 4, b, every(32, 8));
            a_.vector(product, 3, 3, 4);
            a_.vector(kRightWide, 0, 0, every(32, 8));
            a_.vector(kAndWide, 3, 3, every(0xffffffff00000000, 8));
            a_.vector(kOrWide, 0, 0, 3);
            return 0;
        });
    } else if (key.starts_with("neg.")) {
        each_unit([&](int unit) {
            a_.vector(kXor, 0, 0, 0);
            apply(wide ? kSubtractWide : kSubtract, 0, 0, in[0], unit, 1);
            return 0;
        });
    } else if (key.starts_with("abs.")) {
        each_unit([&](int unit) {
            apply(wide ? kMagnitudeWide : kMagnitude, 0, 0, in[0], unit, 1);
            return 0;
        });
    } else if (key == "clz.b32") {
        each_unit([&](int unit) {
            apply(kCountLeading, 0, 0, in[0], unit, 1);
            return 0;
        });
    } else if (key == "popc.b32") {
        if (!a_.is_narrow() && !processor_counts_bits()) return false;
        each_unit([&](int unit) {
            apply(kCountBits, 0, 0, in[0], unit, 1);
            return 0;
        });
    } else if (key == "high.32.64") {
        const bool line = line_result();
        each_unit([&](int unit) {
            for (int h = 0; h < (line ? 1 : 2); ++h) {
                a_.vector(kRightWide, 1, in_register(in[0], 2 * unit + h, 1), every(32, 8));
                a_.vector(kNarrow, 1, 0, 2 + h);
            }
            if (line) return 2;
            a_.vector(kInsertHalf, 0, 2, 3);
            a_.byte(1);
            return 0;
        });
    } else if (key == "pack.64.32") {
        each_unit([&](int unit) {
            a_.vector(kZeroExtend, 0, 0, half_in_register(in[1], unit, 1));
            a_.vector(kLeftWide, 0, 0, every(32, 8));
            a_.vector(kZeroExtend, 3, 0, half_in_register(in[0], unit, 2));
            a_.vector(kOrWide, 0, 0, 3);
            return 0;
        });
    } else {
        return bit_field();
    }
    return true;
}

// With numbers of bits that are known.
bool Generator::bit_field() {
    const std::string& key = s_->key;
    const auto& in = s_->reads;
    const bool wide = s_->writes[0].bytes == 8;
    const uint32_t bits = wide ? 64 : 32;
    if (key.starts_with("shf.")) {
        if (!(in[2].operand & 1)) return false;
        const uint64_t by = constant(in[2].operand, 4) & 31, left = key[4] == 'l' ? by : (32 - by) & 31;
        if (!left) return false;
        each_unit([&](int unit) {  // the upper word moves up, what leaves the lower one comes in behind it
            a_.vector(kShiftLeft, 0, in_register(in[1], unit, 1), every(left, 4));
            a_.vector(kShiftRight, 3, in_register(in[0], unit, 2), every(32 - left, 4));
            a_.vector(kOr, 0, 0, 3);
            return 0;
        });
        return true;
    }
    if (key.starts_with("bfe.")) {
        if (!(in[1].operand & in[2].operand & 1)) return false;
        const uint64_t at = constant(in[1].operand, 4) & 255, length = constant(in[2].operand, 4) & 255;
        if (!length || at + length > 32) return false;
        each_unit([&](int unit) {
            a_.vector(kShiftLeft, 0, in_register(in[0], unit, 1), every(32 - at - length, 4));
            a_.vector(key[4] == 's' ? kRightSigned : kShiftRight, 0, 0, every(32 - length, 4));
            return 0;
        });
        return true;
    }
    if (key.starts_with("bfi.")) {
        if (!(in[2].operand & in[3].operand & 1)) return false;
        const uint64_t at = constant(in[2].operand, 4) & 255, length = constant(in[3].operand, 4) & 255;
        if (at >= bits || !length) return false;
        const uint64_t whole = wide ? ~0ull : 0xffffffff;
        const uint64_t mask = ((length >= bits ? whole : (1ull << length) - 1) << at) & whole;
        const auto size = static_cast<uint8_t>(wide ? 8 : 4);
        each_unit([&](int unit) {
            a_.vector(wide ? kLeftWide : kShiftLeft, 0, in_register(in[0], unit, 1), every(at, size));
            a_.vector(wide ? kAndWide : kAnd, 0, 0, every(mask, size));
            a_.vector(wide ? kAndWide : kAnd, 3, in_register(in[1], unit, 2), every(~mask & whole, size));
            a_.vector(kOr, 0, 0, 3);
            return 0;
        });
        return true;
    }
    // prmt: bytes of two words by a constant selector, none of them as its sign alone
    if (!(in[2].operand & 1) || constant(in[2].operand, 4) & 0x8888) return false;
    const auto selector = static_cast<uint32_t>(constant(in[2].operand, 4));
    const auto table = [&](uint32_t word) {
        return table_of(
            [&](uint32_t lane) {
                uint32_t out = 0;
                for (uint32_t n = 0; n < 4; ++n) {
                    const uint32_t from = selector >> 4 * n & 7;
                    out |= (from / 4 == word ? 4 * (lane % 4) + from % 4 : 0x80) << 8 * n;
                }
                return out;
            },
            0);
    };
    each_unit([&](int unit) {
        a_.vector(kShuffleBytes, 0, in_register(in[0], unit, 1), table(0));
        a_.vector(kShuffleBytes, 3, in_register(in[1], unit, 2), table(1));
        a_.vector(kOr, 0, 0, 3);
        return 0;
    });
    return true;
}

// Quotients of 32 bits are exact in double precision, in any rounding, as the handler says.
void Generator::quotient(bool remainder, bool is_signed) {
    const auto& in = s_->reads;
    const bool line = line_result();
    each_unit([&](int unit) {
        for (int h = 0; h < (line ? 1 : 2); ++h) {
            const Encoding floats = is_signed ? kFloatOf : kFloatOfUnsigned;
            a_.vector(floats, 0, 0, half_in_register(in[0], 2 * unit + h, 1));
            a_.vector(floats, 4, 0, half_in_register(in[1], 2 * unit + h, 2));
            a_.vector(kDivideWide, 0, 0, 4);
            a_.vector(is_signed ? kWhole : kWholeUnsigned, h ? 5 : 3, 0, 0);
        }
        int result = 3;
        if (!line) {
            a_.vector(kInsertHalf, 0, 3, 5);
            a_.byte(1);
            result = 0;
        }
        const int divisor = in_register(in[1], unit, 2);
        // By nothing: all bits set, which an unsigned quotient has of itself.
        Memory ones = every(0xffffffff, 4);
        ones.broadcast = false;
        if (is_signed || remainder) a_.vector(kZeros, 5, divisor, divisor);
        if (!remainder) {
            if (is_signed) a_.vector(kBroadcast, result, 0, ones, 5);
            return result;
        }
        a_.vector(kProduct, 4, result, divisor);
        a_.vector(kSubtract, 4, in_register(in[0], unit, 1), 4);
        a_.vector(kBroadcast, 4, 0, ones, 5);
        return 4;
    });
}

// Of numbers of 64 bits that have 32, as most have; the handler does the others, and the divisor 0.
void Generator::wide_quotient(bool remainder) {
    const auto& in = s_->reads;
    const auto slow = slow_for(false, 0);
    need_masks();
    const int count = line_result() ? 1 : units(8);
    for (int unit = 0; unit < count; ++unit) {
        const int a = in_register(in[0], unit, 1), b = in_register(in[1], unit, 2);
        const int k = line_result() ? 0 : mask_of(s_->writes[0], unit);
        a_.vector(kOrWide, 0, a, b);
        a_.vector(kTestWide, unit ? 6 : 5, 0, every(0xffffffff00000000, 8), k);
        if (unit) a_.mask(Assembler::mask_or, 5, 5, 6);
        a_.vector(kZerosWide, 6, b, b, k);
        a_.mask(Assembler::mask_or, 5, 5, 6);
    }
    a_.mask_to(rax, 5);
    a_.test(rax, rax, false);
    a_.jump(not_equal, slow->begin);
    each_unit([&](int unit) {
        const int a = in_register(in[0], unit, 1), b = in_register(in[1], unit, 2);
        a_.vector(kFloatOfWide, 0, 0, a);
        a_.vector(kFloatOfWide, 4, 0, b);
        a_.vector(kDivideWide, 0, 0, 4);
        a_.vector(kWholeWide, 0, 0, 0);
        if (!remainder) return 0;
        a_.vector(kProductOfLows, 0, 0, b);
        a_.vector(kSubtractWide, 0, a, 0);
        return 0;
    });
    slow_path(slow);
}

}  // namespace gpukernel::simgpu::compiler
