// What the conditions and sizes in calls.txt are made of, for the program, the worker and the simulated
// library. The numbers are those of NVIDIA's public cublas_api.h and library_types.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpukernel::libraries::cublas {

enum Status : int {
    SUCCESS = 0,
    NOT_INITIALIZED = 1,
    ALLOC_FAILED = 3,
    INVALID_VALUE = 7,
    ARCH_MISMATCH = 8,
    MAPPING_ERROR = 11,
    EXECUTION_FAILED = 13,
    INTERNAL_ERROR = 14,
    NOT_SUPPORTED = 15,
    LICENSE_ERROR = 16,
};

enum Transposition : int { OP_N = 0, OP_T = 1, OP_C = 2 };
enum PointerMode : int { HOST = 0, DEVICE = 1 };
enum DataType : int {
    R_32F = 0,
    R_64F = 1,
    R_16F = 2,
    R_8I = 3,
    C_32F = 4,
    C_64F = 5,
    R_8U = 8,
    R_32I = 10,
    R_16BF = 14,
    R_8F_E4M3 = 28,
    R_8F_E5M2 = 29,
};
enum ComputeType : int {
    COMPUTE_16F = 64,
    COMPUTE_16F_PEDANTIC = 65,
    COMPUTE_32F = 68,
    COMPUTE_32F_PEDANTIC = 69,
    COMPUTE_64F = 70,
    COMPUTE_64F_PEDANTIC = 71,
    COMPUTE_32I = 72,
    COMPUTE_32I_PEDANTIC = 73,
    COMPUTE_32F_FAST_16F = 74,
    COMPUTE_32F_FAST_16BF = 75,
    COMPUTE_32F_FAST_TF32 = 77,
    COMPUTE_32F_EMULATED_16BFX9 = 78,
};

// Bytes of an element; 0 for a type that no library here knows.
constexpr size_t data_bytes(int type) {
    switch (type) {
        case R_8I:
        case R_8U:
        case R_8F_E4M3:
        case R_8F_E5M2:
            return 1;
        case R_16F:
        case R_16BF:
            return 2;
        case R_32F:
        case R_32I:
            return 4;
        case R_64F:
        case C_32F:
            return 8;
        case C_64F:
            return 16;
        default:
            return 0;
    }
}

constexpr bool is_complex(int type) { return type == C_32F || type == C_64F; }

// Bytes of alpha and beta of a product; 0 for a type of computation that is none.
constexpr size_t scale_bytes(int compute, int result) {
    switch (compute) {
        case COMPUTE_16F:
        case COMPUTE_16F_PEDANTIC:
            return 2;
        case COMPUTE_32F:
        case COMPUTE_32F_PEDANTIC:
        case COMPUTE_32F_FAST_16F:
        case COMPUTE_32F_FAST_16BF:
        case COMPUTE_32F_FAST_TF32:
        case COMPUTE_32F_EMULATED_16BFX9:
            return is_complex(result) ? 8 : 4;
        case COMPUTE_64F:
        case COMPUTE_64F_PEDANTIC:
            return is_complex(result) ? 16 : 8;
        case COMPUTE_32I:
        case COMPUTE_32I_PEDANTIC:
            return 4;
        default:
            return 0;
    }
}

constexpr bool is_operation(int operation) { return operation >= OP_N && operation <= OP_C; }
constexpr bool is_triangle(int side, int uplo, int operation, int diag) {
    return (side == 0 || side == 1) && (uplo == 0 || uplo == 1) && is_operation(operation) &&
           (diag == 0 || diag == 1);
}
// Whether `ld` is a leading dimension of a matrix of which op() has so many rows and columns.
constexpr bool fits(int operation, int64_t ld, int64_t rows, int64_t columns) {
    const int64_t stored = operation ? columns : rows;
    return ld >= (stored > 1 ? stored : 1);
}

}  // namespace gpukernel::libraries::cublas
