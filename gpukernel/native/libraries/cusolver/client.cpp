// cuSOLVER in the user's program: each call becomes data, and travels in the order of its stream.
#include <bit>

#include "libraries/cusolver/sparse.h"
#include "libraries/queued_call.h"

namespace gpukernel::libraries::cusolver {

namespace {
constexpr uint32_t LIBRARY = library_number(CUSOLVER, GPUKERNEL_MAJOR);
struct Call : QueuedCall {
    Call(void* handle, const char* name, uint32_t function) : QueuedCall(handle, LIBRARY, name, function) {}
};
}  // namespace

GPUKERNEL_EXPORT int cusolverDnCreate(void** handle) {
    return create_handle(handle, LIBRARY, "cusolverDnCreate");
}
GPUKERNEL_EXPORT int cusolverDnDestroy(void* handle) { return destroy_handle(handle, LIBRARY); }

GPUKERNEL_EXPORT int cusolverSpCreate(void** handle) {
    return create_handle(handle, LIBRARY, "cusolverSpCreate");
}
GPUKERNEL_EXPORT int cusolverSpDestroy(void* handle) { return destroy_handle(handle, LIBRARY); }

int solve_sparse(void* handle, const char* name, int type, int m, int nnz, int base, const void* values,
                 const int* offsets, const int* columns, const void* b, double tolerance, void* x,
                 int* singularity) {
    Call call(handle, name, SOLVE_SPARSE);
    if (!call.ready()) return call.status();
    for (const int one : {type, m, nnz, base}) call.number(one);
    for (const void* one : {values, static_cast<const void*>(offsets), static_cast<const void*>(columns), b})
        call.device(one);
    call.number(std::bit_cast<int64_t>(tolerance));
    call.device(x);
    call.result(singularity, sizeof *singularity);
    return call.ask();
}

#include "cusolver_client.inc"
#include "cusolver_unsupported.inc"

}  // namespace gpukernel::libraries::cusolver
