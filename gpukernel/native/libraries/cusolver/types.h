// What the conditions in calls.txt are made of. The numbers are those of NVIDIA's public cusolver_common.h
// and library_types.h.
#pragma once

#include <cstdint>

#include "libraries/cublas/types.h"
#include "libraries/handles.h"

namespace gpukernel::libraries::cusolver {

enum Status : int {
    SUCCESS = 0,
    NOT_INITIALIZED = 1,
    ALLOC_FAILED = 2,
    INVALID_VALUE = 3,
    EXECUTION_FAILED = 6,
    INTERNAL_ERROR = 7,
    NOT_SUPPORTED = 9,
};

// The version that the library says it is, by the number in its name.
constexpr int version_of(int number) { return number == 11 ? 11705 : 12000; }

using cublas::is_operation;
constexpr bool is_half(int uplo) { return uplo == 0 || uplo == 1; }
constexpr bool is_side(int side) { return side == 0 || side == 1; }
constexpr bool is_job(int job) { return job == 0 || job == 1; }
constexpr bool fits(int64_t ld, int64_t rows) { return rows >= 0 && ld >= (rows > 1 ? rows : 1); }
constexpr bool is_type(int type, int compute) {
    using namespace cublas;
    return type == compute && (type == R_32F || type == R_64F || type == C_32F || type == C_64F);
}
constexpr int real_of(int type) {
    return type == cublas::C_32F ? cublas::R_32F : type == cublas::C_64F ? cublas::R_64F : type;
}
// Eigenvalues of a real matrix are complex, or real and imaginary parts in two halves.
constexpr bool is_eigenvalue(int matrix, int values) {
    return values == matrix || (matrix == cublas::R_32F && values == cublas::C_32F) ||
           (matrix == cublas::R_64F && values == cublas::C_64F);
}
// LAPACK's letters for all vectors, the first of them, those in place of the matrix, and none.
constexpr bool are_vectors(int u, int vt, int64_t m, int64_t n, int64_t ldu, int64_t ldvt) {
    const auto known = [](int job) { return job == 'A' || job == 'S' || job == 'O' || job == 'N'; };
    if (!known(u) || !known(vt) || (u == 'O' && vt == 'O')) return false;
    return (u == 'N' || u == 'O' || fits(ldu, m)) && (vt == 'N' || vt == 'O' || fits(ldvt, n));
}

}  // namespace gpukernel::libraries::cusolver
