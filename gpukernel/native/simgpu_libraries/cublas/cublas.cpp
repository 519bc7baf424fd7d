// libcublas beside the simulated GPU: handles, and the entry points that are generated from
// libraries/cublas/calls.txt.
#include "libraries/cublas/products.h"
#include "simgpu_libraries/cublas/product.h"
#include "simgpu_libraries/cublas/triangles.h"
#include "simgpu_libraries/cublas/vectors.h"

namespace gpukernel::simgpu_libraries::cublas {

using libraries::unsupported;

namespace {
constexpr const char* NEEDED[] = {GPUKERNEL_BLAS_NAMES("gemm"),
                                  GPUKERNEL_BLAS_NAMES("trsm"),
                                  GPUKERNEL_BLAS_NAMES("trmm"),
                                  GPUKERNEL_BLAS_NAMES("symm"),
                                  GPUKERNEL_BLAS_NAMES("getrf"),
                                  GPUKERNEL_BLAS_NAMES("getrs"),
                                  GPUKERNEL_BLAS_NAMES("getri"),
                                  "chemm",
                                  "zhemm"};
}

GPUKERNEL_EXPORT int cublasCreate_v2(void** handle) {
    if (!handle) return INVALID_VALUE;
    *handle = nullptr;
    if (!can_make_handle(NEEDED)) return NOT_INITIALIZED;
    *handle = libraries::cublas::keep_handle(new Handle);
    return SUCCESS;
}

GPUKERNEL_EXPORT int cublasDestroy_v2(void* handle) {
    Handle* const own = libraries::cublas::drop_handle(handle);
    delete own;  // what was submitted knows all that it needs
    return own ? SUCCESS : NOT_INITIALIZED;
}

#include "cublas_simulated.inc"
#include "cublas_unsupported.inc"

}  // namespace gpukernel::simgpu_libraries::cublas
