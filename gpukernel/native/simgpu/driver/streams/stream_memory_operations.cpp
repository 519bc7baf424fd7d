// Values in memory that a stream writes, or waits for (driver API chapter "Stream Memory Operations").
#include <type_traits>

#include "simgpu/driver/state.h"

using namespace gpukernel::simgpu;

namespace {
constexpr unsigned MOST = 256;  // in one batch

template <class T>
T load(CUdeviceptr address) {
    return __atomic_load_n(reinterpret_cast<const T*>(address), __ATOMIC_ACQUIRE);
}

template <class T>
bool meets(T there, T value, unsigned how) {
    switch (how) {
        case CU_STREAM_WAIT_VALUE_GEQ:
            return static_cast<std::make_signed_t<T>>(there - value) >= 0;
        case CU_STREAM_WAIT_VALUE_EQ:
            return there == value;
        case CU_STREAM_WAIT_VALUE_AND:
            return (there & value) != 0;
        default:
            return static_cast<T>(~(there | value)) != 0;
    }
}

template <class T>
CUresult wait(Device* device, Stream* stream, CUdeviceptr address, T value, unsigned flags, bool check_only) {
    if (flags & CU_STREAM_WAIT_VALUE_FLUSH) return CUDA_ERROR_NOT_SUPPORTED;  // of other devices' writes
    if (flags > CU_STREAM_WAIT_VALUE_NOR || address % sizeof(T) || !device->memory->valid(address, sizeof(T)))
        return CUDA_ERROR_INVALID_VALUE;
    if (!check_only)
        schedule().wait_until(*stream, [=] {
            // Memory that is gone will not change.
            return !device->memory->valid(address, sizeof(T)) || meets(load<T>(address), value, flags);
        });
    return CUDA_SUCCESS;
}

template <class T>
CUresult write(Device* device, Stream* stream, CUdeviceptr address, T value, unsigned flags,
               bool check_only) {
    if (flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER || address % sizeof(T) ||
        !device->memory->valid(address, sizeof(T), true))
        return CUDA_ERROR_INVALID_VALUE;
    if (check_only) return CUDA_SUCCESS;
    return in_order(device, stream,
                    [=] { __atomic_store_n(reinterpret_cast<T*>(address), value, __ATOMIC_RELEASE); });
}

CUresult perform(Device* device, Stream* stream, const CUstreamBatchMemOpParams& one, bool check_only) {
    const auto& w = one.waitValue;  // what is written has the same layout
    switch (one.operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            return wait(device, stream, w.address, w.value, w.flags, check_only);
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            return wait(device, stream, w.address, w.value64, w.flags, check_only);
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            return write(device, stream, w.address, w.value, w.flags, check_only);
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            return write(device, stream, w.address, w.value64, w.flags, check_only);
        case CU_STREAM_MEM_OP_BARRIER:  // all that a stream has done is seen by what it does next
            return one.memoryBarrier.flags > CU_STREAM_MEMORY_BARRIER_TYPE_GPU ? CUDA_ERROR_INVALID_VALUE
                                                                               : CUDA_SUCCESS;
        default:
            return CUDA_ERROR_NOT_SUPPORTED;
    }
}
}  // namespace

CUresult CUDAAPI cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* paramArray,
                                    unsigned int flags) {
    GPUKERNEL_HERE(device);
    Stream* in;
    if (!stream_of(stream, in)) return CUDA_ERROR_INVALID_HANDLE;
    if (!count || count > MOST || !paramArray || flags) return CUDA_ERROR_INVALID_VALUE;
    for (const bool check_only : {true, false})
        for (unsigned i = 0; i < count; ++i)
            if (CUresult error = perform(device, in, paramArray[i], check_only); error != CUDA_SUCCESS)
                return error;
    return CUDA_SUCCESS;
}
