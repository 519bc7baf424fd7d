// The processor's features, read with CPUID and XGETBV (Intel SDM, volume 2A, "CPUID"; volume 1, "XGETBV").
// __builtin_cpu_supports tests the same, but compilers differ in the names they know: Clang 15 has no "f16c".
#include "simgpu/exec/processor.h"

#include <cpuid.h>

#include <algorithm>
#include <cstdlib>

namespace gpukernel::simgpu {

namespace {
struct CpuidResult {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Zeros for a leaf that the processor does not have.
CpuidResult cpuid(unsigned leaf) {
    CpuidResult r;
    __get_cpuid_count(leaf, 0, &r.eax, &r.ebx, &r.ecx, &r.edx);
    return r;
}

constexpr bool has(unsigned features, unsigned wanted) { return (features & wanted) == wanted; }

// Leaf 1, ECX.
constexpr unsigned FMA = 1u << 12, OSXSAVE = 1u << 27, AVX = 1u << 28, F16C = 1u << 29;
// Leaf 7, EBX.
constexpr unsigned AVX2 = 1u << 5, BMI2 = 1u << 8, AVX512F = 1u << 16, AVX512DQ = 1u << 17,
                   AVX512CD = 1u << 28, AVX512BW = 1u << 30, AVX512VL = 1u << 31;
// Leaf 7, ECX.
constexpr unsigned AVX512_VPOPCNTDQ = 1u << 14;
// XCR0, the registers that the operating system saves: XMM and YMM; the mask registers and both parts of ZMM.
constexpr unsigned AVX_STATE = 0x6, AVX512_STATE = AVX_STATE | 0xe0;

// Only where CPUID has OSXSAVE: the instruction is illegal elsewhere.
unsigned saved_state() {
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}
}  // namespace

int processor_level() {
    const unsigned basic = cpuid(1).ecx, extended = cpuid(7).ebx;
    const unsigned state = has(basic, OSXSAVE) ? saved_state() : 0;
    if (!has(basic, AVX) || !has(state, AVX_STATE)) return 2;
    if (has(extended, AVX512F | AVX512BW | AVX512CD | AVX512DQ | AVX512VL) && has(state, AVX512_STATE))
        return 4;
    return has(basic, FMA | F16C) && has(extended, AVX2 | BMI2) ? 3 : 2;
}

int wanted_level() {
    const char* forced = std::getenv("GPUKERNEL_SIMGPU_LEVEL");
    return forced ? std::min(processor_level(), std::atoi(forced)) : processor_level();
}

bool processor_counts_bits() { return processor_level() == 4 && has(cpuid(7).ecx, AVX512_VPOPCNTDQ); }

}  // namespace gpukernel::simgpu
