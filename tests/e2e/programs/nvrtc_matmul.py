"""CUDA C++ compiled with NVRTC and driven through cuda-python: tiled matrix multiplication and a device printf."""

import json

import numpy as np
from cuda.bindings import driver, nvrtc

SOURCE = rb"""
#define TILE 16
extern "C" __global__ void multiply(const float* a, const float* b, float* c, int n) {
    __shared__ float tile_a[TILE][TILE], tile_b[TILE][TILE];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    float total = 0;
    for (int step = 0; step < n / TILE; ++step) {
        tile_a[threadIdx.y][threadIdx.x] = a[y * n + step * TILE + threadIdx.x];
        tile_b[threadIdx.y][threadIdx.x] = b[(step * TILE + threadIdx.y) * n + x];
        __syncthreads();
        for (int k = 0; k < TILE; ++k) total += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
        __syncthreads();
    }
    c[y * n + x] = total;
    if (x == 0 && y == 0) printf("corner %.3f of %d\n", total, n);
}
"""


def check(result):
    code, *values = result
    if int(code):
        raise SystemExit(f"CUDA error {code}")
    return values[0] if len(values) == 1 else values


program = check(nvrtc.nvrtcCreateProgram(SOURCE, b"multiply.cu", 0, [], []))
oldest = min(check(nvrtc.nvrtcGetSupportedArchs()))
check(nvrtc.nvrtcCompileProgram(program, 1, [f"--gpu-architecture=compute_{max(oldest, 70)}".encode()]))
ptx = b" " * check(nvrtc.nvrtcGetPTXSize(program))
check(nvrtc.nvrtcGetPTX(program, ptx))

check(driver.cuInit(0))
device = check(driver.cuDeviceGet(0))
context = check(driver.cuDevicePrimaryCtxRetain(device))
check(driver.cuCtxSetCurrent(context))
module = check(driver.cuModuleLoadData(np.char.array(ptx)))
kernel = check(driver.cuModuleGetFunction(module, b"multiply"))

n = 128
random = np.random.default_rng(2)
a, b = (random.random((n, n), dtype=np.float32) for _ in range(2))
c = np.empty_like(a)
device_a, device_b, device_c = (check(driver.cuMemAlloc(a.nbytes)) for _ in range(3))
stream = check(driver.cuStreamCreate(0))
check(driver.cuMemcpyHtoDAsync(device_a, a.ctypes.data, a.nbytes, stream))
check(driver.cuMemcpyHtoDAsync(device_b, b.ctypes.data, b.nbytes, stream))
arguments = [np.array([int(p)], dtype=np.uint64) for p in (device_a, device_b, device_c)] + [
    np.array([n], dtype=np.int32)
]
pointers = np.array([argument.ctypes.data for argument in arguments], dtype=np.uint64)
check(driver.cuLaunchKernel(kernel, n // 16, n // 16, 1, 16, 16, 1, 0, stream, pointers.ctypes.data, 0))
check(driver.cuMemcpyDtoHAsync(c.ctypes.data, device_c, c.nbytes, stream))
check(driver.cuStreamSynchronize(stream))
np.testing.assert_allclose(c, a @ b, rtol=1e-5)
print(json.dumps({"sum": float(c.sum(dtype=np.float64)), "corner": float(c[0, 0])}))
