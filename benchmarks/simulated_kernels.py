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


class Subject:
    """A process that runs kernels on the simulated GPU (``simgpu``) or by OpenCL, in an environment of its own."""

    def __init__(self, where: str, **environment: str) -> None:
        self._program = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-m",
                "benchmarks.subjects.portable_kernels",
                where,
                str(ROUNDS),
            ],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.there = self._answer() == "ready"
        if not self.there and where != "opencl":
            raise RuntimeError(f"the kernels failed: {self._program.communicate()[1]}")

    def _answer(self) -> str:
        assert self._program.stdout is not None
        return self._program.stdout.readline().strip()

    def measure(self, kernel: str) -> tuple[float, float]:
        """Return a kernel's median seconds, and the sum of what it computed."""
        assert self._program.stdin is not None
        self._program.stdin.write(f"{kernel}\n")
        self._program.stdin.flush()
        if not (answer := self._answer()):
            raise RuntimeError(f"{kernel} failed: {self._program.communicate()[1]}")
        seconds, total = json.loads(answer)
        return seconds, total

    def end(self) -> None:
        """Stop the process."""
        self._program.communicate()


def _in_turn(*subjects: Subject) -> dict[str, list[tuple[float, float] | None]]:
    """Return for each kernel every subject's median seconds and sum, over `RUNS` runs; the subjects take turns at each kernel.

    So whatever else the machine does meanwhile, and does to its clock, it does to all of them.
    """
    found: dict[str, list[tuple[float, float] | None]] = {}
    for kernel in KERNELS:
        runs = [[one.measure(kernel) if one.there else None for one in subjects] for _ in range(RUNS)]
        found[kernel] = [
            (statistics.median(run[0] for run in each if run), each[0][1]) if each[0] else None
            for each in zip(*runs, strict=True)
        ]
    for one in subjects:
        one.end()
    return found


async def measure() -> list[Table]:
    ours = {"LD_LIBRARY_PATH": str(native.simgpu_library().parent), "GPUKERNEL_SIMGPU": "a100:1"}
    compiling = {**ours, "GPUKERNEL_SIMGPU_TIER": "compiled"}
    pocl = Subject("opencl")
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
        notes=f"The median of {RUNS} runs, by turns at each kernel. `GPUKERNEL_SIMGPU_TIER` says which tier runs, and `GPUKERNEL_SIMGPU_VECTORS=avx2` that it does without AVX-512. The kernels are `benchmarks/subjects/portable_kernels.h`."
        + ("" if pocl.there else f" PoCL: {NONE}."),
    )
    ratios = []
    times = _in_turn(
        Subject("simgpu", **ours, GPUKERNEL_SIMGPU_TIER="interpreter"),
        Subject("simgpu", **compiling),
        Subject("simgpu", **compiling, GPUKERNEL_SIMGPU_VECTORS="avx2"),
        pocl,
    )
    for name, runs in times.items():
        there = [run for run in runs if run]
        for _, total in there:
            if not math.isclose(total, there[0][1], rel_tol=1e-3):
                raise RuntimeError(f"{name}: results differ, {there[0][1]} and {total}")
        if runs[3]:
            ratios.append(there[1][0] / runs[3][0])
        shown = [f"{1000 * run[0]:.2f}" if run else "–" for run in runs]
        table.rows.append([name, *shown, f"{ratios[-1]:.2f}" if runs[3] else "–"])
    if ratios:
        table.rows.append(["median", "", "", "", "", f"{statistics.median(ratios):.2f}"])
    return [table, _cores(compiling)]


def _cores(compiling: dict[str, str]) -> Table:
    """Measure how much faster two threads are than one, on both."""
    table = Table(
        "From one core to two",
        ["kernel", "simulated GPU, one", "two", "faster", "PoCL, one", "two", "faster"],
        notes=f"Medians of {ROUNDS} launches and {RUNS} runs, by turns at each kernel, by the clock, compiled; `GPUKERNEL_SIMGPU_THREADS` and `POCL_MAX_PTHREAD_COUNT` say how many threads. Aim: 1.8.",
    )
    times = _in_turn(
        *(Subject("simgpu", **compiling, GPUKERNEL_SIMGPU_THREADS=threads) for threads in ("1", "2")),
        *(Subject("opencl", POCL_MAX_PTHREAD_COUNT=threads) for threads in ("1", "2")),
    )
    gains: tuple[list[float], list[float]] = ([], [])
    for name, runs in times.items():
        row = [name]
        for (one, two), gained in zip((runs[:2], runs[2:]), gains, strict=True):
            if one is None or two is None:
                row += ["–"] * 3
                continue
            gained.append(one[0] / two[0])
            row += [f"{1000 * one[0]:.2f}", f"{1000 * two[0]:.2f}", f"{gained[-1]:.2f}"]
        table.rows.append(row)
    ends = [f"{statistics.median(each):.2f}" if each else "–" for each in gains]
    table.rows.append(["median", "", "", ends[0], "", "", ends[1]])
    return table
