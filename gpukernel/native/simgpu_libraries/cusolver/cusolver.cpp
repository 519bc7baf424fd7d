// libcusolver beside the simulated GPU: handles, and the entry points that are generated from
// libraries/cusolver/calls.txt.
#include "simgpu_libraries/cusolver/factors.h"
#include "simgpu_libraries/cusolver/values.h"

namespace gpukernel::simgpu_libraries::cusolver {

using libraries::unsupported;

namespace {
constexpr const char* NEEDED[] = {GPUKERNEL_BLAS_NAMES("potrf"),
                                  GPUKERNEL_BLAS_NAMES("potrs"),
                                  GPUKERNEL_BLAS_NAMES("potri"),
                                  GPUKERNEL_BLAS_NAMES("getrf"),
                                  GPUKERNEL_BLAS_NAMES("getrs"),
                                  GPUKERNEL_BLAS_NAMES("geqrf"),
                                  GPUKERNEL_BLAS_NAMES("gesdd"),
                                  GPUKERNEL_BLAS_NAMES("gesvd"),
                                  GPUKERNEL_BLAS_NAMES("geev"),
                                  "sorgqr",
                                  "dorgqr",
                                  "cungqr",
                                  "zungqr",
                                  "sormqr",
                                  "dormqr",
                                  "cunmqr",
                                  "zunmqr",
                                  "ssytrd",
                                  "dsytrd",
                                  "chetrd",
                                  "zhetrd",
                                  "ssyevd",
                                  "dsyevd",
                                  "cheevd",
                                  "zheevd",
                                  "ssygvd",
                                  "dsygvd",
                                  "chegvd",
                                  "zhegvd"};
}

GPUKERNEL_EXPORT int cusolverDnCreate(void** handle) {
    if (!handle) return INVALID_VALUE;
    *handle = nullptr;
    if (!can_make_handle(NEEDED)) return NOT_INITIALIZED;
    *handle = libraries::keep_handle(new Handle);
    return SUCCESS;
}

GPUKERNEL_EXPORT int cusolverDnDestroy(void* handle) {
    Handle* const own = libraries::drop_handle(handle);
    delete own;  // what was submitted knows all that it needs
    return own ? SUCCESS : NOT_INITIALIZED;
}

#include "cusolver_simulated.inc"
#include "cusolver_unsupported.inc"

}  // namespace gpukernel::simgpu_libraries::cusolver
