// Factorisations and what is solved with them: Cholesky's, LU, QR.
#pragma once

#include "simgpu_libraries/cusolver/context.h"

namespace gpukernel::simgpu_libraries::cusolver {

// --- Cholesky ---

template <class T>
void potrf_one(const Access& access, int uplo, int64_t n, uint64_t A, int64_t lda, uint64_t info,
               uint64_t number) {
    const auto potrf = GPUKERNEL_BLAS(T, "potrf", const char*, const int*, T*, const int*, int*, size_t);
    Copy<T> a(access, A, lda, n, n, true, "A");
    const char letter = half(uplo);
    const int ni = whole(n), la = a.ld();
    int wrong = 0;
    potrf(&letter, &ni, a.data(), &la, &wrong, 1);
    a.store_triangle(A, lda, n, uplo);
    tell(access, info, number, wrong);
}
template <class T>
int potrf(const Context& context, int uplo, int64_t n, uint64_t A, int64_t lda, uint64_t, int64_t,
          uint64_t info) {
    return submit<T>(context, 1, cube(n) / 6, area(n, n),
                     [=](uint64_t, const Access& access) { potrf_one<T>(access, uplo, n, A, lda, info, 0); });
}
template <class T>
int potrf_batched(const Context& context, int uplo, int64_t n, uint64_t A, int64_t lda, uint64_t info,
                  int64_t batch) {
    return submit<T>(context, batch, cube(n) / 6, area(n, n), [=](uint64_t number, const Access& access) {
        potrf_one<T>(access, uplo, n, address_at(access, A, number), lda, info, number);
    });
}

template <class T>
void potrs_one(const Access& access, int uplo, int64_t n, int64_t nrhs, uint64_t A, int64_t lda, uint64_t B,
               int64_t ldb) {
    const auto potrs = GPUKERNEL_BLAS(T, "potrs", const char*, const int*, const int*, const T*, const int*,
                                      T*, const int*, int*, size_t);
    Copy<T> a(access, A, lda, n, n, false, "A"), b(access, B, ldb, n, nrhs, true, "B");
    const char letter = half(uplo);
    const int ni = whole(n), columns = whole(nrhs), la = a.ld(), lb = b.ld();
    int wrong = 0;
    potrs(&letter, &ni, &columns, a.data(), &la, b.data(), &lb, &wrong, 1);
    b.store(access, B, ldb, n, nrhs, "B");
}
template <class T>
int potrs(const Context& context, int uplo, int64_t n, int64_t nrhs, uint64_t A, int64_t lda, uint64_t B,
          int64_t ldb, uint64_t info) {
    return submit<T>(context, 1, area(n, n) * static_cast<double>(nrhs), area(n, n + nrhs),
                     [=](uint64_t, const Access& access) {
                         potrs_one<T>(access, uplo, n, nrhs, A, lda, B, ldb);
                         tell(access, info, 0, 0);
                     });
}
template <class T>
int potrs_batched(const Context& context, int uplo, int64_t n, int64_t nrhs, uint64_t A, int64_t lda,
                  uint64_t B, int64_t ldb, uint64_t info, int64_t batch) {
    return submit<T>(context, batch, area(n, n) * static_cast<double>(nrhs), area(n, n + nrhs),
                     [=](uint64_t number, const Access& access) {
                         potrs_one<T>(access, uplo, n, nrhs, address_at(access, A, number), lda,
                                      address_at(access, B, number), ldb);
                         if (!number) tell(access, info, 0, 0);
                     });
}

template <class T>
int potri(const Context& context, int uplo, int64_t n, uint64_t A, int64_t lda, uint64_t, int64_t,
          uint64_t info) {
    return submit<T>(context, 1, cube(n) / 3, area(n, n), [=](uint64_t, const Access& access) {
        const auto potri = GPUKERNEL_BLAS(T, "potri", const char*, const int*, T*, const int*, int*, size_t);
        Copy<T> a(access, A, lda, n, n, true, "A");
        const char letter = half(uplo);
        const int ni = whole(n), la = a.ld();
        int wrong = 0;
        potri(&letter, &ni, a.data(), &la, &wrong, 1);
        a.store_triangle(A, lda, n, uplo);
        tell(access, info, 0, wrong);
    });
}

// --- LU ---

// Without exchanges of rows.
template <class T>
int unpivoted(int64_t m, int64_t n, Copy<T>& a) {
    int wrong = 0;
    for (int64_t k = 0; k < std::min(m, n); ++k) {
        const T pivot = *a.at(k, k);
        if (pivot == T(0)) {
            if (!wrong) wrong = whole(k + 1);
            continue;
        }
        for (int64_t i = k + 1; i < m; ++i) *a.at(i, k) /= pivot;
        for (int64_t j = k + 1; j < n; ++j) {
            const T factor = *a.at(k, j);
            for (int64_t i = k + 1; i < m; ++i) *a.at(i, j) -= *a.at(i, k) * factor;
        }
    }
    return wrong;
}

template <class T, class Pivot>
int lu(const Context& context, int64_t m, int64_t n, uint64_t A, int64_t lda, uint64_t pivots,
       uint64_t info) {
    const int64_t least = std::min(m, n);
    return submit<T>(context, 1, area(m, n) * static_cast<double>(least) / (pivots ? 2 : 0.5), area(m, n),
                     [=](uint64_t, const Access& access) {
                         const auto getrf =
                             GPUKERNEL_BLAS(T, "getrf", const int*, const int*, T*, const int*, int*, int*);
                         Copy<T> a(access, A, lda, m, n, true, "A");
                         const int mi = whole(m), ni = whole(n), la = a.ld();
                         int wrong = 0;
                         if (pivots) {
                             Room<int> exchanged(static_cast<size_t>(std::max<int64_t>(least, 1)));
                             getrf(&mi, &ni, a.data(), &la, exchanged.data(), &wrong);
                             const Room<Pivot> as_told(exchanged.begin(), exchanged.end());
                             put(access, pivots, as_told.data(), least, "the pivots");
                         } else {
                             wrong = unpivoted(m, n, a);
                         }
                         a.store(access, A, lda, m, n, "A");
                         tell(access, info, 0, wrong);
                     });
}
template <class T>
int getrf(const Context& context, int64_t m, int64_t n, uint64_t A, int64_t lda, uint64_t, uint64_t pivots,
          uint64_t info) {
    return lu<T, int>(context, m, n, A, lda, pivots, info);
}

template <class T, class Pivot>
int lu_solve(const Context& context, int trans, int64_t n, int64_t nrhs, uint64_t A, int64_t lda,
             uint64_t pivots, uint64_t B, int64_t ldb, uint64_t info) {
    return submit<T>(
        context, 1, area(n, n) * static_cast<double>(nrhs), area(n, n + nrhs),
        [=](uint64_t, const Access& access) {
            const auto getrs = GPUKERNEL_BLAS(T, "getrs", const char*, const int*, const int*, const T*,
                                              const int*, const int*, T*, const int*, int*, size_t);
            Copy<T> a(access, A, lda, n, n, false, "A"), b(access, B, ldb, n, nrhs, true, "B");
            Room<int> exchanged(static_cast<size_t>(std::max<int64_t>(n, 1)));
            if (pivots) {
                const auto told = get<Pivot>(access, pivots, n, "the pivots");
                for (int64_t i = 0; i < n; ++i) {
                    const auto row = told[static_cast<size_t>(i)];
                    if (row < i + 1 || row > n)  // LAPACK follows it
                        throw OutOfBounds{pivots, static_cast<uint64_t>(n), "a row that a pivot names"};
                    exchanged[static_cast<size_t>(i)] = static_cast<int>(row);
                }
            } else {
                for (int64_t i = 0; i < n; ++i) exchanged[static_cast<size_t>(i)] = whole(i + 1);
            }
            const char letter = !complex_type<T> && trans ? 'T' : "NTC"[trans];
            const int ni = whole(n), columns = whole(nrhs), la = a.ld(), lb = b.ld();
            int wrong = 0;
            getrs(&letter, &ni, &columns, a.data(), &la, exchanged.data(), b.data(), &lb, &wrong, 1);
            b.store(access, B, ldb, n, nrhs, "B");
            tell(access, info, 0, wrong);
        });
}
template <class T>
int getrs(const Context& context, int trans, int64_t n, int64_t nrhs, uint64_t A, int64_t lda,
          uint64_t pivots, uint64_t B, int64_t ldb, uint64_t info) {
    return lu_solve<T, int>(context, trans, n, nrhs, A, lda, pivots, B, ldb, info);
}

// --- QR ---

template <class T>
int geqrf(const Context& context, int64_t m, int64_t n, uint64_t A, int64_t lda, uint64_t tau, uint64_t,
          int64_t, uint64_t info) {
    const int64_t least = std::min(m, n);
    return submit<T>(context, 1, area(m, n) * static_cast<double>(least), area(m, n + 64),
                     [=](uint64_t, const Access& access) {
                         const auto geqrf = GPUKERNEL_BLAS(T, "geqrf", const int*, const int*, T*, const int*,
                                                           T*, T*, const int*, int*);
                         Copy<T> a(access, A, lda, m, n, true, "A"), factors(least, 1);
                         const int mi = whole(m), ni = whole(n), la = a.ld();
                         int wrong = 0;
                         with_workspace<T>([&](T* work, int size) {
                             geqrf(&mi, &ni, a.data(), &la, factors.data(), work, &size, &wrong);
                         });
                         put(access, tau, factors.data(), least, "tau");
                         a.store(access, A, lda, m, n, "A");
                         tell(access, info, 0, wrong);
                     });
}

template <class T>
int orgqr(const Context& context, int64_t m, int64_t n, int64_t k, uint64_t A, int64_t lda, uint64_t tau,
          uint64_t, int64_t, uint64_t info) {
    return submit<T>(context, 1, area(m, n) * 2 * static_cast<double>(k), area(m, n + 64),
                     [=](uint64_t, const Access& access) {
                         const auto orgqr = GPUKERNEL_BLAS(
                             T, std::string(complex_type<T> ? "ungqr" : "orgqr"), const int*, const int*,
                             const int*, T*, const int*, const T*, T*, const int*, int*);
                         Copy<T> a(access, A, lda, m, n, true, "A");
                         const auto factors = get<T>(access, tau, k, "tau");
                         const int mi = whole(m), ni = whole(n), ki = whole(k), la = a.ld();
                         int wrong = 0;
                         with_workspace<T>([&](T* work, int size) {
                             orgqr(&mi, &ni, &ki, a.data(), &la, factors.data(), work, &size, &wrong);
                         });
                         a.store(access, A, lda, m, n, "A");
                         tell(access, info, 0, wrong);
                     });
}

template <class T>
int ormqr(const Context& context, int side, int trans, int64_t m, int64_t n, int64_t k, uint64_t A,
          int64_t lda, uint64_t tau, uint64_t C, int64_t ldc, uint64_t, int64_t, uint64_t info) {
    if (complex_type<T> && trans == cublas::OP_T) return INVALID_VALUE;
    const int64_t rows = side ? n : m;
    return submit<T>(context, 1, area(m, n) * 2 * static_cast<double>(k), area(rows, k) + area(m, n + 64),
                     [=](uint64_t, const Access& access) {
                         const auto ormqr = GPUKERNEL_BLAS(
                             T, std::string(complex_type<T> ? "unmqr" : "ormqr"), const char*, const char*,
                             const int*, const int*, const int*, const T*, const int*, const T*, T*,
                             const int*, T*, const int*, int*, size_t, size_t);
                         Copy<T> a(access, A, lda, rows, k, false, "A"), c(access, C, ldc, m, n, true, "C");
                         const auto factors = get<T>(access, tau, k, "tau");
                         const char sides = side ? 'R' : 'L', letter = trans == cublas::OP_N ? 'N'
                                                                       : complex_type<T>     ? 'C'
                                                                                             : 'T';
                         const int mi = whole(m), ni = whole(n), ki = whole(k), la = a.ld(), lc = c.ld();
                         int wrong = 0;
                         with_workspace<T>([&](T* work, int size) {
                             ormqr(&sides, &letter, &mi, &ni, &ki, a.data(), &la, factors.data(), c.data(),
                                   &lc, work, &size, &wrong, 1, 1);
                         });
                         c.store(access, C, ldc, m, n, "C");
                         tell(access, info, 0, wrong);
                     });
}

// --- of a type that is told ---

inline int potrf_of_type(const Context& context, int uplo, int64_t n, int type, uint64_t A, int64_t lda, int,
                         uint64_t work, size_t, size_t, uint64_t info) {
    return of_type(type, [&]<class T>(T) { return potrf<T>(context, uplo, n, A, lda, work, 0, info); });
}
inline int potrs_of_type(const Context& context, int uplo, int64_t n, int64_t nrhs, int type, uint64_t A,
                         int64_t lda, int, uint64_t B, int64_t ldb, uint64_t info) {
    return of_type(type, [&]<class T>(T) { return potrs<T>(context, uplo, n, nrhs, A, lda, B, ldb, info); });
}
inline int getrf_of_type(const Context& context, int64_t m, int64_t n, int type, uint64_t A, int64_t lda,
                         uint64_t pivots, int, uint64_t, size_t, size_t, uint64_t info) {
    return of_type(type, [&]<class T>(T) { return lu<T, int64_t>(context, m, n, A, lda, pivots, info); });
}
inline int getrs_of_type(const Context& context, int trans, int64_t n, int64_t nrhs, int type, uint64_t A,
                         int64_t lda, uint64_t pivots, int, uint64_t B, int64_t ldb, uint64_t info) {
    return of_type(type, [&]<class T>(T) {
        return lu_solve<T, int64_t>(context, trans, n, nrhs, A, lda, pivots, B, ldb, info);
    });
}
inline int geqrf_of_type(const Context& context, int64_t m, int64_t n, int type, uint64_t A, int64_t lda, int,
                         uint64_t tau, int, uint64_t work, size_t, size_t, uint64_t info) {
    return of_type(type, [&]<class T>(T) { return geqrf<T>(context, m, n, A, lda, tau, work, 0, info); });
}

}  // namespace gpukernel::simgpu_libraries::cusolver
