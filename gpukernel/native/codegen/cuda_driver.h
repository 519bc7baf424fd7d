// The driver API as a libcuda.so.1 exports it: cuda.h, and the two functions of cudaProfiler.h, which comes
// in another wheel.
#pragma once

#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif
CUresult CUDAAPI cuProfilerStart(void);
CUresult CUDAAPI cuProfilerStop(void);
#ifdef __cplusplus
}
#endif
