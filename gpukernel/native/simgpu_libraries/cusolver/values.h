// Eigenvalues and singular values.
#pragma once

#include "simgpu_libraries/cusolver/context.h"

namespace gpukernel::simgpu_libraries::cusolver {

template <class T>
int sytrd(const Context& context, int uplo, int64_t n, uint64_t A, int64_t lda, uint64_t d, uint64_t e,
          uint64_t tau, uint64_t, int64_t, uint64_t info) {
    return submit<T>(context, 1, cube(n) * 2 / 3, area(n, n + 64), [=](uint64_t, const Access& access) {
        const auto sytrd =
            GPUKERNEL_BLAS(T, std::string(complex_type<T> ? "hetrd" : "sytrd"), const char*, const int*, T*,
                           const int*, Real<T>*, Real<T>*, T*, T*, const int*, int*, size_t);
        Copy<T> a(access, A, lda, n, n, true, "A"), factors(n, 1);
        Copy<Real<T>> diagonal(n, 1), beside(n, 1);
        const char letter = half(uplo);
        const int ni = whole(n), la = a.ld();
        int wrong = 0;
        with_workspace<T>([&](T* work, int size) {
            sytrd(&letter, &ni, a.data(), &la, diagonal.data(), beside.data(), factors.data(), work, &size,
                  &wrong, 1);
        });
        put(access, d, diagonal.data(), n, "d");
        put(access, e, beside.data(), n - 1, "e");
        put(access, tau, factors.data(), n - 1, "tau");
        a.store_triangle(A, lda, n, uplo);
        tell(access, info, 0, wrong);
    });
}

// Workspaces of LAPACK's divide and conquer, by its documentation.
template <class T>
struct Divided {
    Room<T> work;
    Room<Real<T>> real_work;
    Room<int> integers;
    explicit Divided(int64_t n)
        : work(static_cast<size_t>(complex_type<T> ? 2 * n + n * n + 1 : 1 + 6 * n + 2 * n * n)),
          real_work(static_cast<size_t>(complex_type<T> ? 1 + 5 * n + 2 * n * n : 1)),
          integers(static_cast<size_t>(3 + 5 * n)) {}
};

template <class T>
void syevd_one(const Access& access, int jobz, int uplo, int64_t n, uint64_t A, int64_t lda, uint64_t W,
               uint64_t info, uint64_t number) {
    Copy<T> a(access, A, lda, n, n, true, "A");
    Copy<Real<T>> values(n, 1);
    Divided<T> room(n);
    const char job = jobz ? 'V' : 'N', letter = half(uplo);
    const int ni = whole(n), la = a.ld(), size = whole(static_cast<int64_t>(room.work.size())),
              reals = whole(static_cast<int64_t>(room.real_work.size())),
              integers = whole(static_cast<int64_t>(room.integers.size()));
    int wrong = 0;
    if (!a.finite(n, uplo)) {
        a.spoil(), values.spoil(), wrong = 1;
    } else if constexpr (complex_type<T>) {
        const auto heevd =
            GPUKERNEL_BLAS(T, "heevd", const char*, const char*, const int*, T*, const int*, Real<T>*, T*,
                           const int*, Real<T>*, const int*, int*, const int*, int*, size_t, size_t);
        heevd(&job, &letter, &ni, a.data(), &la, values.data(), room.work.data(), &size,
              room.real_work.data(), &reals, room.integers.data(), &integers, &wrong, 1, 1);
    } else {
        const auto syevd = GPUKERNEL_BLAS(T, "syevd", const char*, const char*, const int*, T*, const int*,
                                          T*, T*, const int*, int*, const int*, int*, size_t, size_t);
        syevd(&job, &letter, &ni, a.data(), &la, values.data(), room.work.data(), &size, room.integers.data(),
              &integers, &wrong, 1, 1);
    }
    put(access, W, values.data(), n, "W");
    if (jobz) a.store(access, A, lda, n, n, "A");
    tell(access, info, number, wrong);
}
inline double eigenvalues_cost(int jobz, int64_t n) { return cube(n) * (jobz ? 4 : 1); }

template <class T>
int syevd_batched(const Context& context, int jobz, int uplo, int64_t n, uint64_t A, int64_t lda, uint64_t W,
                  uint64_t, int64_t, uint64_t info, int64_t batch) {
    return submit<T>(context, batch, eigenvalues_cost(jobz, n), 4 * area(n, n),
                     [=](uint64_t number, const Access& access) {
                         const auto matrix = static_cast<uint64_t>(lda * n) * sizeof(T),
                                    values = static_cast<uint64_t>(n) * sizeof(Real<T>);
                         syevd_one<T>(access, jobz, uplo, n, A + number * matrix, lda, W + number * values,
                                      info, number);
                     });
}
template <class T>
int syevd(const Context& context, int jobz, int uplo, int64_t n, uint64_t A, int64_t lda, uint64_t W,
          uint64_t work, int64_t size, uint64_t info) {
    return syevd_batched<T>(context, jobz, uplo, n, A, lda, W, work, size, info, 1);
}

template <class T>
int sygvd(const Context& context, int itype, int jobz, int uplo, int64_t n, uint64_t A, int64_t lda,
          uint64_t B, int64_t ldb, uint64_t W, uint64_t, int64_t, uint64_t info) {
    return submit<T>(context, 1, eigenvalues_cost(jobz, n) + 2 * cube(n), 5 * area(n, n),
                     [=](uint64_t, const Access& access) {
                         Copy<T> a(access, A, lda, n, n, true, "A"), b(access, B, ldb, n, n, true, "B");
                         Copy<Real<T>> values(n, 1);
                         Divided<T> room(n);
                         const char job = jobz ? 'V' : 'N', letter = half(uplo);
                         const int type = itype, ni = whole(n), la = a.ld(), lb = b.ld(),
                                   size = whole(static_cast<int64_t>(room.work.size())),
                                   reals = whole(static_cast<int64_t>(room.real_work.size())),
                                   integers = whole(static_cast<int64_t>(room.integers.size()));
                         int wrong = 0;
                         if (!a.finite(n, uplo) || !b.finite(n, uplo)) {
                             a.spoil(), values.spoil(), wrong = 1;
                         } else if constexpr (complex_type<T>) {
                             const auto hegvd =
                                 GPUKERNEL_BLAS(T, "hegvd", const int*, const char*, const char*, const int*,
                                                T*, const int*, T*, const int*, Real<T>*, T*, const int*,
                                                Real<T>*, const int*, int*, const int*, int*, size_t, size_t);
                             hegvd(&type, &job, &letter, &ni, a.data(), &la, b.data(), &lb, values.data(),
                                   room.work.data(), &size, room.real_work.data(), &reals,
                                   room.integers.data(), &integers, &wrong, 1, 1);
                         } else {
                             const auto sygvd = GPUKERNEL_BLAS(
                                 T, "sygvd", const int*, const char*, const char*, const int*, T*, const int*,
                                 T*, const int*, T*, T*, const int*, int*, const int*, int*, size_t, size_t);
                             sygvd(&type, &job, &letter, &ni, a.data(), &la, b.data(), &lb, values.data(),
                                   room.work.data(), &size, room.integers.data(), &integers, &wrong, 1, 1);
                         }
                         put(access, W, values.data(), n, "W");
                         if (jobz) a.store(access, A, lda, n, n, "A");
                         b.store_triangle(B, ldb, n, uplo);
                         tell(access, info, 0, wrong);
                     });
}

// --- singular values ---

// What one decomposition is given: U has `u_columns`, V (or its conjugate transpose) `v_columns`.
struct Singular {
    char u, vt;  // LAPACK's letters: A, S, O, N
    int64_t m, n;
    uint64_t A;
    int64_t lda;
    uint64_t S, U;
    int64_t ldu;
    uint64_t V;
    int64_t ldv;
    bool transposed;  // the third factor as it is multiplied, and not V
    uint64_t info, number;
    int64_t most = INT64_MAX;  // of the values and their vectors
};
// LAPACK's divide and conquer gives all vectors or none; by its side the other algorithm takes seven times as
// long.
inline bool divides(const Singular& s) { return s.u == s.vt && s.u != 'O'; }
inline double singular_cost(const Singular& s) {
    const int64_t least = std::min(s.m, s.n);
    return area(s.m, s.n) * static_cast<double>(least) *
           (s.u == 'N' && s.vt == 'N' ? 4
            : divides(s)              ? 20
                                      : 80);
}
inline double singular_elements(const Singular& s) {
    const int64_t least = std::min(s.m, s.n);
    return area(s.m, s.n) * 3 + (divides(s) ? area(least, 5 * least) : 0) +
           (s.u == 'A' ? area(s.m, s.m) : 0) + (s.vt == 'A' ? area(s.n, s.n) : 0);
}

template <class T>
void divide(const Singular& s, Copy<T>& a, Real<T>* values, Copy<T>& u, Copy<T>& vt, int& wrong) {
    const int m = whole(s.m), n = whole(s.n), la = a.ld(), lu = u.ld(), lv = vt.ld();
    const auto least = static_cast<size_t>(std::min(m, n)), most = static_cast<size_t>(std::max(m, n));
    Room<int> integers(8 * least);
    with_workspace<T>([&](T* work, int size) {
        if constexpr (complex_type<T>) {
            const auto gesdd =
                GPUKERNEL_BLAS(T, "gesdd", const char*, const int*, const int*, T*, const int*, Real<T>*, T*,
                               const int*, T*, const int*, T*, const int*, Real<T>*, int*, int*, size_t);
            Room<Real<T>> reals(size < 0 ? 1
                                         : std::max(5 * least * least + 5 * least,
                                                    2 * most * least + 2 * least * least + least));
            gesdd(&s.u, &m, &n, a.data(), &la, values, u.data(), &lu, vt.data(), &lv, work, &size,
                  reals.data(), integers.data(), &wrong, 1);
        } else {
            const auto gesdd =
                GPUKERNEL_BLAS(T, "gesdd", const char*, const int*, const int*, T*, const int*, T*, T*,
                               const int*, T*, const int*, T*, const int*, int*, int*, size_t);
            gesdd(&s.u, &m, &n, a.data(), &la, values, u.data(), &lu, vt.data(), &lv, work, &size,
                  integers.data(), &wrong, 1);
        }
    });
}

template <class T>
void decompose(const Access& access, const Singular& s) {
    const int64_t m = s.m, n = s.n, least = std::min(m, n);
    const bool over = s.u == 'O' || s.vt == 'O';
    const int64_t u_columns = s.u == 'A'   ? m
                              : s.u == 'S' ? least
                                           : 0,
                  v_rows = s.vt == 'A'   ? n
                           : s.vt == 'S' ? least
                                         : 0;
    Copy<T> a(access, s.A, s.lda, m, n, true, "A"), u(m, u_columns), vt(v_rows, v_rows ? n : 0);
    Copy<Real<T>> values(least, 1), real_work(5 * least, 1);
    const int mi = whole(m), ni = whole(n), la = a.ld(), lu = u.ld(), lv = vt.ld();
    int wrong = 0;
    if (!a.finite())
        a.spoil(), u.spoil(), vt.spoil(), values.spoil(), wrong = 1;
    else if (least && divides(s))
        divide<T>(s, a, values.data(), u, vt, wrong);
    else if (least)
        with_workspace<T>([&](T* work, int size) {
            if constexpr (complex_type<T>) {
                const auto gesvd = GPUKERNEL_BLAS(T, "gesvd", const char*, const char*, const int*,
                                                  const int*, T*, const int*, Real<T>*, T*, const int*, T*,
                                                  const int*, T*, const int*, Real<T>*, int*, size_t, size_t);
                gesvd(&s.u, &s.vt, &mi, &ni, a.data(), &la, values.data(), u.data(), &lu, vt.data(), &lv,
                      work, &size, real_work.data(), &wrong, 1, 1);
            } else {
                const auto gesvd = GPUKERNEL_BLAS(T, "gesvd", const char*, const char*, const int*,
                                                  const int*, T*, const int*, T*, T*, const int*, T*,
                                                  const int*, T*, const int*, int*, size_t, size_t);
                gesvd(&s.u, &s.vt, &mi, &ni, a.data(), &la, values.data(), u.data(), &lu, vt.data(), &lv,
                      work, &size, &wrong, 1, 1);
            }
        });
    put(access, s.S, values.data(), std::min(least, s.most), "S");
    if (u_columns) u.store(access, s.U, s.ldu, m, std::min(u_columns, s.most), "U");
    if (v_rows && s.transposed) vt.store(access, s.V, s.ldv, v_rows, n, "VT");
    if (v_rows && !s.transposed) {
        Copy<T> v(n, v_rows);
        for (int64_t i = 0; i < v_rows; ++i)
            for (int64_t j = 0; j < n; ++j) *v.at(j, i) = cublas::conjugate(*vt.at(i, j));
        v.store(access, s.V, s.ldv, n, std::min(v_rows, s.most), "V");
    }
    if (over) a.store(access, s.A, s.lda, m, n, "A");
    tell(access, s.info, s.number, wrong);
}

template <class T>
int gesvd(const Context& context, signed char jobu, signed char jobvt, int64_t m, int64_t n, uint64_t A,
          int64_t lda, uint64_t values, uint64_t U, int64_t ldu, uint64_t VT, int64_t ldvt, uint64_t, int64_t,
          uint64_t, uint64_t info) {
    const Singular s{static_cast<char>(jobu),
                     static_cast<char>(jobvt),
                     m,
                     n,
                     A,
                     lda,
                     values,
                     U,
                     ldu,
                     VT,
                     ldvt,
                     true,
                     info,
                     0};
    return submit<T>(context, 1, singular_cost(s), singular_elements(s),
                     [=](uint64_t, const Access& access) { decompose<T>(access, s); });
}
template <class T>
int gesvdj(const Context& context, int jobz, int econ, int64_t m, int64_t n, uint64_t A, int64_t lda,
           uint64_t values, uint64_t U, int64_t ldu, uint64_t V, int64_t ldv, uint64_t, int64_t,
           uint64_t info) {
    const char job = !jobz ? 'N' : econ ? 'S' : 'A';
    const Singular s{job, job, m, n, A, lda, values, U, ldu, V, ldv, false, info, 0};
    return submit<T>(context, 1, singular_cost(s), singular_elements(s),
                     [=](uint64_t, const Access& access) { decompose<T>(access, s); });
}
template <class T>
int gesvdj_batched(const Context& context, int jobz, int64_t m, int64_t n, uint64_t A, int64_t lda,
                   uint64_t values, uint64_t U, int64_t ldu, uint64_t V, int64_t ldv, uint64_t, int64_t,
                   uint64_t info, int64_t batch) {
    const char job = jobz ? 'A' : 'N';
    const Singular first{job, job, m, n, A, lda, values, U, ldu, V, ldv, false, info, 0};
    return submit<T>(context, batch, singular_cost(first), singular_elements(first),
                     [=](uint64_t number, const Access& access) {
                         Singular s = first;
                         const auto bytes = [number](int64_t elements, size_t of) {
                             return number * static_cast<uint64_t>(elements) * of;
                         };
                         s.number = number;
                         s.A += bytes(lda * n, sizeof(T)), s.S += bytes(std::min(m, n), sizeof(Real<T>));
                         s.U += bytes(ldu * m, sizeof(T)), s.V += bytes(ldv * n, sizeof(T));
                         decompose<T>(access, s);
                     });
}

template <class T>
int gesvda_batched(const Context& context, int jobz, int64_t rank, int64_t m, int64_t n, uint64_t A,
                   int64_t lda, int64_t step_a, uint64_t values, int64_t step_s, uint64_t U, int64_t ldu,
                   int64_t step_u, uint64_t V, int64_t ldv, int64_t step_v, uint64_t, int64_t, uint64_t info,
                   int64_t batch) {
    const char job = jobz ? 'S' : 'N';
    const Singular first{job, job, m, n, A, lda, values, U, ldu, V, ldv, false, info, 0, rank};
    return submit<T>(context, batch, singular_cost(first), singular_elements(first),
                     [=](uint64_t number, const Access& access) {
                         Singular s = first;
                         const auto bytes = [number](int64_t step, size_t of) {
                             return number * static_cast<uint64_t>(step) * of;
                         };
                         s.number = number;
                         s.A += bytes(step_a, sizeof(T)), s.S += bytes(step_s, sizeof(Real<T>));
                         s.U += bytes(step_u, sizeof(T)), s.V += bytes(step_v, sizeof(T));
                         decompose<T>(access, s);
                     });
}

// --- eigenvalues of any matrix ---

// Of a real matrix the values are complex, or real parts and then imaginary ones; vectors are packed as
// LAPACK packs them.
template <class T>
int geev(const Context& context, int jobvr, int64_t n, uint64_t A, int64_t lda, bool complex_values,
         uint64_t W, uint64_t VR, int64_t ldvr, uint64_t info) {
    return submit<T>(
        context, 1, cube(n) * (jobvr ? 25 : 10), 3 * area(n, n), [=](uint64_t, const Access& access) {
            Copy<T> a(access, A, lda, n, n, true, "A"), right(jobvr ? n : 1, jobvr ? n : 1);
            const char none = 'N', job = jobvr ? 'V' : 'N';
            const int ni = whole(n), la = a.ld(), one = 1, lr = right.ld();
            T unused{};
            int wrong = 0;
            using Complex = std::complex<Real<T>>;
            Copy<Complex> values(n, 1);
            if (!a.finite()) {
                values.spoil(), right.spoil(), wrong = 1;
                put(access, W, values.data(), complex_type<T> || complex_values ? n : 0, "W");
                if (!complex_type<T> && !complex_values) {
                    Copy<T> parts(2 * n, 1);
                    parts.spoil();
                    put(access, W, parts.data(), 2 * n, "W");
                }
            } else if constexpr (complex_type<T>) {
                const auto geev = GPUKERNEL_BLAS(T, "geev", const char*, const char*, const int*, T*,
                                                 const int*, T*, T*, const int*, T*, const int*, T*,
                                                 const int*, Real<T>*, int*, size_t, size_t);
                Copy<Real<T>> real_work(2 * n, 1);
                with_workspace<T>([&](T* work, int size) {
                    geev(&none, &job, &ni, a.data(), &la, values.data(), &unused, &one, right.data(), &lr,
                         work, &size, real_work.data(), &wrong, 1, 1);
                });
                put(access, W, values.data(), n, "W");
            } else {
                const auto geev =
                    GPUKERNEL_BLAS(T, "geev", const char*, const char*, const int*, T*, const int*, T*, T*,
                                   T*, const int*, T*, const int*, T*, const int*, int*, size_t, size_t);
                Copy<T> parts(2 * n, 1);
                with_workspace<T>([&](T* work, int size) {
                    geev(&none, &job, &ni, a.data(), &la, parts.data(), parts.data() + n, &unused, &one,
                         right.data(), &lr, work, &size, &wrong, 1, 1);
                });
                for (int64_t i = 0; i < n; ++i) *values.at(i, 0) = {*parts.at(i, 0), *parts.at(n + i, 0)};
                if (complex_values)
                    put(access, W, values.data(), n, "W");
                else
                    put(access, W, parts.data(), 2 * n, "W");
            }
            if (jobvr) right.store(access, VR, ldvr, n, n, "VR");
            tell(access, info, 0, wrong);
        });
}

// --- of a type that is told ---

inline int syevd_batched_of_type(const Context& context, int jobz, int uplo, int64_t n, int type, uint64_t A,
                                 int64_t lda, int, uint64_t W, int, uint64_t work, size_t, size_t,
                                 uint64_t info, int64_t batch) {
    return of_type(type, [&]<class T>(T) {
        return syevd_batched<T>(context, jobz, uplo, n, A, lda, W, work, 0, info, batch);
    });
}
inline int syevd_of_type(const Context& context, int jobz, int uplo, int64_t n, int type, uint64_t A,
                         int64_t lda, int w, uint64_t W, int compute, uint64_t work, size_t a, size_t b,
                         uint64_t info) {
    return syevd_batched_of_type(context, jobz, uplo, n, type, A, lda, w, W, compute, work, a, b, info, 1);
}
inline int gesvd_of_type(const Context& context, signed char jobu, signed char jobvt, int64_t m, int64_t n,
                         int type, uint64_t A, int64_t lda, int, uint64_t values, int, uint64_t U,
                         int64_t ldu, int, uint64_t VT, int64_t ldvt, int, uint64_t work, size_t, size_t,
                         uint64_t info) {
    return of_type(type, [&]<class T>(T) {
        return gesvd<T>(context, jobu, jobvt, m, n, A, lda, values, U, ldu, VT, ldvt, work, 0, 0, info);
    });
}
inline int gesvdp_of_type(const Context& context, int jobz, int econ, int64_t m, int64_t n, int type,
                          uint64_t A, int64_t lda, int, uint64_t values, int, uint64_t U, int64_t ldu, int,
                          uint64_t V, int64_t ldv, int, uint64_t work, size_t, size_t, uint64_t info) {
    return of_type(type, [&]<class T>(T) {
        return gesvdj<T>(context, jobz, econ, m, n, A, lda, values, U, ldu, V, ldv, work, 0, info);
    });
}
inline int geev_of_type(const Context& context, int, int jobvr, int64_t n, int type, uint64_t A, int64_t lda,
                        int w_type, uint64_t W, int, uint64_t, int64_t, int, uint64_t VR, int64_t ldvr, int,
                        uint64_t, size_t, size_t, uint64_t info) {
    const bool complex_values = w_type == cublas::C_32F || w_type == cublas::C_64F;
    return of_type(type, [&]<class T>(T) {
        return geev<T>(context, jobvr, n, A, lda, complex_values, W, VR, ldvr, info);
    });
}

}  // namespace gpukernel::simgpu_libraries::cusolver
