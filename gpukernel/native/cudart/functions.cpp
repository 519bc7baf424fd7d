// Functions of the program: their attributes, and how many blocks of them a multiprocessor holds.
#include <cstring>

#include "cudart/runtime.h"

using namespace gpukernel::cudart;

namespace {
// Calls `then` with the function in the current context.
template <class Then>
cudaError_t with(const void* function, Then then) {
    if (CUresult result = enter()) return done(result);
    CUfunction found;
    if (CUresult result = find_function(function, found)) return done(result);
    return done(then(found));
}
}  // namespace

API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* to, const void* function) {
    if (!to) return fail(cudaErrorInvalidValue);
    return with(function, [to](CUfunction found) {
        std::memset(to, 0, sizeof *to);
        CUresult result = CUDA_SUCCESS;
        const auto value = [&](CUfunction_attribute attribute) {
            int read = 0;
            if (result == CUDA_SUCCESS) result = driver::cuFuncGetAttribute(&read, attribute, found);
            return read;
        };
        to->sharedSizeBytes = value(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
        to->constSizeBytes = value(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES);
        to->localSizeBytes = value(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
        to->maxThreadsPerBlock = value(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
        to->numRegs = value(CU_FUNC_ATTRIBUTE_NUM_REGS);
        to->ptxVersion = value(CU_FUNC_ATTRIBUTE_PTX_VERSION);
        to->binaryVersion = value(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
        to->cacheModeCA = value(CU_FUNC_ATTRIBUTE_CACHE_MODE_CA);
        to->maxDynamicSharedSizeBytes = value(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
        to->preferredShmemCarveout = value(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
#if MAJOR >= 12
        to->clusterDimMustBeSet = value(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET);
        to->requiredClusterWidth = value(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH);
        to->requiredClusterHeight = value(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT);
        to->requiredClusterDepth = value(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH);
        to->clusterSchedulingPolicyPreference = value(CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE);
        to->nonPortableClusterSizeAllowed = value(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);
#endif
        return result;
    });
}

API cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
    return with(function, [=](CUfunction found) {
        return invoke(driver::cuFuncSetAttribute, found, attribute, value);
    });
}

API cudaError_t cudaFuncSetCacheConfig(const void* function, cudaFuncCache config) {
    return with(function,
                [=](CUfunction found) { return invoke(driver::cuFuncSetCacheConfig, found, config); });
}

#if MAJOR >= 12
API cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute attribute, int value,
                                                int device) {
    if (CUresult result = enter()) return done(result);
    CUfunction found;
    if (CUresult result = find_kernel(kernel, found)) return done(result);
    return done(
        invoke(driver::cuKernelSetAttribute, attribute, value, reinterpret_cast<CUkernel>(found), device));
}

API cudaError_t cudaFuncGetName(const char** name, const void* function) {
    return with(function, [=](CUfunction found) { return driver::cuFuncGetName(name, found); });
}

API cudaError_t cudaFuncGetParamInfo(const void* function, size_t index, size_t* offset, size_t* size) {
    return with(function,
                [=](CUfunction found) { return driver::cuFuncGetParamInfo(found, index, offset, size); });
}
#endif

#if MAJOR >= 13
API cudaError_t cudaFuncGetParamCount(const void* function, size_t* count) {
    return with(function, [=](CUfunction found) { return driver::cuFuncGetParamCount(found, count); });
}
#endif

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                       int threads, size_t shared,
                                                                       unsigned int flags) {
    return with(function, [=](CUfunction found) {
        return driver::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, found, threads, shared,
                                                                            flags);
    });
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                              size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}

API cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* function, int blocks,
                                                          int threads) {
    return with(function, [=](CUfunction found) {
        return driver::cuOccupancyAvailableDynamicSMemPerBlock(bytes, found, blocks, threads);
    });
}
