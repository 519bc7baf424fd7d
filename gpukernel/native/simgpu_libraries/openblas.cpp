#include "simgpu_libraries/openblas.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "libraries/library.h"
#include "simgpu_libraries/device_work.h"

namespace gpukernel::simgpu_libraries {

namespace {
void* library() {
    static void* const loaded = []() -> void* {
        ::setenv("OPENBLAS_NUM_THREADS", "1", 0);  // or it would start threads of its own when it is loaded
        for (const char* name :
             {static_cast<const char*>(std::getenv("GPUKERNEL_OPENBLAS")), "libopenblas.so.0"})
            if (void* found = name && *name ? ::dlopen(name, RTLD_NOW | RTLD_LOCAL) : nullptr) return found;
        return nullptr;
    }();
    return loaded;
}

// The wheel's names have a prefix.
void* find(const std::string& name) {
    for (const char* prefix : {"scipy_", ""})
        if (void* found = ::dlsym(library(), (prefix + name).c_str())) return found;
    return nullptr;
}
}  // namespace

bool load_openblas(std::span<const char* const> functions) {
    if (!library()) {
        libraries::complain(
            "matrix products and decompositions on a simulated GPU need OpenBLAS on its server: pip install "
            "'gpukernel[libraries]', or set GPUKERNEL_OPENBLAS to its file");
        return false;
    }
    static const bool set = [] {
        if (void* threads = find("openblas_set_num_threads")) reinterpret_cast<void (*)(int)>(threads)(1);
        return true;
    }();
    for (const char* name : functions)
        if (!find(std::string(name) + "_")) {
            libraries::complain("the OpenBLAS on this simulated GPU's server has no " + std::string(name) +
                                ", as one built without LAPACK: pip install 'gpukernel[libraries]'");
            return false;
        }
    return set;
}

void* openblas(const char* name) {
    void* const found = library() ? find(std::string(name) + "_") : nullptr;
    if (found) return found;
    std::fprintf(stderr, "gpukernel: OpenBLAS has no %s_\n", name);
    std::abort();
}

bool can_make_handle(std::span<const char* const> functions) {
    static auto* const context = libraries::driver_function<CUresult(CUcontext*)>("cuCtxGetCurrent");
    CUcontext current = nullptr;
    return on_simulated_device() && load_openblas(functions) && context &&
           context(&current) == CUDA_SUCCESS && current;
}

}  // namespace gpukernel::simgpu_libraries
