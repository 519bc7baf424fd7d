// libcusparse beside the simulated GPU: handles, tridiagonal systems, and the forms of a matrix in plain
// arrays; the entry points of these are generated from libraries/cusparse/calls.txt.
#include <algorithm>
#include <numeric>
#include <vector>

#include "simgpu_libraries/cublas/context.h"
#include "simgpu_libraries/cusparse/elements.h"
#include "simgpu_libraries/openblas.h"

namespace gpukernel::simgpu_libraries::cusparse {

using cublas::TypeC;
using cublas::TypeD;
using cublas::TypeS;
using cublas::TypeZ;
using Handle = libraries::StreamHandle;
using libraries::handle_of;
using libraries::LEAST_ROOM;
using libraries::unsupported;

namespace {
constexpr int64_t POINTS_AT_ONCE = 1 << 15;

struct Context {
    CUstream stream;
    const char* name;
    Context(const Handle& handle, const char* name) : stream(handle.stream), name(name) {}
};
int submit(const Context& context, uint64_t pieces, Piece piece, uint64_t kept = 0) {
    return libraries::status_of(
        simgpu_libraries::submit(context.stream, context.name, pieces, std::move(piece), kept));
}

struct Scalar : cublas::Scalar {
    Scalar(const Handle& handle, const void* from, size_t bytes)
        : cublas::Scalar(handle.pointer_mode == 0, from, bytes) {}
};
struct Result : cublas::Result {
    Result(const Handle& handle, void* to, size_t bytes)
        : cublas::Result(handle.pointer_mode == 0, to, bytes) {}
};

template <class T>
std::vector<T> copied(const Access& access, uint64_t address, int64_t count, const char* what) {
    access.check(address, static_cast<uint64_t>(count) * sizeof(T), false, what);
    std::vector<T> values(static_cast<size_t>(count));
    if (count) std::memcpy(values.data(), reinterpret_cast<const void*>(address), values.size() * sizeof(T));
    return values;
}
template <class T>
void put(const Access& access, uint64_t address, const std::vector<T>& values, const char* what) {
    access.check(address, values.size() * sizeof(T), true, what);
    if (!values.empty())
        std::memcpy(reinterpret_cast<void*>(address), values.data(), values.size() * sizeof(T));
}

// --- tridiagonal systems: the first below and the last above the diagonal do not count ---

template <class T>
void solve(const Access& access, int64_t m, int64_t columns, uint64_t dl, uint64_t d, uint64_t du, uint64_t B,
           int64_t ldb) {
    const auto gtsv = GPUKERNEL_BLAS(T, "gtsv", const int*, const int*, T*, T*, T*, T*, const int*, int*);
    auto below = copied<T>(access, dl, m, "dl"), diagonal = copied<T>(access, d, m, "d"),
         above = copied<T>(access, du, m, "du");
    std::vector<T> x;
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

int coo_to_csr(const Context& context, uint64_t rows, int64_t count, int64_t m, uint64_t offsets, int base) {
    return submit(
        context, 1,
        [=](uint64_t, const Access& access) {
            const Indices of(access, rows, INDEX_32, base, count, "the rows");
            std::vector<int> found(static_cast<size_t>(m + 1));
            for (int64_t i = 0; i < count; ++i) ++found[static_cast<size_t>(of.below(i, m) + 1)];
            std::partial_sum(found.begin(), found.end(), found.begin());
            for (int& one : found) one += base;
            put(access, offsets, found, "the offsets");
        },
        static_cast<uint64_t>(m + 1) * sizeof(int));
}
int csr_to_coo(const Context& context, uint64_t offsets, int64_t count, int64_t m, uint64_t rows, int base) {
    return submit(context, 1, [=](uint64_t, const Access& access) {
        const Indices of(access, offsets, INDEX_32, base, m + 1, "the offsets");
        access.check(rows, static_cast<uint64_t>(count) * 4, true, "the rows");
        for (int64_t row = 0; row < m; ++row)
            for (int64_t i = of.below(row, count + 1); i < of.below(row + 1, count + 1); ++i)
                reinterpret_cast<int*>(rows)[i] = static_cast<int>(row) + base;
    });
}
int csr_to_csc(const Context& context, int64_t m, int64_t n, int64_t count, uint64_t values, uint64_t offsets,
               uint64_t columns, uint64_t to_values, uint64_t to_offsets, uint64_t to_rows, int type,
               int copy, int base, int, uint64_t) {
    return submit(
        context, 1,
        [=](uint64_t, const Access& access) {
            const uint64_t size = bytes_of(type);
            const Indices rows_of(access, offsets, INDEX_32, base, m + 1, "the offsets");
            const Indices columns_of(access, columns, INDEX_32, base, count, "the columns");
            if (copy) access.check(values, static_cast<uint64_t>(count) * size, false, "the values");
            std::vector<int> starts(static_cast<size_t>(n + 1)), rows(static_cast<size_t>(count));
            std::vector<char> moved(copy ? static_cast<size_t>(count) * size : 0);
            const int64_t begin = rows_of.below(0, count + 1), end = rows_of.below(m, count + 1);
            for (int64_t i = begin; i < end; ++i) ++starts[static_cast<size_t>(columns_of.below(i, n) + 1)];
            std::partial_sum(starts.begin(), starts.end(), starts.begin());
            std::vector<int> next = starts;
            for (int64_t row = 0; row < m; ++row)
                for (int64_t i = std::max(begin, rows_of.below(row, count + 1));
                     i < std::min(end, rows_of.below(row + 1, count + 1)); ++i) {
                    const auto column = static_cast<size_t>(columns_of.below(i, n));
                    const auto place = static_cast<size_t>(next[column]);
                    if (place >= rows.size())  // the arrays have changed meanwhile
                        throw OutOfBounds{columns, static_cast<uint64_t>(count) * 4, "the columns"};
                    ++next[column];
                    rows[place] = static_cast<int>(row) + base;
                    if (copy)
                        std::memcpy(moved.data() + place * size,
                                    reinterpret_cast<const char*>(values) + static_cast<uint64_t>(i) * size,
                                    size);
                }
            for (int& one : starts) one += base;
            put(access, to_offsets, starts, "the offsets of columns");
            put(access, to_rows, rows, "the rows");
            if (copy) put(access, to_values, moved, "the values of columns");
        },
        static_cast<uint64_t>(n + 1) * 8 + static_cast<uint64_t>(count) * (4 + bytes_of(type)));
}
int identity(const Context& context, int64_t n, uint64_t p) {
    return submit(context, cublas::parts(n, POINTS_AT_ONCE), [=](uint64_t piece, const Access& access) {
        const int64_t first = static_cast<int64_t>(piece) * POINTS_AT_ONCE,
                      count = std::min(POINTS_AT_ONCE, n - first);
        const uint64_t at = p + static_cast<uint64_t>(first) * 4;
        access.check(at, static_cast<uint64_t>(count) * 4, true, "p");
        std::iota(reinterpret_cast<int*>(at), reinterpret_cast<int*>(at) + count, static_cast<int>(first));
    });
}
template <bool BY_ROW>
int sort_coo(const Context& context, int64_t, int64_t, int64_t count, uint64_t rows, uint64_t columns,
             uint64_t P, uint64_t) {
    return submit(
        context, 1,
        [=](uint64_t, const Access& access) {
            const auto r = copied<int>(access, rows, count, "the rows"),
                       c = copied<int>(access, columns, count, "the columns");
            const auto p = copied<int>(access, P, P ? count : 0, "P");
            std::vector<size_t> order(static_cast<size_t>(count));
            std::iota(order.begin(), order.end(), size_t{0});
            std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
                return BY_ROW ? std::pair(r[a], c[a]) < std::pair(r[b], c[b])
                              : std::pair(c[a], r[a]) < std::pair(c[b], r[b]);
            });
            const auto sorted = [&](const std::vector<int>& of) {
                std::vector<int> result(of.size());
                for (size_t i = 0; i < of.size(); ++i) result[i] = of[order[i]];
                return result;
            };
            put(access, rows, sorted(r), "the rows"), put(access, columns, sorted(c), "the columns");
            if (P) put(access, P, sorted(p), "P");
        },
        static_cast<uint64_t>(count) * 32);
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
    std::vector<std::pair<int64_t, int64_t>> row(int64_t number) const {
        std::vector<std::pair<int64_t, int64_t>> found;
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
int count_of_sum(const Context& context, int64_t m, int64_t n, int kind_a, int64_t count_a, uint64_t rows_a,
                 uint64_t columns_a, int kind_b, int64_t count_b, uint64_t rows_b, uint64_t columns_b,
                 int kind_c, uint64_t rows_c, const Result& result, uint64_t) {
    const int status = submit(
        context, 1,
        [=](uint64_t, const Access& access) {
            const Csr a(access, m, n, kind_a, count_a, rows_a, columns_a),
                b(access, m, n, kind_b, count_b, rows_b, columns_b);
            std::vector<int> offsets{base_of(kind_c)};
            for (int64_t row = 0; row < m; ++row) {
                offsets.push_back(offsets.back());
                merge(a, b, row, [&](int64_t, int64_t, int64_t) { ++offsets.back(); });
            }
            put(access, rows_c, offsets, "the offsets of the sum");
            result.set(access, offsets.back() - base_of(kind_c));
        },
        static_cast<uint64_t>(m + 1) * sizeof(int));
    return status ? status : libraries::status_of(result.finish(context.stream));
}
template <class T>
int sum(const Context& context, int64_t m, int64_t n, const Scalar& alpha, int kind_a, int64_t count_a,
        uint64_t values_a, uint64_t rows_a, uint64_t columns_a, const Scalar& beta, int kind_b,
        int64_t count_b, uint64_t values_b, uint64_t rows_b, uint64_t columns_b, int kind_c,
        uint64_t values_c, uint64_t rows_c, uint64_t columns_c, uint64_t) {
    return submit(
        context, 1,
        [=](uint64_t, const Access& access) {
            const Csr a(access, m, n, kind_a, count_a, rows_a, columns_a),
                b(access, m, n, kind_b, count_b, rows_b, columns_b);
            const auto of_a = copied<T>(access, values_a, count_a, "the values of A");
            const auto of_b = copied<T>(access, values_b, count_b, "the values of B");
            const T x = alpha.get<T>(access), y = beta.get<T>(access);
            std::vector<int> offsets{base_of(kind_c)}, columns;
            std::vector<T> values;
            for (int64_t row = 0; row < m; ++row) {
                merge(a, b, row, [&](int64_t column, int64_t i, int64_t j) {
                    columns.push_back(static_cast<int>(column) + base_of(kind_c));
                    values.push_back((i < 0 ? T(0) : x * of_a[static_cast<size_t>(i)]) +
                                     (j < 0 ? T(0) : y * of_b[static_cast<size_t>(j)]));
                });
                offsets.push_back(static_cast<int>(columns.size()) + base_of(kind_c));
            }
            put(access, rows_c, offsets, "the offsets of the sum");
            put(access, columns_c, columns, "the columns of the sum");
            put(access, values_c, values, "the values of the sum");
        },
        static_cast<uint64_t>(m + 1) * sizeof(int) +
            static_cast<uint64_t>(count_a + count_b) * (2 * sizeof(T) + sizeof(int)));
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
