// Launches, time-sliced with those of other programs on the device.  A program that is alone pays for reading
// a clock.
#include "direct/slice.h"

using namespace gpukernel::direct;

namespace {
template <class Launch>
CUresult in_time_slice(CUstream stream, bool per_thread, Launch launch) {
    Slice* const slice = Inside::depth ? nullptr : current_slice();
    if (!slice) return launch();
    slice->before_launch(stream, per_thread);
    const CUresult result = launch();
    slice->after_launch(stream, per_thread);
    return result;
}
}  // namespace

extern "C" CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                   unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                   unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                   void** kernelParams, void** extra) {
    return in_time_slice(hStream, false, [&] {
        return real.cuLaunchKernel(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
                                   sharedMemBytes, hStream, kernelParams, extra);
    });
}
extern "C" CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                        unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                        unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                        void** kernelParams, void** extra) {
    return in_time_slice(hStream, true, [&] {
        return real.cuLaunchKernel_ptsz(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
                                        sharedMemBytes, hStream, kernelParams, extra);
    });
}

extern "C" CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                                     void** extra) {
    return in_time_slice(config ? config->hStream : nullptr, false,
                         [&] { return real.cuLaunchKernelEx(config, f, kernelParams, extra); });
}
extern "C" CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                                          void** extra) {
    return in_time_slice(config ? config->hStream : nullptr, true,
                         [&] { return real.cuLaunchKernelEx_ptsz(config, f, kernelParams, extra); });
}

extern "C" CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                              unsigned int gridDimZ, unsigned int blockDimX,
                                              unsigned int blockDimY, unsigned int blockDimZ,
                                              unsigned int sharedMemBytes, CUstream hStream,
                                              void** kernelParams) {
    return in_time_slice(hStream, false, [&] {
        return real.cuLaunchCooperativeKernel(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
                                              blockDimZ, sharedMemBytes, hStream, kernelParams);
    });
}
extern "C" CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                                   unsigned int gridDimZ, unsigned int blockDimX,
                                                   unsigned int blockDimY, unsigned int blockDimZ,
                                                   unsigned int sharedMemBytes, CUstream hStream,
                                                   void** kernelParams) {
    return in_time_slice(hStream, true, [&] {
        return real.cuLaunchCooperativeKernel_ptsz(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
                                                   blockDimZ, sharedMemBytes, hStream, kernelParams);
    });
}

extern "C" CUresult cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
    return in_time_slice(hStream, false, [&] { return real.cuGraphLaunch(hGraphExec, hStream); });
}
extern "C" CUresult cuGraphLaunch_ptsz(CUgraphExec hGraphExec, CUstream hStream) {
    return in_time_slice(hStream, true, [&] { return real.cuGraphLaunch_ptsz(hGraphExec, hStream); });
}
