// cuSPARSE: its handles, its calls without descriptors (generated from libraries/cusparse/calls.txt), and
// those with, whose descriptors are made anew for each from what the program's have.
#include <cstring>
#include <span>
#include <vector>

#include "libraries/cusparse/types.h"
#include "worker/libraries/libraries.h"
#include "worker/session/session.h"

namespace gpukernel::worker {

using namespace libraries::cusparse;
using Answer = libraries::cublas::Status;

namespace {
template <class Function>
Function find(const MathLibrary& library, const char* name) {
    return reinterpret_cast<Function>(library.function(name));
}

// The library's own older descriptor of a kind of matrix, which the handle's calls share.
void* matrix_of(LibraryArguments& in) {
    const auto kind = in.number<uint32_t>();
    constexpr const char* PROPERTIES[] = {"cusparseSetMatType", "cusparseSetMatFillMode",
                                          "cusparseSetMatDiagType", "cusparseSetMatIndexBase"};
    void* const matrix = in.made("cusparseCreateMatDescr", "cusparseDestroyMatDescr", kind);
    for (int i = 0; matrix && i < 4; ++i) {
        auto* const set = find<int (*)(void*, int)>(in.object->library, PROPERTIES[i]);
        if (!set || set(matrix, static_cast<int>(kind >> (8 * i) & 0xff))) return in.fail();
    }
    return matrix;
}

#include "cusparse_worker.inc"

constexpr OwnStatuses OWN{NOT_INITIALIZED, ALLOC_FAILED, INVALID_VALUE, NOT_SUPPORTED};

// The library's descriptors of one call.
class Descriptors {
  public:
    explicit Descriptors(LibraryArguments& in) : in_(in), library_(in.object->library) {}
    ~Descriptors() {
        for (const auto& [descriptor, destroy] : made_)
            if (auto* const end = find<int (*)(void*)>(library_, destroy)) end(descriptor);
    }
    Descriptors(const Descriptors&) = delete;

    template <class T>
    bool read(T& value) {
        const void* const words = in_.bytes(sizeof value);
        if (words) std::memcpy(&value, words, sizeof value);
        return words;
    }
    void* sparse(Sparse& s) {
        if (!read(s) || !check(s) || !ours(s.major) || !ours(s.minor) || !ours(s.values)) return failed();
        const int major = static_cast<int>(s.major_type), minor = static_cast<int>(s.minor_type),
                  base = static_cast<int>(s.base), type = static_cast<int>(s.type);
        void* made = nullptr;
        if (s.format == COO) {
            auto* const make =
                find<int (*)(void**, int64_t, int64_t, int64_t, void*, void*, void*, int, int, int)>(
                    library_, "cusparseCreateCoo");
            if (!make || make(&made, s.rows, s.columns, s.count, at(s.major), at(s.minor), at(s.values),
                              major, base, type))
                return failed();
        } else {
            auto* const make =
                find<int (*)(void**, int64_t, int64_t, int64_t, void*, void*, void*, int, int, int, int)>(
                    library_, s.format == CSR ? "cusparseCreateCsr" : "cusparseCreateCsc");
            if (!make || make(&made, s.rows, s.columns, s.count, at(s.major), at(s.minor), at(s.values),
                              major, minor, base, type))
                return failed();
        }
        made_.emplace_back(made, "cusparseDestroySpMat");
        if (s.batch > 1) {
            auto* const csr =
                find<int (*)(void*, int, int64_t, int64_t)>(library_, "cusparseCsrSetStridedBatch");
            auto* const coo = find<int (*)(void*, int, int64_t)>(library_, "cusparseCooSetStridedBatch");
            const int batch = static_cast<int>(s.batch);
            if (s.format == CSC || !csr || !coo ||
                (s.format == CSR ? csr(made, batch, s.major_step, s.element_step)
                                 : coo(made, batch, s.element_step)))
                return failed();
        }
        return made;
    }
    void* dense(Dense& d) {
        if (!read(d) || !check(d) || !ours(d.values)) return failed();
        auto* const make = find<int (*)(void**, int64_t, int64_t, int64_t, void*, int, int)>(
            library_, "cusparseCreateDnMat");
        auto* const batch = find<int (*)(void*, int, int64_t)>(library_, "cusparseDnMatSetStridedBatch");
        void* made = nullptr;
        if (!make || make(&made, d.rows, d.columns, d.ld, at(d.values), static_cast<int>(d.type),
                          static_cast<int>(d.order)))
            return failed();
        made_.emplace_back(made, "cusparseDestroyDnMat");
        if (d.batch > 1 && (!batch || batch(made, static_cast<int>(d.batch), d.step))) return failed();
        return made;
    }
    bool good() const { return good_ && !in_.failed(); }
    bool ours(const Sparse& s) const { return ours(s.major) && ours(s.minor) && ours(s.values); }

  private:
    static void* at(uint64_t address) { return reinterpret_cast<void*>(address); }
    bool ours(uint64_t address) const { return !address || in_.in_lease(address, 1); }
    void* failed() { return good_ = false, nullptr; }

    LibraryArguments& in_;
    const MathLibrary& library_;
    std::vector<std::pair<void*, const char*>> made_;
    bool good_ = true;
};

// Products with one sparse matrix: the first (SpMV and SpMM), or the result (SDDMM).
int product(LibraryArguments& in, const char* name, bool sampled, bool measure, bool vector = false) {
    Descriptors all(in);
    Request operation;
    Sparse sparse;
    Dense first, second;
    if (!all.read(operation)) return INVALID_VALUE;
    void* const a = sampled ? all.dense(first) : all.sparse(sparse);
    void* const b = all.dense(sampled ? second : first);
    void* const c = sampled ? all.sparse(sparse) : all.dense(second);
    const size_t bytes = libraries::cublas::data_bytes(static_cast<int>(operation.compute));
    const void *const alpha = in.scalar(bytes), *const beta = in.scalar(bytes);
    void* const buffer = in.device();
    if (!all.good()) return INVALID_VALUE;
    if (vector) operation.algorithm = 0;  // those of SpMV are others than SpMM's
    void* const last = measure ? in.room(sizeof(size_t)) : buffer;
    in.name = name;
    return in.call<int (*)(void*, int, int, const void*, void*, void*, const void*, void*, int, int, void*)>(
        in.handle(), static_cast<int>(operation.a), static_cast<int>(operation.b), alpha, a, b, beta, c,
        static_cast<int>(operation.compute), static_cast<int>(operation.algorithm), last);
}

int to_dense(LibraryArguments& in, bool measure) {
    Descriptors all(in);
    Request operation;
    Sparse sparse;
    Dense dense;
    if (!all.read(operation)) return INVALID_VALUE;
    void *const a = all.sparse(sparse), *const b = all.dense(dense), *const buffer = in.device();
    if (!all.good()) return INVALID_VALUE;
    in.name = measure ? "cusparseSparseToDense_bufferSize" : "cusparseSparseToDense";
    return in.call<int (*)(void*, void*, void*, int, void*)>(
        in.handle(), a, b, static_cast<int>(operation.algorithm), measure ? in.room(sizeof(size_t)) : buffer);
}

int from_dense(LibraryArguments& in, bool measure) {
    Descriptors all(in);
    Request operation;
    Sparse sparse;
    Dense dense;
    if (!all.read(operation)) return INVALID_VALUE;
    void *const b = all.sparse(sparse), *const a = all.dense(dense), *const buffer = in.device();
    if (!all.good()) return INVALID_VALUE;
    const int algorithm = static_cast<int>(operation.algorithm);
    using Function = int (*)(void*, void*, void*, int, void*);
    if (!measure) {  // the library's own descriptor is new, and knows nothing of the program's analysis
        in.name = "cusparseDenseToSparse_analysis";
        if (const int status = in.call<Function>(in.handle(), a, b, algorithm, buffer)) return status;
    }
    in.name = measure ? "cusparseDenseToSparse_bufferSize" : "cusparseDenseToSparse_convert";
    return in.call<Function>(in.handle(), a, b, algorithm, measure ? in.room(sizeof(size_t)) : buffer);
}

// How many elements are not 0: NVIDIA's library tells it of a descriptor that was analysed, for which it
// wants a buffer that the program no longer has.  The one beside the simulated GPU counts.
int count_elements(LibraryArguments& in) {
    Dense dense;
    Descriptors all(in);
    if (!all.read(dense) || !check(dense) || !in.in_lease(dense.values, 1)) return INVALID_VALUE;
    in.on_host = true;
    void* const elements = in.result(sizeof(int64_t));
    in.name = "cusparse_gpukernel_count";
    return in.call<int (*)(void*, const Dense*, void*)>(in.handle(), &dense, elements);
}

// A product of two sparse matrices.  NVIDIA's library wants buffers for it whose size it tells in between:
// the one beside the simulated GPU has it in one call, and on a real device it is not there.
bool read_three(LibraryArguments& in, Descriptors& all, Request& operation, std::span<Sparse> matrices) {
    if (!all.read(operation)) return false;
    for (Sparse& one : matrices)
        if (!all.read(one) || !check(one) || one.format != CSR || one.batch != 1 || !all.ours(one))
            return false;
    return !in.failed();
}
int multiply_sparse(LibraryArguments& in) {
    Descriptors all(in);
    Request operation;
    Sparse matrices[3];
    if (!read_three(in, all, operation, matrices)) return INVALID_VALUE;
    const size_t bytes = libraries::cublas::data_bytes(static_cast<int>(operation.compute));
    const void *const alpha = in.scalar(bytes), *const beta = in.scalar(bytes);
    if (in.failed()) return INVALID_VALUE;
    in.name = "cusparse_gpukernel_spgemm";
    return in.call<int (*)(void*, const Request*, const void*, const Sparse*, const void*)>(
        in.handle(), &operation, alpha, matrices, beta);
}
int count_product(LibraryArguments& in) {
    Descriptors all(in);
    Request operation;
    Sparse matrices[2];
    if (!read_three(in, all, operation, matrices)) return INVALID_VALUE;
    in.on_host = true;
    void* const elements = in.result(sizeof(int64_t));
    in.name = "cusparse_gpukernel_spgemm_count";
    return in.call<int (*)(void*, const Request*, const Sparse*, void*)>(in.handle(), &operation, matrices,
                                                                         elements);
}

int create(LibraryArguments& in, MathLibrary& library, LibraryObject& object) {
    auto* const make = find<int (*)(void**)>(library, "cusparseCreate");
    auto* const version = find<int (*)(void*, int*)>(library, "cusparseGetVersion");
    object.destroy = find<int (*)(void*)>(library, "cusparseDestroy");
    if (!make || !version || !object.destroy) return Answer::NOT_INITIALIZED;
    if (const int status = make(&object.object)) return common_status(in, status, OWN);
    int32_t answer[2] = {0, in.session().cuda().simulated()};
    version(object.object, &answer[0]);
    in.outputs().assign(reinterpret_cast<char*>(answer), reinterpret_cast<char*>(answer) + sizeof answer);
    return Answer::SUCCESS;
}

// Sets the library's handle as the program has set its own.
int apply(LibraryArguments& in, LibraryObject& object) {
    const uint64_t word = in.word();
    const auto mode = static_cast<int>(word & 1);
    auto* const set_stream = find<int (*)(void*, CUstream)>(object.library, "cusparseSetStream");
    auto* const set_mode = find<int (*)(void*, int)>(object.library, "cusparseSetPointerMode");
    if (in.failed() || !set_stream || !set_mode) return INVALID_VALUE;
    if (object.stream != in.stream()) {
        if (const int status = set_stream(object.object, in.stream())) return status;
        object.stream = in.stream();
    }
    if (word != object.modes)
        if (const int status = set_mode(object.object, mode)) return status;
    object.modes = word;
    in.on_host = mode == 0;
    return SUCCESS;
}

int call(LibraryArguments& in, uint32_t function) {
    switch (function) {
        case SPMV:  // a vector is a matrix of one column
        case SPMM:
            return product(in, "cusparseSpMM", false, false, function == SPMV);
        case SPMV_ROOM:
        case SPMM_ROOM:
            return product(in, "cusparseSpMM_bufferSize", false, true, function == SPMV_ROOM);
        case SDDMM:
            return product(in, "cusparseSDDMM", true, false);
        case SDDMM_ROOM:
            return product(in, "cusparseSDDMM_bufferSize", true, true);
        case TO_DENSE:
        case TO_DENSE_ROOM:
            return to_dense(in, function == TO_DENSE_ROOM);
        case FROM_DENSE:
        case FROM_DENSE_ROOM:
            return from_dense(in, function == FROM_DENSE_ROOM);
        case COUNT:
            return count_elements(in);
        case SPGEMM:
            return multiply_sparse(in);
        case SPGEMM_COUNT:
            return count_product(in);
        default:
            if (function >= std::size(cusparse_functions)) return NOT_SUPPORTED;
            in.name = cusparse_functions[function].name;
            return cusparse_functions[function].run(in);
    }
}
int run(LibraryArguments& in, uint32_t function) {
    int status = apply(in, *in.object);
    if (!status) status = call(in, function);
    return common_status(in, status, OWN);
}
}  // namespace

const LibraryCalls cusparse_calls{"libcusparse.so", create, run};

}  // namespace gpukernel::worker
