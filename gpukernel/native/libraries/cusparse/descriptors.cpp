// cuSPARSE's descriptors, and the operations on them: the same in the program and beside the simulated GPU.
#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "libraries/cusparse/types.h"

namespace gpukernel::libraries::cusparse {

namespace {
// A dense matrix that a sparse one is to be made from, and what the program said of it.
struct Source {
    Dense matrix;
    int algorithm;
    void* buffer;
};
// A sparse matrix that a dense one is to become: how many elements it has is found when somebody asks.
struct Matrix : Sparse {
    std::unique_ptr<Source> from;
    void* handle = nullptr;
};
// What programs have for each product of two sparse matrices: the workspaces of its steps.
struct Preparation : Workspaces {};
bool check(const Preparation&) { return true; }

// The descriptors of one kind that are alive.
template <class Descriptor>
class Living {
  public:
    static int make(void** place, Descriptor&& descriptor) {
        if (!place || !check(descriptor)) return INVALID_VALUE;
        auto own = std::make_shared<Descriptor>(std::move(descriptor));
        std::lock_guard lock(mutex());
        *place = own.get();
        all()[own.get()] = std::move(own);
        return SUCCESS;
    }
    static std::shared_ptr<Descriptor> find(const void* address) {
        std::lock_guard lock(mutex());
        const auto it = all().find(address);
        return it == all().end() ? nullptr : it->second;
    }
    static int end(const void* address) {
        std::lock_guard lock(mutex());
        return all().erase(address) ? SUCCESS : INVALID_VALUE;
    }

  private:
    static std::mutex& mutex() {
        static std::mutex* const only = new std::mutex;  // threads may be inside at exit
        return *only;
    }
    static std::unordered_map<const void*, std::shared_ptr<Descriptor>>& all() {
        static auto* const only = new std::unordered_map<const void*, std::shared_ptr<Descriptor>>;
        return *only;
    }
};
using Matrices = Living<Matrix>;
using Denses = Living<Dense>;
using Vectors = Living<Vector>;
using Preparations = Living<Preparation>;

uint64_t number(const void* address) { return reinterpret_cast<uint64_t>(address); }
void* address(uint64_t number) { return reinterpret_cast<void*>(number); }

int make(void** place, int format, int64_t rows, int64_t columns, int64_t count, const void* major,
         const void* minor, const void* values, int major_type, int minor_type, int base, int type) {
    Matrix m;
    m.format = format, m.rows = rows, m.columns = columns, m.count = count;
    m.major = number(major), m.minor = number(minor), m.values = number(values);
    m.major_type = major_type, m.minor_type = minor_type, m.base = base, m.type = type;
    return Matrices::make(place, std::move(m));
}
template <class To, class From>
void tell(To* place, From value) {
    if (place) *place = static_cast<To>(value);
}
// Finds out how many elements a matrix from others has.
int counted(Matrix& m) {
    if (!m.from) return SUCCESS;
    const int status = count(m.handle, m.from->algorithm, m, m.from->matrix, m.from->buffer, m.count);
    if (!status) m.from.reset();
    return status;
}
int take_apart(const void* descriptor, int64_t format, int64_t* rows, int64_t* columns, int64_t* elements,
               void** major, void** minor, void** values, int* major_type, int* minor_type, int* base,
               int* type) {
    const auto m = Matrices::find(descriptor);
    if (!m || m->format != format) return INVALID_VALUE;
    if (const int status = counted(*m)) return status;
    tell(rows, m->rows), tell(columns, m->columns), tell(elements, m->count);
    if (major) *major = address(m->major);
    if (minor) *minor = address(m->minor);
    if (values) *values = address(m->values);
    tell(major_type, m->major_type), tell(minor_type, m->minor_type), tell(base, m->base),
        tell(type, m->type);
    return SUCCESS;
}
int set_pointers(void* descriptor, int64_t format, const void* major, const void* minor, const void* values) {
    const auto m = Matrices::find(descriptor);
    if (!m || m->format != format || !major || !minor || !values) return INVALID_VALUE;
    m->major = number(major), m->minor = number(minor), m->values = number(values);
    return SUCCESS;
}
int set_batch(void* descriptor, int64_t format, int batch, int64_t major_step, int64_t element_step) {
    const auto m = Matrices::find(descriptor);
    if (!m || m->format != format || batch < 1 || !is_size(major_step) || !is_size(element_step))
        return INVALID_VALUE;
    m->batch = batch, m->major_step = major_step, m->element_step = element_step;
    return SUCCESS;
}

// A vector as a matrix of one column.
Dense column(const Vector& v) {
    Dense d;
    d.rows = d.ld = v.size, d.columns = 1, d.values = v.values, d.type = v.type;
    return d;
}
int spmv(void* handle, Function function, int operation, const void* alpha, const void* a, const void* x,
         const void* beta, const void* y, int compute, int algorithm, void* buffer, size_t* room) {
    const auto matrix = Matrices::find(a);
    const auto from = Vectors::find(x), to = Vectors::find(y);
    if (!matrix || !from || !to || !is_operation(operation)) return INVALID_VALUE;
    const int64_t rows = operation ? matrix->columns : matrix->rows,
                  columns = operation ? matrix->rows : matrix->columns;
    if (from->size != columns || to->size != rows) return INVALID_VALUE;
    return multiply(handle, function, {operation, 0, compute, algorithm}, alpha, *matrix, column(*from), beta,
                    column(*to), buffer, room);
}
// Whether op(A) of m × k, op(B) of k × n and m × n fit together.
bool fit(int a, int b, int64_t a_rows, int64_t a_columns, const Dense& second, int64_t m, int64_t n) {
    if (!is_operation(a) || !is_operation(b)) return false;
    return (a ? a_columns : a_rows) == m && (b ? second.rows : second.columns) == n &&
           (a ? a_rows : a_columns) == (b ? second.columns : second.rows);
}
int spmm(void* handle, Function function, int op_a, int op_b, const void* alpha, const void* a, const void* b,
         const void* beta, const void* c, int compute, int algorithm, void* buffer, size_t* room) {
    const auto matrix = Matrices::find(a);
    const auto from = Denses::find(b), to = Denses::find(c);
    if (!matrix || !from || !to ||
        !fit(op_a, op_b, matrix->rows, matrix->columns, *from, to->rows, to->columns))
        return INVALID_VALUE;
    return multiply(handle, function, {op_a, op_b, compute, algorithm}, alpha, *matrix, *from, beta, *to,
                    buffer, room);
}
int sddmm(void* handle, Function function, int op_a, int op_b, const void* alpha, const void* a,
          const void* b, const void* beta, const void* c, int compute, int algorithm, void* buffer,
          size_t* room) {
    const auto first = Denses::find(a), second = Denses::find(b);
    const auto to = Matrices::find(c);
    if (!first || !second || !to ||
        !fit(op_a, op_b, first->rows, first->columns, *second, to->rows, to->columns))
        return INVALID_VALUE;
    return multiply_sampled(handle, function, {op_a, op_b, compute, algorithm}, alpha, *first, *second, beta,
                            *to, buffer, room);
}
int between(void* handle, Function function, const void* sparse, const void* dense, int algorithm,
            void* buffer, size_t* room) {
    const auto matrix = Matrices::find(sparse);
    const auto other = Denses::find(dense);
    if (!matrix || !other || matrix->rows != other->rows || matrix->columns != other->columns ||
        matrix->type != other->type)
        return INVALID_VALUE;
    return convert(handle, function, algorithm, *matrix, *other, buffer, room);
}
}  // namespace

// --- sparse matrices ---

#define GPUKERNEL_COMPRESSED(name, format)                                                                   \
    GPUKERNEL_EXPORT int cusparseCreate##name(void** place, int64_t rows, int64_t columns, int64_t count,    \
                                              const void* major, const void* minor, const void* values,      \
                                              int major_type, int minor_type, int base, int type) {          \
        return make(place, format, rows, columns, count, major, minor, values, major_type, minor_type, base, \
                    type);                                                                                   \
    }
GPUKERNEL_COMPRESSED(Csr, CSR)
GPUKERNEL_COMPRESSED(ConstCsr, CSR)
GPUKERNEL_COMPRESSED(Csc, CSC)
GPUKERNEL_COMPRESSED(ConstCsc, CSC)
GPUKERNEL_EXPORT int cusparseCreateCoo(void** place, int64_t rows, int64_t columns, int64_t count,
                                       const void* major, const void* minor, const void* values,
                                       int index_type, int base, int type) {
    return make(place, COO, rows, columns, count, major, minor, values, index_type, index_type, base, type);
}
GPUKERNEL_EXPORT int cusparseCreateConstCoo(void** place, int64_t rows, int64_t columns, int64_t count,
                                            const void* major, const void* minor, const void* values,
                                            int index_type, int base, int type) {
    return cusparseCreateCoo(place, rows, columns, count, major, minor, values, index_type, base, type);
}
GPUKERNEL_EXPORT int cusparseDestroySpMat(const void* matrix) { return Matrices::end(matrix); }

#define GPUKERNEL_TAKE_APART(name, format)                                                                 \
    GPUKERNEL_EXPORT int cusparse##name##Get(const void* matrix, int64_t* rows, int64_t* columns,          \
                                             int64_t* elements, void** major, void** minor, void** values, \
                                             int* major_type, int* minor_type, int* base, int* type) {     \
        return take_apart(matrix, format, rows, columns, elements, major, minor, values, major_type,       \
                          minor_type, base, type);                                                         \
    }
GPUKERNEL_TAKE_APART(Csr, CSR)
GPUKERNEL_TAKE_APART(ConstCsr, CSR)
GPUKERNEL_TAKE_APART(Csc, CSC)
GPUKERNEL_TAKE_APART(ConstCsc, CSC)
GPUKERNEL_EXPORT int cusparseCooGet(const void* matrix, int64_t* rows, int64_t* columns, int64_t* elements,
                                    void** major, void** minor, void** values, int* index_type, int* base,
                                    int* type) {
    return take_apart(matrix, COO, rows, columns, elements, major, minor, values, index_type, nullptr, base,
                      type);
}
GPUKERNEL_EXPORT int cusparseConstCooGet(const void* matrix, int64_t* rows, int64_t* columns,
                                         int64_t* elements, void** major, void** minor, void** values,
                                         int* index_type, int* base, int* type) {
    return cusparseCooGet(matrix, rows, columns, elements, major, minor, values, index_type, base, type);
}
GPUKERNEL_EXPORT int cusparseCsrSetPointers(void* matrix, void* offsets, void* columns, void* values) {
    return set_pointers(matrix, CSR, offsets, columns, values);
}
GPUKERNEL_EXPORT int cusparseCscSetPointers(void* matrix, void* offsets, void* rows, void* values) {
    return set_pointers(matrix, CSC, offsets, rows, values);
}
GPUKERNEL_EXPORT int cusparseCooSetPointers(void* matrix, void* rows, void* columns, void* values) {
    return set_pointers(matrix, COO, rows, columns, values);
}
GPUKERNEL_EXPORT int cusparseCsrSetStridedBatch(void* matrix, int batch, int64_t offsets_step,
                                                int64_t element_step) {
    return set_batch(matrix, CSR, batch, offsets_step, element_step);
}
GPUKERNEL_EXPORT int cusparseCooSetStridedBatch(void* matrix, int batch, int64_t step) {
    return set_batch(matrix, COO, batch, step, step);
}
GPUKERNEL_EXPORT int cusparseSpMatGetSize(const void* matrix, int64_t* rows, int64_t* columns,
                                          int64_t* elements) {
    const auto m = Matrices::find(matrix);
    if (!m) return INVALID_VALUE;
    if (const int status = counted(*m)) return status;
    return tell(rows, m->rows), tell(columns, m->columns), tell(elements, m->count), SUCCESS;
}
GPUKERNEL_EXPORT int cusparseSpMatGetFormat(const void* matrix, int* format) {
    const auto m = Matrices::find(matrix);
    return m && format ? (tell(format, m->format), SUCCESS) : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseSpMatGetIndexBase(const void* matrix, int* base) {
    const auto m = Matrices::find(matrix);
    return m && base ? (tell(base, m->base), SUCCESS) : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseSpMatGetValues(const void* matrix, void** values) {
    const auto m = Matrices::find(matrix);
    return m && values ? (*values = address(m->values), SUCCESS) : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseConstSpMatGetValues(const void* matrix, void** values) {
    return cusparseSpMatGetValues(matrix, values);
}
GPUKERNEL_EXPORT int cusparseSpMatSetValues(void* matrix, void* values) {
    const auto m = Matrices::find(matrix);
    return m ? (m->values = number(values), SUCCESS) : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseSpMatGetStridedBatch(const void* matrix, int* batch) {
    const auto m = Matrices::find(matrix);
    return m && batch ? (tell(batch, m->batch), SUCCESS) : INVALID_VALUE;
}

// --- dense matrices and vectors ---

GPUKERNEL_EXPORT int cusparseCreateDnMat(void** place, int64_t rows, int64_t columns, int64_t ld,
                                         const void* values, int type, int order) {
    return Denses::make(place, {rows, columns, ld, number(values), type, order, 1, 0});
}
GPUKERNEL_EXPORT int cusparseCreateConstDnMat(void** place, int64_t rows, int64_t columns, int64_t ld,
                                              const void* values, int type, int order) {
    return cusparseCreateDnMat(place, rows, columns, ld, values, type, order);
}
GPUKERNEL_EXPORT int cusparseDestroyDnMat(const void* matrix) { return Denses::end(matrix); }
GPUKERNEL_EXPORT int cusparseDnMatGet(const void* matrix, int64_t* rows, int64_t* columns, int64_t* ld,
                                      void** values, int* type, int* order) {
    const auto m = Denses::find(matrix);
    if (!m) return INVALID_VALUE;
    tell(rows, m->rows), tell(columns, m->columns), tell(ld, m->ld), tell(type, m->type),
        tell(order, m->order);
    if (values) *values = address(m->values);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cusparseConstDnMatGet(const void* matrix, int64_t* rows, int64_t* columns, int64_t* ld,
                                           void** values, int* type, int* order) {
    return cusparseDnMatGet(matrix, rows, columns, ld, values, type, order);
}
GPUKERNEL_EXPORT int cusparseDnMatGetValues(const void* matrix, void** values) {
    const auto m = Denses::find(matrix);
    return m && values ? (*values = address(m->values), SUCCESS) : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseConstDnMatGetValues(const void* matrix, void** values) {
    return cusparseDnMatGetValues(matrix, values);
}
GPUKERNEL_EXPORT int cusparseDnMatSetValues(void* matrix, void* values) {
    const auto m = Denses::find(matrix);
    return m ? (m->values = number(values), SUCCESS) : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseDnMatSetStridedBatch(void* matrix, int batch, int64_t step) {
    const auto m = Denses::find(matrix);
    if (!m || batch < 1 || !is_size(step)) return INVALID_VALUE;
    return m->batch = batch, m->step = step, SUCCESS;
}
GPUKERNEL_EXPORT int cusparseDnMatGetStridedBatch(const void* matrix, int* batch, int64_t* step) {
    const auto m = Denses::find(matrix);
    return m ? (tell(batch, m->batch), tell(step, m->step), SUCCESS) : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseCreateDnVec(void** place, int64_t size, const void* values, int type) {
    return Vectors::make(place, {size, number(values), type});
}
GPUKERNEL_EXPORT int cusparseCreateConstDnVec(void** place, int64_t size, const void* values, int type) {
    return cusparseCreateDnVec(place, size, values, type);
}
GPUKERNEL_EXPORT int cusparseDestroyDnVec(const void* vector) { return Vectors::end(vector); }
GPUKERNEL_EXPORT int cusparseDnVecGet(const void* vector, int64_t* size, void** values, int* type) {
    const auto v = Vectors::find(vector);
    if (!v) return INVALID_VALUE;
    tell(size, v->size), tell(type, v->type);
    if (values) *values = address(v->values);
    return SUCCESS;
}
GPUKERNEL_EXPORT int cusparseConstDnVecGet(const void* vector, int64_t* size, void** values, int* type) {
    return cusparseDnVecGet(vector, size, values, type);
}
GPUKERNEL_EXPORT int cusparseDnVecGetValues(const void* vector, void** values) {
    const auto v = Vectors::find(vector);
    return v && values ? (*values = address(v->values), SUCCESS) : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseConstDnVecGetValues(const void* vector, void** values) {
    return cusparseDnVecGetValues(vector, values);
}
GPUKERNEL_EXPORT int cusparseDnVecSetValues(void* vector, void* values) {
    const auto v = Vectors::find(vector);
    return v ? (v->values = number(values), SUCCESS) : INVALID_VALUE;
}

// --- operations; preparing one is never needed ---

GPUKERNEL_EXPORT int cusparseSpMV(void* handle, int op, const void* alpha, const void* a, const void* x,
                                  const void* beta, const void* y, int compute, int algorithm, void* buffer) {
    return spmv(handle, SPMV, op, alpha, a, x, beta, y, compute, algorithm, buffer, nullptr);
}
GPUKERNEL_EXPORT int cusparseSpMV_bufferSize(void* handle, int op, const void* alpha, const void* a,
                                             const void* x, const void* beta, const void* y, int compute,
                                             int algorithm, size_t* room) {
    return room ? spmv(handle, SPMV_ROOM, op, alpha, a, x, beta, y, compute, algorithm, nullptr, room)
                : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseSpMV_preprocess(void* handle, int, const void*, const void* a, const void* x,
                                             const void*, const void* y, int, int, void*) {
    if (!handle_of(handle)) return NOT_INITIALIZED;
    return Matrices::find(a) && Vectors::find(x) && Vectors::find(y) ? SUCCESS : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseSpMM(void* handle, int op_a, int op_b, const void* alpha, const void* a,
                                  const void* b, const void* beta, const void* c, int compute, int algorithm,
                                  void* buffer) {
    return spmm(handle, SPMM, op_a, op_b, alpha, a, b, beta, c, compute, algorithm, buffer, nullptr);
}
GPUKERNEL_EXPORT int cusparseSpMM_bufferSize(void* handle, int op_a, int op_b, const void* alpha,
                                             const void* a, const void* b, const void* beta, const void* c,
                                             int compute, int algorithm, size_t* room) {
    return room ? spmm(handle, SPMM_ROOM, op_a, op_b, alpha, a, b, beta, c, compute, algorithm, nullptr, room)
                : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseSpMM_preprocess(void* handle, int, int, const void*, const void* a,
                                             const void* b, const void*, const void* c, int, int, void*) {
    if (!handle_of(handle)) return NOT_INITIALIZED;
    return Matrices::find(a) && Denses::find(b) && Denses::find(c) ? SUCCESS : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseSDDMM(void* handle, int op_a, int op_b, const void* alpha, const void* a,
                                   const void* b, const void* beta, const void* c, int compute, int algorithm,
                                   void* buffer) {
    return sddmm(handle, SDDMM, op_a, op_b, alpha, a, b, beta, c, compute, algorithm, buffer, nullptr);
}
GPUKERNEL_EXPORT int cusparseSDDMM_bufferSize(void* handle, int op_a, int op_b, const void* alpha,
                                              const void* a, const void* b, const void* beta, const void* c,
                                              int compute, int algorithm, size_t* room) {
    return room ? sddmm(handle, SDDMM_ROOM, op_a, op_b, alpha, a, b, beta, c, compute, algorithm, nullptr,
                        room)
                : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseSDDMM_preprocess(void* handle, int, int, const void*, const void* a,
                                              const void* b, const void*, const void* c, int, int, void*) {
    if (!handle_of(handle)) return NOT_INITIALIZED;
    return Denses::find(a) && Denses::find(b) && Matrices::find(c) ? SUCCESS : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseSparseToDense(void* handle, const void* sparse, const void* dense, int algorithm,
                                           void* buffer) {
    return between(handle, TO_DENSE, sparse, dense, algorithm, buffer, nullptr);
}
GPUKERNEL_EXPORT int cusparseSparseToDense_bufferSize(void* handle, const void* sparse, const void* dense,
                                                      int algorithm, size_t* room) {
    return room ? between(handle, TO_DENSE_ROOM, sparse, dense, algorithm, nullptr, room) : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseDenseToSparse_bufferSize(void* handle, const void* dense, const void* sparse,
                                                      int algorithm, size_t* room) {
    return room ? between(handle, FROM_DENSE_ROOM, sparse, dense, algorithm, nullptr, room) : INVALID_VALUE;
}
GPUKERNEL_EXPORT int cusparseDenseToSparse_analysis(void* handle, const void* dense, const void* sparse,
                                                    int algorithm, void* buffer) {
    const auto matrix = Matrices::find(sparse);
    const auto from = Denses::find(dense);
    if (!handle_of(handle)) return NOT_INITIALIZED;
    if (!matrix || !from) return INVALID_VALUE;
    matrix->from.reset(new Source{*from, algorithm, buffer});
    matrix->handle = handle;
    return SUCCESS;
}
GPUKERNEL_EXPORT int cusparseDenseToSparse_convert(void* handle, const void* dense, const void* sparse,
                                                   int algorithm, void* buffer) {
    return between(handle, FROM_DENSE, sparse, dense, algorithm, buffer, nullptr);
}

// --- products of two sparse matrices: how many elements there are is known when `compute` returns ---

static int prepare(void* handle, int op_a, int op_b, const void* a, const void* b, const void* c, int compute,
                   int algorithm, const void* preparation, Factors& factors) {
    if (!handle_of(handle)) return NOT_INITIALIZED;
    const auto first = Matrices::find(a), second = Matrices::find(b), to = Matrices::find(c);
    const auto kept = Preparations::find(preparation);
    if (!first || !second || !to || !kept) return INVALID_VALUE;
    if (op_a || op_b || first->format != CSR || second->format != CSR || to->format != CSR)
        return NOT_SUPPORTED;
    if (first->columns != second->rows || to->rows != first->rows || to->columns != second->columns)
        return INVALID_VALUE;
    factors = {{op_a, op_b, compute, algorithm}, *first, *second, *to, *kept};
    return SUCCESS;
}
GPUKERNEL_EXPORT int cusparseSpGEMM_createDescr(void** preparation) {
    return Preparations::make(preparation, {});
}
GPUKERNEL_EXPORT int cusparseSpGEMM_destroyDescr(const void* preparation) {
    return Preparations::end(preparation);
}
GPUKERNEL_EXPORT int cusparseSpGEMM_workEstimation(void* handle, int op_a, int op_b, const void* alpha,
                                                   const void* a, const void* b, const void* beta,
                                                   const void* c, int compute, int algorithm,
                                                   const void* preparation, size_t* room, void* buffer) {
    Factors factors;
    if (!room) return INVALID_VALUE;
    if (const int status = prepare(handle, op_a, op_b, a, b, c, compute, algorithm, preparation, factors))
        return status;
    if (!buffer) return multiply(handle, SPGEMM_FIRST_ROOM, factors, alpha, beta, *room);
    const auto kept = Preparations::find(preparation);
    return kept->first = number(buffer), kept->first_bytes = *room, SUCCESS;
}
GPUKERNEL_EXPORT int cusparseSpGEMM_compute(void* handle, int op_a, int op_b, const void* alpha,
                                            const void* a, const void* b, const void* beta, const void* c,
                                            int compute, int algorithm, const void* preparation, size_t* room,
                                            void* buffer) {
    Factors factors;
    if (!room) return INVALID_VALUE;
    if (const int status = prepare(handle, op_a, op_b, a, b, c, compute, algorithm, preparation, factors))
        return status;
    if (!buffer) return multiply(handle, SPGEMM_SECOND_ROOM, factors, alpha, beta, *room);
    const auto kept = Preparations::find(preparation);
    const auto to = Matrices::find(c);
    kept->second = number(buffer), kept->second_bytes = *room;
    factors.workspaces = *kept;
    size_t elements = 0;
    if (const int status = multiply(handle, SPGEMM_COUNT, factors, alpha, beta, elements)) return status;
    return to->count = static_cast<int64_t>(elements), to->from.reset(), SUCCESS;
}
GPUKERNEL_EXPORT int cusparseSpGEMM_copy(void* handle, int op_a, int op_b, const void* alpha, const void* a,
                                         const void* b, const void* beta, const void* c, int compute,
                                         int algorithm, const void* preparation) {
    Factors factors;
    size_t none = 0;
    if (const int status = prepare(handle, op_a, op_b, a, b, c, compute, algorithm, preparation, factors))
        return status;
    return multiply(handle, SPGEMM, factors, alpha, beta, none);
}

}  // namespace gpukernel::libraries::cusparse
