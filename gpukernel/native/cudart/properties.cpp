// cudaGetDeviceProperties: one structure in each major version, filled from the driver's attributes.
#include <cstddef>
#include <cstring>

#include "cudart/runtime.h"

using namespace gpukernel::cudart;

namespace {

CUresult fill(cudaDeviceProp& p, int device) {
    std::memset(&p, 0, sizeof p);
    if (CUresult result = driver::cuDeviceGetName(p.name, sizeof p.name, device)) return result;
    driver::cuDeviceGetUuid(reinterpret_cast<CUuuid*>(&p.uuid), device);
    driver::cuDeviceTotalMem(&p.totalGlobalMem, device);
    const auto value = [device](CUdevice_attribute attribute) {
        int found = 0;
        return driver::cuDeviceGetAttribute(&found, attribute, device) == CUDA_SUCCESS ? found : 0;
    };
#define IS(field, attribute) p.field = value(CU_DEVICE_ATTRIBUTE_##attribute)
    IS(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK);
    IS(regsPerBlock, MAX_REGISTERS_PER_BLOCK);
    IS(warpSize, WARP_SIZE);
    IS(memPitch, MAX_PITCH);
    IS(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK);
    IS(maxThreadsDim[0], MAX_BLOCK_DIM_X);
    IS(maxThreadsDim[1], MAX_BLOCK_DIM_Y);
    IS(maxThreadsDim[2], MAX_BLOCK_DIM_Z);
    IS(maxGridSize[0], MAX_GRID_DIM_X);
    IS(maxGridSize[1], MAX_GRID_DIM_Y);
    IS(maxGridSize[2], MAX_GRID_DIM_Z);
    IS(totalConstMem, TOTAL_CONSTANT_MEMORY);
    IS(major, COMPUTE_CAPABILITY_MAJOR);
    IS(minor, COMPUTE_CAPABILITY_MINOR);
    IS(textureAlignment, TEXTURE_ALIGNMENT);
    IS(texturePitchAlignment, TEXTURE_PITCH_ALIGNMENT);
    IS(multiProcessorCount, MULTIPROCESSOR_COUNT);
    IS(integrated, INTEGRATED);
    IS(canMapHostMemory, CAN_MAP_HOST_MEMORY);
    IS(maxTexture1D, MAXIMUM_TEXTURE1D_WIDTH);
    IS(maxTexture1DMipmap, MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH);
    IS(maxTexture2D[0], MAXIMUM_TEXTURE2D_WIDTH);
    IS(maxTexture2D[1], MAXIMUM_TEXTURE2D_HEIGHT);
    IS(maxTexture2DMipmap[0], MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH);
    IS(maxTexture2DMipmap[1], MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT);
    IS(maxTexture2DLinear[0], MAXIMUM_TEXTURE2D_LINEAR_WIDTH);
    IS(maxTexture2DLinear[1], MAXIMUM_TEXTURE2D_LINEAR_HEIGHT);
    IS(maxTexture2DLinear[2], MAXIMUM_TEXTURE2D_LINEAR_PITCH);
    IS(maxTexture2DGather[0], MAXIMUM_TEXTURE2D_GATHER_WIDTH);
    IS(maxTexture2DGather[1], MAXIMUM_TEXTURE2D_GATHER_HEIGHT);
    IS(maxTexture3D[0], MAXIMUM_TEXTURE3D_WIDTH);
    IS(maxTexture3D[1], MAXIMUM_TEXTURE3D_HEIGHT);
    IS(maxTexture3D[2], MAXIMUM_TEXTURE3D_DEPTH);
    IS(maxTexture3DAlt[0], MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE);
    IS(maxTexture3DAlt[1], MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE);
    IS(maxTexture3DAlt[2], MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE);
    IS(maxTextureCubemap, MAXIMUM_TEXTURECUBEMAP_WIDTH);
    IS(maxTexture1DLayered[0], MAXIMUM_TEXTURE1D_LAYERED_WIDTH);
    IS(maxTexture1DLayered[1], MAXIMUM_TEXTURE1D_LAYERED_LAYERS);
    IS(maxTexture2DLayered[0], MAXIMUM_TEXTURE2D_LAYERED_WIDTH);
    IS(maxTexture2DLayered[1], MAXIMUM_TEXTURE2D_LAYERED_HEIGHT);
    IS(maxTexture2DLayered[2], MAXIMUM_TEXTURE2D_LAYERED_LAYERS);
    IS(maxTextureCubemapLayered[0], MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH);
    IS(maxTextureCubemapLayered[1], MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS);
    IS(maxSurface1D, MAXIMUM_SURFACE1D_WIDTH);
    IS(maxSurface2D[0], MAXIMUM_SURFACE2D_WIDTH);
    IS(maxSurface2D[1], MAXIMUM_SURFACE2D_HEIGHT);
    IS(maxSurface3D[0], MAXIMUM_SURFACE3D_WIDTH);
    IS(maxSurface3D[1], MAXIMUM_SURFACE3D_HEIGHT);
    IS(maxSurface3D[2], MAXIMUM_SURFACE3D_DEPTH);
    IS(maxSurface1DLayered[0], MAXIMUM_SURFACE1D_LAYERED_WIDTH);
    IS(maxSurface1DLayered[1], MAXIMUM_SURFACE1D_LAYERED_LAYERS);
    IS(maxSurface2DLayered[0], MAXIMUM_SURFACE2D_LAYERED_WIDTH);
    IS(maxSurface2DLayered[1], MAXIMUM_SURFACE2D_LAYERED_HEIGHT);
    IS(maxSurface2DLayered[2], MAXIMUM_SURFACE2D_LAYERED_LAYERS);
    IS(maxSurfaceCubemap, MAXIMUM_SURFACECUBEMAP_WIDTH);
    IS(maxSurfaceCubemapLayered[0], MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH);
    IS(maxSurfaceCubemapLayered[1], MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS);
    IS(surfaceAlignment, SURFACE_ALIGNMENT);
    IS(concurrentKernels, CONCURRENT_KERNELS);
    IS(ECCEnabled, ECC_ENABLED);
    IS(pciBusID, PCI_BUS_ID);
    IS(pciDeviceID, PCI_DEVICE_ID);
    IS(pciDomainID, PCI_DOMAIN_ID);
    IS(tccDriver, TCC_DRIVER);
    IS(asyncEngineCount, ASYNC_ENGINE_COUNT);
    IS(unifiedAddressing, UNIFIED_ADDRESSING);
    IS(memoryBusWidth, GLOBAL_MEMORY_BUS_WIDTH);
    IS(l2CacheSize, L2_CACHE_SIZE);
    IS(persistingL2CacheMaxSize, MAX_PERSISTING_L2_CACHE_SIZE);
    IS(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR);
    IS(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED);
    IS(globalL1CacheSupported, GLOBAL_L1_CACHE_SUPPORTED);
    IS(localL1CacheSupported, LOCAL_L1_CACHE_SUPPORTED);
    IS(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    IS(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR);
    IS(managedMemory, MANAGED_MEMORY);
    IS(isMultiGpuBoard, MULTI_GPU_BOARD);
    IS(multiGpuBoardGroupID, MULTI_GPU_BOARD_GROUP_ID);
    IS(hostNativeAtomicSupported, HOST_NATIVE_ATOMIC_SUPPORTED);
    IS(pageableMemoryAccess, PAGEABLE_MEMORY_ACCESS);
    IS(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS);
    IS(computePreemptionSupported, COMPUTE_PREEMPTION_SUPPORTED);
    IS(canUseHostPointerForRegisteredMem, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
    IS(cooperativeLaunch, COOPERATIVE_LAUNCH);
    IS(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    IS(pageableMemoryAccessUsesHostPageTables, PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
    IS(directManagedMemAccessFromHost, DIRECT_MANAGED_MEM_ACCESS_FROM_HOST);
    IS(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR);
    IS(accessPolicyMaxWindowSize, MAX_ACCESS_POLICY_WINDOW_SIZE);
    IS(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK);
#if MAJOR < 13
    IS(clockRate, CLOCK_RATE);
    IS(deviceOverlap, GPU_OVERLAP);
    IS(kernelExecTimeoutEnabled, KERNEL_EXEC_TIMEOUT);
    IS(computeMode, COMPUTE_MODE);
    IS(maxTexture1DLinear, MAXIMUM_TEXTURE1D_LINEAR_WIDTH);
    IS(memoryClockRate, MEMORY_CLOCK_RATE);
    IS(singleToDoublePrecisionPerfRatio, SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO);
    IS(cooperativeMultiDeviceLaunch, COOPERATIVE_MULTI_DEVICE_LAUNCH);
#endif
#if MAJOR >= 12
    IS(hostRegisterSupported, HOST_REGISTER_SUPPORTED);
    IS(sparseCudaArraySupported, SPARSE_CUDA_ARRAY_SUPPORTED);
    IS(hostRegisterReadOnlySupported, READ_ONLY_HOST_REGISTER_SUPPORTED);
    IS(timelineSemaphoreInteropSupported, TIMELINE_SEMAPHORE_INTEROP_SUPPORTED);
    IS(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED);
    IS(gpuDirectRDMASupported, GPU_DIRECT_RDMA_SUPPORTED);
    IS(gpuDirectRDMAFlushWritesOptions, GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
    IS(gpuDirectRDMAWritesOrdering, GPU_DIRECT_RDMA_WRITES_ORDERING);
    IS(memoryPoolSupportedHandleTypes, MEMPOOL_SUPPORTED_HANDLE_TYPES);
    IS(deferredMappingCudaArraySupported, DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED);
    IS(ipcEventSupported, IPC_EVENT_SUPPORTED);
    IS(clusterLaunch, CLUSTER_LAUNCH);
    IS(unifiedFunctionPointers, UNIFIED_FUNCTION_POINTERS);
#endif
#if MAJOR >= 13
    IS(deviceNumaConfig, NUMA_CONFIG);
    IS(deviceNumaId, NUMA_ID);
    IS(mpsEnabled, MPS_ENABLED);
    IS(hostNumaId, HOST_NUMA_ID);
    IS(gpuPciDeviceID, GPU_PCI_DEVICE_ID);
    IS(gpuPciSubsystemID, GPU_PCI_SUBSYSTEM_ID);
    IS(hostNumaMultinodeIpcSupported, HOST_NUMA_MULTINODE_IPC_SUPPORTED);
#endif
#undef IS
    return CUDA_SUCCESS;
}

cudaError_t properties(cudaDeviceProp* to, int device) {
    if (!to) return fail(cudaErrorInvalidValue);
    if (CUresult result = initialise()) return done(result);
    int count = 0;
    if (CUresult result = driver::cuDeviceGetCount(&count)) return done(result);
    if (device < 0 || device >= count) return fail(cudaErrorInvalidDevice);
    return done(fill(*to, device));
}

}  // namespace

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int device) { return properties(to, device); }

API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    if (CUresult result = initialise()) return done(result);
    return done(invoke(driver::cuDeviceGetAttribute, value, attribute, device));
}

API cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int from, int to) {
    if (CUresult result = initialise()) return done(result);
    return done(invoke(driver::cuDeviceGetP2PAttribute, value, attribute, from, to));
}

// The device that has most of what is asked for: at least the compute capability and the memory, of those the
// first.
API cudaError_t cudaChooseDevice(int* device, const cudaDeviceProp* wanted) {
    if (!device || !wanted) return fail(cudaErrorInvalidValue);
    int count;
    if (cudaError_t error = cudaGetDeviceCount(&count)) return error;
    int best = -1;
    *device = 0;
    for (int i = 0; i < count; ++i) {
        cudaDeviceProp has;
        if (cudaError_t error = properties(&has, i)) return error;
        const bool newer =
            has.major > wanted->major || (has.major == wanted->major && has.minor >= wanted->minor);
        const int points = newer + (has.totalGlobalMem >= wanted->totalGlobalMem);
        if (points > best) best = points, *device = i;
    }
    return cudaSuccess;
}

#if MAJOR == 12
// The symbol without version is that of CUDA 11, whose structure is the beginning of this one.
API cudaError_t properties_of_cuda_11(void* to, int device) __asm__("cudaGetDeviceProperties");
API cudaError_t properties_of_cuda_11(void* to, int device) {
    cudaDeviceProp all;
    if (!to) return fail(cudaErrorInvalidValue);
    if (cudaError_t error = properties(&all, device)) return error;
    std::memcpy(to, &all, offsetof(cudaDeviceProp, hostRegisterSupported));
    return cudaSuccess;
}
#endif
