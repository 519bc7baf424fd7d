// The product of matrices: D = alpha op(A) op(B) + beta C, of any types and orders, in batches.
#pragma once

#include <functional>
#include <optional>

#include "simgpu_libraries/cublas/context.h"

namespace gpukernel::simgpu_libraries::cublas {

// A matrix as the product sees it, after op(): element (i, j) of batch b lies at
// address + (i * row_step + j * column_step + b * batch_step) elements; or, where `pointers`, `address` is
// that of an array on the device of the batch's addresses.
struct Operand {
    uint64_t address = 0;
    int type = R_32F;
    int64_t row_step = 1, column_step = 1, batch_step = 0;
    bool conjugated = false, pointers = false;
};

// An operand in columns, by cuBLAS's words.
inline Operand operand(uint64_t address, int type, int64_t ld, int operation = OP_N, int64_t batch_step = 0,
                       bool pointers = false) {
    return {address, type, operation ? ld : 1, operation ? 1 : ld, batch_step, operation == OP_C, pointers};
}

// One tile of the result in double precision, between product and rounding: rows from `row`, columns from
// `column`.
struct Tile {
    int64_t row, column, rows, columns, batch;
};
using Epilogue = std::function<void(const Tile& tile, double* values, const Access& access)>;

struct Product {
    int64_t m = 0, n = 0, k = 0, batches = 1;
    Operand a, b, c, d;  // c may be d
    int compute = COMPUTE_32F;
    int scale = R_32F;  // the type of alpha and beta
    // For real types: applied to each tile before it is rounded.
    Epilogue epilogue = nullptr;
    std::optional<Operand> alpha_vector = std::nullopt;  // alpha of each row
    // Addresses of floats by which A, B, C and the result are multiplied; 0: none.
    uint64_t a_factor = 0, b_factor = 0, c_factor = 0, d_factor = 0;
};

// Returns the status; NOT_SUPPORTED, after a line that names it, for types that it has no product of.
int multiply(const Context& context, const Product& product, const Scalar& alpha, const Scalar& beta);

// --- cuBLAS's forms of it ---

template <class T>
constexpr int compute_of = std::is_same_v<T, D> || std::is_same_v<T, Z> ? COMPUTE_64F
                           : std::is_same_v<T, H>                       ? COMPUTE_16F
                                                                        : COMPUTE_32F;
// The type of alpha and beta: that of the computation, complex where the result is.
constexpr int scale_type(int compute, int result) {
    if (compute == COMPUTE_16F || compute == COMPUTE_16F_PEDANTIC) return R_16F;
    if (compute == COMPUTE_32I || compute == COMPUTE_32I_PEDANTIC) return R_32I;
    const bool wide = compute == COMPUTE_64F || compute == COMPUTE_64F_PEDANTIC;
    return is_complex(result) ? (wide ? C_64F : C_32F) : (wide ? R_64F : R_32F);
}

struct Shape {
    int transa, transb;
    int64_t m, n, k;
};
inline int multiply(const Context& context, const Shape& s, const Scalar& alpha, const Operand& a,
                    const Operand& b, const Scalar& beta, const Operand& c, int64_t batches, int compute) {
    Product product;
    product.m = s.m, product.n = s.n, product.k = s.k, product.batches = batches;
    product.a = a, product.b = b, product.c = product.d = c;
    product.compute = compute, product.scale = scale_type(compute, c.type);
    return multiply(context, product, alpha, beta);
}

template <class T>
int gemm(const Context& context, int transa, int transb, int64_t m, int64_t n, int64_t k, Scalar alpha,
         uint64_t A, int64_t lda, uint64_t B, int64_t ldb, Scalar beta, uint64_t C, int64_t ldc) {
    constexpr int type = type_of<T>;
    return multiply(context, {transa, transb, m, n, k}, alpha, operand(A, type, lda, transa),
                    operand(B, type, ldb, transb), beta, operand(C, type, ldc), 1, compute_of<T>);
}
template <class T>
int gemm_strided(const Context& context, int transa, int transb, int64_t m, int64_t n, int64_t k,
                 Scalar alpha, uint64_t A, int64_t lda, int64_t strideA, uint64_t B, int64_t ldb,
                 int64_t strideB, Scalar beta, uint64_t C, int64_t ldc, int64_t strideC, int64_t batches) {
    constexpr int type = type_of<T>;
    return multiply(context, {transa, transb, m, n, k}, alpha, operand(A, type, lda, transa, strideA),
                    operand(B, type, ldb, transb, strideB), beta, operand(C, type, ldc, OP_N, strideC),
                    batches, compute_of<T>);
}
template <class T>
int gemm_batched(const Context& context, int transa, int transb, int64_t m, int64_t n, int64_t k,
                 Scalar alpha, uint64_t A, int64_t lda, uint64_t B, int64_t ldb, Scalar beta, uint64_t C,
                 int64_t ldc, int64_t batches) {
    constexpr int type = type_of<T>;
    return multiply(context, {transa, transb, m, n, k}, alpha, operand(A, type, lda, transa, 0, true),
                    operand(B, type, ldb, transb, 0, true), beta, operand(C, type, ldc, OP_N, 0, true),
                    batches, compute_of<T>);
}
inline int gemm_ex(const Context& context, int transa, int transb, int64_t m, int64_t n, int64_t k,
                   Scalar alpha, uint64_t A, int Atype, int64_t lda, uint64_t B, int Btype, int64_t ldb,
                   Scalar beta, uint64_t C, int Ctype, int64_t ldc, int computeType, int) {
    return multiply(context, {transa, transb, m, n, k}, alpha, operand(A, Atype, lda, transa),
                    operand(B, Btype, ldb, transb), beta, operand(C, Ctype, ldc), 1, computeType);
}
inline int gemm_float_ex(const Context& context, int transa, int transb, int64_t m, int64_t n, int64_t k,
                         Scalar alpha, uint64_t A, int Atype, int64_t lda, uint64_t B, int Btype, int64_t ldb,
                         Scalar beta, uint64_t C, int Ctype, int64_t ldc) {
    return multiply(context, {transa, transb, m, n, k}, alpha, operand(A, Atype, lda, transa),
                    operand(B, Btype, ldb, transb), beta, operand(C, Ctype, ldc), 1, COMPUTE_32F);
}
inline int gemm_strided_ex(const Context& context, int transa, int transb, int64_t m, int64_t n, int64_t k,
                           Scalar alpha, uint64_t A, int Atype, int64_t lda, int64_t strideA, uint64_t B,
                           int Btype, int64_t ldb, int64_t strideB, Scalar beta, uint64_t C, int Ctype,
                           int64_t ldc, int64_t strideC, int64_t batches, int computeType, int) {
    return multiply(context, {transa, transb, m, n, k}, alpha, operand(A, Atype, lda, transa, strideA),
                    operand(B, Btype, ldb, transb, strideB), beta, operand(C, Ctype, ldc, OP_N, strideC),
                    batches, computeType);
}
inline int gemm_batched_ex(const Context& context, int transa, int transb, int64_t m, int64_t n, int64_t k,
                           Scalar alpha, uint64_t A, int Atype, int64_t lda, uint64_t B, int Btype,
                           int64_t ldb, Scalar beta, uint64_t C, int Ctype, int64_t ldc, int64_t batches,
                           int computeType, int) {
    return multiply(context, {transa, transb, m, n, k}, alpha, operand(A, Atype, lda, transa, 0, true),
                    operand(B, Btype, ldb, transb, 0, true), beta, operand(C, Ctype, ldc, OP_N, 0, true),
                    batches, computeType);
}

}  // namespace gpukernel::simgpu_libraries::cublas
