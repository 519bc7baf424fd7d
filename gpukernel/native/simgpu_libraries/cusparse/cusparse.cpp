// libcusparse beside the simulated GPU: handles, tridiagonal systems, sums; the entry points of these and of
// forms.h are generated from libraries/cusparse/calls.txt.
#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "simgpu_libraries/cublas/context.h"
#include "simgpu_libraries/cusparse/context.h"
#include "simgpu_libraries/cusparse/forms.h"
#include "simgpu_libraries/openblas.h"

namespace gpukernel::simgpu_libraries::cusparse {

using cublas::TypeC;
using cublas::TypeD;
using cublas::TypeS;
using cublas::TypeZ;
using libraries::handle_of;
using libraries::LEAST_ROOM;
using libraries::unsupported;

namespace {
struct Scalar : cublas::Scalar {
    Scalar(const Handle& handle, const void* from, size_t bytes)
        : cublas::Scalar(handle.pointer_mode == 0, from, bytes) {}
};
struct Result : cublas::Result {
    Result(const Handle& handle, void* to, size_t bytes)
        : cublas::Result(handle.pointer_mode == 0, to, bytes) {}
};

// --- tridiagonal systems: the first below and the last above the diagonal do not count ---

template <class T>
void solve(const Access& access, int64_t m, int64_t columns, uint64_t dl, uint64_t d, uint64_t du, uint64_t B,
           int64_t ldb) {
    // It packs nothing, however long the diagonal is.
    auto* const gtsv =
        GPUKERNEL_BLAS(T, "gtsv", const int*, const int*, T*, T*, T*, T*, const int*, int*).function;
    auto below = copied<T>(access, dl, m, "dl"), diagonal = copied<T>(access, d, m, "d"),
         above = copied<T>(access, du, m, "du");
    Room<T> x;
    for (int64_t j = 0; j < columns; ++j) {
        const uint64_t from = B + static_cast<uint64_t>(j * ldb) * sizeof(T);
        access.check(from, static_cast<uint64_t>(m) * sizeof(T), true, "B");
        const auto column = copied<T>(access, from, m, "B");
        x.insert(x.end(), column.begin(), column.end());
    }
    const int mi = static_cast<int>(m), ni = static_cast<int>(columns);
    int wrong = 0;
    gtsv(&mi, &ni, below.data() + 1, diagonal.data(), above.data(), x.data(), &mi, &wrong);
    // cuSPARSE says nothing of a singular matrix: what it divides by 0 shows it.
    if (wrong) std::fill(x.begin(), x.end(), T(std::numeric_limits<cublas::Real<T>>::quiet_NaN()));
    for (int64_t j = 0; j < columns; ++j)
        std::copy_n(x.data() + j * m, m,
                    reinterpret_cast<T*>(B + static_cast<uint64_t>(j * ldb) * sizeof(T)));
}
template <class T>
int gtsv(const Context& context, int64_t m, int64_t n, uint64_t dl, uint64_t d, uint64_t du, uint64_t B,
         int64_t ldb, uint64_t) {
    const int64_t width = std::max<int64_t>(1, POINTS_AT_ONCE / m);
    return submit(
        context, cublas::parts(n, width),
        [=](uint64_t piece, const Access& access) {
            const int64_t first = static_cast<int64_t>(piece) * width;
            solve<T>(access, m, std::min(width, n - first), dl, d, du,
                     B + static_cast<uint64_t>(first * ldb) * sizeof(T), ldb);
        },
        static_cast<uint64_t>(m * (3 + width)) * sizeof(T));
}
template <class T>
int gtsv_batched(const Context& context, int64_t m, uint64_t dl, uint64_t d, uint64_t du, uint64_t x,
                 int64_t batch, int64_t step, uint64_t) {
    return submit(
        context, static_cast<uint64_t>(batch),
        [=](uint64_t number, const Access& access) {
            const uint64_t by = number * static_cast<uint64_t>(step) * sizeof(T);
            solve<T>(access, m, 1, dl + by, d + by, du + by, x + by, m);
        },
        static_cast<uint64_t>(4 * m) * sizeof(T));
}

// --- forms of a matrix ---

int identity(const Context& context, int64_t n, uint64_t p) {
    return submit(context, cublas::parts(n, POINTS_AT_ONCE), [=](uint64_t piece, const Access& access) {
        const int64_t first = static_cast<int64_t>(piece) * POINTS_AT_ONCE,
                      count = std::min(POINTS_AT_ONCE, n - first);
        const uint64_t at = p + static_cast<uint64_t>(first) * 4;
        access.check(at, static_cast<uint64_t>(count) * 4, true, "p");
        std::iota(reinterpret_cast<int*>(at), reinterpret_cast<int*>(at) + count, static_cast<int>(first));
    });
}
// --- sums of matrices in CSR ---

// The indices of one of them, checked.
struct Csr {
    int64_t m, n, count;
    Indices rows, columns;
    Csr(const Access& access, int64_t m, int64_t n, int kind, int64_t count, uint64_t rows, uint64_t columns)
        : m(m),
          n(n),
          count(count),
          rows(access, rows, INDEX_32, base_of(kind), m + 1, "the offsets"),
          columns(access, columns, INDEX_32, base_of(kind), count, "the columns") {}
    // The row's columns in order, each with the position of its element.
    Room<std::pair<int64_t, int64_t>> row(int64_t number) const {
        Room<std::pair<int64_t, int64_t>> found;
        const int64_t end = rows.below(number + 1, count + 1);
        for (int64_t i = rows.below(number, count + 1); i < end; ++i)
            found.emplace_back(columns.below(i, n), i);
        std::sort(found.begin(), found.end());
        return found;
    }
};
// Calls element(column, position in the first or -1, position in the second or -1) for each element of a row.
template <class Element>
void merge(const Csr& first, const Csr& second, int64_t row, Element element) {
    const auto a = first.row(row), b = second.row(row);
    for (size_t i = 0, j = 0; i < a.size() || j < b.size();) {
        const int64_t column =
            std::min(i < a.size() ? a[i].first : INT64_MAX, j < b.size() ? b[j].first : INT64_MAX);
        const int64_t of_first = i < a.size() && a[i].first == column ? a[i++].second : -1;
        const int64_t of_second = j < b.size() && b[j].first == column ? b[j++].second : -1;
        element(column, of_first, of_second);
    }
}
// Rows in pieces; those of one piece have about as many elements as can be merged in a millisecond.
int64_t rows_at_once(int64_t m, int64_t elements) {
    return std::clamp<int64_t>(POINTS_AT_ONCE / (elements / std::max<int64_t>(m, 1) + 1), 1, POINTS_AT_ONCE);
}
// Each row's elements of a sum, and then where the row begins.
using Begins = std::shared_ptr<Room<int>>;
int count_rows(const Context& context, int64_t at_once, int64_t m, const std::function<Csr(const Access&)>& a,
               const std::function<Csr(const Access&)>& b, const Begins& begins, uint64_t kept) {
    int status = submit(
        context, 1, [=](uint64_t, const Access&) { begins->resize(static_cast<size_t>(m + 1)); }, kept);
    if (!status)
        status = submit(context, cublas::parts(m, at_once), [=](uint64_t piece, const Access& access) {
            const Csr first = a(access), second = b(access);
            const int64_t from = static_cast<int64_t>(piece) * at_once;
            if (begins->empty()) return;  // the host had no memory
            for (int64_t row = from; row < std::min(from + at_once, m); ++row)
                merge(first, second, row,
                      [&](int64_t, int64_t, int64_t) { ++(*begins)[static_cast<size_t>(row)]; });
        });
    if (!status)
        status = submit(context, 1, [=](uint64_t, const Access&) {
            uint32_t begin = 0;
            for (int& one : *begins) {
                const auto here = static_cast<uint32_t>(one);
                one = static_cast<int>(begin), begin += here;
            }
        });
    return status;
}
int count_of_sum(const Context& context, int64_t m, int64_t n, int kind_a, int64_t count_a, uint64_t rows_a,
                 uint64_t columns_a, int kind_b, int64_t count_b, uint64_t rows_b, uint64_t columns_b,
                 int kind_c, uint64_t rows_c, const Result& result, uint64_t) {
    const auto a = [=](const Access& access) {
        return Csr(access, m, n, kind_a, count_a, rows_a, columns_a);
    };
    const auto b = [=](const Access& access) {
        return Csr(access, m, n, kind_b, count_b, rows_b, columns_b);
    };
    const auto begins = std::make_shared<Room<int>>();
    const uint64_t kept = static_cast<uint64_t>(m + 1) * sizeof(int);
    int status = count_rows(context, rows_at_once(m, count_a + count_b), m, a, b, begins, kept);
    if (!status)
        status = submit(
            context, 1,
            [=](uint64_t, const Access& access) {
                if (begins->empty()) return;
                for (int& one : *begins) one += base_of(kind_c);
                put(access, rows_c, *begins, "the offsets of the sum");
                result.set(access, begins->back() - base_of(kind_c));
            },
            kept);
    return status ? status : libraries::status_of(result.finish(context.stream));
}
template <class T>
int sum(const Context& context, int64_t m, int64_t n, const Scalar& alpha, int kind_a, int64_t count_a,
        uint64_t values_a, uint64_t rows_a, uint64_t columns_a, const Scalar& beta, int kind_b,
        int64_t count_b, uint64_t values_b, uint64_t rows_b, uint64_t columns_b, int kind_c,
        uint64_t values_c, uint64_t rows_c, uint64_t columns_c, uint64_t) {
    const auto a = [=](const Access& access) {
        return Csr(access, m, n, kind_a, count_a, rows_a, columns_a);
    };
    const auto b = [=](const Access& access) {
        return Csr(access, m, n, kind_b, count_b, rows_b, columns_b);
    };
    const auto begins = std::make_shared<Room<int>>();
    const int64_t at_once = rows_at_once(m, count_a + count_b);
    const uint64_t kept = static_cast<uint64_t>(m + 1) * sizeof(int);
    if (const int status = count_rows(context, at_once, m, a, b, begins, kept)) return status;
    return submit(
        context, cublas::parts(m + 1, at_once),
        [=](uint64_t piece, const Access& access) {
            if (begins->empty()) return;
            const Csr first = a(access), second = b(access);
            const auto own_a = reinterpret_cast<const T*>(values_a),
                       own_b = reinterpret_cast<const T*>(values_b);
            access.check(values_a, static_cast<uint64_t>(count_a) * sizeof(T), false, "the values of A");
            access.check(values_b, static_cast<uint64_t>(count_b) * sizeof(T), false, "the values of B");
            const T x = alpha.get<T>(access), y = beta.get<T>(access);
            const int64_t from = static_cast<int64_t>(piece) * at_once, end = std::min(from + at_once, m + 1);
            Room<int> offsets, columns;
            Room<T> values;
            for (int64_t row = from; row < end; ++row) {
                offsets.push_back((*begins)[static_cast<size_t>(row)] + base_of(kind_c));
                if (row < m)
                    merge(first, second, row, [&](int64_t column, int64_t i, int64_t j) {
                        columns.push_back(static_cast<int>(column) + base_of(kind_c));
                        values.push_back((i < 0 ? T(0) : x * own_a[i]) + (j < 0 ? T(0) : y * own_b[j]));
                    });
            }
            const auto begin = static_cast<uint64_t>((*begins)[static_cast<size_t>(from)]);
            put(access, rows_c + static_cast<uint64_t>(from) * sizeof(int), offsets,
                "the offsets of the sum");
            put(access, columns_c + begin * sizeof(int), columns, "the columns of the sum");
            put(access, values_c + begin * sizeof(T), values, "the values of the sum");
        },
        kept);
}

constexpr const char* NEEDED[] = {GPUKERNEL_BLAS_NAMES("gtsv")};
}  // namespace

GPUKERNEL_EXPORT int cusparseCreate(void** handle) {
    if (!handle) return INVALID_VALUE;
    *handle = nullptr;
    if (!can_make_handle(NEEDED)) return NOT_INITIALIZED;
    *handle = libraries::keep_handle(new Handle);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cusparseDestroy(void* handle) {
    Handle* const own = libraries::drop_handle(handle);
    delete own;  // what was submitted knows all that it needs
    return own ? SUCCESS : NOT_INITIALIZED;
}

#include "cusparse_simulated.inc"
#include "cusparse_unsupported.inc"

}  // namespace gpukernel::simgpu_libraries::cusparse
