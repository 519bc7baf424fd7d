"""Multiply-adds a second: kernels that do nothing else on the simulated GPU, and the processor's own on one core.

The simulated GPU gets one host thread, so that both use one core, and both are measured interleaved by
processor time, so that whatever else the machine does meets both.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Table
from gpukernel import native

ROUNDS = 7
NATIVE = r"""
#include <string.h>
typedef float v __attribute__((vector_size(BYTES)));
#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)
double multiply_adds(long turns, float scale, float more, float* out) {
    const v a = scale - (v){}, b = more - (v){};
    #define BEGIN(i) v x##i = a * i;
    EACH(BEGIN)
    for (long t = 0; t < turns; ++t) {
        #define STEP(i) x##i = x##i * a + b;
        EACH(STEP)
    }
    #define END(i) memcpy(out, &x##i, sizeof(v)), out += BYTES / 4;
    EACH(END)
    return 12.0 * BYTES / 4 * turns;
}
"""
# What a kernel does in its loop, 48 multiply-adds a turn.
KERNELS = {
    "independent sums, operands in registers": "for (int i = 0; i < 12; ++i) x[i] = fmaf(x[i], a, b);",
    "independent sums, constant operands": "for (int i = 0; i < 12; ++i) x[i] = fmaf(x[i], 0.999f, 0.001f);",
    "sums of products, as in a matrix multiplication": "for (int i = 0; i < 12; ++i) x[i / 4] = fmaf(y[i], z[i], x[i / 4]);",
    "one polynomial, each step needing the last": "for (int i = 0; i < 12; ++i) x[0] = fmaf(x[0], a, y[i]);",
}
SOURCE = """
extern "C" __global__ void work(float* out, float a, float b, int turns) {
    float x[12], y[12], z[12];
    #pragma unroll
    for (int i = 0; i < 12; ++i) x[i] = threadIdx.x + i, y[i] = a * i, z[i] = b * i;
    for (int t = 0; t < turns; ++t) {
        #pragma unroll 4
        for (int r = 0; r < 4; ++r) {
            #pragma unroll
            %s
        }
    }
    float sum = 0;
    #pragma unroll
    for (int i = 0; i < 12; ++i) sum += x[i];
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
"""
BLOCKS, THREADS, TURNS = 16, 256, 4000


def _peak() -> ctypes.CDLL:
    flags = Path("/proc/cpuinfo").read_text()
    vector = 64 if " avx512f " in flags else 32
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "peak.so"
        options = [
            "-O3",
            "-march=native",
            "-ffp-contract=fast",
            "-mprefer-vector-width=512",
            "-shared",
            "-fPIC",
        ]
        subprocess.run(
            ["cc", *options, f"-DBYTES={vector}", "-x", "c", "-", "-o", str(library)],
            input=NATIVE.encode(),
            check=True,
        )
        peak = ctypes.CDLL(str(library))
    peak.multiply_adds.restype = ctypes.c_double
    peak.multiply_adds.argtypes = [ctypes.c_long, ctypes.c_float, ctypes.c_float, ctypes.c_void_p]
    return peak


def main() -> None:
    """Print, for each kernel, multiply-adds a second there and on the processor, as JSON (in a process with the library)."""
    import numpy as np
    from cuda.bindings import driver, nvrtc

    def ok(answer):  # type: ignore[no-untyped-def]
        code, *values = answer
        if int(code):
            raise RuntimeError(f"{code!r}")
        return values[0] if len(values) == 1 else values

    peak, room = _peak(), np.zeros(12 * 16, np.float32)
    ok(driver.cuInit(0))
    ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
    out = ok(driver.cuMemAlloc(4 * BLOCKS * THREADS))

    def simulated(function) -> float:  # type: ignore[no-untyped-def]
        values = (np.uint64(int(out)), np.float32(0.999), np.float32(0.001), np.int32(TURNS))
        kept = [np.atleast_1d(value) for value in values]
        arguments = np.array([value.ctypes.data for value in kept], dtype=np.uint64)
        start = time.process_time()
        ok(driver.cuLaunchKernel(function, BLOCKS, 1, 1, THREADS, 1, 1, 0, 0, arguments.ctypes.data, 0))
        ok(driver.cuCtxSynchronize())
        return 48.0 * TURNS * BLOCKS * THREADS / (time.process_time() - start)

    def native_rate() -> float:
        start = time.process_time()
        done = peak.multiply_adds(50_000_000, 0.999, 0.001, room.ctypes.data)
        return float(done / (time.process_time() - start))

    answers = {}
    for name, body in KERNELS.items():
        program = ok(nvrtc.nvrtcCreateProgram((SOURCE % body).encode(), b"fma.cu", 0, [], []))
        ok(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_70"]))
        ptx = b" " * ok(nvrtc.nvrtcGetPTXSize(program))
        ok(nvrtc.nvrtcGetPTX(program, ptx))
        function = ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(ptx)), b"work"))
        simulated(function)
        rates = [(simulated(function), native_rate()) for _ in range(ROUNDS)]
        answers[name] = [statistics.median(each) for each in zip(*rates, strict=True)]
    print(json.dumps(answers))


def _measured() -> dict[str, tuple[float, float]]:
    ours = {"LD_LIBRARY_PATH": str(native.simgpu_library().parent), "GPUKERNEL_SIMGPU": "v100:1"}
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.fma"],
        env={**os.environ, **ours, "GPUKERNEL_SIMGPU_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise RuntimeError(f"the multiply-adds failed: {answer.stderr}")
    return dict(json.loads(answer.stdout))


async def measure() -> list[Table]:
    """Return the table for `python -m benchmarks`."""
    table = Table(
        "Multiply-adds on one core",
        ["float32 kernel", "simulated GPU, G/s", "processor, G/s", "part of it"],
        notes="By processor time, which leaves out what others do on the machine. The processor's own: independent vectors "
        "of its full width, nothing loaded or stored. Aim: 25 %.",
    )
    for name, (there, here) in _measured().items():
        table.rows.append([name, f"{there / 1e9:.2f}", f"{here / 1e9:.1f}", f"{there / here:.0%}"])
    return [table]


if __name__ == "__main__":
    main()
