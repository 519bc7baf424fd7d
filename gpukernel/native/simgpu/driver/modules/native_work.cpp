// Work that is no kernel, in the order of a stream (simgpu/native_work.h).
#include "simgpu/native_work.h"

#include <memory>
#include <type_traits>

#include "simgpu/driver/state.h"
#include "simgpu/host_memory.h"

using namespace gpukernel::simgpu;

namespace {
struct Job {
    NativeWork work;
    HostShare share;
    explicit Job(const NativeWork& work) : work(work) {}
    ~Job() { work.end(work.argument); }
    Job(const Job&) = delete;
};

bool allowed(const void* device, uint64_t address, uint64_t bytes, bool writing) {
    return !bytes || static_cast<const Device*>(device)->memory->valid(address, bytes, writing);
}
}  // namespace

extern "C" __attribute__((visibility("default"))) int gpukernel_simgpu_run(CUstream handle,
                                                                           const NativeWork* work) {
    auto job = std::make_shared<Job>(*work);
    GPUKERNEL_HERE(device);
    Stream* stream;
    if (!stream_of(handle, stream) || stream->device != device) return CUDA_ERROR_INVALID_HANDLE;
    if (!job->share.grow(work->host_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    schedule().submit(*stream, Engine::kernels, [device, job, program = Schedule::program_of(*stream)] {
        Launch launch;
        launch.gate = device->gate.load();
        if (program) launch.cancel = &program->cancel;
        const NativeAccess access{device, allowed};
        const NativeWork& work = job->work;
        const Result result = run_pieces(
            work.pieces,
            [&](uint64_t piece, char* fault) { return work.run(work.argument, piece, &access, fault); },
            launch);
        if (program && program->over) return CUDA_SUCCESS;  // nobody will hear of it
        if (!result) device->report(result);
        return code_of(result.status);
    });
    return CUDA_SUCCESS;
}
static_assert(std::is_same_v<decltype(&gpukernel_simgpu_run), RunNative>);
