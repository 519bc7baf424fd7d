// Registers of sixteen bits, and floating-point numbers of sixteen, alone and two in a register.  What is
// computed in single precision is rounded to them once (exec/handlers/arithmetic/half.h).
#include <cstddef>

#include "simgpu/compiler/generate/generator.h"
#include "simgpu/compiler/generate/instructions.h"

namespace gpukernel::simgpu::compiler {
namespace {

constexpr Encoding kOfHalf{k66, 2, 0, 0x13}, kToHalf{k66, 3, 0, 0x1d};  // vcvtph2ps, vcvtps2ph
constexpr Encoding kZeroExtendWords{k66, 2, 0, 0x33}, kSignExtendWords{k66, 2, 0, 0x23};
constexpr Encoding kZeroExtendWordsFar{k66, 2, 0, 0x34}, kSignExtendWordsFar{k66, 2, 0, 0x24};
constexpr Encoding kNarrowWords{kF3, 2, 0, 0x33};  // vpmovdw
constexpr Encoding kAddFloats{kPlain, 1, 0, 0x58}, kSubtractFloats{kPlain, 1, 0, 0x5c},
    kMultiplyFloats{kPlain, 1, 0, 0x59};
constexpr Encoding kBroadcastWords{k66, 2, 0, 0x79};  // vpbroadcastw
constexpr Encoding kAddWords{k66, 1, 0, 0xfd}, kSubtractWords{k66, 1, 0, 0xf9},
    kMultiplyWords{k66, 1, 0, 0xd5};

}  // namespace

// Sixteen numbers as floats in `to`: the n-th sixteen of an operand's.
void Generator::floats_of(bool brain, Access access, int n, int to) {
    const int from = half_in_register(access, n, to);
    if (!brain) return a_.vector(kOfHalf, to, 0, from);
    a_.vector(kZeroExtendWords, to, 0, from);
    a_.vector(kShiftLeft, to, to, every(16, 4));
}

// Rounds the floats in `reg` to sixteen bits each in the lower half of it; k says which of them are no
// numbers.
void Generator::round_to_halves(bool brain, int reg, int scratch, int k) {
    a_.vector(kCompareFloat, k, reg, reg);
    a_.byte(3);
    if (!brain) {
        a_.vector(kToHalf, reg, 0, reg);
        return a_.byte(4);
    }
    a_.vector(kShiftRight, scratch, reg, every(16, 4));
    a_.vector(kAnd, scratch, scratch, every(1, 4));
    a_.vector(kAdd, reg, reg, every(0x7fff, 4));
    a_.vector(kAdd, reg, reg, scratch);
    a_.vector(kShiftRight, reg, reg, every(16, 4));
    a_.vector(kNarrowWords, reg, 0, reg);
}

// Two times sixteen numbers, which `compute` leaves in the register that it is given, to one vector of them.
void Generator::halves(bool brain, const std::function<void(int half, int to)>& compute) {
    compute(0, 0);
    round_to_halves(brain, 0, 1, 5);
    compute(1, 3);
    round_to_halves(brain, 3, 1, 6);
    a_.vector(kInsertHalf, 0, 0, 3);
    a_.byte(1);
    a_.mask_unpack(5, 6, 5, true);
    Memory nan = every(0x7fff7fff, 4);
    nan.broadcast = false, nan.bytes = 2;
    a_.vector(kBroadcastWords, 0, 0, nan, 5);
}

// a * b + c as if it were rounded once: the product is exact in single precision, and the sum's last bit says
// whether anything was lost.
void Generator::fused_halves(Access a, Access b, Access c, int n, int to) {
    floats_of(false, a, n, 1);
    floats_of(false, b, n, 2);
    a_.vector(kMultiplyFloats, 1, 1, 2);
    floats_of(false, c, n, 2);
    a_.vector(kAddFloats, to, 1, 2);
    a_.vector(kSubtractFloats, 4, to, 1);  // what of the sum is c's
    a_.vector(kSubtractFloats, 5, to, 4);
    a_.vector(kSubtractFloats, 5, 1, 5);
    a_.vector(kSubtractFloats, 4, 2, 4);
    a_.vector(kAddFloats, 4, 5, 4);  // what was lost
    a_.vector(kXor, 5, 5, 5);
    a_.vector(kCompareFloat, 7, 4, 5);
    a_.byte(12);
    a_.vector(kZeros, 7, to, every(1, 4), 7);
    a_.vector(kXor, 4, 4, to);
    a_.vector(kRightSigned, 4, 4, every(31, 4));
    a_.vector(kOr, 4, 4, every(1, 4));
    a_.vector(kAdd, to, to, 4, 7);
}

bool Generator::half_form() {
    const std::string& key = s_->key;
    const auto& in = s_->reads;
    if (s_->writes.size() != 1 || in.empty()) return false;
    const size_t dot = key.rfind('.');
    const std::string type = dot == std::string::npos ? "" : key.substr(dot + 1), what = key.substr(0, dot);
    const bool brain = type.starts_with("bf16");
    if (brain || type.starts_with("f16")) {
        if (what == "cvt.f32") {
            each_unit([&](int unit) {
                floats_of(brain, in[0], unit, 0);
                return 0;
            });
            return true;
        }
        const bool adds = what == "add", subtracts = what == "sub", multiplies = what == "mul";
        if (adds || subtracts || multiplies) {
            const Encoding code = adds ? kAddFloats : subtracts ? kSubtractFloats : kMultiplyFloats;
            each_unit([&](int unit) {
                halves(brain, [&](int half, int to) {
                    floats_of(brain, in[0], 2 * unit + half, 1);
                    floats_of(brain, in[1], 2 * unit + half, 2);
                    a_.vector(code, to, 1, 2);
                });
                return 0;
            });
            return true;
        }
        if (what == "fma" && !brain) {
            each_unit([&](int unit) {
                halves(false,
                       [&](int half, int to) { fused_halves(in[0], in[1], in[2], 2 * unit + half, to); });
                return 0;
            });
            return true;
        }
        if (what == "neg" || what == "abs") {
            each_unit([&](int unit) {
                a_.vector(what == "neg" ? kXor : kAnd, 0, in_register(in[0], unit, 1),
                          every(what == "neg" ? 0x80008000 : 0x7fff7fff, 4));
                return 0;
            });
            return true;
        }
        return false;
    }
    if (key == "cvt.f16.f32" || key == "cvt.bf16.f32") {
        each_unit([&](int) {
            halves(key[4] == 'b',
                   [&](int half, int to) { a_.vector(kLoad, to, 0, in_register(in[0], half, to)); });
            return 0;
        });
        return true;
    }
    if (key == "cvt.f16x2.f32" || key == "cvt.bf16x2.f32") {
        const bool to_brain = key[4] == 'b';
        each_unit([&](int unit) {  // the first operand is the upper half
            for (int n = 0; n < 2; ++n) {
                const int reg = n ? 0 : 3;
                a_.vector(kLoad, reg, 0, in_register(in[static_cast<size_t>(1 - n)], unit, reg));
                round_to_halves(to_brain, reg, 1, 5);
                a_.vector(kZeroExtendWords, reg, 0, reg);
                Memory nan = every(0x7fff, 4);
                nan.broadcast = false;
                a_.vector(kBroadcast, reg, 0, nan, 5);
            }
            a_.vector(kShiftLeft, 0, 0, every(16, 4));
            a_.vector(kOr, 0, 0, 3);
            return 0;
        });
        return true;
    }
    return words();
}

// Whole numbers of sixteen bits.
bool Generator::words() {
    const std::string& key = s_->key;
    const auto& in = s_->reads;
    const auto two = [&](Encoding code) {
        each_unit([&](int unit) {
            a_.vector(code, 0, in_register(in[0], unit, 1), in_register(in[1], unit, 2));
            return 0;
        });
        return true;
    };
    if (key == "add.b16") return two(kAddWords);
    if (key == "sub.b16") return two(kSubtractWords);
    if (key == "mul.lo.b16") return two(kMultiplyWords);
    if (key == "and.b16") return two(kAnd);
    if (key == "or.b16") return two(kOr);
    if (key == "xor.b16") return two(kXor);
    if (key == "mov.b16" || key == "cvt.u16.u16" || key == "cvt.s16.s16" || key == "cvt.u16.s16" ||
        key == "cvt.s16.u16") {
        each_unit([&](int unit) { return in_register(in[0], unit, 0); });
        return true;
    }
    const bool extends = (key.starts_with("cvt.") || key.starts_with("resize.")) && in[0].bytes == 2 &&
                         s_->writes[0].bytes > 2 && in.size() == 1;
    if (extends && (key.ends_with(".u16") || key.ends_with(".s16") || key.starts_with("resize.")) &&
        key.find('f') == std::string::npos && key.find("sat") == std::string::npos) {
        const bool is_signed = key.ends_with(".s16") || key.starts_with("resize.s"),
                   far = s_->writes[0].bytes == 8;
        each_unit([&](int unit) {
            if (far) {  // eight of 32 words
                const int from = half_in_register(in[0], unit / 2, 1);
                a_.vector(kLoad, 1, 0, from, 0, true);
                if (unit % 2) {
                    a_.vector(kExtractQuarter, 1, 0, 1, 0, true);
                    a_.byte(1);
                }
                a_.vector(is_signed ? kSignExtendWordsFar : kZeroExtendWordsFar, 0, 0, 1);
            } else {
                a_.vector(is_signed ? kSignExtendWords : kZeroExtendWords, 0, 0,
                          half_in_register(in[0], unit, 1));
            }
            return 0;
        });
        return true;
    }
    const bool upper = key == "high.16.32";
    if (upper || key == "resize.16.32" || key == "cvt.u16.u32" || key == "cvt.u16.s32" ||
        key == "cvt.s16.s32" || key == "cvt.s16.u32") {
        each_unit([&](int) {
            for (int half = 0; half < 2; ++half) {
                int from = in_register(in[0], half, 1);
                if (upper) a_.vector(kShiftRight, 1, from, every(16, 4)), from = 1;
                a_.vector(kNarrowWords, from, 0, half ? 3 : 0);
            }
            a_.vector(kInsertHalf, 0, 0, 3);
            a_.byte(1);
            return 0;
        });
        return true;
    }
    if (key == "pack.32.16") {
        each_unit([&](int unit) {
            a_.vector(kZeroExtendWords, 0, 0, half_in_register(in[1], unit, 1));
            a_.vector(kShiftLeft, 0, 0, every(16, 4));
            a_.vector(kZeroExtendWords, 3, 0, half_in_register(in[0], unit, 2));
            a_.vector(kOr, 0, 0, 3);
            return 0;
        });
        return true;
    }
    return false;
}

}  // namespace gpukernel::simgpu::compiler
