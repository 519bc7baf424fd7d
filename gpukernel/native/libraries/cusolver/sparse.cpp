#include "libraries/cusolver/sparse.h"

#include <dlfcn.h>

namespace gpukernel::libraries::cusolver {

namespace {
// cuSPARSE's handles on the program's side know their matrices; whoever made one has the library.
template <class Function>
Function of_cusparse(const char* name) {
    for (const char* library : {"libcusparse.so.12", "libcusparse.so.11"})
        if (void* const found = ::dlopen(library, RTLD_LAZY | RTLD_NOLOAD))
            if (void* const function = ::dlsym(found, name)) return reinterpret_cast<Function>(function);
    return nullptr;
}

template <class Real>
int solve(void* handle, const char* name, int type, int m, int nnz, void* descriptor, const void* values,
          const int* offsets, const int* columns, const void* b, Real tolerance, int reorder, void* x,
          int* singularity) {
    if (!handle_of(handle)) return NOT_INITIALIZED;
    const int base = first_index(descriptor);
    if (m < 0 || nnz < 0 || base < 0 || reorder < 0 || reorder > 3 || !singularity) return INVALID_VALUE;
    return solve_sparse(handle, name, type, m, nnz, base, values, offsets, columns, b,
                        static_cast<double>(tolerance), x, singularity);
}
}  // namespace

int first_index(void* descriptor) {
    auto* const type = of_cusparse<int (*)(void*)>("cusparseGetMatType");
    auto* const base = of_cusparse<int (*)(void*)>("cusparseGetMatIndexBase");
    if (!descriptor || !type || !base || type(descriptor)) return -1;
    return base(descriptor);
}

GPUKERNEL_EXPORT int cusolverSpSetStream(void* handle, CUstream stream) {
    StreamHandle* const own = handle_of(handle);
    return own ? (own->stream = stream, SUCCESS) : NOT_INITIALIZED;
}
GPUKERNEL_EXPORT int cusolverSpGetStream(void* handle, CUstream* stream) {
    const StreamHandle* const own = handle_of(handle);
    if (!own) return NOT_INITIALIZED;
    return stream ? (*stream = own->stream, SUCCESS) : INVALID_VALUE;
}

#define SOLVE(letter, Real, type)                                                                       \
    GPUKERNEL_EXPORT int cusolverSp##letter##csrlsvqr(                                                  \
        void* handle, int m, int nnz, void* descriptor, const void* values, const int* offsets,         \
        const int* columns, const void* b, Real tolerance, int reorder, void* x, int* singularity) {    \
        return solve(handle, "cusolverSp" #letter "csrlsvqr", cublas::type, m, nnz, descriptor, values, \
                     offsets, columns, b, tolerance, reorder, x, singularity);                          \
    }
SOLVE(S, float, R_32F)
SOLVE(D, double, R_64F)
SOLVE(C, float, C_32F)
SOLVE(Z, double, C_64F)
#undef SOLVE

}  // namespace gpukernel::libraries::cusolver
