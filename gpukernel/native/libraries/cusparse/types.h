// cuSPARSE's descriptors as this package fills them, in the program, on the wire and beside the simulated
// GPU, and what conditions in calls.txt are made of.  The numbers are those of NVIDIA's public cusparse.h.
#pragma once

#include <cstdint>

#include "libraries/cublas/types.h"
#include "libraries/handles.h"

namespace gpukernel::libraries::cusparse {

enum Status : int {
    SUCCESS = 0,
    NOT_INITIALIZED = 1,
    ALLOC_FAILED = 2,
    INVALID_VALUE = 3,
    EXECUTION_FAILED = 6,
    INTERNAL_ERROR = 7,
    NOT_SUPPORTED = 10,
};
constexpr int version_of(int number) { return number == 11 ? 11705 : 12510; }

enum Format : int { CSR = 1, CSC = 2, COO = 3 };
enum Order : int { BY_COLUMNS = 1, BY_ROWS = 2 };
enum IndexType : int { INDEX_32 = 2, INDEX_64 = 3 };

using cublas::is_operation;
constexpr bool is_value(int type) { return cublas::data_bytes(type) != 0; }
constexpr size_t index_bytes(int64_t type) { return type == INDEX_64 ? 8 : 4; }

// They travel as they are: words of 64 bits.  `major` are offsets of rows (CSR) or columns (CSC), or the rows
// of the elements (COO); `minor` the other index of each.
struct Sparse {
    int64_t format = 0, rows = 0, columns = 0, count = 0;
    uint64_t major = 0, minor = 0, values = 0;
    int64_t major_type = INDEX_32, minor_type = INDEX_32, base = 0, type = 0;
    int64_t batch = 1, major_step = 0, element_step = 0;
};
struct Dense {
    int64_t rows = 0, columns = 0, ld = 0;
    uint64_t values = 0;
    int64_t type = 0, order = BY_COLUMNS, batch = 1, step = 0;
};
struct Vector {
    int64_t size = 0;
    uint64_t values = 0;
    int64_t type = 0;
};
// What an operation is told beside its matrices.
struct Request {
    int64_t a = 0, b = 0, compute = 0, algorithm = 0;
};
// The workspaces of both steps of a product of two sparse matrices.
struct Workspaces {
    uint64_t first = 0, first_bytes = 0, second = 0, second_bytes = 0;
};
// Such a product, of matrices in CSR.
struct Factors {
    Request operation;
    Sparse a, b, c;
    Workspaces workspaces;
};

// Whether a word of a descriptor is an address.
inline bool is_address(const Sparse& s, size_t word) {
    const auto* const at = reinterpret_cast<const uint64_t*>(&s) + word;
    return at == &s.major || at == &s.minor || at == &s.values;
}
inline bool is_address(const Dense& d, size_t word) {
    return reinterpret_cast<const uint64_t*>(&d) + word == &d.values;
}
constexpr bool is_address(const Request&, size_t) { return false; }
constexpr bool is_address(const Workspaces&, size_t) { return false; }

// Of an older descriptor: its type, half, diagonal and base, a byte each; that of nothing is a general
// matrix.
int kind_of(const void* matrix);
constexpr int base_of(int kind) { return kind >> 24 & 1; }

// Whether sizes, types and steps are ones that no arithmetic on addresses overflows with.
constexpr int64_t MOST = int64_t{1} << 40;
constexpr bool is_size(int64_t n) { return n >= 0 && n <= MOST; }
inline bool check(const Sparse& s) {
    const auto index = [](int64_t type) { return type == INDEX_32 || type == INDEX_64; };
    return s.format >= CSR && s.format <= COO && is_size(s.rows) && is_size(s.columns) && is_size(s.count) &&
           index(s.major_type) && index(s.minor_type) && (s.base == 0 || s.base == 1) &&
           cublas::data_bytes(static_cast<int>(s.type)) && s.batch >= 1 && s.batch <= (1 << 20) &&
           is_size(s.major_step) && is_size(s.element_step);
}
inline bool check(const Dense& d) {
    return is_size(d.rows) && is_size(d.columns) && is_size(d.ld) &&
           (d.order == BY_COLUMNS || d.order == BY_ROWS) &&
           d.ld >= (d.order == BY_COLUMNS ? d.rows : d.columns) &&
           cublas::data_bytes(static_cast<int>(d.type)) && d.batch >= 1 && d.batch <= (1 << 20) &&
           is_size(d.step) &&
           static_cast<__int128>(d.ld) * (d.order == BY_COLUMNS ? d.columns : d.rows) <= MOST;
}
inline bool check(const Vector& v) { return is_size(v.size) && cublas::data_bytes(static_cast<int>(v.type)); }

// The functions that are written by hand, behind those of the table; `_ROOM` asks for the size of a
// workspace.
enum Function : uint32_t {
    SPMV = 0x1000,
    SPMV_ROOM,
    SPMM,
    SPMM_ROOM,
    SDDMM,
    SDDMM_ROOM,
    TO_DENSE,
    TO_DENSE_ROOM,
    FROM_DENSE,
    FROM_DENSE_ROOM,
    COUNT,
    SPGEMM,
    SPGEMM_COUNT,
    SPGEMM_FIRST_ROOM,
    SPGEMM_SECOND_ROOM,
};

// What each side defines.  `room` is where a workspace's size goes, where that is asked for.
int multiply(void* handle, Function function, const Request& operation, const void* alpha, const Sparse& a,
             const Dense& b, const void* beta, const Dense& c, void* buffer, size_t* room);
int multiply_sampled(void* handle, Function function, const Request& operation, const void* alpha,
                     const Dense& a, const Dense& b, const void* beta, const Sparse& c, void* buffer,
                     size_t* room);
int convert(void* handle, Function function, int algorithm, const Sparse& sparse, const Dense& dense,
            void* buffer, size_t* room);
// The number of elements of a matrix that are not 0; it waits.
int count(void* handle, int algorithm, const Sparse& sparse, const Dense& dense, void* buffer,
          int64_t& elements);
// A step of a product of two sparse matrices: it asks for the bytes of a workspace or for the number of
// elements, which wait, or computes.
int multiply(void* handle, Function step, const Factors& factors, const void* alpha, const void* beta,
             size_t& answer);

}  // namespace gpukernel::libraries::cusparse
