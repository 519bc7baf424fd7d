// cuSPARSE in the user's program: descriptors travel, as they are, with each call.
#include "libraries/cusparse/types.h"
#include "libraries/queued_call.h"

namespace gpukernel::libraries::cusparse {

namespace {
constexpr uint32_t LIBRARY = library_number(CUSPARSE, GPUKERNEL_MAJOR);
struct Call : QueuedCall {
    Call(void* handle, const char* name, uint32_t function) : QueuedCall(handle, LIBRARY, name, function) {}
    template <class Descriptor>
    void descriptor(const Descriptor& one) {
        bytes(&one, sizeof one);
    }
    // Sends it, or asks for the size of its workspace.
    int finish(const void* buffer, size_t* place) {
        device(buffer);
        if (!place) return queue();
        room(place, sizeof *place);
        return measure();
    }
};
}  // namespace

int multiply(void* handle, Function function, const Request& operation, const void* alpha, const Sparse& a,
             const Dense& b, const void* beta, const Dense& c, void* buffer, size_t* room) {
    Call call(handle, "cusparseSpMM", function);
    if (!call.ready()) return call.status();
    const size_t scalar = cublas::data_bytes(static_cast<int>(operation.compute));
    call.descriptor(operation), call.descriptor(a), call.descriptor(b), call.descriptor(c);
    call.scalar(alpha, scalar), call.scalar(beta, scalar);
    return call.finish(buffer, room);
}
int multiply_sampled(void* handle, Function function, const Request& operation, const void* alpha,
                     const Dense& a, const Dense& b, const void* beta, const Sparse& c, void* buffer,
                     size_t* room) {
    Call call(handle, "cusparseSDDMM", function);
    if (!call.ready()) return call.status();
    const size_t scalar = cublas::data_bytes(static_cast<int>(operation.compute));
    call.descriptor(operation), call.descriptor(a), call.descriptor(b), call.descriptor(c);
    call.scalar(alpha, scalar), call.scalar(beta, scalar);
    return call.finish(buffer, room);
}
int convert(void* handle, Function function, int algorithm, const Sparse& sparse, const Dense& dense,
            void* buffer, size_t* room) {
    Call call(handle, "cusparseSparseToDense", function);
    if (!call.ready()) return call.status();
    call.descriptor(Request{0, 0, 0, algorithm}), call.descriptor(sparse), call.descriptor(dense);
    return call.finish(buffer, room);
}
int count(void* handle, const Dense& dense, int64_t& elements) {
    Call call(handle, "cusparseDenseToSparse_analysis", COUNT);
    if (!call.ready()) return call.status();
    call.descriptor(dense);
    return call.ask(&elements, sizeof elements);
}
int count(void* handle, const Request& operation, const Sparse& a, const Sparse& b, int64_t& elements) {
    Call call(handle, "cusparseSpGEMM_compute", SPGEMM_COUNT);
    if (!call.ready()) return call.status();
    call.descriptor(operation), call.descriptor(a), call.descriptor(b);
    return call.ask(&elements, sizeof elements);
}
int multiply(void* handle, const Request& operation, const void* alpha, const Sparse& a, const Sparse& b,
             const void* beta, const Sparse& c) {
    Call call(handle, "cusparseSpGEMM_copy", SPGEMM);
    if (!call.ready()) return call.status();
    const size_t scalar = cublas::data_bytes(static_cast<int>(operation.compute));
    call.descriptor(operation), call.descriptor(a), call.descriptor(b), call.descriptor(c);
    call.scalar(alpha, scalar), call.scalar(beta, scalar);
    return call.queue();
}

GPUKERNEL_EXPORT int cusparseCreate(void** handle) {
    return create_handle(handle, LIBRARY, "cusparseCreate");
}
GPUKERNEL_EXPORT int cusparseDestroy(void* handle) { return destroy_handle(handle, LIBRARY); }

#include "cusparse_client.inc"
#include "cusparse_unsupported.inc"

}  // namespace gpukernel::libraries::cusparse
