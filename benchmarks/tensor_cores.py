"""One matrix product in half precision by scalar multiply-adds and by the tensor cores' instructions, on the simulated GPU.

The same numbers, the same result; the simulated GPU gets one host thread and is measured by processor time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

from benchmarks.report import Table
from gpukernel import native

SIZE, ROUNDS = 256, 5
#  what a kernel of tests/kernels does, its file, its name, the tile of a block, the threads of a block
KERNELS = {
    "scalar multiply-adds, a sum for each thread": ("gemm.cu", "gemm_half_to_float", 16, (16, 16)),
    "scalar multiply-adds, 16 sums for each thread": ("gemm.cu", "gemm_half_blocked", 64, (256,)),
    "`nvcuda::wmma`": ("wmma.cu", "half_staged", 64, (128,)),
    "`mma.sync` with `ldmatrix` and `cp.async`": ("wmma.cu", "half_pipelined", 32, (128,)),
}


def main() -> None:
    """Print multiply-adds a second of each kernel as JSON (in a process with the library)."""
    import numpy as np
    from cuda.bindings import driver

    from tests.kernels.gpu import Gpu, ok

    gpu, random = Gpu("compute_80"), np.random.default_rng(0)
    a, b = (random.standard_normal((SIZE, SIZE)).astype(np.float16) for _ in range(2))
    want = a.astype(np.float64) @ b.astype(np.float64)
    there, out = [gpu.array(a), gpu.array(b)], gpu.zeros((SIZE, SIZE), np.float32)
    sizes = [np.int32(SIZE)] * 3
    rates: dict[str, list[float]] = {what: [] for what in KERNELS}
    for _ in range(ROUNDS + 1):  # interleaved, so that the noise of the machine meets all of them
        for what, (file, name, tile, block) in KERNELS.items():
            more = [np.float32(1)] if name == "half_staged" else []
            start = time.process_time()
            gpu.launch(file, name, (SIZE // tile, SIZE // tile), block, *there, out, *sizes, *more)
            ok(driver.cuCtxSynchronize())
            rates[what].append(SIZE**3 / (time.process_time() - start))
            np.testing.assert_allclose(out.get(), np.maximum(want, 0) if more else want, rtol=1e-5, atol=1e-4)
    answers = {what: statistics.median(each[1:]) for what, each in rates.items()}  # the first compiles
    print(json.dumps(answers))


def _measured() -> dict[str, float]:
    ours = {"LD_LIBRARY_PATH": str(native.simgpu_library().parent), "GPUKERNEL_SIMGPU": "a100:1"}
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.tensor_cores"],
        env={**os.environ, **ours, "GPUKERNEL_SIMGPU_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise RuntimeError(f"the matrix products failed: {answer.stderr}")
    return dict(json.loads(answer.stdout))


async def measure() -> list[Table]:
    """Return the table for `python -m benchmarks`."""
    table = Table(
        "Tensor cores on one core",
        [f"{SIZE} × {SIZE} × {SIZE}, half precision, summed in single", "multiply-adds, G/s", "of the first"],
        notes="By processor time. Kernels of `tests/kernels/`, compiled by NVRTC, with tiles in shared memory.",
    )
    measured = _measured()
    scalar = next(iter(measured.values()))
    for what, rate in measured.items():
        table.rows.append([what, f"{rate / 1e9:.2f}", f"{rate / scalar:.1f} ×"])
    return [table]


if __name__ == "__main__":
    main()
