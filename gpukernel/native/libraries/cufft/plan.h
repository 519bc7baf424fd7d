// A plan of cuFFT as a program describes it: in the program, on the wire, and beside the simulated GPU.
#pragma once

#include <cstdint>

#include "libraries/library.h"

namespace gpukernel::libraries::cufft {

// The numbers are those of NVIDIA's public cufft.h and library_types.h.
enum Status : int {
    SUCCESS = 0,
    INVALID_PLAN = 1,
    ALLOC_FAILED = 2,
    INVALID_VALUE = 4,
    INTERNAL_ERROR = 5,
    EXEC_FAILED = 6,
    SETUP_FAILED = 7,
    INVALID_SIZE = 8,
    INVALID_DEVICE = 11,
    NOT_IMPLEMENTED = 14,
    NOT_SUPPORTED = 16,
};
enum Direction : int { FORWARD = -1, INVERSE = 1 };
enum Type : int { R2C = 0x2a, C2R = 0x2c, C2C = 0x29, D2Z = 0x6a, Z2D = 0x6c, Z2Z = 0x69 };
enum DataType : int {
    R_32F = 0,
    R_64F = 1,
    R_16F = 2,
    C_32F = 4,
    C_64F = 5,
    C_16F = 6,
    R_16BF = 14,
    C_16BF = 15
};
constexpr bool is_complex(int64_t type) {
    return type == C_32F || type == C_64F || type == C_16F || type == C_16BF;
}
// The real type of which it is, or -1 for one that no transform has.
constexpr int64_t real_of(int64_t type) {
    switch (type) {
        case R_32F:
        case C_32F:
            return R_32F;
        case R_64F:
        case C_64F:
            return R_64F;
        case R_16F:
        case C_16F:
            return R_16F;
        case R_16BF:
        case C_16BF:
            return R_16BF;
        default:
            return -1;
    }
}

// How one side's numbers lie: element (b, x0, x1, x2) at b * dist + ((x0 * embed[1] + x1) * embed[2] + x2) *
// stride.
struct Embedding {
    int64_t embed[3] = {1, 1, 1}, stride = 1, dist = 0;
};
constexpr int MOST_DIMENSIONS = 3;
// It travels as it is: words of 64 bits.
struct Shape {
    int64_t rank = 0, n[MOST_DIMENSIONS] = {1, 1, 1};
    int64_t plain = 1;  // the layouts are those that a program gets which says none
    Embedding input, output;
    int64_t batch = 1, input_type = C_32F, output_type = C_32F, execution_type = C_32F;
};
static_assert(sizeof(Shape) == 19 * sizeof(int64_t));

// SUCCESS, or what is wrong with it: sizes are positive, no address that follows from it overflows, and its
// types are a transform's.
inline int check(const Shape& s) {
    constexpr int64_t MOST = int64_t{1} << 46;
    if (s.rank < 1 || s.rank > MOST_DIMENSIONS || s.batch < 1 || s.batch > MOST) return INVALID_VALUE;
    const int64_t real = real_of(s.execution_type);
    if (real < 0 || real_of(s.input_type) != real || real_of(s.output_type) != real ||
        !is_complex(s.execution_type) || (!is_complex(s.input_type) && !is_complex(s.output_type)))
        return NOT_SUPPORTED;
    __int128 points = 1;
    for (int i = 0; i < MOST_DIMENSIONS; ++i) {
        if (s.n[i] < 1 || (i >= s.rank && s.n[i] != 1)) return INVALID_SIZE;
        points *= s.n[i];
        if (points > MOST) return INVALID_SIZE;
    }
    if (points * s.batch > MOST) return INVALID_SIZE;
    for (const Embedding* side : {&s.input, &s.output}) {
        if (side->stride < 1 || side->dist < 0 || side->stride > MOST || side->dist > MOST)
            return INVALID_VALUE;
        __int128 span = side->stride;
        for (auto i = static_cast<int>(s.rank - 1); i > 0; --i) {
            if (side->embed[i] < 1 || side->embed[i] > MOST) return INVALID_VALUE;
            if ((span *= side->embed[i]) > MOST) return INVALID_SIZE;
        }
        if (span * s.n[0] > MOST || static_cast<__int128>(side->dist) * s.batch > MOST) return INVALID_SIZE;
    }
    return SUCCESS;
}
// Whether its two sides are real and complex, in this order or the other.
inline bool real_to_complex(const Shape& shape) { return !is_complex(shape.input_type); }
inline bool complex_to_real(const Shape& shape) { return !is_complex(shape.output_type); }

// A plan of this process.
struct Plan {
    Shape shape;  // of rank 0 until it is made
    CUstream stream = nullptr;
    bool auto_allocation = true;
    int device = -1;
    // In the program: the worker's number of it, 0 until it is used, and whether a graph has calls with it.
    uint64_t name = 0;
    bool captured = false;
};

// What each side defines: whether plans can be made here, for which device, or the status; one execution,
// whose direction is valid; and a plan's end.
int begin(Plan& plan);
int execute(Plan& plan, const void* input, void* output, int direction);
void end(Plan& plan);

}  // namespace gpukernel::libraries::cufft
