// cuBLAS's functions on triangular and symmetric matrices, sums of matrices, and factorisations of many small
// ones.
#pragma once

#include <numeric>
#include <vector>

#include "simgpu_libraries/cublas/context.h"
#include "simgpu_libraries/openblas.h"

namespace gpukernel::simgpu_libraries::cublas {

struct Triangle {
    int side, uplo, trans, diag;
    char sides() const { return side ? 'R' : 'L'; }
    char half() const { return uplo ? 'U' : 'L'; }  // CUBLAS_FILL_MODE_LOWER is 0
    char operation() const { return "NTC"[trans]; }
    char unit() const { return diag ? 'U' : 'N'; }
};

template <class T>
constexpr char operation_of(int trans) {
    return !complex_type<T> && trans ? 'T' : "NTC"[trans];
}

// Columns (or rows) of a piece, where each costs `squared` multiplications.
inline int64_t width_of(int64_t side) {
    const double squared = static_cast<double>(side) * static_cast<double>(side) + 1;
    return std::clamp(static_cast<int64_t>(24e6 / squared), int64_t{8}, int64_t{256});
}

// One call of OpenBLAS's trsm or trmm on a block.
template <class T>
void triangular(bool solve, const Triangle& t, int64_t m, int64_t n, T alpha, const T* a, int64_t lda, T* b,
                int64_t ldb) {
    const auto trsm = GPUKERNEL_BLAS(T, "trsm", const char*, const char*, const char*, const char*,
                                     const int*, const int*, const T*, const T*, const int*, T*, const int*);
    const auto trmm = GPUKERNEL_BLAS(T, "trmm", const char*, const char*, const char*, const char*,
                                     const int*, const int*, const T*, const T*, const int*, T*, const int*);
    const char side = t.sides(), uplo = t.half(), trans = operation_of<T>(t.trans), diag = t.unit();
    const int mi = static_cast<int>(m), ni = static_cast<int>(n), la = static_cast<int>(lda),
              lb = static_cast<int>(ldb);
    (solve ? trsm : trmm)(&side, &uplo, &trans, &diag, &mi, &ni, &alpha, a, &la, b, &lb);
}

// A block of B: columns where the triangle is at the left, rows where it is at the right.
struct Block {
    int64_t row, column, rows, columns;
    Block(bool right, int64_t m, int64_t n, int64_t width, uint64_t number)
        : row(right ? static_cast<int64_t>(number) * width : 0),
          column(right ? 0 : static_cast<int64_t>(number) * width),
          rows(right ? std::min(width, m - row) : m),
          columns(right ? n : std::min(width, n - column)) {}
};

template <class T>
int trsm(const Context& context, int side, int uplo, int trans, int diag, int64_t m, int64_t n, Scalar alpha,
         uint64_t A, int64_t lda, uint64_t B, int64_t ldb) {
    if (!m || !n) return SUCCESS;
    const Matrix<T> a(A, lda), b(B, ldb);
    const int64_t order = side ? n : m, width = width_of(order);
    if (!a.fits_openblas() || !b.fits_openblas() || order > INT32_MAX) return NOT_SUPPORTED;
    const Triangle triangle{side, uplo, trans, diag};
    return submit(context, parts(side ? m : n, width), [=](uint64_t number, const Access& access) {
        const Block block(side, m, n, width, number);
        a.check(access, 0, 0, order, order, false, "A");
        b.check(access, block.row, block.column, block.rows, block.columns, true, "B");
        triangular<T>(true, triangle, block.rows, block.columns, alpha.get<T>(access), a.at(0, 0), lda,
                      b.at(block.row, block.column), ldb);
    });
}

template <class T>
int trmm(const Context& context, int side, int uplo, int trans, int diag, int64_t m, int64_t n, Scalar alpha,
         uint64_t A, int64_t lda, uint64_t B, int64_t ldb, uint64_t C, int64_t ldc) {
    if (!m || !n) return SUCCESS;
    const Matrix<T> a(A, lda), b(B, ldb), c(C, ldc);
    const int64_t order = side ? n : m, width = width_of(order);
    if (!a.fits_openblas() || order > INT32_MAX) return NOT_SUPPORTED;
    const Triangle triangle{side, uplo, trans, diag};
    return submit(context, parts(side ? m : n, width), [=](uint64_t number, const Access& access) {
        const Block block(side, m, n, width, number);
        a.check(access, 0, 0, order, order, false, "A");
        b.check(access, block.row, block.column, block.rows, block.columns, false, "B");
        c.check(access, block.row, block.column, block.rows, block.columns, true, "C");
        Room<T> own(static_cast<size_t>(block.rows * block.columns));
        for (int64_t j = 0; j < block.columns; ++j)
            std::copy_n(b.at(block.row, block.column + j), block.rows, own.data() + j * block.rows);
        triangular<T>(false, triangle, block.rows, block.columns, alpha.get<T>(access), a.at(0, 0), lda,
                      own.data(), block.rows);
        for (int64_t j = 0; j < block.columns; ++j)
            std::copy_n(own.data() + j * block.rows, block.rows, c.at(block.row, block.column + j));
    });
}

// Each matrix of a batch is one piece, which nothing can pause or cancel: the functions are for small ones.
constexpr int64_t MOST_AT_ONCE = 2048;
inline int too_large(const Context& context) {
    libraries::complain(std::string(context.name) + ": matrices of more than " +
                        std::to_string(MOST_AT_ONCE) +
                        " rows or columns are not supported on a simulated device");
    return NOT_SUPPORTED;
}

inline uint64_t address_at(const Access& access, uint64_t array, uint64_t index) {
    return access.read<uint64_t>(array + index * 8, "an array of addresses");
}

template <class T>
int trsm_batched(const Context& context, int side, int uplo, int trans, int diag, int64_t m, int64_t n,
                 Scalar alpha, uint64_t A, int64_t lda, uint64_t B, int64_t ldb, int64_t batches) {
    if (!m || !n) return SUCCESS;
    const int64_t order = side ? n : m;
    if (m > MOST_AT_ONCE || n > MOST_AT_ONCE) return too_large(context);
    if (lda > INT32_MAX || ldb > INT32_MAX) return NOT_SUPPORTED;
    const Triangle triangle{side, uplo, trans, diag};
    return submit(context, static_cast<uint64_t>(batches), [=](uint64_t number, const Access& access) {
        const Matrix<T> a(address_at(access, A, number), lda), b(address_at(access, B, number), ldb);
        a.check(access, 0, 0, order, order, false, "A"), b.check(access, 0, 0, m, n, true, "B");
        triangular<T>(true, triangle, m, n, alpha.get<T>(access), a.at(0, 0), lda, b.at(0, 0), ldb);
    });
}

template <class T, bool HERMITIAN>
int symm(const Context& context, int side, int uplo, int64_t m, int64_t n, Scalar alpha, uint64_t A,
         int64_t lda, uint64_t B, int64_t ldb, Scalar beta, uint64_t C, int64_t ldc) {
    if (!m || !n) return SUCCESS;
    const Matrix<T> a(A, lda), b(B, ldb), c(C, ldc);
    const int64_t order = side ? n : m, width = width_of(order);
    if (!a.fits_openblas() || !b.fits_openblas() || !c.fits_openblas() || order > INT32_MAX)
        return NOT_SUPPORTED;
    return submit(context, parts(side ? m : n, width), [=](uint64_t number, const Access& access) {
        const auto function = GPUKERNEL_BLAS(T, std::string(HERMITIAN ? "hemm" : "symm"), const char*,
                                             const char*, const int*, const int*, const T*, const T*,
                                             const int*, const T*, const int*, const T*, T*, const int*);
        const Block block(side, m, n, width, number);
        a.check(access, 0, 0, order, order, false, "A");
        b.check(access, block.row, block.column, block.rows, block.columns, false, "B");
        c.check(access, block.row, block.column, block.rows, block.columns, true, "C");
        const char sides = side ? 'R' : 'L', half = uplo ? 'U' : 'L';
        const int mi = static_cast<int>(block.rows), ni = static_cast<int>(block.columns),
                  la = static_cast<int>(lda), lb = static_cast<int>(ldb), lc = static_cast<int>(ldc);
        const T scale = alpha.get<T>(access), keep = beta.get<T>(access);
        function(&sides, &half, &mi, &ni, &scale, a.at(0, 0), &la, b.at(block.row, block.column), &lb, &keep,
                 c.at(block.row, block.column), &lc);
    });
}

// --- C = alpha A B^T + beta C of which one triangle is kept: tiles of it are products, those on the diagonal
// too ---

// Adds alpha op(left) op(right)^H to the tile, with `from` where it begins; one buffer keeps the diagonal's
// other half.
template <class T>
struct RankUpdate {
    int64_t n, k, side;
    int uplo, trans;
    bool hermitian;
    Matrix<T> a, b, c;

    // (row, column) of the tile's rows in a and columns in b.
    void tile(int64_t row, int64_t column, int64_t rows, int64_t columns, const Matrix<T>& left,
              const Matrix<T>& right, T alpha, T* to, const Access& access) const {
        const bool by_rows = trans != OP_N;  // the matrix is k × n
        if (by_rows) {
            left.check(access, 0, row, k, rows, false, "A"),
                right.check(access, 0, column, k, columns, false, "B");
        } else {
            left.check(access, row, 0, rows, k, false, "A"),
                right.check(access, column, 0, columns, k, false, "B");
        }
        if (!k) return;
        const auto gemm =
            GPUKERNEL_BLAS(T, "gemm", const char*, const char*, const int*, const int*, const int*, const T*,
                           const T*, const int*, const T*, const int*, const T*, T*, const int*);
        const char turned = hermitian ? 'C' : 'T';
        const char ta = by_rows ? turned : 'N', tb = by_rows ? 'N' : turned;
        const int mi = static_cast<int>(rows), ni = static_cast<int>(columns), ki = static_cast<int>(k),
                  la = static_cast<int>(left.ld()), lb = static_cast<int>(right.ld());
        const T one(1);
        gemm(&ta, &tb, &mi, &ni, &ki, &alpha, by_rows ? left.at(0, row) : left.at(row, 0), &la,
             by_rows ? right.at(0, column) : right.at(column, 0), &lb, &one, to, &mi);
    }
};

template <class T, class Beta, class Add>
int rank_update(const Context& context, const RankUpdate<T>& update, const Scalar& beta, Add add) {
    const int64_t n = update.n, side = update.side;
    const uint64_t tiles = parts(n, side);
    if (!update.a.fits_openblas() || !update.b.fits_openblas() || n > INT32_MAX || update.k > INT32_MAX)
        return NOT_SUPPORTED;
    return submit(context, tiles * tiles, [=](uint64_t number, const Access& access) {
        const auto ti = static_cast<int64_t>(number % tiles), tj = static_cast<int64_t>(number / tiles);
        if (update.uplo ? ti > tj : ti < tj) return;
        const int64_t row = ti * side, column = tj * side, rows = std::min(side, n - row),
                      columns = std::min(side, n - column);
        update.c.check(access, row, column, rows, columns, true, "C");
        Room<T> sum(static_cast<size_t>(rows * columns));
        add(row, column, rows, columns, sum.data(), access);
        const Beta keep = beta.get<Beta>(access);
        for (int64_t j = 0; j < columns; ++j)
            for (int64_t i = 0; i < rows; ++i) {
                if (update.uplo ? row + i > column + j : row + i < column + j) continue;
                T& place = *update.c.at(row + i, column + j);
                T value = sum[static_cast<size_t>(j * rows + i)];
                if (keep != Beta(0)) value += keep * place;
                if constexpr (complex_type<T>)
                    if (update.hermitian && row + i == column + j) value = value.real();
                place = value;
            }
    });
}

inline int64_t rank_side(int64_t k) {
    return std::clamp(static_cast<int64_t>(std::sqrt(24e6 / static_cast<double>(std::max<int64_t>(k, 1)))),
                      int64_t{32}, int64_t{256});
}

template <class T, bool HERMITIAN>
int syrk(const Context& context, int uplo, int trans, int64_t n, int64_t k, Scalar alpha, uint64_t A,
         int64_t lda, Scalar beta, uint64_t C, int64_t ldc) {
    using Factor = std::conditional_t<HERMITIAN, Real<T>, T>;
    if (HERMITIAN ? trans == OP_T : complex_type<T> && trans == OP_C) return INVALID_VALUE;
    const RankUpdate<T> update{n, k, rank_side(k), uplo, trans, HERMITIAN, {A, lda}, {A, lda}, {C, ldc}};
    return rank_update<T, Factor>(
        context, update, beta,
        [=](int64_t row, int64_t column, int64_t rows, int64_t columns, T* to, const Access& access) {
            update.tile(row, column, rows, columns, update.a, update.a, T(alpha.get<Factor>(access)), to,
                        access);
        });
}

template <class T, bool HERMITIAN>
int syr2k(const Context& context, int uplo, int trans, int64_t n, int64_t k, Scalar alpha, uint64_t A,
          int64_t lda, uint64_t B, int64_t ldb, Scalar beta, uint64_t C, int64_t ldc) {
    using Factor = std::conditional_t<HERMITIAN, Real<T>, T>;
    if (HERMITIAN ? trans == OP_T : complex_type<T> && trans == OP_C) return INVALID_VALUE;
    const RankUpdate<T> update{n, k, rank_side(k), uplo, trans, HERMITIAN, {A, lda}, {B, ldb}, {C, ldc}};
    return rank_update<T, Factor>(
        context, update, beta,
        [=](int64_t row, int64_t column, int64_t rows, int64_t columns, T* to, const Access& access) {
            const T scale = alpha.get<T>(access);
            update.tile(row, column, rows, columns, update.a, update.b, scale, to, access);
            update.tile(row, column, rows, columns, update.b, update.a, HERMITIAN ? conjugate(scale) : scale,
                        to, access);
        });
}

// --- element by element ---

template <class T>
int geam(const Context& context, int transa, int transb, int64_t m, int64_t n, Scalar alpha, uint64_t A,
         int64_t lda, Scalar beta, uint64_t B, int64_t ldb, uint64_t C, int64_t ldc) {
    if (!m || !n) return SUCCESS;
    const Matrix<T> a(A, lda), b(B, ldb), c(C, ldc);
    const int64_t width = std::clamp<int64_t>((1 << 19) / m, 1, 1024);
    return submit(context, parts(n, width), [=](uint64_t number, const Access& access) {
        const int64_t first = static_cast<int64_t>(number) * width, count = std::min(width, n - first);
        const T x = alpha.get<T>(access), y = beta.get<T>(access);
        const auto check = [&](const Matrix<T>& of, int trans, const char* what) {
            if (trans)
                of.check(access, first, 0, count, m, false, what);
            else
                of.check(access, 0, first, m, count, false, what);
        };
        const auto element = [](const Matrix<T>& of, int trans, int64_t i, int64_t j) {
            return trans == OP_N ? *of.at(i, j) : trans == OP_T ? *of.at(j, i) : conjugate(*of.at(j, i));
        };
        // What is multiplied by 0 is not read.
        if (x != T(0)) check(a, transa, "A");
        if (y != T(0)) check(b, transb, "B");
        c.check(access, 0, first, m, count, true, "C");
        for (int64_t j = first; j < first + count; ++j)
            for (int64_t i = 0; i < m; ++i) {
                T value(0);
                if (x != T(0)) value += x * element(a, transa, i, j);
                if (y != T(0)) value += y * element(b, transb, i, j);
                *c.at(i, j) = value;
            }
    });
}

template <class T>
int dgmm(const Context& context, int mode, int64_t m, int64_t n, uint64_t A, int64_t lda, uint64_t x,
         int64_t incx, uint64_t C, int64_t ldc) {
    if (!m || !n) return SUCCESS;
    const Matrix<T> a(A, lda), c(C, ldc);
    const Vector<T> diagonal(x, mode ? n : m, incx);
    const int64_t width = std::clamp<int64_t>((1 << 19) / m, 1, 1024);
    return submit(context, parts(n, width), [=](uint64_t number, const Access& access) {
        const int64_t first = static_cast<int64_t>(number) * width, count = std::min(width, n - first);
        diagonal.check(access, mode ? first : 0, mode ? first + count : m, false, "x");
        a.check(access, 0, first, m, count, false, "A"), c.check(access, 0, first, m, count, true, "C");
        for (int64_t j = first; j < first + count; ++j)
            for (int64_t i = 0; i < m; ++i) *c.at(i, j) = *a.at(i, j) * diagonal[mode ? j : i];
    });
}

// --- factorisations ---

// LU with row exchanges where `pivots` is not null; returns as LAPACK's getrf does.
template <class T>
int factorise(int64_t n, T* a, int64_t lda, int* pivots) {
    int info = 0;
    const int ni = static_cast<int>(n), la = static_cast<int>(lda);
    if (pivots) {
        const auto getrf = GPUKERNEL_BLAS(T, "getrf", const int*, const int*, T*, const int*, int*, int*);
        getrf(&ni, &ni, a, &la, pivots, &info);
        return info;
    }
    for (int64_t k = 0; k < n; ++k) {
        const T pivot = a[k * lda + k];
        if (pivot == T(0)) {
            if (!info) info = static_cast<int>(k + 1);
            continue;
        }
        for (int64_t i = k + 1; i < n; ++i) a[k * lda + i] /= pivot;
        for (int64_t j = k + 1; j < n; ++j)
            for (int64_t i = k + 1; i < n; ++i) a[j * lda + i] -= a[k * lda + i] * a[j * lda + k];
    }
    return info;
}
template <class T>
int invert(int64_t n, T* lu, int64_t lda, const int* pivots) {
    const auto getri =
        GPUKERNEL_BLAS(T, "getri", const int*, T*, const int*, const int*, T*, const int*, int*);
    const int ni = static_cast<int>(n), la = static_cast<int>(lda), size = std::max(1, ni * 32);
    Room<T> work(static_cast<size_t>(size));
    int info = 0;
    getri(&ni, lu, &la, pivots, work.data(), &size, &info);
    return info;
}
inline Room<int> no_exchanges(int64_t n) {
    Room<int> pivots(static_cast<size_t>(n));
    std::iota(pivots.begin(), pivots.end(), 1);
    return pivots;
}
// Where the pivots of one matrix lie, checked; nullptr where there are none.
inline int* pivots_of(const Access& access, uint64_t P, uint64_t number, int64_t n, bool writing) {
    if (!P) return nullptr;
    const uint64_t at = P + number * static_cast<uint64_t>(n) * 4;
    access.check(at, static_cast<uint64_t>(n) * 4, writing, "the pivots");
    return reinterpret_cast<int*>(at);
}
// LAPACK follows them: none may lead out of the matrix.
inline void check_pivots(const int* pivots, int64_t n) {
    for (int64_t i = 0; pivots && i < n; ++i)
        if (pivots[i] < i + 1 || pivots[i] > n)
            throw OutOfBounds{reinterpret_cast<uint64_t>(pivots + i), 4, "a row that a pivot names"};
}
inline void tell(const Access& access, uint64_t info, uint64_t number, int value) {
    if (!info) return;
    access.check(info + number * 4, 4, true, "info");
    *reinterpret_cast<int*>(info + number * 4) = value;
}

template <class T>
int getrf_batched(const Context& context, int64_t n, uint64_t A, int64_t lda, uint64_t P, uint64_t info,
                  int64_t batches) {
    if (!n) return SUCCESS;
    if (n > MOST_AT_ONCE) return too_large(context);
    return submit(context, static_cast<uint64_t>(batches), [=](uint64_t number, const Access& access) {
        const Matrix<T> a(address_at(access, A, number), lda);
        a.check(access, 0, 0, n, n, true, "A");
        // LAPACK follows its pivots while it makes them: not where the program's kernels, or a matrix that
        // lies there, too, can change them.
        int* const to = pivots_of(access, P, number, n, true);
        Room<int> pivots(to ? static_cast<size_t>(n) : 0);
        tell(access, info, number, factorise(n, a.at(0, 0), lda, to ? pivots.data() : nullptr));
        if (to) std::copy(pivots.begin(), pivots.end(), to);
    });
}

template <class T>
int getrs_batched(const Context& context, int trans, int64_t n, int64_t nrhs, uint64_t A, int64_t lda,
                  uint64_t P, uint64_t B, int64_t ldb, int64_t batches) {
    if (!n || !nrhs) return SUCCESS;
    if (n > MOST_AT_ONCE || nrhs > MOST_AT_ONCE) return too_large(context);
    return submit(context, static_cast<uint64_t>(batches), [=](uint64_t number, const Access& access) {
        const auto getrs = GPUKERNEL_BLAS(T, "getrs", const char*, const int*, const int*, const T*,
                                          const int*, const int*, T*, const int*, int*);
        const Matrix<T> a(address_at(access, A, number), lda), b(address_at(access, B, number), ldb);
        a.check(access, 0, 0, n, n, false, "A"), b.check(access, 0, 0, n, nrhs, true, "B");
        const int* const given = pivots_of(access, P, number, n, false);
        const Room<int> pivots = given ? Room<int>(given, given + n) : no_exchanges(n);
        check_pivots(pivots.data(), n);
        const char operation = operation_of<T>(trans);
        const int ni = static_cast<int>(n), columns = static_cast<int>(nrhs), la = static_cast<int>(lda),
                  lb = static_cast<int>(ldb);
        int wrong = 0;
        getrs(&operation, &ni, &columns, a.at(0, 0), &la, pivots.data(), b.at(0, 0), &lb, &wrong);
    });
}

template <class T>
int getri_batched(const Context& context, int64_t n, uint64_t A, int64_t lda, uint64_t P, uint64_t C,
                  int64_t ldc, uint64_t info, int64_t batches) {
    if (!n) return SUCCESS;
    if (n > MOST_AT_ONCE) return too_large(context);
    return submit(context, static_cast<uint64_t>(batches), [=](uint64_t number, const Access& access) {
        const Matrix<T> a(address_at(access, A, number), lda), c(address_at(access, C, number), ldc);
        a.check(access, 0, 0, n, n, false, "A"), c.check(access, 0, 0, n, n, true, "C");
        const int* const given = pivots_of(access, P, number, n, false);
        const Room<int> pivots = given ? Room<int>(given, given + n) : no_exchanges(n);
        check_pivots(pivots.data(), n);
        for (int64_t j = 0; j < n; ++j) std::copy_n(a.at(0, j), n, c.at(0, j));
        tell(access, info, number, invert(n, c.at(0, 0), ldc, pivots.data()));
    });
}

template <class T>
int matinv_batched(const Context& context, int64_t n, uint64_t A, int64_t lda, uint64_t C, int64_t ldc,
                   uint64_t info, int64_t batches) {
    if (!n) return SUCCESS;
    return submit(context, static_cast<uint64_t>(batches), [=](uint64_t number, const Access& access) {
        const Matrix<T> a(address_at(access, A, number), lda), c(address_at(access, C, number), ldc);
        a.check(access, 0, 0, n, n, false, "A"), c.check(access, 0, 0, n, n, true, "Ainv");
        for (int64_t j = 0; j < n; ++j) std::copy_n(a.at(0, j), n, c.at(0, j));
        Room<int> pivots(static_cast<size_t>(n));
        int wrong = factorise(n, c.at(0, 0), ldc, pivots.data());
        if (!wrong) wrong = invert(n, c.at(0, 0), ldc, pivots.data());
        tell(access, info, number, wrong);
    });
}

template <class T>
int geqrf_batched(const Context& context, int64_t m, int64_t n, uint64_t A, int64_t lda, uint64_t tau,
                  int64_t batches) {
    if (!m || !n) return SUCCESS;
    if (m > MOST_AT_ONCE || n > MOST_AT_ONCE) return too_large(context);
    return submit(context, static_cast<uint64_t>(batches), [=](uint64_t number, const Access& access) {
        const auto geqrf =
            GPUKERNEL_BLAS(T, "geqrf", const int*, const int*, T*, const int*, T*, T*, const int*, int*);
        const Matrix<T> a(address_at(access, A, number), lda);
        a.check(access, 0, 0, m, n, true, "A");
        const uint64_t to = address_at(access, tau, number);
        const int64_t least = std::min(m, n);
        access.check(to, static_cast<uint64_t>(least) * sizeof(T), true, "tau");
        Room<T> own(static_cast<size_t>(m * n)), factors(static_cast<size_t>(least)),
            work(static_cast<size_t>(64 * n));
        for (int64_t j = 0; j < n; ++j) std::copy_n(a.at(0, j), m, own.data() + j * m);
        const int mi = static_cast<int>(m), ni = static_cast<int>(n), size = static_cast<int>(work.size());
        int wrong = 0;
        geqrf(&mi, &ni, own.data(), &mi, factors.data(), work.data(), &size, &wrong);
        for (int64_t j = 0; j < n; ++j) std::copy_n(own.data() + j * m, m, a.at(0, j));
        std::copy(factors.begin(), factors.end(), reinterpret_cast<T*>(to));
    });
}

}  // namespace gpukernel::simgpu_libraries::cublas
