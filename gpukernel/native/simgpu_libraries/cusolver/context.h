// What cuSOLVER's implementations share: a call's stream, copies of matrices, LAPACK's functions and their
// bound.
//
// LAPACK works on a copy in the host's memory: the program's kernels cannot change what it follows, and no
// leading dimension is too long for it.  One matrix is one piece, which nothing can pause: what needs more
// than MOST_OPERATIONS is refused.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "libraries/cusolver/types.h"
#include "libraries/handles.h"
#include "simgpu_libraries/cublas/context.h"
#include "simgpu_libraries/openblas.h"

namespace gpukernel::simgpu_libraries::cusolver {

using Handle = libraries::StreamHandle;
using libraries::handle_of;
using libraries::LEAST_ROOM;
using namespace libraries::cusolver;  // NOLINT: the library's own numbers
using cublas::C;
using cublas::complex_type;
using cublas::D;
using cublas::Matrix;
using cublas::Real;
using cublas::S;
using cublas::TypeC;
using cublas::TypeD;
using cublas::TypeS;
using cublas::TypeZ;
using cublas::Z;

constexpr double MOST_OPERATIONS = 4e10, MOST_ELEMENTS = 1 << 30;

struct SolverContext {
    CUstream stream;
    const char* name;
    SolverContext(const Handle& handle, const char* name) : stream(handle.stream), name(name) {}
};

using Context = SolverContext;

// Submits one piece for each matrix; `operations` is what one needs, `elements` what it has in copies and
// workspaces.
template <class T>
int submit(const Context& context, int64_t batch, double operations, double elements, Piece piece) {
    if (operations * (complex_type<T> ? 4 : 1) > MOST_OPERATIONS || elements > MOST_ELEMENTS) {
        libraries::complain(std::string(context.name) +
                            ": a matrix of this size is too large for a simulated device");
        return NOT_SUPPORTED;
    }
    return libraries::status_of(simgpu_libraries::submit(context.stream, context.name,
                                                         static_cast<uint64_t>(batch), std::move(piece),
                                                         static_cast<uint64_t>(elements) * sizeof(T)));
}

inline double cube(int64_t n) {
    return static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
}
inline double area(int64_t m, int64_t n) { return static_cast<double>(m) * static_cast<double>(n); }

// A matrix in the host's memory, its columns packed.
template <class T>
class Copy {
  public:
    Copy(int64_t rows, int64_t columns)
        : rows_(columns > 0 ? std::max<int64_t>(rows, 1) : 1),
          values_(static_cast<size_t>(rows_ * std::max<int64_t>(columns, 1))) {}
    // Of `rows` × `columns` at an address, which is checked for writing where the result goes back there.
    Copy(const Access& access, uint64_t address, int64_t ld, int64_t rows, int64_t columns, bool writing,
         const char* what)
        : Copy(rows, columns) {
        const Matrix<T> from(address, ld);
        from.check(access, 0, 0, rows, columns, writing, what);
        for (int64_t j = 0; j < columns; ++j) std::copy_n(from.at(0, j), rows, at(0, j));
    }
    T* at(int64_t row, int64_t column) { return values_.data() + column * rows_ + row; }
    T* data() { return values_.data(); }
    int ld() const { return static_cast<int>(rows_); }  // of no columns: 1, as nothing is there
    // LAPACK's iterations may have no end with numbers that are not finite: their results are NaN.
    bool finite() const { return std::all_of(values_.begin(), values_.end(), is_finite); }
    // Of the triangle that is read.
    bool finite(int64_t n, bool upper) {
        for (int64_t j = 0; j < n; ++j)
            if (!std::all_of(at(upper ? 0 : j, j), at(upper ? j : n - 1, j) + 1, is_finite)) return false;
        return true;
    }
    void spoil() { std::fill(values_.begin(), values_.end(), T(std::numeric_limits<Real<T>>::quiet_NaN())); }
    // Puts it back: all of it, or one triangle.
    void store(const Access& access, uint64_t address, int64_t ld, int64_t rows, int64_t columns,
               const char* what) {
        const Matrix<T> to(address, ld);
        to.check(access, 0, 0, rows, columns, true, what);
        for (int64_t j = 0; j < columns; ++j) std::copy_n(at(0, j), rows, to.at(0, j));
    }
    void store_triangle(uint64_t address, int64_t ld, int64_t n, bool upper) {
        const Matrix<T> to(address, ld);
        for (int64_t j = 0; j < n; ++j) {
            const int64_t first = upper ? 0 : j, end = upper ? j + 1 : n;
            std::copy_n(at(first, j), end - first, to.at(first, j));
        }
    }

  private:
    static bool is_finite(T one) { return std::isfinite(std::real(one)) && std::isfinite(std::imag(one)); }
    int64_t rows_;
    Room<T> values_;
};

template <class T>
void put(const Access& access, uint64_t address, const T* values, int64_t count, const char* what) {
    const auto bytes = static_cast<uint64_t>(std::max<int64_t>(count, 0)) * sizeof(T);
    access.check(address, bytes, true, what);
    if (bytes) __builtin_memcpy(reinterpret_cast<void*>(address), values, bytes);
}
template <class T>
Room<T> get(const Access& access, uint64_t address, int64_t count, const char* what) {
    const auto bytes = static_cast<uint64_t>(std::max<int64_t>(count, 0)) * sizeof(T);
    access.check(address, bytes, false, what);
    Room<T> values(static_cast<size_t>(std::max<int64_t>(count, 1)));
    if (bytes) __builtin_memcpy(values.data(), reinterpret_cast<const void*>(address), bytes);
    return values;
}
inline void tell(const Access& access, uint64_t info, uint64_t number, int value) {
    if (info) put(access, info + number * 4, &value, 1, "devInfo");
}
inline uint64_t address_at(const Access& access, uint64_t array, uint64_t index) {
    return access.read<uint64_t>(array + index * 8, "an array of addresses");
}

// LAPACK's letters and integers.
inline char half(int uplo) { return uplo ? 'U' : 'L'; }  // CUBLAS_FILL_MODE_LOWER is 0
inline int whole(int64_t n) { return static_cast<int>(n); }

// Calls LAPACK's `call` twice: the size of its workspace, then with it.
template <class T, class Call>
void with_workspace(Call call) {
    T size{};
    call(&size, -1);
    const int length = std::max(1, static_cast<int>(std::real(size)));
    Room<T> work(static_cast<size_t>(length));
    call(work.data(), length);
}

// Calls `function` with a number of the type.
template <class Function>
int of_type(int type, Function function) {
    switch (type) {
        case cublas::R_32F:
            return function(S{});
        case cublas::R_64F:
            return function(D{});
        case cublas::C_32F:
            return function(C{});
        case cublas::C_64F:
            return function(Z{});
        default:
            return NOT_SUPPORTED;
    }
}

}  // namespace gpukernel::simgpu_libraries::cusolver
