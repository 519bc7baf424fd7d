#include "worker/server/driver.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

namespace gpukernel::worker {

namespace {
template <class... Arguments>
CUresult lacking(Arguments...) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
template <class... Arguments>
auto stand_in(CUresult (*)(Arguments...)) {
    return &lacking<Arguments...>;
}
}  // namespace

bool Driver::load(const std::string& path, std::string& error) {
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        error = std::string("the CUDA library cannot be loaded: ") + ::dlerror();
        return false;
    }
    library_ = library;
#define GPUKERNEL_DRIVER_FUNCTION(name)                  \
    if (void* symbol = ::dlsym(library, #name))          \
        name = reinterpret_cast<decltype(name)>(symbol); \
    else                                                 \
        name = stand_in(static_cast<decltype(name)>(nullptr));
#include "driver_functions.inc"
#undef GPUKERNEL_DRIVER_FUNCTION
    work_for = reinterpret_cast<WorkFor>(::dlsym(library, WORK_FOR));
    end_program = reinterpret_cast<EndProgram>(::dlsym(library, END_PROGRAM));
    set_execution_gate = reinterpret_cast<SetExecutionGate>(::dlsym(library, SET_EXECUTION_GATE));
    set_memory_check = reinterpret_cast<SetMemoryCheck>(::dlsym(library, SET_MEMORY_CHECK));
    read_kernels = reinterpret_cast<ReadKernels>(::dlsym(library, READ_KERNELS));
    profile_kernels = reinterpret_cast<ProfileKernels>(::dlsym(library, PROFILE_KERNELS));
    set_range = reinterpret_cast<SetRange>(::dlsym(library, SET_RANGE));
    // Without this call nothing tells when code is loaded, and it must be charged with its module.
    if (!::dlsym(library, "cuFuncLoad")) ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    if (CUresult code = cuInit(0); code != CUDA_SUCCESS) {
        error = path + " found no usable device (" + error_name(code) + ")";
        return false;
    }
    return true;
}

std::string Driver::folder() const {
    Dl_info info{};
    const std::string path =
        ::dladdr(reinterpret_cast<void*>(cuInit), &info) && info.dli_fname ? info.dli_fname : "";
    const size_t end = path.rfind('/');
    return end == std::string::npos ? "." : path.substr(0, end);
}

bool Driver::simulated() const { return ::dlsym(library_, "gpukernel_simgpu_bound"); }

bool Driver::loads_lazily() const {
    if (simulated()) {
        const char* const loading = std::getenv("GPUKERNEL_SIMGPU_MODULE_LOADING");
        return loading && std::strcmp(loading, "LAZY") == 0;
    }
    const auto ask =
        reinterpret_cast<decltype(&cuModuleGetLoadingMode)>(::dlsym(library_, "cuModuleGetLoadingMode"));
    CUmoduleLoadingMode mode;
    return ask && ask(&mode) == CUDA_SUCCESS && mode == CU_MODULE_LAZY_LOADING;
}

bool Driver::local_memory_on_device() const {
    if (!simulated()) return true;
    const char* const place = std::getenv("GPUKERNEL_SIMGPU_LOCAL_MEMORY");
    return place && std::strcmp(place, "DEVICE") == 0;
}

void Driver::bound(HostMemory& book) const {
    using Take = bool (*)(void*, uint64_t);
    using GiveBack = void (*)(void*, uint64_t);
    auto bound =
        reinterpret_cast<void (*)(Take, GiveBack, void*)>(::dlsym(library_, "gpukernel_simgpu_bound"));
    if (!bound) return;  // NVIDIA's
    bound([](void* book, uint64_t bytes) { return static_cast<HostMemory*>(book)->take(bytes); },
          [](void* book, uint64_t bytes) { static_cast<HostMemory*>(book)->give_back(bytes); }, &book);
}

void Driver::clear_heap() const {
    if (auto clear = reinterpret_cast<int (*)()>(::dlsym(library_, "gpukernel_simgpu_clear_heap"))) clear();
}

std::string Driver::error_name(CUresult code) const {
    const char* name = nullptr;
    return cuGetErrorName(code, &name) == CUDA_SUCCESS && name ? name : "error " + std::to_string(code);
}

}  // namespace gpukernel::worker
