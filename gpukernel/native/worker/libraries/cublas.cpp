// cuBLAS: its handles, how they are set, and its calls (generated from libraries/cublas/calls.txt).
#include "libraries/cublas/types.h"
#include "worker/libraries/libraries.h"

namespace gpukernel::worker {

using namespace libraries::cublas;

namespace {
#include "cublas_worker.inc"

constexpr uint32_t FUNCTIONS = std::size(cublas_functions);

template <class... Arguments>
int set(const LibraryObject& object, const char* name, Arguments... values) {
    auto* const function = reinterpret_cast<int (*)(void*, Arguments...)>(object.library.function(name));
    return function ? function(object.object, values...) : NOT_SUPPORTED;
}

int create(LibraryArguments& in, MathLibrary& library, LibraryObject& object) {
    auto* const make = reinterpret_cast<int (*)(void**)>(library.function("cublasCreate_v2"));
    auto* const version = reinterpret_cast<int (*)(void*, int*)>(library.function("cublasGetVersion_v2"));
    object.destroy = reinterpret_cast<int (*)(void*)>(library.function("cublasDestroy_v2"));
    if (!make || !version || !object.destroy) return NOT_INITIALIZED;
    if (const int status = make(&object.object)) return status;
    int its = 0;
    version(object.object, &its);
    in.outputs().assign(reinterpret_cast<char*>(&its), reinterpret_cast<char*>(&its) + sizeof its);
    return SUCCESS;
}

// Sets the library's handle as the program has set its own.
int apply(LibraryArguments& in, LibraryObject& object) {
    const uint64_t word = in.word();
    const auto workspace = reinterpret_cast<uint64_t>(in.device());
    const uint64_t bytes = in.word();
    if (in.failed() || (workspace && !in.in_lease(workspace, bytes))) return INVALID_VALUE;
    const auto now = libraries::Modes::of(word), before = libraries::Modes::of(object.modes);
    int status = SUCCESS;
    if (object.stream != in.stream()) {
        status = set(object, "cublasSetStream_v2", in.stream());
        object.stream = in.stream(), object.workspace = object.workspace_bytes = 0;  // which goes with it
    }
    if (!status && now.pointer_mode != before.pointer_mode)
        status = set(object, "cublasSetPointerMode_v2", now.pointer_mode);
    if (!status && now.atomics != before.atomics) status = set(object, "cublasSetAtomicsMode", now.atomics);
    if (!status && now.math_mode != before.math_mode)
        status = set(object, "cublasSetMathMode", now.math_mode);
    if (!status && now.multiprocessors != before.multiprocessors)
        status = set(object, "cublasSetSmCountTarget", now.multiprocessors);
    if (!status && (workspace != object.workspace || bytes != object.workspace_bytes)) {
        status = set(object, "cublasSetWorkspace_v2", reinterpret_cast<void*>(workspace),
                     static_cast<size_t>(bytes));
        object.workspace = workspace, object.workspace_bytes = bytes;
    }
    if (!status) object.modes = word;
    in.on_host = now.pointer_mode == HOST;
    return status;
}

int run(LibraryArguments& in, uint32_t function) {
    if (function >= FUNCTIONS) return NOT_SUPPORTED;
    in.name = cublas_functions[function].name;
    if (const int status = apply(in, *in.object)) return status;
    return cublas_functions[function].run(in);
}
}  // namespace

const LibraryCalls cublas_calls{"libcublas.so", create, run};

}  // namespace gpukernel::worker
