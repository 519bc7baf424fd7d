"""The kernels of ``portable_kernels.h`` on the simulated GPU or by OpenCL.

``python -m benchmarks.subjects.portable_kernels simgpu|opencl ROUNDS`` reads titles of kernels, and prints for each as JSON its median
seconds and a sum of what it computed, by which the two can be compared.
"""

from __future__ import annotations

import ctypes as c
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SOURCE = Path(__file__).with_suffix(".h")
Size = tuple[int, int]


class Kernel(NamedTuple):
    """A kernel of the source: the number that it is told, its grid and block, the lengths of its three arrays and which has the result."""

    name: str
    n: int
    grid: Size
    block: Size
    sizes: tuple[int, int, int]
    result: int
    whole: tuple[int, ...] = ()
    """The arrays of whole numbers."""


MI = 1 << 20
KERNELS: dict[str, Kernel] = {
    "saxpy, 4 Mi elements": Kernel("saxpy", 4 * MI, (1 << 14, 1), (256, 1), (4 * MI, 4 * MI, 1), 1),
    "stencil 2048²": Kernel("stencil", 2048, (64, 256), (32, 8), (4 * MI, 4 * MI, 1), 1),
    "n-body 4096": Kernel("bodies", 4096, (32, 1), (128, 1), (3 << 12, 3 << 12, 1), 1),
    "matmul 512², shared tiles 16 × 16": Kernel(
        "matmul", 512, (32, 32), (16, 16), (1 << 18, 1 << 18, 1 << 18), 2
    ),
    "histogram, shared atomics": Kernel("histogram", MI, (64, 1), (256, 1), (MI, 256, 1), 1, (0, 1)),
    "reduction, barriers": Kernel("reduction", MI, (1 << 12, 1), (256, 1), (MI, 1 << 12, 1), 1),
    "Mandelbrot, divergent": Kernel("mandelbrot", 512, (16, 64), (32, 8), (1 << 18, 1, 1), 0, (0,)),
    "softmax, 1024 rows of 1024": Kernel("softmax", 1024, (1024, 1), (256, 1), (MI, MI, 1), 1),
    "options by Black and Scholes, 1 Mi": Kernel("options", MI, (1 << 12, 1), (256, 1), (MI, MI, 1), 1),
    "transpose 2048², shared tiles": Kernel("transpose", 2048, (64, 64), (32, 8), (4 * MI, 4 * MI, 1), 1),
    "scan, blocks of 256": Kernel("scan", MI, (1 << 12, 1), (256, 1), (MI, MI, 1), 1),
    "bitonic sort, blocks of 512": Kernel("sorting", MI, (1 << 11, 1), (256, 1), (MI, MI, 1), 1, (0, 1)),
    "FFT, 1024 of 512": Kernel("fourier", 1 << 19, (1 << 10, 1), (256, 1), (MI, MI, 1), 1),
    "sparse matrix × vector, 16 in a row": Kernel(
        "sparse", 1 << 18, (1 << 10, 1), (256, 1), (4 * MI, 1 << 18, 1 << 18), 2
    ),
    "pathfinder, 16 rows of 448 Ki": Kernel(
        "pathfinder", 448 << 10, (1 << 11, 1), (256, 1), (17 * (448 << 10), 448 << 10, 1), 1, (0, 1)
    ),
    "convolution 5 × 5, 1024²": Kernel("convolution", 1024, (32, 128), (32, 8), (MI, MI, 25), 1),
    "nearest of 16 centres, 128 Ki points": Kernel(
        "nearest", 1 << 17, (1 << 9, 1), (256, 1), (1 << 21, 1 << 17, 256), 1, (1,)
    ),
    "matmul 512², 8 × 8 sums in registers": Kernel(
        "tiled", 512, (8, 8), (8, 8), (1 << 18, 1 << 18, 1 << 18), 2
    ),
    "product of bfloat16 512², tensor cores": Kernel(
        "halves", 512, (8, 8), (16, 8), (1 << 17, 1 << 17, 1 << 18), 2, (0, 1)
    ),
}


def arrays(kernel: Kernel) -> list[np.ndarray[Any, Any]]:
    """Return what a kernel reads and writes; whole numbers that are written begin at 0."""
    random = np.random.default_rng(7)

    def one(at: int, size: int) -> np.ndarray[Any, Any]:
        if at not in kernel.whole:
            return random.standard_normal(size).astype(np.float32)
        return (
            np.zeros(size, np.int32) if at == kernel.result else random.integers(0, 1 << 30, size, np.int32)
        )

    return [one(at, size) for at, size in enumerate(kernel.sizes)]


class SimulatedGpu:
    """A context of the driver API, whose library the environment says."""

    def __init__(self) -> None:
        from tests.native.simgpu_exec.conftest import compile_cuda

        self._cuda = c.CDLL("libcuda.so.1")
        context, self._module = c.c_void_p(), c.c_void_p()
        self._call("cuInit", 0)
        self._call("cuCtxCreate_v2", c.byref(context), 0, 0)
        text = compile_cuda(SOURCE.read_text(), target="compute_80")
        self._call("cuModuleLoadData", c.byref(self._module), c.c_char_p(text.encode()))

    def _call(self, name: str, *args: Any) -> None:
        if code := getattr(self._cuda, name)(*args):
            raise RuntimeError(f"{name} answered {code}")

    def kernel(self, kernel: Kernel, data: list[Any]) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return what launches a kernel and waits, and what copies its result into its array."""
        function = c.c_void_p()
        self._call("cuModuleGetFunction", c.byref(function), self._module, kernel.name.encode())
        values: list[Any] = []
        for array in data:
            values.append(c.c_uint64())
            self._call("cuMemAlloc_v2", c.byref(values[-1]), c.c_size_t(array.nbytes))
            self._call("cuMemcpyHtoD_v2", values[-1], c.c_void_p(array.ctypes.data), c.c_size_t(array.nbytes))
        values.append(c.c_int(kernel.n))
        pointers = (c.c_void_p * 4)(*[c.addressof(value) for value in values])
        keep = (values, pointers)

        def run() -> None:
            self._call("cuLaunchKernel", function, *kernel.grid, 1, *kernel.block, 1, 0, None, keep[1], None)
            self._call("cuCtxSynchronize")

        def read() -> None:
            result = data[kernel.result]
            place = c.c_void_p(result.ctypes.data)
            self._call("cuMemcpyDtoH_v2", place, values[kernel.result], c.c_size_t(result.nbytes))

        return run, read


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

    def kernel(self, kernel: Kernel, data: list[Any]) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return what launches a kernel and waits, and what copies its result into its array."""
        error = c.c_int()
        function = c.c_void_p(self._cl.clCreateKernel(self._program, kernel.name.encode(), c.byref(error)))
        self._check(error.value)
        buffers = []
        for at, array in enumerate(data):
            flags = c.c_uint64(1 | 32)  # CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR
            pointer = c.c_void_p(array.ctypes.data)
            buffer = c.c_void_p(
                self._cl.clCreateBuffer(
                    self._context, flags, c.c_size_t(array.nbytes), pointer, c.byref(error)
                )
            )
            buffers.append(buffer)
            self._check(self._cl.clSetKernelArg(function, at, c.c_size_t(8), c.byref(buffer)))
        self._check(self._cl.clSetKernelArg(function, 3, c.c_size_t(4), c.byref(c.c_int(kernel.n))))
        items = (c.c_size_t * 2)(*(x * y for x, y in zip(kernel.grid, kernel.block, strict=True)))
        group = (c.c_size_t * 2)(*kernel.block)

        def run() -> None:
            self._check(
                self._cl.clEnqueueNDRangeKernel(self._queue, function, 2, None, items, group, 0, None, None)
            )
            self._check(self._cl.clFinish(self._queue))

        def read() -> None:
            result = data[kernel.result]
            size, place = c.c_size_t(result.nbytes), c.c_void_p(result.ctypes.data)
            self._check(
                self._cl.clEnqueueReadBuffer(
                    self._queue, buffers[kernel.result], 1, c.c_size_t(0), size, place, 0, None, None
                )
            )

        return run, read


def main(where: str, rounds: int) -> None:
    """Answer each line of standard input, the title of a kernel, with its median seconds and the sum of its first result, as JSON.

    The seconds are those of ``rounds`` launches after two that compile.
    """
    machine = SimulatedGpu() if where == "simgpu" else OpenCl()

    @functools.cache
    def prepared(title: str) -> tuple[Callable[[], None], float]:
        kernel = KERNELS[title]
        data = arrays(kernel)
        run, read = machine.kernel(kernel, data)
        run()
        read()
        # Neighbours count differently: a result whose numbers stand in another order has another sum.  No product of
        # vectors, for NumPy has its BLAS compute that, whose threads go on looking for work while the next kernel runs.
        result = data[kernel.result].astype(np.float64)
        weights = 1 + np.arange(result.size) % 7
        return run, float((np.abs(result) * weights).sum())

    print("ready", flush=True)
    for line in sys.stdin:
        run, total = prepared(line.strip())
        times = []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        print(json.dumps([statistics.median(times[1:]), total]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
