// cuFFT: a program's plan is an object of its session, and executing it the one call.
#include <cstring>

#include "libraries/cublas/types.h"
#include "libraries/cufft/plan.h"
#include "worker/libraries/libraries.h"

namespace gpukernel::worker {

using namespace libraries::cufft;
using Answer = libraries::cublas::Status;

namespace {
constexpr uint32_t EXECUTE = 0;

// What serves every library tells of a failure in cuBLAS's numbers.
int answer(LibraryArguments& in, int status) {
    in.own_status = status;
    switch (status) {
        case SUCCESS:
            return Answer::SUCCESS;
        case ALLOC_FAILED:
            return Answer::ALLOC_FAILED;
        case INVALID_PLAN:
        case INVALID_VALUE:
        case INVALID_SIZE:
            return Answer::INVALID_VALUE;
        case NOT_IMPLEMENTED:
        case NOT_SUPPORTED:
            return Answer::NOT_SUPPORTED;
        default:
            return Answer::EXECUTION_FAILED;
    }
}

template <class Function>
Function find(const MathLibrary& library, const char* name) {
    return reinterpret_cast<Function>(library.function(name));
}
// A plan's number, which may be 0, as the object of a session.
int plan_of(void* object) { return static_cast<int>(reinterpret_cast<uintptr_t>(object) - 1); }

// Reads a plan and makes it; one of no dimensions asks whether the library is there.
int create(LibraryArguments& in, MathLibrary& library, LibraryObject& object) {
    Shape s;
    const void* const words = in.bytes(sizeof s);
    if (!words) return Answer::INVALID_VALUE;
    std::memcpy(&s, words, sizeof s);
    auto* const make = find<int (*)(int*)>(library, "cufftCreate");
    auto* const destroy = find<int (*)(int)>(library, "cufftDestroy");
    auto* const describe =
        find<int (*)(int, int, long long*, long long*, long long, long long, int, long long*, long long,
                     long long, int, long long, size_t*, int)>(library, "cufftXtMakePlanMany");
    if (!make || !destroy || !describe) return Answer::NOT_INITIALIZED;
    if (!s.rank) return Answer::SUCCESS;
    if (const int status = check(s)) return answer(in, status);
    int plan = 0;
    if (const int status = make(&plan)) return answer(in, status);
    object.object = reinterpret_cast<void*>(static_cast<uintptr_t>(plan) + 1);
    object.destroy = [destroy](void* last) { return destroy(plan_of(last)); };
    long long n[MOST_DIMENSIONS], input[MOST_DIMENSIONS], output[MOST_DIMENSIONS];
    for (int i = 0; i < MOST_DIMENSIONS; ++i)
        n[i] = s.n[i], input[i] = s.input.embed[i], output[i] = s.output.embed[i];
    size_t work = 0;
    return answer(in, describe(plan, static_cast<int>(s.rank), n, s.plain ? nullptr : input, s.input.stride,
                               s.input.dist, static_cast<int>(s.input_type), s.plain ? nullptr : output,
                               s.output.stride, s.output.dist, static_cast<int>(s.output_type), s.batch,
                               &work, static_cast<int>(s.execution_type)));
}

int run(LibraryArguments& in, uint32_t function) {
    LibraryObject& object = *in.object;
    if (function != EXECUTE || !object.object) return Answer::NOT_SUPPORTED;
    void *const input = in.device(), *const output = in.device();
    const auto direction = in.number<int>();
    in.name = "cufftXtExec";
    if (in.failed() || !input || !output || (direction != FORWARD && direction != INVERSE))
        return Answer::INVALID_VALUE;
    auto* const set_stream = find<int (*)(int, CUstream)>(object.library, "cufftSetStream");
    auto* const execute = find<int (*)(int, void*, void*, int)>(object.library, "cufftXtExec");
    if (!set_stream || !execute) return Answer::NOT_SUPPORTED;
    if (object.stream != in.stream()) {
        if (const int status = set_stream(plan_of(object.object), in.stream())) return answer(in, status);
        object.stream = in.stream();
    }
    return answer(in, execute(plan_of(object.object), input, output, direction));
}
}  // namespace

const LibraryCalls cufft_calls{"libcufft.so", create, run};

}  // namespace gpukernel::worker
