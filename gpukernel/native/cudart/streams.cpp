// Streams and events, where the runtime's call differs from the driver's; forwards.txt has the others.
#include "cudart/runtime.h"

using namespace gpukernel::cudart;

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
    if (CUresult result = enter()) return done(result);
    return done(driver::cuStreamCreate(stream, flags));
}

API cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

// The driver destroys the default streams no more than the runtime does, but names another error.
API cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    if (CUresult result = enter()) return done(result);
    if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread)
        return fail(cudaErrorInvalidResourceHandle);
    return done(driver::cuStreamDestroy(stream));
}

API cudaError_t cudaEventCreate(cudaEvent_t* event) {
    if (CUresult result = enter()) return done(result);
    return done(driver::cuEventCreate(event, CU_EVENT_DEFAULT));
}

// Who captured into a graph of his own need not be told which.
API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    if (CUresult result = enter()) return done(result);
    CUgraph known;
    return done(driver::cuStreamEndCapture(stream, graph ? graph : &known));
}

API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                      unsigned int flags) {
    if (CUresult result = enter()) return done(result);
    // The errors that it is told have the same numbers.
    return done(
        driver::cuStreamAddCallback(stream, reinterpret_cast<CUstreamCallback>(callback), data, flags));
}

#if MAJOR >= 12
API cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
    if (!device) return fail(cudaErrorInvalidValue);
    if (CUresult result = enter()) return done(result);
    CUcontext context;
    if (CUresult result = driver::cuStreamGetCtx_v9020(stream, &context)) return done(result);
    if (CUresult result = driver::cuCtxPushCurrent(context)) return done(result);
    CUdevice found = 0;
    const CUresult result = driver::cuCtxGetDevice_v2000(&found);
    driver::cuCtxPopCurrent(&context);
    *device = found;
    return done(result);
}
#endif
