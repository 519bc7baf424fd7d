#include "simgpu_libraries/device_work.h"

#include <algorithm>
#include <cstdio>
#include <memory>

namespace gpukernel::simgpu_libraries {

namespace {
constexpr uint64_t QUEUED_BYTES = 1024;  // of the host's memory, for work that waits in a stream

struct Job {
    const char* name;
    Piece piece;
};

bool run(void* argument, uint64_t number, const simgpu::NativeAccess* access, char* fault) {
    const Job& job = *static_cast<Job*>(argument);
    try {
        job.piece(number, Access(access));
        return true;
    } catch (const OutOfBounds& wrong) {
        std::snprintf(fault, 256,
                      "%s reaches beyond its memory: %s, %llu bytes at 0x%llx, is in no allocation", job.name,
                      wrong.what, static_cast<unsigned long long>(wrong.bytes),
                      static_cast<unsigned long long>(wrong.address));
        return false;
    }
}

simgpu::RunNative runner() {
    static const auto found =
        reinterpret_cast<simgpu::RunNative>(libraries::find_in_driver(simgpu::RUN_NATIVE));
    return found;
}
}  // namespace

bool on_simulated_device() {
    if (!runner())
        libraries::complain(
            "this library computes beside the simulated GPU, and the libcuda.so.1 that is loaded is "
            "not the simulated GPU's");
    return runner();
}

bool take_room(uint64_t bytes) {
    static auto* const take =
        reinterpret_cast<bool (*)(uint64_t)>(libraries::find_in_driver(simgpu::TAKE_HOST_MEMORY));
    return !take || take(bytes);
}
void give_back_room(uint64_t bytes) {
    static auto* const give_back =
        reinterpret_cast<void (*)(uint64_t)>(libraries::find_in_driver(simgpu::GIVE_BACK_HOST_MEMORY));
    if (give_back) give_back(bytes);
}

CUresult submit(CUstream stream, const char* name, uint64_t pieces, Piece piece, uint64_t needed) {
    if (!pieces) return CUDA_SUCCESS;
    if (!runner()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!take_room(needed)) return CUDA_ERROR_OUT_OF_MEMORY;
    give_back_room(needed);  // its rooms take it, when they are made
    const simgpu::NativeWork work{pieces, QUEUED_BYTES, run, [](void* job) { delete static_cast<Job*>(job); },
                                  new Job{name, std::move(piece)}};
    return static_cast<CUresult>(runner()(stream, &work));
}

CUresult synchronize(CUstream stream) {
    static auto* const wait = libraries::driver_function<CUresult(CUstream)>("cuStreamSynchronize");
    return wait ? wait(stream) : CUDA_ERROR_NOT_INITIALIZED;
}

}  // namespace gpukernel::simgpu_libraries
