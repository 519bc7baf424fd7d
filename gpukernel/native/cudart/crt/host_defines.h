// What the public headers of the runtime ask of a compiler, for one that compiles no device code. The wheels
// of the runtime lack this file: NVIDIA ships its own with nvcc.
#pragma once

#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __host__
#define __device__
#define __constant__
#define __shared__
#define __global__
#define __managed__
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __cudart_builtin__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __inline_hint__
#define __forceinline__ inline
