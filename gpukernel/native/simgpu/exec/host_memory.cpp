#include "simgpu/host_memory.h"

namespace {
bool (*ask)(void*, uint64_t) = nullptr;
void (*tell)(void*, uint64_t) = nullptr;
void* asked = nullptr;
}  // namespace

extern "C" __attribute__((visibility("default"))) void gpukernel_simgpu_bound(
    bool (*take)(void* book, uint64_t bytes), void (*give_back)(void* book, uint64_t bytes), void* book) {
    ask = take, tell = give_back, asked = book;
}

// For the libraries beside the device (native_work.h).
extern "C" __attribute__((visibility("default"))) bool gpukernel_simgpu_take(uint64_t bytes) {
    return gpukernel::simgpu::take_host_memory(bytes);
}
extern "C" __attribute__((visibility("default"))) void gpukernel_simgpu_give_back(uint64_t bytes) {
    gpukernel::simgpu::give_back_host_memory(bytes);
}

namespace gpukernel::simgpu {

bool take_host_memory(uint64_t bytes) { return !ask || ask(asked, bytes); }
void give_back_host_memory(uint64_t bytes) {
    if (tell) tell(asked, bytes);
}

}  // namespace gpukernel::simgpu
