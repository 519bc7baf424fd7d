"""Seven kernels on the simulated GPU, interpreted and compiled, beside PoCL (OpenCL on the processor) in the same run."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from benchmarks.report import Table
from benchmarks.subjects.seven_kernels import KERNELS
from gpukernel import native

ROUNDS = 5
NONE = "not installed (Debian: apt-get install pocl-opencl-icd)"


def _measured(where: str, **environment: str) -> dict[str, float] | None:
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.subjects.seven_kernels", where, str(ROUNDS)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode and where == "opencl":
        return None
    if answer.returncode:
        raise RuntimeError(f"the seven kernels failed: {answer.stderr}")
    return {name: float(seconds) for name, seconds in json.loads(answer.stdout).items()}


async def measure() -> list[Table]:
    ours = {"LD_LIBRARY_PATH": str(native.simgpu_library().parent), "GPUKERNEL_SIMGPU": "v100:1"}
    interpreted = _measured("simgpu", **ours, GPUKERNEL_SIMGPU_TIER="interpreter")
    compiled = _measured("simgpu", **ours, GPUKERNEL_SIMGPU_TIER="compiled")
    pocl = _measured("opencl")
    assert interpreted is not None
    assert compiled is not None
    table = Table(
        "Seven kernels on the simulated GPU",
        ["milliseconds, the least of five launches", "interpreter", "compiled", "PoCL", "compiled / PoCL"],
        notes="`GPUKERNEL_SIMGPU_TIER` says which tier runs. The kernels are `benchmarks/subjects/seven_kernels.h`."
        + ("" if pocl else f" PoCL: {NONE}."),
    )
    for name in KERNELS:
        other = pocl[name] if pocl else 0.0
        table.rows.append(
            [
                name,
                f"{1000 * interpreted[name]:.2f}",
                f"{1000 * compiled[name]:.2f}",
                f"{1000 * other:.2f}" if other else "–",
                f"{compiled[name] / other:.2f}" if other else "–",
            ]
        )
    return [table]
