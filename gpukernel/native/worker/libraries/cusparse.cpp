// cuSPARSE: its handles, its calls without descriptors (generated from libraries/cusparse/calls.txt), and
// those with, whose descriptors are made anew for each from what the program's have.
#include <algorithm>
#include <cstring>
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
    void* vector(Dense& d) {  // which travels as a matrix of one column
        if (!read(d) || !check(d) || d.columns != 1 || d.batch != 1 || !ours(d.values)) return failed();
        auto* const make = find<int (*)(void**, int64_t, void*, int)>(library_, "cusparseCreateDnVec");
        void* made = nullptr;
        if (!make || make(&made, d.rows, at(d.values), static_cast<int>(d.type))) return failed();
        made_.emplace_back(made, "cusparseDestroyDnVec");
        return made;
    }
    bool good() const { return good_ && !in_.failed(); }

  private:
    static void* at(uint64_t address) { return reinterpret_cast<void*>(address); }
    bool ours(uint64_t address) const { return !address || in_.in_lease(address, 1); }
    void* failed() { return good_ = false, nullptr; }

    LibraryArguments& in_;
    const MathLibrary& library_;
    std::vector<std::pair<void*, const char*>> made_;
    bool good_ = true;
};

// Products with one sparse matrix: the first (SpMM), or the result (SDDMM).
int product(LibraryArguments& in, const char* name, bool sampled, bool measure) {
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
    void* const last = measure ? in.room(sizeof(size_t)) : buffer;
    in.name = name;
    return in.call<int (*)(void*, int, int, const void*, void*, void*, const void*, void*, int, int, void*)>(
        in.handle(), static_cast<int>(operation.a), static_cast<int>(operation.b), alpha, a, b, beta, c,
        static_cast<int>(operation.compute), static_cast<int>(operation.algorithm), last);
}

int product_with_vector(LibraryArguments& in, bool measure) {
    Descriptors all(in);
    Request operation;
    Sparse sparse;
    Dense first, second;
    if (!all.read(operation)) return INVALID_VALUE;
    void* const a = all.sparse(sparse);
    void* const x = all.vector(first);
    void* const y = all.vector(second);
    const size_t bytes = libraries::cublas::data_bytes(static_cast<int>(operation.compute));
    const void *const alpha = in.scalar(bytes), *const beta = in.scalar(bytes);
    void* const buffer = in.device();
    if (!all.good()) return INVALID_VALUE;
    in.name = measure ? "cusparseSpMV_bufferSize" : "cusparseSpMV";
    return in.call<int (*)(void*, int, const void*, void*, void*, const void*, void*, int, int, void*)>(
        in.handle(), static_cast<int>(operation.a), alpha, a, x, beta, y, static_cast<int>(operation.compute),
        static_cast<int>(operation.algorithm), measure ? in.room(sizeof(size_t)) : buffer);
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

// Answers with one number.
int answer(LibraryArguments& in, int status, int64_t value) {
    const auto* const bytes = reinterpret_cast<const char*>(&value);
    if (!status) in.outputs().assign(bytes, bytes + sizeof value);
    return status;
}

// How many elements are not 0.  The library beside the simulated GPU counts them; NVIDIA's tells it of a
// descriptor that was analysed.
int count_elements(LibraryArguments& in) {
    Descriptors all(in);
    Request operation;
    Sparse sparse;
    Dense dense;
    if (!all.read(operation)) return INVALID_VALUE;
    void *const b = all.sparse(sparse), *const a = all.dense(dense), *const buffer = in.device();
    if (!all.good() || !in.in_lease(dense.values, 1)) return INVALID_VALUE;
    if (in.session().cuda().simulated()) {
        in.on_host = true;
        void* const elements = in.result(sizeof(int64_t));
        in.name = "cusparse_gpukernel_count";
        return in.call<int (*)(void*, const Dense*, void*)>(in.handle(), &dense, elements);
    }
    using Size = int (*)(void*, int64_t*, int64_t*, int64_t*);
    auto* const size = find<Size>(in.object->library, "cusparseSpMatGetSize");
    if (!size) return NOT_SUPPORTED;
    in.name = "cusparseDenseToSparse_analysis";
    int status = SUCCESS;
    int64_t rows = 0, columns = 0, count = 0;
    in.session().wait(
        [&] {
            status = in.call<int (*)(void*, void*, void*, int, void*)>(
                in.handle(), a, b, static_cast<int>(operation.algorithm), buffer);
            if (!status) status = size(b, &rows, &columns, &count);
            return CUDA_SUCCESS;
        },
        in.stream());
    return answer(in, status, count);
}

// NVIDIA's product of two sparse matrices in its steps, up to the one that the program asks for: descriptors
// are made for each call, so that the earlier steps are made again.
int multiply_by_steps(LibraryArguments& in, uint32_t step, const Factors& factors, const void* alpha,
                      const void* beta, void* a, void* b, void* c, int64_t& found) {
    using Step = int (*)(void*, int, int, const void*, void*, void*, const void*, void*, int, int, void*,
                         size_t*, void*);
    using Last = int (*)(void*, int, int, const void*, void*, void*, const void*, void*, int, int, void*);
    const MathLibrary& library = in.object->library;
    auto* const create = find<int (*)(void**)>(library, "cusparseSpGEMM_createDescr");
    auto* const destroy = find<int (*)(void*)>(library, "cusparseSpGEMM_destroyDescr");
    auto* const estimate = find<Step>(library, "cusparseSpGEMM_workEstimation");
    auto* const compute = find<Step>(library, "cusparseSpGEMM_compute");
    auto* const copy = find<Last>(library, "cusparseSpGEMM_copy");
    auto* const size = find<int (*)(void*, int64_t*, int64_t*, int64_t*)>(library, "cusparseSpMatGetSize");
    if (!create || !destroy || !estimate || !compute || !copy || !size) return NOT_SUPPORTED;
    void* preparation = nullptr;
    if (const int status = create(&preparation)) return status;
    const auto& [operation, first, second, third, workspaces] = factors;
    const auto make = [&](auto* its, auto... more) {
        return its(in.handle(), static_cast<int>(operation.a), static_cast<int>(operation.b), alpha, a, b,
                   beta, c, static_cast<int>(operation.compute), static_cast<int>(operation.algorithm),
                   preparation, more...);
    };
    // Asks for a workspace's size, and works with the program's where there is one.
    const auto work = [&](Step its, uint64_t workspace, size_t bytes) {
        size_t needed = 0;
        int status = make(its, &needed, static_cast<void*>(nullptr));
        found = static_cast<int64_t>(needed);
        if (status || !workspace) return status;
        return bytes < needed ? INVALID_VALUE : make(its, &needed, reinterpret_cast<void*>(workspace));
    };
    const bool measures = step == SPGEMM_FIRST_ROOM;
    int status = work(estimate, measures ? 0 : workspaces.first, workspaces.first_bytes);
    if (!status && !measures) {
        const bool measures_second = step == SPGEMM_SECOND_ROOM;
        status = work(compute, measures_second ? 0 : workspaces.second, workspaces.second_bytes);
        int64_t rows = 0, columns = 0;
        if (!status && !measures_second) status = size(c, &rows, &columns, &found);
        if (!status && step == SPGEMM) status = make(copy);
    }
    destroy(preparation);
    return status;
}
int multiply_sparse(LibraryArguments& in, uint32_t step) {
    Descriptors all(in);
    Factors factors;
    if (!all.read(factors.operation)) return INVALID_VALUE;
    void* const a = all.sparse(factors.a);
    void* const b = all.sparse(factors.b);
    void* const c = all.sparse(factors.c);
    if (!all.read(factors.workspaces) || !all.good()) return INVALID_VALUE;
    for (const Sparse* one : {&factors.a, &factors.b, &factors.c})
        if (one->format != CSR || one->batch != 1) return INVALID_VALUE;
    const auto& [first, first_bytes, second, second_bytes] = factors.workspaces;
    if ((first && !in.in_lease(first, std::max<uint64_t>(first_bytes, 1))) ||
        (second && !in.in_lease(second, std::max<uint64_t>(second_bytes, 1))))
        return INVALID_VALUE;
    const size_t bytes = libraries::cublas::data_bytes(static_cast<int>(factors.operation.compute));
    const void *const alpha = in.scalar(bytes), *const beta = in.scalar(bytes);
    if (in.failed()) return INVALID_VALUE;
    int status = SUCCESS;
    int64_t found = 0;
    in.name = in.session().cuda().simulated() ? "cusparse_gpukernel_spgemm" : "cusparseSpGEMM";
    const auto work = [&] {
        status = in.session().cuda().simulated()
                     ? in.call<int (*)(void*, int, const Factors*, const void*, const void*, int64_t*)>(
                           in.handle(), static_cast<int>(step), &factors, alpha, beta, &found)
                     : multiply_by_steps(in, step, factors, alpha, beta, a, b, c, found);
        return CUDA_SUCCESS;
    };
    if (step == SPGEMM && in.session().cuda().simulated())
        work();
    else
        in.session().wait(work, in.stream());
    return step == SPGEMM ? status : answer(in, status, found);
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
        case SPMV:
        case SPMV_ROOM:
            return product_with_vector(in, function == SPMV_ROOM);
        case SPMM:
            return product(in, "cusparseSpMM", false, false);
        case SPMM_ROOM:
            return product(in, "cusparseSpMM_bufferSize", false, true);
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
        case SPGEMM_COUNT:
        case SPGEMM_FIRST_ROOM:
        case SPGEMM_SECOND_ROOM:
            return multiply_sparse(in, function);
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
