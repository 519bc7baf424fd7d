// Products and conversions of sparse matrices.  Sums are made in double precision and rounded once.
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "simgpu_libraries/cublas/context.h"
#include "simgpu_libraries/cusparse/elements.h"

namespace gpukernel::libraries::cusparse {

using namespace simgpu_libraries;
using simgpu_libraries::cublas::parts;
using simgpu_libraries::cublas::Scalar;
using simgpu_libraries::cusparse::bytes_of;
using simgpu_libraries::cusparse::Elements;
using simgpu_libraries::cusparse::Place;
using simgpu_libraries::cusparse::Z;

namespace {
constexpr int64_t WIDEST = 64, ELEMENTS_AT_ONCE = 1 << 16;
constexpr double MOST_HOST = 1e9;  // numbers of the host's memory that one piece may need

int told(CUresult result) { return status_of(result); }
bool known(int64_t type) { return bytes_of(type) != 0; }
int refused(const char* name, const char* why) {
    complain(std::string(name) + ": " + why + " on a simulated device");
    return NOT_SUPPORTED;
}

template <class Number>
Number conjugated(Number value, bool conjugate) {
    if constexpr (std::is_same_v<Number, Z>)
        return conjugate ? std::conj(value) : value;
    else
        return value;
}

struct Product {
    CUstream stream;
    Request operation;
    Scalar alpha, beta;
    Sparse sparse;
    Dense first, second;
};

// C = alpha op(A) op(B) + beta C with A sparse: a piece has some columns of C, for which it goes through A.
template <class Number>
int multiply_as(const Product& p) {
    const Dense &b = p.first, &c = p.second;
    const int64_t inner = p.operation.a ? p.sparse.rows : p.sparse.columns;
    const double height = static_cast<double>(inner) + static_cast<double>(c.rows) + 1;
    const auto width = static_cast<int64_t>(std::clamp(262144 / height, 1.0, static_cast<double>(WIDEST)));
    if (height * static_cast<double>(width) > MOST_HOST)
        return refused("cusparseSpMM", "a matrix of so many rows is not supported");
    const int64_t groups = static_cast<int64_t>(parts(c.columns, width));
    const auto kept = static_cast<uint64_t>(height * static_cast<double>(width)) * sizeof(Number);
    return told(submit(
        p.stream, "cusparseSpMM", static_cast<uint64_t>(groups * c.batch),
        [=](uint64_t piece, const Access& access) {
            const auto batch = static_cast<int64_t>(piece) / groups,
                       first = static_cast<int64_t>(piece) % groups * width;
            const int64_t columns = std::min(width, c.columns - first);
            const auto index = [columns](int64_t row, int64_t column) {
                return static_cast<size_t>(row * columns + column);
            };
            const Place from(access, b, b.batch > 1 ? batch : 0, false, "B"), to(access, c, batch, true, "C");
            Room<Number> given(static_cast<size_t>(inner * columns)),
                sums(static_cast<size_t>(c.rows * columns));
            for (int64_t i = 0; i < inner; ++i)
                for (int64_t j = 0; j < columns; ++j) {
                    const char* const at = p.operation.b ? from.at(first + j, i) : from.at(i, first + j);
                    given[index(i, j)] =
                        conjugated(load<Number>(at, static_cast<int>(b.type)), p.operation.b == 2);
                }
            const Elements elements(access, p.sparse, p.sparse.batch > 1 ? batch : 0);
            elements.each([&](int64_t row, int64_t column, const char* at) {
                if (p.operation.a) std::swap(row, column);
                const Number value =
                    conjugated(load<Number>(at, static_cast<int>(p.sparse.type)), p.operation.a == 2);
                Number* const sum = sums.data() + index(row, 0);
                const Number* const other = given.data() + index(column, 0);
                for (int64_t j = 0; j < columns; ++j) sum[j] += value * other[j];
            });
            const auto compute = static_cast<int>(p.operation.compute), type = static_cast<int>(c.type);
            const Number alpha = p.alpha.get<Number>(access, compute),
                         beta = p.beta.get<Number>(access, compute);
            for (int64_t i = 0; i < c.rows; ++i)
                for (int64_t j = 0; j < columns; ++j) {
                    char* const at = to.at(i, first + j);
                    Number value = alpha * sums[index(i, j)];
                    if (beta != Number(0)) value += beta * load<Number>(at, type);
                    store(at, type, value);
                }
        },
        kept));
}

// C = alpha (op(A) op(B) where C has elements) + beta C with C sparse: a piece has some of its elements.
template <class Number>
int sample_as(const Product& p) {
    const Dense &a = p.first, &b = p.second;
    const int64_t inner = p.operation.a ? a.rows : a.columns;
    const int64_t at_once = std::max<int64_t>(1, 262144 / (inner + 1)),
                  groups = static_cast<int64_t>(parts(p.sparse.count, at_once));
    return told(submit(
        p.stream, "cusparseSDDMM", static_cast<uint64_t>(groups * p.sparse.batch),
        [=](uint64_t piece, const Access& access) {
            const auto batch = static_cast<int64_t>(piece) / groups,
                       first = static_cast<int64_t>(piece) % groups * at_once;
            const Place left(access, a, a.batch > 1 ? batch : 0, false, "A"),
                right(access, b, b.batch > 1 ? batch : 0, false, "B");
            const Elements elements(access, p.sparse, batch, true);
            const auto compute = static_cast<int>(p.operation.compute),
                       type = static_cast<int>(p.sparse.type);
            const Number alpha = p.alpha.get<Number>(access, compute),
                         beta = p.beta.get<Number>(access, compute);
            elements.each(
                first, std::min(first + at_once, p.sparse.count), [&](int64_t row, int64_t column, char* at) {
                    Number sum(0);
                    for (int64_t k = 0; k < inner; ++k) {
                        const char* const x = p.operation.a ? left.at(k, row) : left.at(row, k);
                        const char* const y = p.operation.b ? right.at(column, k) : right.at(k, column);
                        sum += conjugated(load<Number>(x, static_cast<int>(a.type)), p.operation.a == 2) *
                               conjugated(load<Number>(y, static_cast<int>(b.type)), p.operation.b == 2);
                    }
                    Number value = alpha * sum;
                    if (beta != Number(0)) value += beta * load<Number>(at, type);
                    store(at, type, value);
                });
        }));
}

bool is_zero(const char* at, uint64_t size, bool floating) {
    // -0 is 0, too: the sign is the highest bit of each part.
    const uint64_t part = size == 16 ? 8 : size;
    for (uint64_t i = 0; i < size; ++i) {
        const bool sign = floating && i % part == part - 1;
        if (at[i] & (sign ? 0x7f : 0xff)) return false;
    }
    return true;
}
bool zero(const char* at, int64_t type) {
    if (type == cublas::C_32F) return is_zero(at, 4, true) && is_zero(at + 4, 4, true);
    return is_zero(at, bytes_of(type), type != cublas::R_8I && type != cublas::R_8U && type != cublas::R_32I);
}

// The elements of a dense matrix, line by line, in chunks of which a line may have several.
class Chunks {
  public:
    Chunks(const Dense& dense, bool by_rows)
        : lines(by_rows ? dense.rows : dense.columns),
          along(by_rows ? dense.columns : dense.rows),
          by_rows_(by_rows) {}
    uint64_t count() const { return parts(lines * along, ELEMENTS_AT_ONCE); }
    // Calls element(line, place in it, address) for each of a chunk.
    template <class Element>
    void each(uint64_t chunk, const Place& matrix, Element element) const {
        const int64_t first = static_cast<int64_t>(chunk) * ELEMENTS_AT_ONCE,
                      end = std::min(first + ELEMENTS_AT_ONCE, lines * along);
        int64_t line = first / along, at = first % along;
        for (int64_t i = first; i < end; ++i) {
            element(line, at, by_rows_ ? matrix.at(line, at) : matrix.at(at, line));
            if (++at == along) at = 0, ++line;
        }
    }
    const int64_t lines, along;

  private:
    bool by_rows_;
};

// The elements of a dense matrix that are not 0: each chunk's are counted, then each knows where its own go.
CUresult from_dense(CUstream stream, const Sparse& sparse, const Dense& dense) {
    const char* const name = "cusparseDenseToSparse_convert";
    const auto put = [sparse](const Access& access, uint64_t array, int64_t type, int64_t index,
                              int64_t value) {
        const uint64_t bytes = index_bytes(type), at = array + static_cast<uint64_t>(index) * bytes;
        access.check(at, bytes, true, "the indices");
        value += sparse.base;
        std::memcpy(reinterpret_cast<void*>(at), &value, bytes);  // the low bytes of it come first
    };
    const Chunks chunks(dense, sparse.format != CSC);
    if (!chunks.lines || !chunks.along)  // all lines are empty
        return submit(stream, name, parts(chunks.lines + 1, ELEMENTS_AT_ONCE),
                      [=](uint64_t piece, const Access& access) {
                          const int64_t first = static_cast<int64_t>(piece) * ELEMENTS_AT_ONCE;
                          for (int64_t i = first; i < std::min(first + ELEMENTS_AT_ONCE, chunks.lines + 1);
                               ++i)
                              put(access, sparse.major, sparse.major_type, i, 0);
                      });
    const auto places = std::make_shared<Room<std::atomic<int64_t>>>(chunks.count());
    CUresult result = submit(stream, name, chunks.count(), [=](uint64_t piece, const Access& access) {
        const Place from(access, dense, 0, false, "the matrix");
        int64_t here = 0;
        chunks.each(piece, from, [&](int64_t, int64_t, const char* at) { here += !zero(at, dense.type); });
        (*places)[piece] = here;
    });
    if (result == CUDA_SUCCESS)
        result = submit(stream, name, 1, [=](uint64_t, const Access& access) {
            int64_t place = 0;
            for (auto& one : *places) place += one.exchange(place);
            if (sparse.format != COO) put(access, sparse.major, sparse.major_type, chunks.lines, place);
        });
    if (result != CUDA_SUCCESS) return result;
    const uint64_t size = bytes_of(sparse.type);
    return submit(stream, name, chunks.count(), [=](uint64_t piece, const Access& access) {
        const Place from(access, dense, 0, false, "the matrix");
        int64_t place = (*places)[piece];
        chunks.each(piece, from, [&](int64_t line, int64_t along, const char* at) {
            if (sparse.format != COO && !along) put(access, sparse.major, sparse.major_type, line, place);
            if (zero(at, dense.type)) return;
            if (sparse.format == COO) put(access, sparse.major, sparse.major_type, place, line);
            put(access, sparse.minor, sparse.minor_type, place, along);
            const uint64_t to = sparse.values + static_cast<uint64_t>(place) * size;
            access.check(to, size, true, "the values");
            std::memcpy(reinterpret_cast<void*>(to), at, size);
            ++place;
        });
    });
}
}  // namespace

int multiply(void* handle, Function function, const Request& operation, const void* alpha, const Sparse& a,
             const Dense& b, const void* beta, const Dense& c, void*, size_t* room) {
    const StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    if (function == SPMV_ROOM || function == SPMM_ROOM) return *room = LEAST_ROOM, SUCCESS;
    const size_t scalar = cublas::data_bytes(static_cast<int>(operation.compute));
    if (!alpha || !beta || !scalar) return INVALID_VALUE;
    if ((b.batch > 1 && b.batch != c.batch) || (a.batch > 1 && a.batch != c.batch)) return INVALID_VALUE;
    const bool on_host = own->pointer_mode == 0;
    const Product product{
        own->stream, operation, Scalar(on_host, alpha, scalar), Scalar(on_host, beta, scalar), a, b, c};
    return cublas::is_complex(static_cast<int>(operation.compute)) ? multiply_as<Z>(product)
                                                                   : multiply_as<double>(product);
}

int multiply_sampled(void* handle, Function function, const Request& operation, const void* alpha,
                     const Dense& a, const Dense& b, const void* beta, const Sparse& c, void*, size_t* room) {
    const StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    if (function == SDDMM_ROOM) return *room = LEAST_ROOM, SUCCESS;
    const size_t scalar = cublas::data_bytes(static_cast<int>(operation.compute));
    if (!alpha || !beta || !scalar) return INVALID_VALUE;
    if ((b.batch > 1 && b.batch != c.batch) || (a.batch > 1 && a.batch != c.batch)) return INVALID_VALUE;
    const bool on_host = own->pointer_mode == 0;
    const Product product{
        own->stream, operation, Scalar(on_host, alpha, scalar), Scalar(on_host, beta, scalar), c, a, b};
    return cublas::is_complex(static_cast<int>(operation.compute)) ? sample_as<Z>(product)
                                                                   : sample_as<double>(product);
}

int convert(void* handle, Function function, int, const Sparse& sparse, const Dense& dense, void*,
            size_t* room) {
    const StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    if (function == TO_DENSE_ROOM || function == FROM_DENSE_ROOM) return *room = LEAST_ROOM, SUCCESS;
    if (sparse.batch != 1 || dense.batch != 1)
        return refused("cusparseSparseToDense", "batches are not supported");
    const uint64_t size = bytes_of(sparse.type);
    // However many rows there are of no columns, or columns of no rows.
    const bool empty = !dense.rows || !dense.columns;
    if (empty && (function == TO_DENSE || sparse.format == COO)) return SUCCESS;
    if (function == TO_DENSE) {
        const bool by_rows = dense.order == BY_ROWS;
        const int64_t lines = by_rows ? dense.rows : dense.columns,
                      along = by_rows ? dense.columns : dense.rows;
        const int64_t at_once = std::max<int64_t>(1, (1 << 20) / (along + 1));
        const CUresult cleared = submit(own->stream, "cusparseSparseToDense", parts(lines, at_once),
                                        [=](uint64_t piece, const Access& access) {
                                            const Place to(access, dense, 0, true, "the matrix");
                                            const int64_t first = static_cast<int64_t>(piece) * at_once;
                                            for (int64_t i = first; i < std::min(first + at_once, lines); ++i)
                                                std::memset(by_rows ? to.at(i, 0) : to.at(0, i), 0,
                                                            static_cast<size_t>(along) * size);
                                        });
        if (cleared != CUDA_SUCCESS) return told(cleared);
        return told(submit(own->stream, "cusparseSparseToDense", parts(sparse.count, ELEMENTS_AT_ONCE),
                           [=](uint64_t piece, const Access& access) {
                               const Place to(access, dense, 0, true, "the matrix");
                               const Elements elements(access, sparse, 0);
                               const int64_t first = static_cast<int64_t>(piece) * ELEMENTS_AT_ONCE;
                               elements.each(first, std::min(first + ELEMENTS_AT_ONCE, sparse.count),
                                             [&](int64_t row, int64_t column, const char* at) {
                                                 std::memcpy(to.at(row, column), at, size);
                                             });
                           }));
    }
    return told(from_dense(own->stream, sparse, dense));
}

int count(void* handle, int, const Sparse&, const Dense& dense, void*, int64_t& elements) {
    const StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    if (!dense.rows || !dense.columns) return elements = 0, SUCCESS;  // however many of the other
    const auto found = std::make_shared<std::atomic<int64_t>>(0);
    const Chunks chunks(dense, dense.order == BY_ROWS);
    const CUresult result = submit(own->stream, "cusparseDenseToSparse_analysis", chunks.count(),
                                   [=](uint64_t piece, const Access& access) {
                                       const Place from(access, dense, 0, false, "the matrix");
                                       int64_t here = 0;
                                       chunks.each(piece, from, [&](int64_t, int64_t, const char* at) {
                                           here += !zero(at, dense.type);
                                       });
                                       *found += here;
                                   });
    if (result != CUDA_SUCCESS) return told(result);
    if (const CUresult waited = synchronize(own->stream); waited != CUDA_SUCCESS) return told(waited);
    return elements = *found, SUCCESS;
}

// --- products of two sparse matrices, row by row ---

namespace {
// The rows of a product.  A piece has some rows: for each it adds the rows of B that A's elements name.
class Rows {
  public:
    Rows(const Sparse& a, const Sparse& b) : a_(a), b_(b) {
        const double each = static_cast<double>(a.count) / static_cast<double>(std::max<int64_t>(a.rows, 1)) *
                            static_cast<double>(b.count) / static_cast<double>(std::max<int64_t>(b.rows, 1));
        at_once_ = static_cast<int64_t>(std::clamp(262144 / (each + 1), 1.0, 4096.0));
    }
    uint64_t pieces() const { return parts(a_.rows, at_once_); }
    uint64_t host_bytes() const { return static_cast<uint64_t>(b_.columns) * (sizeof(int64_t) + sizeof(Z)); }

    // Calls row(number, columns, sums) for each row of a piece: its columns in order, and their sums by
    // column.
    template <class Number, class Row>
    void each(uint64_t piece, const Access& access, bool with_values, Row row) const {
        const Elements a(access, a_, 0), b(access, b_, 0);
        Room<int64_t> seen(static_cast<size_t>(b_.columns), -1), columns;
        Room<Number> sums(with_values ? static_cast<size_t>(b_.columns) : 0);
        const auto first = static_cast<int64_t>(piece) * at_once_;
        for (int64_t i = first; i < std::min(first + at_once_, a_.rows); ++i) {
            columns.clear();
            a.line(i, [&](int64_t inner, const char* left) {
                const Number factor = with_values ? load<Number>(left, static_cast<int>(a_.type)) : Number();
                b.line(inner, [&](int64_t column, const char* right) {
                    const auto at = static_cast<size_t>(column);
                    if (seen[at] != i) {
                        seen[at] = i, columns.push_back(column);
                        if (with_values) sums[at] = Number();
                    }
                    if (with_values) sums[at] += factor * load<Number>(right, static_cast<int>(b_.type));
                });
            });
            std::sort(columns.begin(), columns.end());
            row(i, columns, sums);
        }
    }

  private:
    Sparse a_, b_;
    int64_t at_once_;
};
// Each row's elements.  There is room for them once the host's memory for it is the slice's.
struct RowCounts {
    std::once_flag once;
    Room<int64_t> all;
    Room<int64_t>& of(int64_t rows) {
        std::call_once(once, [&] { all.resize(static_cast<size_t>(rows)); });
        return all;
    }
};
using Counts = std::shared_ptr<RowCounts>;

// Counts each row's elements, in the stream's order.
CUresult count_rows(CUstream stream, const Rows& rows, int64_t of, const Counts& counts) {
    return submit(
        stream, "cusparseSpGEMM", rows.pieces(),
        [=](uint64_t piece, const Access& access) {
            Room<int64_t>& found = counts->of(of);
            rows.each<double>(piece, access, false, [&](int64_t row, const auto& columns, const auto&) {
                found[static_cast<size_t>(row)] = static_cast<int64_t>(columns.size());
            });
        },
        rows.host_bytes() + static_cast<uint64_t>(of) * sizeof(int64_t));
}

template <class Number>
int multiply_rows(CUstream stream, const Request& operation, const Scalar& alpha, const Sparse& a,
                  const Sparse& b, const Scalar& beta, const Sparse& c) {
    const Rows rows(a, b);
    const auto counts = std::make_shared<RowCounts>();
    CUresult result = count_rows(stream, rows, a.rows, counts);
    const auto put = [base = c.base](const Access& access, uint64_t array, int64_t type, int64_t index,
                                     int64_t value) {
        const uint64_t bytes = index_bytes(type), at = array + static_cast<uint64_t>(index) * bytes;
        access.check(at, bytes, true, "the indices of the product");
        value += base;
        std::memcpy(reinterpret_cast<void*>(at), &value, bytes);  // the low bytes of it come first
    };
    if (result == CUDA_SUCCESS)  // from counts to offsets
        result = submit(stream, "cusparseSpGEMM", 1, [=](uint64_t, const Access& access) {
            int64_t offset = 0;
            for (int64_t i = 0; i < a.rows; ++i) {
                put(access, c.major, c.major_type, i, offset);
                offset += std::exchange(counts->of(a.rows)[static_cast<size_t>(i)], offset);
            }
            put(access, c.major, c.major_type, a.rows, offset);
        });
    if (result != CUDA_SUCCESS) return told(result);
    const auto compute = static_cast<int>(operation.compute), type = static_cast<int>(c.type);
    return told(submit(
        stream, "cusparseSpGEMM", rows.pieces(),
        [=](uint64_t piece, const Access& access) {
            const Number x = alpha.get<Number>(access, compute), y = beta.get<Number>(access, compute);
            rows.each<Number>(piece, access, true, [&](int64_t row, const auto& columns, const auto& sums) {
                int64_t index = counts->of(a.rows)[static_cast<size_t>(row)];
                for (const int64_t column : columns) {
                    put(access, c.minor, c.minor_type, index, column);
                    const uint64_t to = c.values + static_cast<uint64_t>(index++) * bytes_of(c.type);
                    access.check(to, bytes_of(c.type), true, "the values of the product");
                    Number value = x * sums[static_cast<size_t>(column)];
                    if (y != Number(0)) value += y * load<Number>(reinterpret_cast<const char*>(to), type);
                    store(reinterpret_cast<char*>(to), type, value);
                }
            });
        },
        rows.host_bytes()));
}
}  // namespace

static int count_product(void* handle, const Sparse& a, const Sparse& b, size_t& elements) {
    const StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    if (a.columns != b.rows) return INVALID_VALUE;
    const auto counts = std::make_shared<RowCounts>();
    CUresult result = count_rows(own->stream, Rows(a, b), a.rows, counts);
    if (result == CUDA_SUCCESS) result = synchronize(own->stream);
    if (result != CUDA_SUCCESS) return told(result);
    elements = 0;
    for (const int64_t one : counts->all) elements += static_cast<size_t>(one);
    return SUCCESS;
}
int multiply(void* handle, Function step, const Factors& factors, const void* alpha, const void* beta,
             size_t& answer) {
    const auto& [operation, a, b, c, workspaces] = factors;
    const StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    if (step == SPGEMM_FIRST_ROOM || step == SPGEMM_SECOND_ROOM) return answer = LEAST_ROOM, SUCCESS;
    if (step == SPGEMM_COUNT) return count_product(handle, a, b, answer);
    const size_t scalar = cublas::data_bytes(static_cast<int>(operation.compute));
    if (!alpha || !beta || !scalar || a.columns != b.rows || c.rows != a.rows || c.columns != b.columns)
        return INVALID_VALUE;
    const bool on_host = own->pointer_mode == 0;
    const Scalar x(on_host, alpha, scalar), y(on_host, beta, scalar);
    return cublas::is_complex(static_cast<int>(operation.compute))
               ? multiply_rows<Z>(own->stream, operation, x, a, b, y, c)
               : multiply_rows<double>(own->stream, operation, x, a, b, y, c);
}

// For the worker, which has descriptors of its own for each call.
GPUKERNEL_EXPORT int cusparse_gpukernel_spgemm(void* handle, int step, const Factors* factors,
                                               const void* alpha, const void* beta, size_t* answer) {
    return multiply(handle, static_cast<Function>(step), *factors, alpha, beta, *answer);
}
GPUKERNEL_EXPORT int cusparse_gpukernel_count(void* handle, const Dense* dense, void* elements) {
    int64_t found = 0;
    const int status = count(handle, 0, {}, *dense, nullptr, found);
    std::memcpy(elements, &found, sizeof found);
    return status;
}

}  // namespace gpukernel::libraries::cusparse
