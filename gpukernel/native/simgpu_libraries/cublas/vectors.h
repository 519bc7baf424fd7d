// cuBLAS's functions on vectors, and on a matrix and vectors.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "simgpu_libraries/cublas/context.h"

namespace gpukernel::simgpu_libraries::cublas {

constexpr int64_t STRETCH = 1 << 17;                  // elements of a piece
constexpr int64_t MOST_SUMMED = STRETCH * (1 << 20);  // of a reduction, which keeps a part for each piece
constexpr int64_t MOST_IN_ORDER = 1 << 24;            // by one piece, which nothing can pause

// Runs `work(first, end, access)` for stretches of 0 … n.
template <class Work>
int in_stretches(const Context& context, int64_t n, Work work, uint64_t kept = 0) {
    const auto piece = [n, work](uint64_t number, const Access& access) {
        const int64_t first = static_cast<int64_t>(number) * STRETCH;
        work(first, n - first < STRETCH ? n : first + STRETCH, access);
    };
    return submit(context, parts(n, STRETCH), piece, kept);
}

template <class T>
int axpy(const Context& context, int64_t n, Scalar alpha, uint64_t x, int64_t incx, uint64_t y,
         int64_t incy) {
    const Vector<T> from(x, n, incx), to(y, n, incy);
    // Increments of 0 add up in one place: in order, by one thread.
    const auto work = [=](int64_t first, int64_t end, const Access& access) {
        from.check(access, first, end, false, "x"), to.check(access, first, end, true, "y");
        const T a = alpha.get<T>(access);
        for (int64_t i = first; i < end; ++i) to[i] += a * from[i];
    };
    if (incy) return in_stretches(context, n, work);
    if (n > MOST_IN_ORDER) return too_long(context, MOST_IN_ORDER);
    return submit(context, n > 0, [=](uint64_t, const Access& access) { work(0, n, access); });
}

template <class T>
int copy(const Context& context, int64_t n, uint64_t x, int64_t incx, uint64_t y, int64_t incy) {
    const Vector<T> from(x, n, incx), to(y, n, incy);
    return in_stretches(context, n, [=](int64_t first, int64_t end, const Access& access) {
        from.check(access, first, end, false, "x"), to.check(access, first, end, true, "y");
        for (int64_t i = first; i < end; ++i) to[i] = from[i];
    });
}

template <class T>
int swap(const Context& context, int64_t n, uint64_t x, int64_t incx, uint64_t y, int64_t incy) {
    const Vector<T> one(x, n, incx), other(y, n, incy);
    return in_stretches(context, n, [=](int64_t first, int64_t end, const Access& access) {
        one.check(access, first, end, true, "x"), other.check(access, first, end, true, "y");
        for (int64_t i = first; i < end; ++i) std::swap(one[i], other[i]);
    });
}

template <class T, class A>
int scal(const Context& context, int64_t n, Scalar alpha, uint64_t x, int64_t incx) {
    if (incx <= 0) return SUCCESS;
    const Vector<T> of(x, n, incx);
    return in_stretches(context, n, [=](int64_t first, int64_t end, const Access& access) {
        of.check(access, first, end, true, "x");
        const A a = alpha.get<A>(access);
        for (int64_t i = first; i < end; ++i) of[i] *= a;
    });
}

template <class T, class B>
int rot(const Context& context, int64_t n, uint64_t x, int64_t incx, uint64_t y, int64_t incy, Scalar c,
        Scalar s) {
    const Vector<T> one(x, n, incx), other(y, n, incy);
    return in_stretches(context, n, [=](int64_t first, int64_t end, const Access& access) {
        one.check(access, first, end, true, "x"), other.check(access, first, end, true, "y");
        const auto cosine = c.get<Real<T>>(access);
        const B sine = s.get<B>(access);
        for (int64_t i = first; i < end; ++i) {
            const T a = one[i], b = other[i];
            one[i] = cosine * a + sine * b;
            other[i] = cosine * b - conjugate(sine) * a;
        }
    });
}

template <class T>
int rotm(const Context& context, int64_t n, uint64_t x, int64_t incx, uint64_t y, int64_t incy,
         Scalar param) {
    const Vector<T> one(x, n, incx), other(y, n, incy);
    return in_stretches(context, n, [=](int64_t first, int64_t end, const Access& access) {
        one.check(access, first, end, true, "x"), other.check(access, first, end, true, "y");
        const T flag = param.get<T>(access);
        T h[4];
        for (size_t i = 0; i < 4; ++i) h[i] = param.get<T>(access, i + 1);  // h11 h21 h12 h22
        if (flag == -2) return;
        if (flag == 0) h[0] = h[3] = 1;
        if (flag == 1) h[2] = 1, h[1] = -1;
        for (int64_t i = first; i < end; ++i) {
            const T a = one[i], b = other[i];
            one[i] = h[0] * a + h[2] * b;
            other[i] = h[1] * a + h[3] * b;
        }
    });
}

// --- reductions: each piece makes one part, the last work combines them ---

template <class Part, class Make, class Combine>
int reduce(const Context& context, int64_t n, const Result& result, Make make, Combine combine) {
    if (n > MOST_SUMMED) return too_long(context, MOST_SUMMED);
    const uint64_t pieces = parts(n, STRETCH), kept = pieces * sizeof(Part);
    auto all = std::make_shared<Room<Part>>(pieces);
    const auto part = [all, make](int64_t first, int64_t end, const Access& access) {
        (*all)[static_cast<size_t>(first / STRETCH)] = make(first, end, access);
    };
    int status = in_stretches(context, n, part, kept);
    const auto last = [all, combine](uint64_t, const Access& access) { combine(*all, access); };
    if (!status) status = submit(context, 1, last, kept);
    return result.finish(context, status);
}

// Sums are made in double precision.
template <class T>
using Wide = std::conditional_t<complex_type<T>, Z, D>;

template <class T, bool CONJUGATED>
int dot(const Context& context, int64_t n, uint64_t x, int64_t incx, uint64_t y, int64_t incy,
        Result result) {
    const Vector<T> one(x, n, incx), other(y, n, incy);
    return reduce<Wide<T>>(
        context, n, result,
        [=](int64_t first, int64_t end, const Access& access) {
            one.check(access, first, end, false, "x"), other.check(access, first, end, false, "y");
            Wide<T> sum{};
            for (int64_t i = first; i < end; ++i)
                sum += Wide<T>(CONJUGATED ? conjugate(one[i]) : one[i]) * Wide<T>(other[i]);
            return sum;
        },
        [=](const Room<Wide<T>>& all, const Access& access) {
            Wide<T> sum{};
            for (const Wide<T>& part : all) sum += part;
            result.set(access, T(sum));
        });
}

template <class T>
int nrm2(const Context& context, int64_t n, uint64_t x, int64_t incx, Result result) {
    const Vector<T> of(x, incx > 0 ? n : 0, incx);
    // Scaled by the largest, so that no square overflows.
    struct Part {
        double scale = 0, squares = 0;
        void add(double value) {
            const double size = std::fabs(value);
            if (size == 0) return;
            if (std::isnan(size) || std::isinf(size)) {
                squares = std::isnan(size) || std::isnan(squares) ? NAN : INFINITY, scale = 1;
            } else if (scale < size) {
                squares = 1 + squares * (scale / size) * (scale / size), scale = size;
            } else {
                squares += (size / scale) * (size / scale);
            }
        }
    };
    return reduce<Part>(
        context, incx > 0 ? n : 0, result,
        [=](int64_t first, int64_t end, const Access& access) {
            of.check(access, first, end, false, "x");
            Part part;
            for (int64_t i = first; i < end; ++i) {
                if constexpr (complex_type<T>)
                    part.add(of[i].real()), part.add(of[i].imag());
                else
                    part.add(of[i]);
            }
            return part;
        },
        [=](const Room<Part>& all, const Access& access) {
            Part sum;
            for (const Part& part : all) sum.add(part.scale * std::sqrt(part.squares));
            result.set(access, static_cast<Real<T>>(sum.scale * std::sqrt(sum.squares)));
        });
}

template <class T>
double size_of(T value) {  // as BLAS measures complex numbers
    if constexpr (complex_type<T>)
        return std::fabs(value.real()) + std::fabs(value.imag());
    else
        return std::fabs(value);
}

template <class T>
int asum(const Context& context, int64_t n, uint64_t x, int64_t incx, Result result) {
    const Vector<T> of(x, n, incx);
    return reduce<double>(
        context, incx > 0 ? n : 0, result,
        [=](int64_t first, int64_t end, const Access& access) {
            of.check(access, first, end, false, "x");
            double sum = 0;
            for (int64_t i = first; i < end; ++i) sum += size_of(of[i]);
            return sum;
        },
        [=](const Room<double>& all, const Access& access) {
            double sum = 0;
            for (const double part : all) sum += part;
            result.set(access, static_cast<Real<T>>(sum));
        });
}

// The first of the largest, or of the smallest, counted from 1; 0 where there is none.
template <class T, bool SMALLEST>
int iamax(const Context& context, int64_t n, uint64_t x, int64_t incx, Result result) {
    struct Part {
        double size = SMALLEST ? INFINITY : -1;
        int64_t index = 0;
    };
    const auto better = [](double size, const Part& than) {
        return !than.index || (SMALLEST ? size < than.size : size > than.size);
    };
    const Vector<T> of(x, n, incx);
    return reduce<Part>(
        context, incx > 0 ? n : 0, result,
        [=](int64_t first, int64_t end, const Access& access) {
            of.check(access, first, end, false, "x");
            Part best;
            for (int64_t i = first; i < end; ++i)
                if (const double size = size_of(of[i]); better(size, best)) best = {size, i + 1};
            return best;
        },
        [=](const Room<Part>& all, const Access& access) {
            Part best;
            for (const Part& part : all)
                if (part.index && better(part.size, best)) best = part;
            result.set_index(access, best.index);
        });
}

// --- a matrix and vectors ---

template <class T>
int gemv(const Context& context, int trans, int64_t m, int64_t n, Scalar alpha, uint64_t A, int64_t lda,
         uint64_t x, int64_t incx, Scalar beta, uint64_t y, int64_t incy) {
    if (!m || !n) return SUCCESS;
    const int64_t results = trans ? n : m, terms = trans ? m : n;
    const Matrix<T> a(A, lda);
    const Vector<T> from(x, terms, incx), to(y, results, incy);
    const int64_t block = std::clamp<int64_t>((1 << 20) / terms, 1, 1024);
    return submit(context, parts(results, block), [=](uint64_t number, const Access& access) {
        const int64_t first = static_cast<int64_t>(number) * block, count = std::min(block, results - first);
        const T scale = alpha.get<T>(access), keep = beta.get<T>(access);
        from.check(access, 0, terms, false, "x"), to.check(access, first, first + count, true, "y");
        if (trans)
            a.check(access, 0, first, terms, count, false, "A");
        else
            a.check(access, first, 0, count, terms, false, "A");
        Room<Wide<T>> sums(static_cast<size_t>(count));
        for (int64_t outer = 0; outer < (trans ? count : terms); ++outer) {
            const T* const column = trans ? a.at(0, first + outer) : a.at(first, outer);
            for (int64_t i = 0; i < (trans ? terms : count); ++i) {
                const T element = trans == OP_C ? conjugate(column[i]) : column[i];
                sums[static_cast<size_t>(trans ? outer : i)] +=
                    Wide<T>(element) * Wide<T>(from[trans ? i : outer]);
            }
        }
        for (int64_t i = 0; i < count; ++i) {
            const Wide<T> sum = Wide<T>(scale) * sums[static_cast<size_t>(i)];
            T& place = to[first + i];
            place = keep == T(0) ? T(sum) : T(sum + Wide<T>(keep) * Wide<T>(place));  // beta 0 reads nothing
        }
    });
}

template <class T, bool CONJUGATED>
int ger(const Context& context, int64_t m, int64_t n, Scalar alpha, uint64_t x, int64_t incx, uint64_t y,
        int64_t incy, uint64_t A, int64_t lda) {
    if (!m || !n) return SUCCESS;
    const Matrix<T> a(A, lda);
    const Vector<T> left(x, m, incx), right(y, n, incy);
    const int64_t block = std::clamp<int64_t>((1 << 20) / m, 1, 1024);
    return submit(context, parts(n, block), [=](uint64_t number, const Access& access) {
        const int64_t first = static_cast<int64_t>(number) * block, count = std::min(block, n - first);
        const T scale = alpha.get<T>(access);
        left.check(access, 0, m, false, "x"), right.check(access, first, first + count, false, "y");
        a.check(access, 0, first, m, count, true, "A");
        for (int64_t j = first; j < first + count; ++j) {
            const T factor = scale * (CONJUGATED ? conjugate(right[j]) : right[j]);
            for (int64_t i = 0; i < m; ++i) *a.at(i, j) += left[i] * factor;
        }
    });
}

}  // namespace gpukernel::simgpu_libraries::cublas
