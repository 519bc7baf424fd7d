// cuSOLVER: its handles, and its calls (generated from libraries/cusolver/calls.txt).
#include <bit>
#include <string>

#include "libraries/cusolver/sparse.h"
#include "worker/libraries/libraries.h"
#include "worker/session/session.h"

namespace gpukernel::worker {

using namespace libraries::cusolver;
using Answer = libraries::cublas::Status;

namespace {
#include "cusolver_worker.inc"

constexpr OwnStatuses OWN{NOT_INITIALIZED, ALLOC_FAILED, INVALID_VALUE, NOT_SUPPORTED};

template <class Function>
Function find(const MathLibrary& library, const char* name) {
    return reinterpret_cast<Function>(library.function(name));
}

int create(LibraryArguments& in, MathLibrary& library, LibraryObject& object) {
    auto* const make = find<int (*)(void**)>(library, "cusolverDnCreate");
    auto* const version = find<int (*)(int*)>(library, "cusolverGetVersion");
    object.destroy = find<int (*)(void*)>(library, "cusolverDnDestroy");
    if (!make || !version || !object.destroy) return Answer::NOT_INITIALIZED;
    if (const int status = make(&object.object)) return common_status(in, status, OWN);
    int32_t answer[2] = {0, in.session().cuda().simulated()};
    version(&answer[0]);
    in.outputs().assign(reinterpret_cast<char*>(answer), reinterpret_cast<char*>(answer) + sizeof answer);
    return Answer::SUCCESS;
}

// Sets the library's handle as the program has set its own.
int apply(LibraryArguments& in, LibraryObject& object) {
    const uint64_t word = in.word();
    auto* const set_stream = find<int (*)(void*, CUstream)>(object.library, "cusolverDnSetStream");
    auto* const set_mode = find<int (*)(void*, int)>(object.library, "cusolverDnSetDeterministicMode");
    if (in.failed() || !set_stream) return INVALID_VALUE;
    if (object.stream != in.stream()) {
        if (const int status = set_stream(object.object, in.stream())) return status;
        object.stream = in.stream();
    }
    if (word >> 32 && word != object.modes && set_mode)
        if (const int status = set_mode(object.object, static_cast<int>(word >> 32))) return status;
    object.modes = word;
    return SUCCESS;
}

// By NVIDIA's library, whose functions of the sparse part have a handle of their own.
template <class Real>
int solve_by_nvidias(LibraryArguments& in, int m, int nnz, int base, const void* values, const void* offsets,
                     const void* columns, const void* b, double tolerance, void* x, void* singularity) {
    const MathLibrary& library = in.object->library;
    auto* const set_stream = find<int (*)(void*, CUstream)>(library, "cusolverSpSetStream");
    auto* const set_base = find<int (*)(void*, int)>(library, "cusparseSetMatIndexBase");
    void* const handle = in.made("cusolverSpCreate", "cusolverSpDestroy");
    void* const matrix =
        in.made("cusparseCreateMatDescr", "cusparseDestroyMatDescr", static_cast<uint32_t>(base));
    if (in.failed() || !set_stream || !set_base) return NOT_SUPPORTED;
    int status = set_stream(handle, in.stream());
    if (!status) status = set_base(matrix, base);
    if (status) return status;
    return in.call<int (*)(void*, int, int, void*, const void*, const void*, const void*, const void*, Real,
                           int, void*, void*)>(handle, m, nnz, matrix, values, offsets, columns, b,
                                               static_cast<Real>(tolerance), 0, x, singularity);
}

int solve_sparse(LibraryArguments& in) {
    using libraries::cublas::C_32F, libraries::cublas::C_64F, libraries::cublas::R_32F,
        libraries::cublas::R_64F;
    const auto type = in.number<int>(), m = in.number<int>(), nnz = in.number<int>(), base = in.number<int>();
    const size_t size = libraries::cublas::data_bytes(type);
    const bool known = type == R_32F || type == R_64F || type == C_32F || type == C_64F;
    if (!known || m < 0 || nnz < 0 || base < 0 || base > 1) return INVALID_VALUE;
    const auto elements = static_cast<size_t>(nnz), rows = static_cast<size_t>(m);
    const void* const values = in.space(elements * size);
    const void* const offsets = in.space((rows + 1) * sizeof(int));
    const void* const columns = in.space(elements * sizeof(int));
    const void* const b = in.space(rows * size);
    const auto tolerance = std::bit_cast<double>(in.word());
    void* const x = in.space(rows * size);
    void* const singularity = in.result(sizeof(int));
    if (in.failed()) return INVALID_VALUE;
    const std::string name = std::string("cusolverSp") +
                             (type == R_32F   ? 'S'
                              : type == R_64F ? 'D'
                              : type == C_32F ? 'C'
                                              : 'Z') +
                             "csrlsvqr";
    constexpr const char* OWN_NAME = "cusolver_gpukernel_csrlsvqr";
    int status;
    if (in.object->library.function(OWN_NAME)) {  // beside the simulated GPU
        in.name = OWN_NAME;
        status = in.call<int (*)(void*, int, int, int, int, const void*, const void*, const void*,
                                 const void*, double, void*, void*)>(
            in.handle(), type, m, nnz, base, values, offsets, columns, b, tolerance, x, singularity);
    } else {
        in.name = name.c_str();
        const auto solve =
            type == R_32F || type == C_32F ? solve_by_nvidias<float> : solve_by_nvidias<double>;
        status = solve(in, m, nnz, base, values, offsets, columns, b, tolerance, x, singularity);
    }
    in.name = "cusolverSpcsrlsvqr";
    return status;
}

int run(LibraryArguments& in, uint32_t function) {
    if (function == SOLVE_SPARSE) {
        in.name = "cusolverSpcsrlsvqr";
        int status = apply(in, *in.object);
        if (!status) status = solve_sparse(in);
        return common_status(in, status, OWN);
    }
    if (function >= std::size(cusolver_functions)) return Answer::NOT_SUPPORTED;
    in.name = cusolver_functions[function].name;
    int status = apply(in, *in.object);
    if (!status) status = cusolver_functions[function].run(in);
    return common_status(in, status, OWN);
}
}  // namespace

const LibraryCalls cusolver_calls{"libcusolver.so", create, run};

}  // namespace gpukernel::worker
