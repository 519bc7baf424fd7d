// The driver API as a libcuda.so.1 exports it: cuda.h, and the functions of cudaProfiler.h, which comes in
// another wheel. The first of them does nothing any more, but programs that were linked with it do not start
// without.
#pragma once

#include <cuda.h>

#ifdef __cplusplus
extern "C" {
#endif
typedef int CUoutput_mode;
CUresult CUDAAPI cuProfilerInitialize(const char* configFile, const char* outputFile,
                                      CUoutput_mode outputMode);
CUresult CUDAAPI cuProfilerStart(void);
CUresult CUDAAPI cuProfilerStop(void);
#ifdef __cplusplus
}
#endif
