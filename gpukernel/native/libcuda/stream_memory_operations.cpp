// Stream memory operations one by one: a batch of one, in every libcuda.so.1 that makes batches.
#include <cuda.h>

namespace {
CUresult single(CUstream stream, CUstreamBatchMemOpType operation, CUdeviceptr address, cuuint64_t value,
                unsigned flags) {
    CUstreamBatchMemOpParams one{};
    one.waitValue = {operation, address, {.value64 = value}, flags, 0};
    return cuStreamBatchMemOp(stream, 1, &one, 0);
}
}  // namespace

CUresult CUDAAPI cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                     unsigned int flags) {
    return single(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, addr, value, flags);
}
CUresult CUDAAPI cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                     unsigned int flags) {
    return single(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, addr, value, flags);
}
CUresult CUDAAPI cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                      unsigned int flags) {
    return single(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, addr, value, flags);
}
CUresult CUDAAPI cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                      unsigned int flags) {
    return single(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, addr, value, flags);
}
