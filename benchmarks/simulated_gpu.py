"""The simulated GPU against Numba's own CUDA simulator, on the same matrix multiplication."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.report import Table
from gpukernel import native

REFERENCE_SIZE = 32  # Numba's simulator runs a Python thread for each CUDA thread
SIZE = 512


def _multiply(size: int, repeats: int, **environment: str) -> float:
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.subjects.matmul", str(size), str(repeats)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise RuntimeError(f"the matrix multiplication failed: {answer.stderr}")
    return float(json.loads(answer.stdout)["seconds"])


async def measure() -> list[Table]:
    ours = {"LD_LIBRARY_PATH": str(native.simgpu_library().parent), "GPUKERNEL_SIMGPU": "v100:1"}
    reference = _multiply(REFERENCE_SIZE, 1, NUMBA_ENABLE_CUDASIM="1")
    small, large = _multiply(REFERENCE_SIZE, 50, **ours), _multiply(SIZE, 5, **ours)
    table = Table(
        "The simulated GPU",
        ["tiled float32 matrix multiplication", "n", "seconds", "Mflop/s"],
        notes=(
            f"On the same {REFERENCE_SIZE} × {REFERENCE_SIZE} problem the simulated GPU is "
            f"**{reference / small:,.0f} times** faster than Numba's simulator; per multiply-add, with "
            f"{SIZE} × {SIZE} on ours, **{(reference / REFERENCE_SIZE**3) / (large / SIZE**3):,.0f} times**. Aim: 1000."
        ),
    )
    for name, n, seconds in (
        ("Numba's simulator (`NUMBA_ENABLE_CUDASIM=1`)", REFERENCE_SIZE, reference),
        ("simulated GPU", REFERENCE_SIZE, small),
        ("simulated GPU", SIZE, large),
    ):
        table.rows.append([name, str(n), f"{seconds:.6f}", f"{2 * n**3 / seconds / 1e6:,.2f}"])
    return [table]
