"""The seven kernels of ``seven_kernels.h`` on the simulated GPU or by OpenCL; prints the least seconds of each as JSON.

python -m benchmarks.subjects.seven_kernels simgpu|opencl ROUNDS
"""

from __future__ import annotations

import ctypes as c
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SOURCE = Path(__file__).with_suffix(".h")
Size = tuple[int, int]
#  what people call it: its name, the number n, the grid and the block, what of its three arrays it reads and writes
KERNELS: dict[str, tuple[str, int, Size, Size, tuple[int, int, int]]] = {
    "saxpy, 4 Mi elements": ("saxpy", 1 << 22, (1 << 14, 1), (256, 1), (1 << 22, 1 << 22, 1)),
    "stencil 2048²": ("stencil", 2048, (64, 256), (32, 8), (1 << 22, 1 << 22, 1)),
    "n-body 4096": ("bodies", 4096, (32, 1), (128, 1), (3 << 12, 3 << 12, 1)),
    "matmul 512², shared tiles 16 × 16": ("matmul", 512, (32, 32), (16, 16), (1 << 18, 1 << 18, 1 << 18)),
    "histogram, shared atomics": ("histogram", 1 << 20, (64, 1), (256, 1), (1 << 20, 256, 1)),
    "reduction, barriers": ("reduction", 1 << 20, (1 << 12, 1), (256, 1), (1 << 20, 1 << 12, 1)),
    "Mandelbrot, divergent": ("mandelbrot", 512, (16, 64), (32, 8), (1 << 18, 1, 1)),
}


def arrays(name: str, sizes: tuple[int, int, int]) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(7)
    if name == "histogram":
        return [random.integers(0, 1 << 30, sizes[0], np.int32), *[np.zeros(n, np.int32) for n in sizes[1:]]]
    return [random.standard_normal(n).astype(np.float32) for n in sizes]


class SimulatedGpu:
    """A context of the driver API, whose library the environment says."""

    def __init__(self) -> None:
        from tests.native.simgpu_exec.conftest import compile_cuda

        self._cuda = c.CDLL("libcuda.so.1")
        context, self._module = c.c_void_p(), c.c_void_p()
        self._call("cuInit", 0)
        self._call("cuCtxCreate_v2", c.byref(context), 0, 0)
        text = compile_cuda(SOURCE.read_text())
        self._call("cuModuleLoadData", c.byref(self._module), c.c_char_p(text.encode()))

    def _call(self, name: str, *args: Any) -> None:
        if code := getattr(self._cuda, name)(*args):
            raise RuntimeError(f"{name} answered {code}")

    def kernel(self, name: str, n: int, grid: Size, block: Size, data: list[Any]) -> Callable[[], None]:
        function = c.c_void_p()
        self._call("cuModuleGetFunction", c.byref(function), self._module, name.encode())
        values: list[Any] = []
        for array in data:
            values.append(c.c_uint64())
            self._call("cuMemAlloc_v2", c.byref(values[-1]), c.c_size_t(array.nbytes))
            self._call("cuMemcpyHtoD_v2", values[-1], c.c_void_p(array.ctypes.data), c.c_size_t(array.nbytes))
        values.append(c.c_int(n))
        pointers = (c.c_void_p * 4)(*[c.addressof(value) for value in values])
        keep = (values, pointers)

        def run() -> None:
            self._call("cuLaunchKernel", function, *grid, 1, *block, 1, 0, None, keep[1], None)
            self._call("cuCtxSynchronize")

        return run


class OpenCl:
    """The first device of the first platform of OpenCL: PoCL, where only that is installed."""

    def __init__(self) -> None:
        self._cl = c.CDLL("libOpenCL.so.1")
        for name in (
            "clCreateContext",
            "clCreateCommandQueue",
            "clCreateProgramWithSource",
            "clCreateKernel",
            "clCreateBuffer",
        ):
            getattr(self._cl, name).restype = c.c_void_p
        platform, device, error = c.c_void_p(), c.c_void_p(), c.c_int()
        if self._cl.clGetPlatformIDs(1, c.byref(platform), None):
            raise RuntimeError("there is no OpenCL platform")
        self._check(self._cl.clGetDeviceIDs(platform, c.c_uint64(0xFFFFFFFF), 1, c.byref(device), None))
        self._context = c.c_void_p(
            self._cl.clCreateContext(None, 1, c.byref(device), None, None, c.byref(error))
        )
        self._queue = c.c_void_p(
            self._cl.clCreateCommandQueue(self._context, device, c.c_uint64(0), c.byref(error))
        )
        text = c.c_char_p(SOURCE.read_bytes())
        self._program = c.c_void_p(
            self._cl.clCreateProgramWithSource(self._context, 1, c.byref(text), None, c.byref(error))
        )
        self._check(self._cl.clBuildProgram(self._program, 0, None, b"-cl-std=CL1.2", None, None))

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise RuntimeError(f"OpenCL answered {code}")

    def kernel(self, name: str, n: int, grid: Size, block: Size, data: list[Any]) -> Callable[[], None]:
        error = c.c_int()
        kernel = c.c_void_p(self._cl.clCreateKernel(self._program, name.encode(), c.byref(error)))
        self._check(error.value)
        for at, array in enumerate(data):
            flags = c.c_uint64(1 | 32)  # CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR
            pointer = c.c_void_p(array.ctypes.data)
            buffer = c.c_void_p(
                self._cl.clCreateBuffer(
                    self._context, flags, c.c_size_t(array.nbytes), pointer, c.byref(error)
                )
            )
            self._check(self._cl.clSetKernelArg(kernel, at, c.c_size_t(8), c.byref(buffer)))
        self._check(self._cl.clSetKernelArg(kernel, 3, c.c_size_t(4), c.byref(c.c_int(n))))
        items = (c.c_size_t * 2)(grid[0] * block[0], grid[1] * block[1])
        group = (c.c_size_t * 2)(*block)

        def run() -> None:
            self._check(
                self._cl.clEnqueueNDRangeKernel(self._queue, kernel, 2, None, items, group, 0, None, None)
            )
            self._check(self._cl.clFinish(self._queue))

        return run


def main(where: str, rounds: int) -> None:
    """Print the least seconds of ``rounds`` launches of each kernel, after two that compile."""
    machine = SimulatedGpu() if where == "simgpu" else OpenCl()
    answer = {}
    for title, (name, n, grid, block, sizes) in KERNELS.items():
        run = machine.kernel(name, n, grid, block, arrays(name, sizes))
        times = []
        for _ in range(rounds + 2):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        answer[title] = min(times[2:])
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
