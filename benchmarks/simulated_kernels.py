"""Portable kernels on the simulated GPU, interpreted and compiled, beside PoCL (OpenCL on the processor) in the same run."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys

from benchmarks.report import Table
from benchmarks.subjects.portable_kernels import KERNELS
from gpukernel import native

ROUNDS, RUNS = 40, 3
NONE = "not installed (Debian: apt-get install pocl-opencl-icd)"


def _measured(where: str, **environment: str) -> dict[str, tuple[float, float]] | None:
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.subjects.portable_kernels", where, str(ROUNDS)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode and where == "opencl":
        return None
    if answer.returncode:
        raise RuntimeError(f"the kernels failed: {answer.stderr}")
    return {
        name: (float(seconds), float(sum_)) for name, (seconds, sum_) in json.loads(answer.stdout).items()
    }


def _in_turn(*subjects: tuple[str, dict[str, str]]) -> list[dict[str, tuple[float, float]] | None]:
    """Measure the subjects `RUNS` times, one after the other, and return each one's medians over the runs."""
    runs = [[_measured(where, **environment) for where, environment in subjects] for _ in range(RUNS)]
    found: list[dict[str, tuple[float, float]] | None] = []
    for each in zip(*runs, strict=True):
        there = [run for run in each if run]
        found.append(
            {name: (statistics.median(run[name][0] for run in there), there[0][name][1]) for name in there[0]}
            if there
            else None
        )
    return found


async def measure() -> list[Table]:
    ours = {"LD_LIBRARY_PATH": str(native.simgpu_library().parent), "GPUKERNEL_SIMGPU": "a100:1"}
    compiling = {**ours, "GPUKERNEL_SIMGPU_TIER": "compiled"}
    interpreted = _measured("simgpu", **ours, GPUKERNEL_SIMGPU_TIER="interpreter")
    narrow = _measured("simgpu", **compiling, GPUKERNEL_SIMGPU_VECTORS="avx2")
    compiled, pocl = _in_turn(("simgpu", compiling), ("opencl", {}))
    assert interpreted is not None
    assert compiled is not None
    assert narrow is not None
    table = Table(
        "Kernels on the simulated GPU",
        [
            f"milliseconds, median of {ROUNDS} launches",
            "interpreter",
            "compiled",
            "for AVX2",
            "PoCL",
            "compiled / PoCL",
        ],
        notes=f"Compiled and PoCL: the median of {RUNS} runs, by turns. `GPUKERNEL_SIMGPU_TIER` says which tier runs, and `GPUKERNEL_SIMGPU_VECTORS=avx2` that it does without AVX-512. The kernels are `benchmarks/subjects/portable_kernels.h`."
        + ("" if pocl else f" PoCL: {NONE}."),
    )
    ratios = []
    for name in KERNELS:
        seconds = [run[name][0] if run else 0.0 for run in (interpreted, compiled, narrow, pocl)]
        for run in (compiled, narrow, pocl or compiled):
            if not math.isclose(run[name][1], interpreted[name][1], rel_tol=1e-3):
                raise RuntimeError(f"{name}: results differ, {interpreted[name][1]} and {run[name][1]}")
        if pocl:
            ratios.append(seconds[1] / seconds[3])
        shown = [f"{1000 * each:.2f}" if each else "–" for each in seconds]
        table.rows.append([name, *shown, f"{ratios[-1]:.2f}" if pocl else "–"])
    if ratios:
        table.rows.append(["median", "", "", "", "", f"{statistics.median(ratios):.2f}"])
    return [table, _cores(ours)]


def _cores(ours: dict[str, str]) -> Table:
    """Measure how much faster two threads are than one, on both."""
    table = Table(
        "From one core to two",
        ["kernel", "simulated GPU, one", "two", "faster", "PoCL, one", "two", "faster"],
        notes=f"Medians of {ROUNDS} launches and {RUNS} runs, by the clock, compiled; `GPUKERNEL_SIMGPU_THREADS` and `POCL_MAX_PTHREAD_COUNT` say how many threads. Aim: 1.8.",
    )
    compiling = {**ours, "GPUKERNEL_SIMGPU_TIER": "compiled"}
    runs = _in_turn(
        *(("simgpu", {**compiling, "GPUKERNEL_SIMGPU_THREADS": threads}) for threads in ("1", "2")),
        *(("opencl", {"POCL_MAX_PTHREAD_COUNT": threads}) for threads in ("1", "2")),
    )
    gains: tuple[list[float], list[float]] = ([], [])
    for name in KERNELS:
        row = [name]
        for (one, two), gained in zip((runs[:2], runs[2:]), gains, strict=True):
            if one is None or two is None:
                row += ["–"] * 3
                continue
            gained.append(one[name][0] / two[name][0])
            row += [f"{1000 * one[name][0]:.2f}", f"{1000 * two[name][0]:.2f}", f"{gained[-1]:.2f}"]
        table.rows.append(row)
    ends = [f"{statistics.median(each):.2f}" if each else "–" for each in gains]
    table.rows.append(["median", "", "", ends[0], "", "", ends[1]])
    return table
