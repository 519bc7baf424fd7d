// cuSOLVER: its handles, and its calls (generated from libraries/cusolver/calls.txt).
#include "libraries/cusolver/types.h"
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

int run(LibraryArguments& in, uint32_t function) {
    if (function >= std::size(cusolver_functions)) return Answer::NOT_SUPPORTED;
    in.name = cusolver_functions[function].name;
    int status = apply(in, *in.object);
    if (!status) status = cusolver_functions[function].run(in);
    return common_status(in, status, OWN);
}
}  // namespace

const LibraryCalls cusolver_calls{"libcusolver.so", create, run};

}  // namespace gpukernel::worker
