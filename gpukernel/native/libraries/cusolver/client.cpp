// cuSOLVER in the user's program: each call becomes data, and travels in the order of its stream.
#include "libraries/cusolver/types.h"
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

#include "cusolver_client.inc"
#include "cusolver_unsupported.inc"

}  // namespace gpukernel::libraries::cusolver
