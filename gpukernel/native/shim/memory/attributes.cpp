// Attributes of a pointer that are set, or asked for several at once; each by itself is in memory.cpp.
#include <mutex>
#include <set>
#include <utility>

#include "shim/memory/memory.h"
#include "shim/transport/request.h"

using namespace gpukernel::shim;

namespace {
// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS has no effect, since synchronous copies are always done when they return.
// It is stored by the kind of memory and the buffer id, which no other allocation ever has.
struct SyncMemops {
    std::mutex mutex;
    std::set<std::pair<unsigned, uint64_t>> set;
};
SyncMemops& sync_memops() {
    static SyncMemops* const instance = new SyncMemops;
    return *instance;
}

CUresult identify(CUdeviceptr ptr, std::pair<unsigned, uint64_t>& which) {
    unsigned type = 0, managed = 0;
    uint64_t number = 0;
    CUresult error = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr);
    if (error == CUDA_SUCCESS && type != CU_MEMORYTYPE_DEVICE) error = CUDA_ERROR_INVALID_VALUE;
    if (error == CUDA_SUCCESS) error = cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr);
    if (error == CUDA_SUCCESS) error = cuPointerGetAttribute(&number, CU_POINTER_ATTRIBUTE_BUFFER_ID, ptr);
    which = {managed, number};
    return error;
}
}  // namespace

CUresult gpukernel::shim::get_sync_memops(CUdeviceptr ptr, unsigned& value) {
    std::pair<unsigned, uint64_t> which;
    if (CUresult error = identify(ptr, which); error != CUDA_SUCCESS) return error;
    std::lock_guard lock(sync_memops().mutex);
    value = sync_memops().set.contains(which);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes,
                                        void** data, CUdeviceptr ptr) {
    if (!attributes || !data) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < numAttributes; ++i)
        if (CUresult error = cuPointerGetAttribute(data[i], attributes[i], ptr); error == GONE) return error;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    std::pair<unsigned, uint64_t> which;
    if (CUresult error = identify(ptr, which); error != CUDA_SUCCESS) return error;
    std::lock_guard lock(sync_memops().mutex);
    if (*static_cast<const unsigned*>(value))
        sync_memops().set.insert(which);
    else
        sync_memops().set.erase(which);
    return CUDA_SUCCESS;
}
