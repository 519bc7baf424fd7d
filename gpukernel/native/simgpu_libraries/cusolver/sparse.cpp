// Sparse linear systems by orthogonal factors: each row of the matrix is rotated into a triangle of sparse
// rows (George and Heath, Linear Algebra and its Applications 34, 1980).  The triangle alone is kept; what
// the program may wish for, an order with less fill-in, is not looked at.
//
// The call waits for its result, so it submits one piece after the other, each of about a millisecond, until
// all rows are in.
#include "libraries/cusolver/sparse.h"

#include <cmath>
#include <complex>
#include <memory>
#include <utility>

#include "simgpu_libraries/cusolver/context.h"
#include "simgpu_libraries/cusparse/elements.h"

namespace gpukernel::simgpu_libraries::cusolver {

namespace {
constexpr int64_t WORK_OF_A_PIECE = 1 << 19, MOST_ENTRIES = 1 << 26;
using cusparse::Indices;

template <class Number>
struct Row {
    Room<int> columns;
    Room<Number> values;
    Number right{};  // of the other side of the equation
};

struct System {
    int type, m, nnz, base;
    uint64_t values, offsets, columns, b;
    double tolerance;
    uint64_t x;
};

template <class Number>
class Elimination {
  public:
    explicit Elimination(const System& system) : s_(system), triangle_(static_cast<size_t>(system.m)) {}
    bool done() const { return done_; }
    bool given_up() const { return given_up_; }
    bool too_large() const { return entries_ > MOST_ENTRIES; }
    int singularity() const { return singularity_; }
    uint64_t host_bytes() const {
        return static_cast<uint64_t>(entries_ + WORK_OF_A_PIECE) * (sizeof(int) + sizeof(Number));
    }

    void step(const Access& access) {
        try {
            work(access);
        } catch (...) {
            given_up_ = true;  // a row is half done
            throw;
        }
    }

  private:
    void work(const Access& access) {
        for (int64_t left = WORK_OF_A_PIECE; left > 0 && !done_ && !too_large();) {
            if (current_.columns.empty() && next_ == s_.m) return solve(access);
            if (current_.columns.empty()) left -= take_row(access);
            if (!current_.columns.empty()) left -= rotate();
        }
    }
    // The next row of the matrix, its columns in order and those that stand there twice added up.
    int64_t take_row(const Access& access) {
        const Indices offsets(access, s_.offsets, libraries::cusparse::INDEX_32, s_.base, s_.m + 1,
                              "the offsets");
        const Indices columns(access, s_.columns, libraries::cusparse::INDEX_32, s_.base, s_.nnz,
                              "the columns");
        const size_t size = libraries::cublas::data_bytes(s_.type);
        access.check(s_.values, static_cast<uint64_t>(s_.nnz) * size, false, "the values");
        access.check(s_.b, static_cast<uint64_t>(s_.m) * size, false, "b");
        const auto at = [size](uint64_t array, int64_t i) {
            return reinterpret_cast<const char*>(array) + static_cast<uint64_t>(i) * size;
        };
        Room<std::pair<int, Number>> row;
        const int64_t begin = offsets.below(next_, s_.nnz + 1), end = offsets.below(next_ + 1, s_.nnz + 1);
        for (int64_t i = begin; i < end; ++i)
            row.emplace_back(static_cast<int>(columns.below(i, s_.m)),
                             load<Number>(at(s_.values, i), s_.type));
        std::stable_sort(row.begin(), row.end(), [](auto& a, auto& b) { return a.first < b.first; });
        for (const auto& [column, value] : row) {
            if (!current_.columns.empty() && current_.columns.back() == column)
                current_.values.back() += value;
            else
                current_.columns.push_back(column), current_.values.push_back(value);
        }
        current_.right = load<Number>(at(s_.b, next_++), s_.type);
        drop_zeros(current_);
        return 64 + 16 * static_cast<int64_t>(row.size());
    }
    static void drop_zeros(Row<Number>& row) {  // at the beginning
        size_t first = 0;
        while (first < row.values.size() && row.values[first] == Number(0)) ++first;
        row.columns.erase(row.columns.begin(), row.columns.begin() + static_cast<std::ptrdiff_t>(first));
        row.values.erase(row.values.begin(), row.values.begin() + static_cast<std::ptrdiff_t>(first));
    }
    // Rotates the row's first element away, or gives the row to the triangle.
    int64_t rotate() {
        Row<Number>& its = triangle_[static_cast<size_t>(current_.columns.front())];
        if (its.columns.empty()) {
            entries_ += static_cast<int64_t>(current_.columns.size());
            its = std::exchange(current_, {});
            return 64;
        }
        const Number r = its.values.front(), a = current_.values.front();
        const double length = std::hypot(std::abs(r), std::abs(a));
        Row<Number> above, below;
        size_t i = 0, j = 0;
        while (i < its.columns.size() || j < current_.columns.size()) {
            const int column = std::min(i < its.columns.size() ? its.columns[i] : INT_MAX,
                                        j < current_.columns.size() ? current_.columns[j] : INT_MAX);
            const Number p = i < its.columns.size() && its.columns[i] == column ? its.values[i++] : Number(0);
            const Number q = j < current_.columns.size() && current_.columns[j] == column
                                 ? current_.values[j++]
                                 : Number(0);
            above.columns.push_back(column);
            above.values.push_back((cublas::conjugate(r) * p + cublas::conjugate(a) * q) / length);
            if (above.columns.size() == 1) continue;  // this one is 0 below
            below.columns.push_back(column);
            below.values.push_back((r * q - a * p) / length);
        }
        above.right = (cublas::conjugate(r) * its.right + cublas::conjugate(a) * current_.right) / length;
        below.right = (r * current_.right - a * its.right) / length;
        entries_ += static_cast<int64_t>(above.columns.size()) - static_cast<int64_t>(its.columns.size());
        its = std::move(above), current_ = std::move(below);
        drop_zeros(current_);
        return 64 + 4 * static_cast<int64_t>(its.columns.size());
    }
    void solve(const Access& access) {
        Room<Number> x(static_cast<size_t>(s_.m));
        for (int i = s_.m - 1; i >= 0; --i) {
            const Row<Number>& row = triangle_[static_cast<size_t>(i)];
            if (row.columns.empty() || std::abs(row.values.front()) < s_.tolerance) singularity_ = i;
            Number sum = row.right;
            for (size_t k = 1; k < row.columns.size(); ++k)
                sum -= row.values[k] * x[static_cast<size_t>(row.columns[k])];
            x[static_cast<size_t>(i)] = sum / (row.columns.empty() ? Number(0) : row.values.front());
        }
        const size_t size = libraries::cublas::data_bytes(s_.type);
        access.check(s_.x, static_cast<uint64_t>(s_.m) * size, true, "x");
        for (size_t i = 0; i < x.size(); ++i) store(reinterpret_cast<char*>(s_.x) + i * size, s_.type, x[i]);
        done_ = true;
    }

    const System s_;
    Room<Row<Number>> triangle_;
    Row<Number> current_;
    int next_ = 0, singularity_ = -1;
    int64_t entries_ = 0;
    bool done_ = false, given_up_ = false;
};

template <class Number>
int run(const Handle& handle, const char* name, const System& system, int* singularity) {
    const auto elimination = std::make_shared<Elimination<Number>>(system);
    while (!elimination->done()) {
        CUresult result = simgpu_libraries::submit(
            handle.stream, name, 1, [=](uint64_t, const Access& access) { elimination->step(access); },
            elimination->host_bytes());
        if (result == CUDA_SUCCESS) result = synchronize(handle.stream);
        if (result == CUDA_SUCCESS && elimination->given_up()) result = CUDA_ERROR_OUT_OF_MEMORY;
        if (result != CUDA_SUCCESS) return libraries::status_of(result);
        if (elimination->too_large()) {
            libraries::complain(std::string(name) + ": the factors of this matrix have more than " +
                                std::to_string(MOST_ENTRIES) + " elements, too many for a simulated device");
            return NOT_SUPPORTED;
        }
    }
    *singularity = elimination->singularity();
    return SUCCESS;
}
}  // namespace

GPUKERNEL_EXPORT int cusolverSpCreate(void** handle) {
    if (!handle) return INVALID_VALUE;
    *handle = libraries::keep_handle(new Handle);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cusolverSpDestroy(void* handle) {
    Handle* const own = libraries::drop_handle(handle);
    delete own;
    return own ? SUCCESS : NOT_INITIALIZED;
}

GPUKERNEL_EXPORT int cusolver_gpukernel_csrlsvqr(void* handle, int type, int m, int nnz, int base,
                                                 const void* values, const int* offsets, const int* columns,
                                                 const void* b, double tolerance, void* x, int* singularity) {
    return libraries::cusolver::solve_sparse(handle, "cusolverSpcsrlsvqr", type, m, nnz, base, values,
                                             offsets, columns, b, tolerance, x, singularity);
}

}  // namespace gpukernel::simgpu_libraries::cusolver

namespace gpukernel::libraries::cusolver {

int solve_sparse(void* handle, const char* name, int type, int m, int nnz, int base, const void* values,
                 const int* offsets, const int* columns, const void* b, double tolerance, void* x,
                 int* singularity) {
    const StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    const auto at = [](const void* address) { return reinterpret_cast<uint64_t>(address); };
    const simgpu_libraries::cusolver::System system{type,        m,           nnz,   base,      at(values),
                                                    at(offsets), at(columns), at(b), tolerance, at(x)};
    return cublas::is_complex(type)
               ? simgpu_libraries::cusolver::run<simgpu_libraries::cublas::Z>(*own, name, system, singularity)
               : simgpu_libraries::cusolver::run<double>(*own, name, system, singularity);
}

}  // namespace gpukernel::libraries::cusolver
