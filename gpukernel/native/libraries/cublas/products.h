// Which types cublasGemmEx multiplies: a condition of calls.txt, which is checked in the program and beside
// the simulated GPU.
#pragma once

#include "libraries/cublas/types.h"

namespace gpukernel::libraries::cublas {

// As far as the tables of NVIDIA's documentation name them; what they do not name is left to the library,
// which may be newer.  Bytes need leading dimensions of whole words.
constexpr bool gemm_takes(int a, int b, int c, int compute, int64_t lda, int64_t ldb) {
    const auto known = [](int type) { return data_bytes(type) > 1 || type == R_8I; };
    if (!known(a) || !known(b) || !known(c)) return true;
    switch (compute) {
        case COMPUTE_16F:
        case COMPUTE_16F_PEDANTIC:
            return a == R_16F && b == R_16F && c == R_16F;
        case COMPUTE_32I:
        case COMPUTE_32I_PEDANTIC:
            return a == R_8I && b == R_8I && c == R_32I && lda % 4 == 0 && ldb % 4 == 0;
        case COMPUTE_64F:
        case COMPUTE_64F_PEDANTIC:
            return a == b && a == c && (a == R_64F || a == C_64F);
        case COMPUTE_32F:
        case COMPUTE_32F_PEDANTIC:
            if (a != b) return false;
            if (a == R_16F || a == R_16BF) return c == a || c == R_32F;
            return a == R_8I ? c == R_32F : a == c && (a == R_32F || a == C_32F);
        default:
            return true;
    }
}

}  // namespace gpukernel::libraries::cublas
