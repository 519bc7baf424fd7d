#include "cudart/driver.h"

#include <dlfcn.h>

#include "cudart/runtime.h"

namespace gpukernel::cudart::driver {

namespace {
struct Library {
    void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    PFN_cuGetProcAddress_v12000 lookup = nullptr;
    Library() {
        if (handle)
            lookup = reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(handle, "cuGetProcAddress_v2"));
    }
};
// Programs call CUDA from atexit handlers and destructors, so it is never closed.
Library& library() {
    static Library& only = *new Library;
    return only;
}
}  // namespace

void* find(const char* name, int version) {
    Library& cuda = library();
    if (!cuda.handle) return nullptr;
    if (!cuda.lookup) return dlsym(cuda.handle, name);  // a driver from before CUDA 12
    void* function = nullptr;
    CUdriverProcAddressQueryResult status;
    if (cuda.lookup(name, &function, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status)) return nullptr;
    return function;
}

void* symbol(const char* name) { return library().handle ? dlsym(library().handle, name) : nullptr; }

CUresult missing(const char* name) {
    if (!library().handle) return static_cast<CUresult>(cudaErrorInsufficientDriver);
    unsupported(name);
    return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace gpukernel::cudart::driver
