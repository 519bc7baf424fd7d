"""Multiply-adds and bytes a second: kernels that do nothing else on the simulated GPU, and the processor's own on one core.

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
/* The third loop of STREAM, in single precision: three arrays that no cache holds. */
double triad(long turns, const float* restrict b, const float* restrict c, float* restrict a, long count, float scale) {
    for (long t = 0; t < turns; ++t)
        for (long i = 0; i < count; ++i) a[i] = b[i] + scale * c[i];
    return 12.0 * count * turns;
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
TRIAD = """
extern "C" __global__ void triad(const float* b, const float* c, float* a, float scale) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    a[i] = b[i] + scale * c[i];
}
"""
FLOATS = 1 << 25
MEMORY = "a triad of STREAM's"


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
    peak.triad.restype = ctypes.c_double
    peak.triad.argtypes = [ctypes.c_long, *[ctypes.c_void_p] * 3, ctypes.c_long, ctypes.c_float]
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

    def compiled(source: str, name: bytes):  # type: ignore[no-untyped-def]
        program = ok(nvrtc.nvrtcCreateProgram(source.encode(), b"rate.cu", 0, [], []))
        ok(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=compute_70"]))
        ptx = b" " * ok(nvrtc.nvrtcGetPTXSize(program))
        ok(nvrtc.nvrtcGetPTX(program, ptx))
        return ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(ptx)), name))

    def seconds(function, blocks: int, values: list[np.generic]) -> float:  # type: ignore[no-untyped-def]
        kept = [np.atleast_1d(value) for value in values]
        arguments = np.array([value.ctypes.data for value in kept], dtype=np.uint64)
        start = time.process_time()
        ok(driver.cuLaunchKernel(function, blocks, 1, 1, THREADS, 1, 1, 0, 0, arguments.ctypes.data, 0))
        ok(driver.cuCtxSynchronize())
        return time.process_time() - start

    out = ok(driver.cuMemAlloc(4 * BLOCKS * THREADS))
    values = [np.uint64(int(out)), np.float32(0.999), np.float32(0.001), np.int32(TURNS)]

    def native_rate() -> float:
        start = time.process_time()
        done = peak.multiply_adds(50_000_000, 0.999, 0.001, room.ctypes.data)
        return float(done / (time.process_time() - start))

    answers = {}
    for name, body in KERNELS.items():
        function = compiled(SOURCE % body, b"work")
        seconds(function, BLOCKS, values)
        work = 48.0 * TURNS * BLOCKS * THREADS
        rates = [(work / seconds(function, BLOCKS, values), native_rate()) for _ in range(ROUNDS)]
        answers[name] = [statistics.median(each) for each in zip(*rates, strict=True)]

    function, here = compiled(TRIAD, b"triad"), [np.ones(FLOATS, np.float32) for _ in range(3)]
    values = [np.uint64(int(ok(driver.cuMemAlloc(4 * FLOATS)))) for _ in range(3)]
    for value, array in zip(values, here, strict=True):
        ok(driver.cuMemcpyHtoD(int(value), array.ctypes.data, array.nbytes))
    values.append(np.float32(0.999))

    def native_bytes() -> float:
        start = time.process_time()
        done = peak.triad(1, *[array.ctypes.data for array in here], FLOATS, 0.999)
        return float(done / (time.process_time() - start))

    seconds(function, FLOATS // THREADS, values)
    rates = [
        (12 * FLOATS / seconds(function, FLOATS // THREADS, values), native_bytes()) for _ in range(ROUNDS)
    ]
    answers[MEMORY] = [statistics.median(each) for each in zip(*rates, strict=True)]
    print(json.dumps(answers))


def _measured(tier: str) -> dict[str, tuple[float, float]]:
    ours = {"LD_LIBRARY_PATH": str(native.simgpu_library().parent), "GPUKERNEL_SIMGPU": "v100:1"}
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.fma"],
        env={**os.environ, **ours, "GPUKERNEL_SIMGPU_THREADS": "1", "GPUKERNEL_SIMGPU_TIER": tier},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise RuntimeError(f"the multiply-adds failed: {answer.stderr}")
    return dict(json.loads(answer.stdout))


async def measure() -> list[Table]:
    """Return the tables for `python -m benchmarks`."""
    adds = Table(
        "Multiply-adds on one core",
        ["float32 kernel", "tier", "simulated GPU, G/s", "processor, G/s", "part of it", "aim"],
        notes="By processor time, which leaves out what others do on the machine. The processor's own: independent vectors "
        "of its full width, nothing loaded or stored.",
    )
    memory = Table(
        "Memory on one core",
        ["kernel", "tier", "simulated GPU, GB/s", "processor, GB/s", "part of it", "aim"],
        notes=f"`a[i] = b[i] + s * c[i]` for {FLOATS >> 20} Mi single-precision numbers, by processor time; the processor's own is the same loop by the C compiler. "
        "Bytes are those that the program reads and writes.",
    )
    for tier, aims in (("interpreter", ("25 %", "")), ("compiled", ("70 %", "70 %"))):
        for name, (there, here) in _measured(tier).items():
            table, aim = (memory, aims[1]) if name == MEMORY else (adds, aims[0])
            part = f"{there / here:.0%}"
            table.rows.append([name, tier, f"{there / 1e9:.2f}", f"{here / 1e9:.1f}", part, aim])
    return [adds, memory]


if __name__ == "__main__":
    main()
