// Matrix instructions of a whole warp (PTX ISA 9.7.14), as the decoder writes them down for their handlers.
//
// One picture serves all of their fragments.  A register of 32 bits is, over the 32 lanes of a warp, a block
// of eight rows of sixteen bytes: lane 4 r + q holds the q-th four bytes of row r, and since a warp's
// register is stored lane after lane, the block lies in memory row by row.  (Of 64 bits: rows of four
// elements.)  The rows of A's blocks are rows of A, those of B's blocks are columns of B.  A fragment of A
// lists its blocks with the row changing first, one of B with the depth changing first.  Accumulators of 16
// bits are such blocks of D; wider ones come in pairs of registers, for the even and for the odd columns of
// eight rows. Only mma.m8n8k4 on .f16 (of sm_70) is laid out otherwise.
//
// How wmma's fragments lie in registers is nobody's business but the GPU's; here they lie like mma's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpukernel::simgpu {

enum class Element : uint8_t { f16, bf16, tf32, e4m3, e5m2, s8, u8, s4, u4, b1, f64, f32, s32 };
constexpr uint32_t bits_of(Element e) {
    constexpr uint8_t bits[] = {16, 16, 32, 8, 8, 8, 8, 4, 4, 1, 64, 32, 32};
    return bits[static_cast<int>(e)];
}

constexpr uint32_t kMostRegisters = 8;  // of a fragment
struct Fragment {
    uint32_t slot[kMostRegisters];
    uint32_t count = 0;
    Element element = Element::f16;
};

enum class MatrixUse : uint8_t { a, b, c };
struct MatrixPlan {
    std::string text;  // the instruction, for a fault
    Fragment a, b, c, d;
    uint8_t rows = 1, columns = 1, depth = 1;  // in blocks; a block's depth is what fits a register
    bool saturate = false;
    bool xors = false;                          // of single bits: instead of and
    bool a_columns = false, b_columns = false;  // mma.m8n8k4 on .f16: how the operands lie
    uint32_t mode = 0;                          // the processor's rounding, where the instruction names one
    // wmma.load and wmma.store (the fragment is `d`, its matrix `use`), ldmatrix and stmatrix.
    MatrixUse use = MatrixUse::a;
    bool transposed = false;  // against the picture above
    uint32_t vectors = 0;     // rows or columns in memory
    uint32_t bytes = 0;       // of each
    uint32_t align = 0;
};

// wgmma (9.7.15): 64 rows of D, of which each of a warpgroup's four warps has sixteen.  B, and A where it is
// not in registers, lie in shared memory as a descriptor says.
struct WarpgroupPlan {
    std::string text;
    std::vector<uint32_t> d;  // as blocks of mma, two for eight columns; of 32 bits two registers each
    uint32_t a[4];            // the blocks of A in registers
    bool a_in_registers = false;
    Element a_element = Element::f16, b_element = Element::f16, d_element = Element::f32;
    uint16_t columns = 0;                             // of D, and of B
    bool a_transposed = false, b_transposed = false;  // rows of A, columns of B lie side by side
    bool adds_negated = false;                        // minus the product
    bool saturate = false, negated_predicate = false;
};

}  // namespace gpukernel::simgpu
