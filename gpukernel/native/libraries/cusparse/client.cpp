// cuSPARSE in the user's program: descriptors travel, as they are, with each call.
#include "libraries/cusparse/types.h"
#include "libraries/queued_call.h"

namespace gpukernel::libraries::cusparse {

namespace {
constexpr uint32_t LIBRARY = library_number(CUSPARSE, GPUKERNEL_MAJOR);
struct Call : QueuedCall {
    Call(void* handle, const char* name, uint32_t function) : QueuedCall(handle, LIBRARY, name, function) {}
    // Its addresses are no part of the question for a workspace's size.
    template <class Descriptor>
    void descriptor(const Descriptor& one) {
        const auto* const words = reinterpret_cast<const uint64_t*>(&one);
        static_assert(sizeof one % sizeof *words == 0);
        for (size_t i = 0; i < sizeof one / sizeof *words; ++i)
            if (is_address(one, i))
                place(reinterpret_cast<const void*>(words[i]));
            else
                number(static_cast<int64_t>(words[i]));
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
int count(void* handle, int algorithm, const Sparse& sparse, const Dense& dense, void* buffer,
          int64_t& elements) {
    Call call(handle, "cusparseDenseToSparse_analysis", COUNT);
    if (!call.ready()) return call.status();
    call.descriptor(Request{0, 0, 0, algorithm}), call.descriptor(sparse), call.descriptor(dense);
    call.device(buffer);
    return call.ask(&elements, sizeof elements);
}
int multiply(void* handle, Function step, const Factors& factors, const void* alpha, const void* beta,
             size_t& answer) {
    Call call(handle, "cusparseSpGEMM", step);
    if (!call.ready()) return call.status();
    const bool asks_for_room = step == SPGEMM_FIRST_ROOM || step == SPGEMM_SECOND_ROOM;
    if (asks_for_room && call.simulated()) return answer = LEAST_ROOM, SUCCESS;
    const size_t scalar = cublas::data_bytes(static_cast<int>(factors.operation.compute));
    call.descriptor(factors.operation), call.descriptor(factors.a), call.descriptor(factors.b);
    call.descriptor(factors.c), call.descriptor(factors.workspaces);
    call.scalar(alpha, scalar), call.scalar(beta, scalar);
    return step == SPGEMM ? call.queue() : call.ask(&answer, sizeof answer);
}

GPUKERNEL_EXPORT int cusparseCreate(void** handle) {
    return create_handle(handle, LIBRARY, "cusparseCreate");
}
GPUKERNEL_EXPORT int cusparseDestroy(void* handle) { return destroy_handle(handle, LIBRARY); }

#include "cusparse_client.inc"
#include "cusparse_unsupported.inc"

}  // namespace gpukernel::libraries::cusparse
