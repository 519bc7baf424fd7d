// cuFFT in the user's program: a plan travels before its first use, and each execution is queued.
#include "libraries/client.h"

#include <mutex>
#include <set>

#include "libraries/cufft/plan.h"
#include "libraries/numbers.h"

namespace gpukernel::libraries::cufft {

namespace {
constexpr uint32_t LIBRARY = library_number(CUFFT, GPUKERNEL_MAJOR), EXECUTE = 0;

int status_of(CUresult result) {
    switch (result) {
        case CUDA_SUCCESS:
            return SUCCESS;
        case CUDA_ERROR_OUT_OF_MEMORY:
            return ALLOC_FAILED;
        case CUDA_ERROR_NOT_SUPPORTED:
            return NOT_SUPPORTED;
        case CUDA_ERROR_INVALID_VALUE:
        case CUDA_ERROR_INVALID_HANDLE:
            return INVALID_VALUE;
        default:
            return EXEC_FAILED;
    }
}
Words making(uint64_t name, const Shape& shape) {
    Words words;
    words.number(name);
    words.bytes(&shape, sizeof shape);
    return words;
}
}  // namespace

// The first plan for a device asks whether its server has the library, which later ones do not.
int begin(Plan& plan) {
    static std::mutex* const mutex = new std::mutex;
    static auto* const known = new std::set<int>;
    if (!port() || (plan.device = port()->current_device()) < 0) return SETUP_FAILED;
    std::lock_guard lock(*mutex);
    if (known->contains(plan.device)) return SUCCESS;
    const Words words = making(port()->name(), {});
    int32_t status = 0;
    size_t got = 0;
    const PortCall call{LIBRARY, CREATE, nullptr, words.data(), words.count()};
    const CUresult error = ask(call, false, "cufftCreate", status, nullptr, 0, got);
    if (error != CUDA_SUCCESS || status) return SETUP_FAILED;
    known->insert(plan.device);
    return SUCCESS;
}

int execute(Plan& plan, const void* input, void* output, int direction) {
    static std::mutex* const mutex = new std::mutex;
    if (port()->current_device() != plan.device) return INVALID_DEVICE;
    bool captured = false;
    {
        std::lock_guard lock(*mutex);
        if (!plan.name) {
            const uint64_t name = port()->name();
            const Words words = making(name, plan.shape);
            // Not in the plan's stream, which may capture: a plan is made once.
            const PortCall call{LIBRARY, CREATE, CU_STREAM_PER_THREAD, words.data(), words.count()};
            if (const CUresult error = port()->queue(&call, &captured); error != CUDA_SUCCESS)
                return status_of(error);
            plan.name = name;
        }
    }
    Words words;
    words.number(plan.name);
    words.number(reinterpret_cast<uint64_t>(input));
    words.number(reinterpret_cast<uint64_t>(output));
    words.number(static_cast<uint64_t>(static_cast<int64_t>(direction)));
    const PortCall call{LIBRARY, EXECUTE, plan.stream, words.data(), words.count()};
    const CUresult result = port()->queue(&call, &captured);
    plan.captured |= captured;
    return status_of(result);
}

// A graph's calls outlive the plan that they were captured with; the worker's ends with the program.
void end(Plan& plan) {
    if (!plan.name || plan.captured || port()->current_device() != plan.device) return;
    const PortCall call{LIBRARY, DESTROY, CU_STREAM_PER_THREAD, &plan.name, 1};
    bool captured;
    port()->queue(&call, &captured);
}

}  // namespace gpukernel::libraries::cufft
