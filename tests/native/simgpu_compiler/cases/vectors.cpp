// Writes sequences of vector instructions, drawn by a seed, as AVX-512 and as AVX2, runs both, and compares
// what they leave in vectors, masks and memory.
//
// Usage: vectors FIRST_SEED COUNT LENGTH [FILE], where the code for AVX2 is written to, too.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "simgpu/compiler/assembler.h"
#include "simgpu/compiler/avx2/avx2.h"
#include "simgpu/compiler/generate/instructions.h"

using namespace gpukernel::simgpu::compiler;

namespace {

struct alignas(64) Place {  // behind r15
    uint8_t in[32][64], out[32][64];
    uint32_t masks_in[8], masks_out[8];
    uint8_t data[4096];  // read and written
    uint8_t constants[512];
    uint8_t frame[Avx2::kFrameBytes + 64];
    alignas(64) uint64_t literals[8 * 256];
};

// What an instruction takes: elements of the result in bytes, and whether its operands are floating-point
// numbers.
struct Row {
    const char* name;
    Encoding code;
    enum Form {
        two,
        one,
        fused,
        compare,
        signs,
        blend,
        spread,
        widen,
        narrow,
        join,
        permute,
        permute_two,
        ternary,
        round,
        broadcast,
        gpr,
        insert,
        extract,
        quarter,
        gather,
        scatter,
        gather_far,
        scatter_far,
        gather_wide,
        scatter_wide,
        gather_far_wide,
        scatter_far_wide,
        store,
        load,
        narrow_store,
        widen_load,
        test,
        kmask,
        halves
    } form;
    int bytes;
    int from = 0;  // of an operand, where it is another number
    enum Kind { any, single, twice, small } kind = any;
};

constexpr uint8_t P = 0, S = 1, F3 = 2, F2 = 3;
const Row rows[] = {
    {"addps", {P, 1, 0, 0x58}, Row::two, 4, 0, Row::single},
    {"subps", {P, 1, 0, 0x5c}, Row::two, 4, 0, Row::single},
    {"mulps", {P, 1, 0, 0x59}, Row::two, 4, 0, Row::single},
    {"divps", {P, 1, 0, 0x5e}, Row::two, 4, 0, Row::single},
    {"sqrtps", {P, 1, 0, 0x51}, Row::one, 4, 0, Row::single},
    {"addpd", {S, 1, 1, 0x58}, Row::two, 8, 0, Row::twice},
    {"subpd", {S, 1, 1, 0x5c}, Row::two, 8, 0, Row::twice},
    {"mulpd", {S, 1, 1, 0x59}, Row::two, 8, 0, Row::twice},
    {"divpd", {S, 1, 1, 0x5e}, Row::two, 8, 0, Row::twice},
    {"sqrtpd", {S, 1, 1, 0x51}, Row::one, 8, 0, Row::twice},
    {"fmadd132ps", {S, 2, 0, 0x98}, Row::fused, 4, 0, Row::single},
    {"fmadd213ps", {S, 2, 0, 0xa8}, Row::fused, 4, 0, Row::single},
    {"fmadd231ps", {S, 2, 0, 0xb8}, Row::fused, 4, 0, Row::single},
    {"fmadd132pd", {S, 2, 1, 0x98}, Row::fused, 8, 0, Row::twice},
    {"fmadd213pd", {S, 2, 1, 0xa8}, Row::fused, 8, 0, Row::twice},
    {"fmadd231pd", {S, 2, 1, 0xb8}, Row::fused, 8, 0, Row::twice},
    {"rndscaleps", {S, 3, 0, 0x08}, Row::round, 4, 0, Row::single},
    {"rndscalepd", {S, 3, 1, 0x09}, Row::round, 8, 0, Row::twice},
    {"paddd", kAdd, Row::two, 4},
    {"paddq", kAddWide, Row::two, 8},
    {"psubd", kSubtract, Row::two, 4},
    {"psubq", kSubtractWide, Row::two, 8},
    {"pandd", kAnd, Row::two, 4},
    {"pandq", {S, 1, 1, 0xdb}, Row::two, 8},
    {"pandnd", kAndNot, Row::two, 4},
    {"pord", kOr, Row::two, 4},
    {"porq", {S, 1, 1, 0xeb}, Row::two, 8},
    {"pxord", kXor, Row::two, 4},
    {"pxorq", {S, 1, 1, 0xef}, Row::two, 8},
    {"pmuludq", {S, 1, 1, 0xf4}, Row::two, 8},
    {"pmuldq", {S, 2, 1, 0x28}, Row::two, 8},
    {"pmulld", {S, 2, 0, 0x40}, Row::two, 4},
    {"pmullq", {S, 2, 1, 0x40}, Row::two, 8},
    {"pshufb", {S, 2, 0, 0x00}, Row::two, 0},
    {"paddw", {S, 1, 0, 0xfd}, Row::two, 0},
    {"psubw", {S, 1, 0, 0xf9}, Row::two, 0},
    {"pmullw", {S, 1, 0, 0xd5}, Row::two, 0},
    {"psllvd", kShiftLeft, Row::two, 4, 0, Row::small},
    {"psrlvd", kShiftRight, Row::two, 4, 0, Row::small},
    {"psravd", kRightSigned, Row::two, 4, 0, Row::small},
    {"psllvq", {S, 2, 1, 0x47}, Row::two, 8, 0, Row::small},
    {"psrlvq", {S, 2, 1, 0x45}, Row::two, 8, 0, Row::small},
    {"psravq", {S, 2, 1, 0x46}, Row::two, 8, 0, Row::small},
    {"pminsd", {S, 2, 0, 0x39}, Row::two, 4},
    {"pminsq", {S, 2, 1, 0x39}, Row::two, 8},
    {"pminud", {S, 2, 0, 0x3b}, Row::two, 4},
    {"pminuq", {S, 2, 1, 0x3b}, Row::two, 8},
    {"pmaxsd", {S, 2, 0, 0x3d}, Row::two, 4},
    {"pmaxsq", {S, 2, 1, 0x3d}, Row::two, 8},
    {"pmaxud", {S, 2, 0, 0x3f}, Row::two, 4},
    {"pmaxuq", {S, 2, 1, 0x3f}, Row::two, 8},
    {"pabsd", {S, 2, 0, 0x1e}, Row::one, 4},
    {"pabsq", {S, 2, 1, 0x1f}, Row::one, 8},
    {"plzcntd", {S, 2, 0, 0x44}, Row::one, 4},
    {"popcntd", {S, 2, 0, 0x55}, Row::one, 4},
    {"pternlogd", kTernary, Row::ternary, 4},
    {"cvtdq2ps", {P, 1, 0, 0x5b}, Row::one, 4},
    {"cvtudq2ps", {F2, 1, 0, 0x7a}, Row::one, 4},
    {"cvtqq2pd", {F3, 1, 1, 0xe6}, Row::one, 8},
    {"cvtuqq2pd", {F3, 1, 1, 0x7a}, Row::one, 8},
    {"cvttps2dq", {F3, 1, 0, 0x5b}, Row::one, 4, 0, Row::single},
    {"cvttps2udq", {P, 1, 0, 0x78}, Row::one, 4, 0, Row::single},
    {"cvtps2pd", kWiden, Row::widen, 8, 0, Row::single},
    {"cvtdq2pd", {F3, 1, 0, 0xe6}, Row::widen, 8},
    {"cvtudq2pd", {F3, 1, 0, 0x7a}, Row::widen, 8},
    {"cvtph2ps", {S, 2, 0, 0x13}, Row::widen, 4},
    {"pmovzxwd", {S, 2, 0, 0x33}, Row::widen, 4},
    {"pmovsxwd", {S, 2, 0, 0x23}, Row::widen, 4},
    {"pmovzxdq", kZeroExtend, Row::widen, 8},
    {"pmovsxdq", {S, 2, 0, 0x25}, Row::widen, 8},
    {"pmovzxwq", {S, 2, 0, 0x34}, Row::widen, 8},
    {"pmovsxwq", {S, 2, 0, 0x24}, Row::widen, 8},
    {"pmovzxbw", {S, 2, 0, 0x30}, Row::widen_load, 2},
    {"pmovzxbd", {S, 2, 0, 0x31}, Row::widen_load, 4},
    {"pmovzxbq", {S, 2, 0, 0x32}, Row::widen_load, 8},
    {"pmovsxbw", {S, 2, 0, 0x20}, Row::widen_load, 2},
    {"pmovsxbd", {S, 2, 0, 0x21}, Row::widen_load, 4},
    {"pmovsxbq", {S, 2, 0, 0x22}, Row::widen_load, 8},
    {"pmovzxwd m", {S, 2, 0, 0x33}, Row::widen_load, 4, 2},
    {"pmovzxwq m", {S, 2, 0, 0x34}, Row::widen_load, 8, 2},
    {"pmovzxdq m", {S, 2, 0, 0x35}, Row::widen_load, 8, 4},
    {"cvtpd2ps", kShorten, Row::join, 4, 0, Row::twice},
    {"cvttpd2dq", {S, 1, 1, 0xe6}, Row::join, 4, 0, Row::twice},
    {"cvttpd2udq", {P, 1, 1, 0x78}, Row::join, 4, 0, Row::twice},
    {"cvtps2ph", {S, 3, 0, 0x1d}, Row::halves, 2, 0, Row::single},
    {"pmovqd", kNarrow, Row::narrow, 4},
    {"pmovdw", {F3, 2, 0, 0x33}, Row::narrow, 2},
    {"pmovwb m", {F3, 2, 0, 0x30}, Row::narrow_store, 1, 2},
    {"pmovdb m", {F3, 2, 0, 0x31}, Row::narrow_store, 1, 4},
    {"pmovqb m", {F3, 2, 0, 0x32}, Row::narrow_store, 1, 8},
    {"pmovdw m", {F3, 2, 0, 0x33}, Row::narrow_store, 2, 4},
    {"pmovqw m", {F3, 2, 0, 0x34}, Row::narrow_store, 2, 8},
    {"pmovqd m", {F3, 2, 0, 0x35}, Row::narrow_store, 4, 8},
    {"cmpps", kCompareFloat, Row::compare, 4, 32, Row::single},
    {"cmppd", kCompareFloatWide, Row::compare, 8, 32, Row::twice},
    {"pcmpd", kCompareSigned, Row::compare, 4, 7},
    {"pcmpq", {S, 3, 1, 0x1f}, Row::compare, 8, 7},
    {"pcmpud", kCompareUnsigned, Row::compare, 4, 7},
    {"pcmpuq", kCompareUnsignedWide, Row::compare, 8, 7},
    {"ptestmd", kTest, Row::test, 4},
    {"ptestmq", kTestWide, Row::test, 8},
    {"ptestnmd", kZeros, Row::test, 4},
    {"ptestnmq", {F3, 2, 1, 0x27}, Row::test, 8},
    {"pmovd2m", kSigns, Row::signs, 4},
    {"pmovq2m", kSignsWide, Row::signs, 8},
    {"pmovm2d", kMaskToVector, Row::spread, 4},
    {"pblendmd", kBlend, Row::blend, 4},
    {"pblendmq", kBlendWide, Row::blend, 8},
    {"pbroadcastd", kBroadcast, Row::broadcast, 4},
    {"pbroadcastq", kBroadcastWide, Row::broadcast, 8},
    {"pbroadcastw", {S, 2, 0, 0x79}, Row::broadcast, 2},
    {"pbroadcastd r", kBroadcastGpr, Row::gpr, 4},
    {"pbroadcastq r", kBroadcastGprWide, Row::gpr, 8},
    {"pextractq half", kExtractHalf, Row::extract, 4},
    {"pinsertq half", kInsertHalf, Row::insert, 4},
    {"pextractd quarter", kExtractQuarter, Row::quarter, 4},
    {"permd", kPermute, Row::permute, 4},
    {"permi2d", kPermuteTwo, Row::permute_two, 4},
    {"permi2q", kPermuteTwoWide, Row::permute_two, 8},
    {"movups", kLoad, Row::load, 4},
    {"movupd", kLoadWide, Row::load, 8},
    {"movdqu16", kLoadWords, Row::load, 2},
    {"movups m", kStore, Row::store, 4},
    {"movupd m", kStoreWide, Row::store, 8},
    {"movdqu16 m", kStoreWords, Row::store, 2},
    {"pgatherdd", kGather, Row::gather, 4, 4},
    {"pgatherdq", kGatherWide, Row::gather, 8, 4},
    {"pgatherqd", kGatherFar, Row::gather_far, 4, 8},
    {"pgatherqq", kGatherFarWide, Row::gather, 8, 8},
    {"pscatterdd", kScatter, Row::scatter, 4, 4},
    {"pscatterdq", kScatterWide, Row::scatter, 8, 4},
    {"pscatterqd", kScatterFar, Row::scatter, 4, 8},
    {"pscatterqq", kScatterFarWide, Row::scatter, 8, 8},
    {"k", {}, Row::kmask, 0},
};

class Draw {
  public:
    Draw(uint64_t seed, bool narrow, Place& place) : random_(seed) {
        const auto put = [this, &place](std::vector<uint64_t> words) {
            const size_t at = literals_;
            literals_ += 8;
            std::copy(words.begin(), words.end(), place.literals + at);
            return at_place(offsetof(Place, literals) + 8 * at);
        };
        const auto word = [&place](int32_t at) {
            uint32_t found;
            std::memcpy(&found, reinterpret_cast<const char*>(&place) + at, sizeof found);
            return found;
        };
        if (narrow)
            a_.narrow(std::make_unique<Avx2>(a_, offsetof(Place, frame), offsetof(Place, constants),
                                             Avx2::Literals{put, word}));
    }
    const std::vector<uint8_t>& write(int length, std::string& said) {
        for (Gpr r : {rbx, r12, r13, r15}) a_.push(r);
        a_.move(r15, rdi);
        a_.move(r13, rdi);
        a_.alu(Assembler::add, r13, static_cast<int32_t>(offsetof(Place, constants)), true);
        a_.move(rbx, rdi);
        a_.alu(Assembler::add, rbx, static_cast<int32_t>(offsetof(Place, data)), true);
        a_.move(r8, rbx);
        for (int v = 0; v < 32; ++v)
            a_.vector(kLoad, v, 0, at_place(offsetof(Place, in) + 64 * static_cast<size_t>(v)));
        for (int k = 1; k < 8; ++k)
            a_.mask_from(k, at_place(offsetof(Place, masks_in) + 4 * static_cast<size_t>(k)));
        for (int n = 0; n < length; ++n) {
            const Row& row = rows[below(std::size(rows))];
            said += std::string(row.name) + " ";
            one(row);
            const auto way = below(12);
            if (way == 0) {
                Label here;
                a_.bind(here);
            } else if (way == 1) {  // one that is never taken, one that always is
                Label there;
                a_.alu(Assembler::compare, r15, r15, true);
                a_.jump(below(2) ? equal : not_equal, there);
                one(rows[below(18)]);
                a_.bind(there);
            }
        }
        for (int v = 0; v < 32; ++v)
            a_.vector(kStore, v, 0, at_place(offsetof(Place, out) + 64 * static_cast<size_t>(v)));
        for (int k = 1; k < 8; ++k) {
            a_.mask_to(rax, k);
            a_.store(at_place(offsetof(Place, masks_out) + 4 * static_cast<size_t>(k)), rax, false);
        }
        for (Gpr r : {r15, r13, r12, rbx}) a_.pop(r);
        for (uint8_t each : {0xc5, 0xf8, 0x77}) a_.byte(each);
        a_.ret();
        if (a_.failed()) said += "UNKNOWN";
        return a_.code();
    }

  private:
    Assembler a_;
    std::mt19937_64 random_;
    size_t literals_ = 0;
    uint64_t below(uint64_t n) { return random_() % n; }
    int vector() { return static_cast<int>(below(3) ? below(12) : below(32)); }
    int mask() { return 1 + static_cast<int>(below(7)); }
    static Memory at_place(size_t at) { return {r15, static_cast<int32_t>(at)}; }
    Memory data(int bytes = 64) {
        const Gpr base = below(2) ? rbx : r8;
        return {base,
                static_cast<int32_t>(below(static_cast<uint64_t>((4096 - 64) / bytes)) *
                                     static_cast<uint64_t>(bytes)),
                -1, static_cast<uint8_t>(bytes)};
    }
    Memory constant(int bytes) {
        Memory m{r13, static_cast<int32_t>(below(16)) * 8, -1, static_cast<uint8_t>(bytes), true};
        if (below(2)) m = {rbx, static_cast<int32_t>(below(16)) * 8, -1, static_cast<uint8_t>(bytes), true};
        return m;
    }
    // With a second operand of any kind.
    void apply(Encoding code, int to, int first, int bytes, int k) {
        switch (bytes ? below(4) : 2 + below(2)) {
            case 0:
                return a_.vector(code, to, first, constant(bytes), k);
            case 1:
            case 2:
                return a_.vector(code, to, first, data(), k);
            default:
                return a_.vector(code, to, first, vector(), k);
        }
    }
    void define_upper(int v) {
        a_.vector(kInsertHalf, v, v, vector());
        a_.byte(1);
    }
    // Small numbers, as shifts have.
    int index_vector(int bytes, uint64_t mask_bits) {
        int v = vector();
        const Memory m = constant_word(mask_bits, bytes);
        a_.vector(bytes == 8 ? Encoding{S, 1, 1, 0xdb} : kAnd, v, v, m);
        return v;
    }
    Memory constant_word(uint64_t which, int bytes) {  // of the last constants
        return {r13, static_cast<int32_t>(256 + 8 * which), -1, static_cast<uint8_t>(bytes), true};
    }
    void one(const Row& row) {
        const int k = below(3) ? 0 : mask(), to = vector();
        switch (row.form) {
            case Row::two:
                if (row.kind == Row::small && below(2)) {
                    const int by = index_vector(row.bytes, 0);
                    return a_.vector(row.code, to, vector(), by, k);
                }
                return apply(row.code, to, vector(), row.bytes, row.bytes ? k : 0);
            case Row::one:
                return apply(row.code, to, 0, row.bytes, k);
            case Row::fused:
                return apply(row.code, to, vector(), row.bytes, k);
            case Row::round:
                apply(row.code, to, 0, row.bytes, k);
                return a_.byte(static_cast<uint8_t>(8 | below(4)));
            case Row::ternary:
                apply(row.code, to, vector(), row.bytes, k);
                return a_.byte(static_cast<uint8_t>(below(256)));
            case Row::compare:
                apply(row.code, mask(), vector(), row.bytes, k);
                return a_.byte(static_cast<uint8_t>(row.from == 7 ? (below(2) ? 1 + below(2) : 4 + below(3))
                                                                  : below(32)));
            case Row::test:
                return apply(row.code, mask(), vector(), row.bytes, k);
            case Row::signs:
                return a_.vector(row.code, mask(), 0, vector());
            case Row::spread:
                return a_.vector(row.code, to, 0, mask());
            case Row::blend:
                return apply(row.code, to, vector(), row.bytes, mask());
            case Row::broadcast: {
                if (below(2)) return a_.vector(row.code, to, 0, vector(), k);
                Memory m = data(row.bytes);
                return a_.vector(row.code, to, 0, m, k);
            }
            case Row::gpr:
                a_.immediate(rax, random_());
                return a_.vector(row.code, to, 0, static_cast<int>(rax), k);
            case Row::widen:
                return a_.vector(row.code, to, 0, vector());
            case Row::widen_load: {
                const int from = row.from ? row.from : 1;
                return a_.vector(row.code, to, 0, data(64 * from / row.bytes));
            }
            case Row::join:
                a_.vector(row.code, to, 0, vector());
                return define_upper(to);
            case Row::halves:
                a_.vector(row.code, vector(), 0, to);
                a_.byte(4);
                return define_upper(to);
            case Row::narrow:
                a_.vector(row.code, vector(), 0, to);
                return define_upper(to);
            case Row::narrow_store:
                return a_.vector(row.code, to, 0, data(64 * row.bytes / row.from), k);
            case Row::extract:
                a_.vector(row.code, vector(), 0, to);
                a_.byte(static_cast<uint8_t>(1));
                return define_upper(to);
            case Row::quarter:
                a_.vector(row.code, vector(), 0, to, 0, true);
                a_.byte(1);
                a_.vector(kZeroExtend, to, 0, to);
                return a_.vector({S, 2, 0, 0x34}, to, 0, to);
            case Row::insert:
                a_.vector(row.code, to, vector(), vector());
                return a_.byte(1);
            case Row::permute:
                return below(2) ? a_.vector(row.code, to, vector(), data())
                                : a_.vector(row.code, to, vector(), vector());
            case Row::permute_two:
                if (below(2)) {  // by a table that does not change, of any order, or of few halves
                    Memory table = at_place(offsetof(Place, constants) + 320 + 64 * below(3));
                    a_.vector(kLoad, to, 0, table);
                }
                return below(2) ? a_.vector(row.code, to, vector(), data())
                                : a_.vector(row.code, to, vector(), vector());
            case Row::load:
                if (row.bytes == 4 && below(4) == 0) {
                    a_.vector(row.code, to, 0, data(32), 0, true);
                    return define_upper(to);
                }
                return below(2) ? a_.vector(row.code, to, 0, vector(), k)
                                : a_.vector(row.code, to, 0, data());
            case Row::store:
                return a_.vector(row.code, to, 0, data(), k);
            case Row::gather:
            case Row::gather_far:
            case Row::scatter: {
                const int index = index_vector(row.from, row.from == 8 ? 2 : 1);
                int of = to;
                if (of == index) of = (of + 1) % 32;
                const int under = 1 + static_cast<int>(below(4));
                a_.mask(Assembler::mask_and, 5, under, under);
                a_.vector(row.code, of, 0, Memory{r8, 64, index, static_cast<uint8_t>(row.bytes)}, 5);
                a_.mask(Assembler::mask_and, 5, under, under);
                if (row.form == Row::gather_far) define_upper(of);
                return;
            }
            case Row::kmask: {
                const int out = mask();
                switch (below(6)) {
                    case 0:
                        a_.mask_shift_right(out, mask(), static_cast<uint8_t>(8 * (1 + below(3))));
                        return;
                    case 1:
                        return a_.mask_unpack(out, mask(), mask(), below(2));
                    case 2:
                        return a_.mask(Assembler::mask_or, out, mask(), mask());
                    case 3:
                        return a_.mask(Assembler::mask_and, out, mask(), mask());
                    case 4:
                        a_.vector_to(rax, static_cast<int>(below(8)), below(2));
                        return a_.mask_from(out, rax);
                    default:
                        a_.immediate(rax, random_());
                        a_.vector_from(0, rax, true);
                        return a_.vector(kBroadcastWide, 0, 0, 0);
                }
            }
            default:
                return;
        }
    }
};

void fill(Place& place, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::memset(static_cast<void*>(&place), 0, sizeof place);
    const uint32_t special[] = {0,          0x80000000, 0x3f800000, 0xbf800000, 0x7f800000,
                                0xff800000, 0x7fc00000, 0x7f800001, 0x4f000000, 0x4f800000,
                                0x4effffff, 0xcf000000, 1,          0xffffffff, 0x7fffffff,
                                32,         31,         63,         64};
    const uint64_t far[] = {0x41f0000000000000, 0x41e0000000000000, 0xbff0000000000000, 0xbfe0000000000000,
                            0x41efffffffe00000, 0x7ff0000000000000, 0xfff8000000000000, 0x8000000000000000,
                            0x4330000000000000, 0xc1e0000000000000};
    const auto write = [&](uint8_t* at, size_t bytes) {
        for (size_t n = 0; n < bytes; n += 8) {
            uint64_t word = random();
            const auto how = random() % 8;
            if (how == 0)
                word = special[random() % std::size(special)] |
                       uint64_t{special[random() % std::size(special)]} << 32;
            if (how == 1) word = far[random() % std::size(far)];
            if (how == 2)
                word = (word & 0x807fffff807fffff) |
                       0x4780000047800000 + (random() % 16 << 23) + (random() % 16 << 55);
            if (how == 3) word &= 0xffff;
            std::memcpy(at + n, &word, 8);
        }
    };
    write(&place.in[0][0], sizeof place.in);
    write(place.data, sizeof place.data);
    write(place.constants, sizeof place.constants);
    const uint64_t words[] = {0x4f, 0x7f8};
    for (size_t n = 0; n < 2; ++n) {
        const uint64_t word = n == 0 ? words[n] | words[n] << 32 : words[n];
        std::memcpy(place.constants + 256 + 8 * n, &word, 8);
    }
    const uint64_t offsets = 0x7f8000007f8ull;
    std::memcpy(place.constants + 264, &offsets, 8);
    const uint64_t far_offsets = 0x7f8;
    std::memcpy(place.constants + 272, &far_offsets, 8);
    for (uint64_t n = 0; n < 16; ++n) {  // in order, one half behind the other, and swapped by twos
        const uint32_t orders[] = {static_cast<uint32_t>(n + 8 * (seed % 3)),
                                   static_cast<uint32_t>(n ^ 2 * (seed % 9))};
        for (size_t which = 0; which < 2; ++which)
            std::memcpy(place.constants + 320 + 64 * which + 4 * n, &orders[which], 4);
    }
    for (uint32_t& mask : place.masks_in) mask = random() % 4 ? static_cast<uint32_t>(random()) : ~0u;
}

}  // namespace

int main(int count, char** words) {
    const uint64_t first = count > 1 ? std::strtoull(words[1], nullptr, 0) : 0,
                   seeds = count > 2 ? std::strtoull(words[2], nullptr, 0) : 100;
    const int length = count > 3 ? std::atoi(words[3]) : 12;
    constexpr size_t kRoom = 1 << 20;
    auto* code = static_cast<uint8_t*>(
        mmap(nullptr, kRoom, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    static Place wide, narrow;
    std::FILE* file = count > 4 ? std::fopen(words[4], "wb") : nullptr;
    int bad = 0;
    for (uint64_t seed = first; seed < first + seeds && bad < 10; ++seed) {
        std::string said[2];
        for (bool avx2 : {false, true}) {
            Place& place = avx2 ? narrow : wide;
            fill(place, seed);
            Draw draw(seed, avx2, place);
            const std::vector<uint8_t>& bytes = draw.write(length, said[avx2]);
            if (bytes.size() > kRoom) std::abort();
            std::memcpy(code, bytes.data(), bytes.size());
            if (avx2 && file) std::fwrite(bytes.data(), 1, bytes.size(), file);
            const uint32_t modes[] = {0x1f80, 0x3f80, 0x5f80, 0x7f80, 0x9fc0};
            const uint32_t mode = modes[seed % std::size(modes)], usual = 0x1f80;
            __asm__ volatile("ldmxcsr %0" : : "m"(mode));
            reinterpret_cast<void (*)(Place*)>(code)(&place);
            __asm__ volatile("ldmxcsr %0" : : "m"(usual));
        }
        const bool same = !std::memcmp(wide.out, narrow.out, sizeof wide.out) &&
                          !std::memcmp(wide.data, narrow.data, sizeof wide.data) &&
                          !std::memcmp(wide.masks_out, narrow.masks_out, sizeof wide.masks_out);
        if (same && said[1].find("UNKNOWN") == std::string::npos) continue;
        ++bad;
        std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), said[1].c_str());
        for (size_t v = 0; v < 32; ++v)
            if (std::memcmp(wide.out[v], narrow.out[v], 64)) {
                std::printf("  vector %zu\n", v);
                for (const Place* p : {&wide, &narrow}) {
                    for (size_t n = 0; n < 64; n += 4) {
                        uint32_t word;
                        std::memcpy(&word, p->out[v] + n, 4);
                        std::printf(" %08x", word);
                    }
                    std::printf("\n");
                }
            }
        for (size_t k = 1; k < 8; ++k)
            if (wide.masks_out[k] != narrow.masks_out[k])
                std::printf("  mask %zu: %08x %08x\n", k, wide.masks_out[k], narrow.masks_out[k]);
        if (std::memcmp(wide.data, narrow.data, sizeof wide.data)) std::printf("  memory\n");
    }
    if (file) std::fclose(file);
    if (!bad) std::printf("%llu sequences alike\n", static_cast<unsigned long long>(seeds));
    return bad != 0;
}
