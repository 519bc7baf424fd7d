// The calling thread's stack of contexts, primary contexts, the profiler (driver API chapters "Context
// Management", "Primary Context Management", "Profiler Control").
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "libcuda/entry_points.h"
#include "libcuda/library.h"

using namespace gpukernel::libcuda;

#define GPUKERNEL_INITIALISED() \
    if (CUresult error = initialised(); error != CUDA_SUCCESS) return error
#define GPUKERNEL_USABLE() \
    if (CUresult error = current_usable(); error != CUDA_SUCCESS) return error

// --- primary contexts ---

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev) {
    GPUKERNEL_DEVICE(device, dev);
    const PrimaryContext primary = primary_context(*device);
    std::lock_guard lock(primary.mutex);
    if (primary.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
    --primary.retained;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags) {
    GPUKERNEL_DEVICE(device, dev);
    flags_of(primary_context(*device).context) = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
    GPUKERNEL_DEVICE(device, dev);
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    const PrimaryContext primary = primary_context(*device);
    *flags = flags_of(primary.context);
    *active = primary.retained > 0;
    return CUDA_SUCCESS;
}

// --- the calling thread's stack ---

// What the main thread has is never destroyed: destructors of a program's statics call CUDA after its
// thread's variables are gone.
std::vector<CUcontext>& gpukernel::libcuda::begin_context_stack() {
    struct End {
        ~End() {
            if (::syscall(SYS_gettid) != ::getpid())  // glibc 2.28 has no gettid()
                delete std::exchange(own_context_stack, nullptr);
        }
    };
    thread_local const End end;
    return *(own_context_stack = new std::vector<CUcontext>);
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext ctx) {
    GPUKERNEL_INITIALISED();
    if (!is_context(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack().push_back(ctx);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext* pctx) {
    GPUKERNEL_INITIALISED();
    std::vector<CUcontext>& stack = context_stack();
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (pctx) *pctx = stack.back();
    stack.pop_back();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx) {
    GPUKERNEL_INITIALISED();
    if (!ctx) {
        if (!context_stack().empty()) context_stack().pop_back();
        return CUDA_SUCCESS;
    }
    if (!is_context(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
    if (context_stack().empty())
        context_stack().push_back(ctx);
    else
        context_stack().back() = ctx;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* pctx) {
    GPUKERNEL_INITIALISED();
    if (!pctx) return CUDA_ERROR_INVALID_VALUE;
    const std::vector<CUcontext>& stack = context_stack();
    *pctx = stack.empty() ? nullptr : stack.back();
    return CUDA_SUCCESS;
}

// --- newer forms of older calls ---

// Execution affinity divides the multiprocessors of an MPS server; neither a slice nor a simulated GPU is
// one.
CUresult CUDAAPI cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam* paramsArray, int numParams,
                                unsigned int flags, CUdevice dev) {
    if (paramsArray || numParams) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return cuCtxCreate_v2(pctx, flags, dev);
}
CUresult CUDAAPI cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams, unsigned int flags,
                                CUdevice dev) {
    if (ctxCreateParams && ctxCreateParams->cigParams)
        return gpukernel::unsupported("a context for graphics");
    return ctxCreateParams ? cuCtxCreate_v3(pctx, ctxCreateParams->execAffinityParams,
                                            ctxCreateParams->numExecAffinityParams, flags, dev)
                           : cuCtxCreate_v2(pctx, flags, dev);
}

namespace {
// Makes `call` with `ctx` current, or with the calling thread's own for none.
template <class Call>
CUresult within(CUcontext ctx, Call call) {
    if (!ctx) return call();
    GPUKERNEL_INITIALISED();
    if (!is_context(ctx)) return CUDA_ERROR_INVALID_CONTEXT;
    context_stack().push_back(ctx);
    const CUresult result = call();
    context_stack().pop_back();
    return result;
}
}  // namespace

extern "C" CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext ctx) {
    return within(ctx, [&] { return cuCtxGetDevice(device); });
}
extern "C" CUresult cuCtxSynchronize_v2(CUcontext ctx) {
    return within(ctx, [] { return cuCtxSynchronize(); });
}

// --- what a context tells ---

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
    GPUKERNEL_USABLE();
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = number_of(device_of(context_stack().back()));
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetFlags(unsigned int* flags) {
    GPUKERNEL_USABLE();
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = flags_of(context_stack().back());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetId(CUcontext ctx, unsigned long long* ctxId) {
    // A context that is named need not be current.
    if (CUresult error = ctx ? initialised() : current_usable(); error != CUDA_SUCCESS) return error;
    if (!ctxId || (ctx && !is_context(ctx))) return CUDA_ERROR_INVALID_CONTEXT;
    *ctxId = reinterpret_cast<unsigned long long>(ctx ? ctx : context_stack().back());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext ctx, unsigned int* version) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache* pconfig) {
    GPUKERNEL_USABLE();
    if (!pconfig) return CUDA_ERROR_INVALID_VALUE;
    *pconfig = CU_FUNC_CACHE_PREFER_NONE;
    return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache config) { return current_usable(); }  // a preference

// --- the profiler: there is none ---

CUresult CUDAAPI cuProfilerInitialize(const char* configFile, const char* outputFile,
                                      CUoutput_mode outputMode) {
    return CUDA_ERROR_NOT_SUPPORTED;  // as of CUDA 12
}
CUresult CUDAAPI cuProfilerStart(void) { return current_usable(); }
CUresult CUDAAPI cuProfilerStop(void) { return current_usable(); }
