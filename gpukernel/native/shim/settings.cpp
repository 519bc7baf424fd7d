// Attributes of contexts and streams that this process answers itself: hints without an effect on a slice are
// stored and returned.
#include <map>

#include "shim/graphs/capture.h"
#include "shim/transport/request.h"

using namespace gpukernel::shim;

// --- devices ---

CUresult CUDAAPI cuDeviceGetExecAffinitySupport(int* pi, CUexecAffinityType type, CUdevice dev) {
    if (!process()) return CUDA_ERROR_NOT_INITIALIZED;
    if (!device_at(dev)) return CUDA_ERROR_INVALID_DEVICE;
    if (!pi) return CUDA_ERROR_INVALID_VALUE;
    *pi = 0;
    return CUDA_SUCCESS;
}

// --- contexts ---

CUresult CUDAAPI cuCtxSetFlags(unsigned int flags) {
    GPUKERNEL_CURRENT(connection);
    if (flags & ~unsigned{CU_CTX_FLAGS_MASK}) return CUDA_ERROR_INVALID_VALUE;
    context_stack().back()->flags = flags;
    return CUDA_SUCCESS;
}

namespace {
bool bank_width(CUsharedconfig config) {
    return config >= CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE &&
           config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE;
}
}  // namespace

// Shared memory's banks have had one width since compute capability 5.0; setting another is no error.
CUresult CUDAAPI cuCtxGetSharedMemConfig(CUsharedconfig* pConfig) {
    GPUKERNEL_CURRENT(connection);
    if (!pConfig) return CUDA_ERROR_INVALID_VALUE;
    *pConfig = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxSetSharedMemConfig(CUsharedconfig config) {
    GPUKERNEL_CURRENT(connection);
    return bank_width(config) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult CUDAAPI cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config) {
    GPUKERNEL_CURRENT(connection);
    if (!hfunc) return CUDA_ERROR_INVALID_HANDLE;
    return bank_width(config) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuCtxResetPersistingL2Cache(void) {
    GPUKERNEL_CURRENT(connection);
    return CUDA_SUCCESS;  // nothing persists, since the access policies below are hints
}

// --- streams ---

namespace {
struct Attributes {
    CUsynchronizationPolicy policy = CU_SYNC_POLICY_AUTO;
    CUaccessPolicyWindow window{};
    CUlaunchMemSyncDomain domain = CU_LAUNCH_MEM_SYNC_DOMAIN_DEFAULT;
    CUlaunchMemSyncDomainMap domains{0, 0};
};
std::mutex attributes_mutex;
std::map<std::pair<const Connection*, CUstream>, Attributes> attributes;

CUresult known(CUstream stream) {
    unsigned flags;
    return cuStreamGetFlags(stream, &flags);
}
}  // namespace

CUresult CUDAAPI cuStreamGetAttribute(CUstream hStream, CUstreamAttrID attr, CUstreamAttrValue* value_out) {
    GPUKERNEL_CURRENT(connection);
    if (!value_out) return CUDA_ERROR_INVALID_VALUE;
    if (attr == CU_LAUNCH_ATTRIBUTE_PRIORITY) return cuStreamGetPriority(hStream, &value_out->priority);
    if (CUresult error = known(hStream); error != CUDA_SUCCESS) return error;
    std::lock_guard lock(attributes_mutex);
    const Attributes& of = attributes[{connection, hStream}];
    switch (attr) {
        case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
            value_out->syncPolicy = of.policy;
            return CUDA_SUCCESS;
        case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
            value_out->accessPolicyWindow = of.window;
            return CUDA_SUCCESS;
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
            value_out->memSyncDomain = of.domain;
            return CUDA_SUCCESS;
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
            value_out->memSyncDomainMap = of.domains;
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult CUDAAPI cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue* value) {
    GPUKERNEL_CURRENT(connection);
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult error = known(hStream); error != CUDA_SUCCESS) return error;
    std::lock_guard lock(attributes_mutex);
    Attributes& of = attributes[{connection, hStream}];
    switch (attr) {
        case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
            of.policy = value->syncPolicy;
            return CUDA_SUCCESS;
        case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
            of.window = value->accessPolicyWindow;
            return CUDA_SUCCESS;
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
            of.domain = value->memSyncDomain;
            return CUDA_SUCCESS;
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
            of.domains = value->memSyncDomainMap;
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult CUDAAPI cuStreamCopyAttributes(CUstream dst, CUstream src) {
    GPUKERNEL_CURRENT(connection);
    for (CUstream stream : {dst, src})
        if (CUresult error = known(stream); error != CUDA_SUCCESS) return error;
    std::lock_guard lock(attributes_mutex);
    const Attributes from = attributes[{connection, src}];
    attributes[{connection, dst}] = from;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCtx_v2(CUstream hStream, CUcontext* pCtx, CUgreenCtx* pGreenCtx) {
    if (pGreenCtx) *pGreenCtx = nullptr;
    return cuStreamGetCtx(hStream, pCtx);
}
