#include "shim/memory/memory_operations.h"

#include <algorithm>

#include "shim/graphs/capture.h"
#include "shim/managed/managed.h"
#include "shim/memory/host_memory.h"
#include "shim/transport/request.h"

namespace gpukernel::shim {

namespace {
bool waits(CUstreamBatchMemOpType type) {
    return type == CU_STREAM_MEM_OP_WAIT_VALUE_32 || type == CU_STREAM_MEM_OP_WAIT_VALUE_64;
}
bool writes(CUstreamBatchMemOpType type) {
    return type == CU_STREAM_MEM_OP_WRITE_VALUE_32 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64;
}
uint64_t bytes_of(CUstreamBatchMemOpType type) {
    return type == CU_STREAM_MEM_OP_WAIT_VALUE_64 || type == CU_STREAM_MEM_OP_WRITE_VALUE_64 ? 8 : 4;
}

CUresult check(const CUstreamBatchMemOpParams& one) {
    const auto& value = one.waitValue;  // the structure of writes has the same layout
    if (one.operation == CU_STREAM_MEM_OP_BARRIER)
        return one.memoryBarrier.flags <= CU_STREAM_MEMORY_BARRIER_TYPE_GPU ? CUDA_SUCCESS
                                                                            : CUDA_ERROR_INVALID_VALUE;
    if (!waits(one.operation) && !writes(one.operation))
        return gpukernel::unsupported(
            "a stream memory operation that neither writes a value nor waits for one");
    if (waits(one.operation) && value.flags & CU_STREAM_WAIT_VALUE_FLUSH)
        return gpukernel::unsupported("a wait for what other devices write");
    const unsigned flags =
        waits(one.operation) ? +CU_STREAM_WAIT_VALUE_NOR : +CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER;
    if (value.address % bytes_of(one.operation) || value.flags > flags) return CUDA_ERROR_INVALID_VALUE;
    // What the program writes there is sent only when no stream has work that might use it.
    if (waits(one.operation) && (is_managed(value.address) || host_at(value.address)))
        return gpukernel::unsupported("a stream that waits for a value in managed or pinned memory");
    return CUDA_SUCCESS;
}
}  // namespace

CUresult check_operations(unsigned count, const CUstreamBatchMemOpParams* operations, unsigned flags) {
    if (!count || count > wire::MOST_MEMORY_OPERATIONS || !operations || flags)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i)
        if (CUresult error = check(operations[i]); error != CUDA_SUCCESS) return error;
    return CUDA_SUCCESS;
}

CUresult queue(Connection& connection, const MemoryOperations& asked, CUstream stream) {
    MemoryOperations operations = asked;
    for (CUstreamBatchMemOpParams& one : operations)
        if (writes(one.operation))
            if (CUresult error = reach_host(connection, one.writeValue.address, bytes_of(one.operation));
                error != CUDA_SUCCESS)
                return error;
    auto is_ours = [](const CUstreamBatchMemOpParams& one) {
        return writes(one.operation) && is_managed(one.writeValue.address);
    };
    const uint64_t of = stream_name(connection, stream);
    std::optional<DeviceWork> work;
    if (std::any_of(operations.begin(), operations.end(), is_ours)) work.emplace(connection, stream);
    Request request(connection, wire::MemoryOperationsRequest{of, {}});
    for (const CUstreamBatchMemOpParams& one : operations) {
        const bool barrier = one.operation == CU_STREAM_MEM_OP_BARRIER;
        const uint64_t value = bytes_of(one.operation) == 8 ? one.waitValue.value64 : one.waitValue.value;
        request.put(barrier ? wire::MemoryOperation{one.operation, one.memoryBarrier.flags, 0, 0}
                            : wire::MemoryOperation{one.operation, one.waitValue.flags, one.waitValue.address,
                                                    value});
    }
    return request.queue();
}

}  // namespace gpukernel::shim

using namespace gpukernel::shim;

CUresult CUDAAPI cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* paramArray,
                                    unsigned int flags) {
    GPUKERNEL_CURRENT(connection);
    if (CUresult error = check_operations(count, paramArray, flags); error != CUDA_SUCCESS) return error;
    const MemoryOperations operations(paramArray, paramArray + count);
    if (capturing())
        if (Captured captured = captured_operations(*connection, operations, stream)) return *captured;
    return queue(*connection, operations, stream);
}
