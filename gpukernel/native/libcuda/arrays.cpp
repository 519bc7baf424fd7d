// CUDA arrays in terms of other calls: two-dimensional descriptors, and copies of spans of one-dimensional
// arrays (driver API chapter "Memory Management").
#include "codegen/cuda_driver.h"

namespace {
CUDA_MEMCPY3D span(size_t bytes) {
    CUDA_MEMCPY3D copy{};
    copy.WidthInBytes = bytes, copy.Height = copy.Depth = 1;
    return copy;
}
void from_array(CUDA_MEMCPY3D& copy, CUarray array, size_t offset) {
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY, copy.srcArray = array, copy.srcXInBytes = offset;
}
void to_array(CUDA_MEMCPY3D& copy, CUarray array, size_t offset) {
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY, copy.dstArray = array, copy.dstXInBytes = offset;
}
void from_host(CUDA_MEMCPY3D& copy, const void* host) {
    copy.srcMemoryType = CU_MEMORYTYPE_HOST, copy.srcHost = host;
}
void to_host(CUDA_MEMCPY3D& copy, void* host) {
    copy.dstMemoryType = CU_MEMORYTYPE_HOST, copy.dstHost = host;
}
}  // namespace

CUresult CUDAAPI cuArrayCreate(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
    if (!pAllocateArray) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR shape{pAllocateArray->Width,  pAllocateArray->Height,      0,
                                        pAllocateArray->Format, pAllocateArray->NumChannels, 0};
    return cuArray3DCreate(pHandle, &shape);
}
CUresult CUDAAPI cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
    CUDA_ARRAY3D_DESCRIPTOR shape{};
    if (!pArrayDescriptor) return CUDA_ERROR_INVALID_VALUE;
    CUresult error = cuArray3DGetDescriptor(&shape, hArray);
    if (error == CUDA_SUCCESS)
        *pArrayDescriptor = {shape.Width, shape.Height, shape.Format, shape.NumChannels};
    return error;
}

CUresult CUDAAPI cuMemcpyHtoA(CUarray dstArray, size_t dstOffset, const void* srcHost, size_t ByteCount) {
    CUDA_MEMCPY3D copy = span(ByteCount);
    from_host(copy, srcHost), to_array(copy, dstArray, dstOffset);
    return cuMemcpy3D(&copy);
}
CUresult CUDAAPI cuMemcpyHtoAAsync(CUarray dstArray, size_t dstOffset, const void* srcHost, size_t ByteCount,
                                   CUstream hStream) {
    CUDA_MEMCPY3D copy = span(ByteCount);
    from_host(copy, srcHost), to_array(copy, dstArray, dstOffset);
    return cuMemcpy3DAsync(&copy, hStream);
}
CUresult CUDAAPI cuMemcpyAtoH(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount) {
    CUDA_MEMCPY3D copy = span(ByteCount);
    from_array(copy, srcArray, srcOffset), to_host(copy, dstHost);
    return cuMemcpy3D(&copy);
}
CUresult CUDAAPI cuMemcpyAtoHAsync(void* dstHost, CUarray srcArray, size_t srcOffset, size_t ByteCount,
                                   CUstream hStream) {
    CUDA_MEMCPY3D copy = span(ByteCount);
    from_array(copy, srcArray, srcOffset), to_host(copy, dstHost);
    return cuMemcpy3DAsync(&copy, hStream);
}
CUresult CUDAAPI cuMemcpyDtoA(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount) {
    CUDA_MEMCPY3D copy = span(ByteCount);
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE, copy.srcDevice = srcDevice;
    to_array(copy, dstArray, dstOffset);
    return cuMemcpy3D(&copy);
}
CUresult CUDAAPI cuMemcpyAtoD(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount) {
    CUDA_MEMCPY3D copy = span(ByteCount);
    from_array(copy, srcArray, srcOffset);
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE, copy.dstDevice = dstDevice;
    return cuMemcpy3D(&copy);
}
CUresult CUDAAPI cuMemcpyAtoA(CUarray dstArray, size_t dstOffset, CUarray srcArray, size_t srcOffset,
                              size_t ByteCount) {
    CUDA_MEMCPY3D copy = span(ByteCount);
    from_array(copy, srcArray, srcOffset), to_array(copy, dstArray, dstOffset);
    return cuMemcpy3D(&copy);
}
