"""The start of a container with a slice, beside one without: ``podman run`` of a program that does nothing; root, podman and runc."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pytest

from benchmarks.report import Table, ratio
from tests.conftest import Pool
from tests.engines.containers.conftest import cdi_file
from tests.engines.containers.podman import SLICE, Podman, root_filesystem, running_podman

ROUNDS, FIRST = 10, 3
"""Rounds that count, and those before them that warm everything up."""
AIM = 1.1
OTHER = SLICE.replace("0.02", "0.05")
"""Of another size, since a device is in one CDI file alone."""


def _start(podman: Podman, root: Path, *options: str) -> float:
    words = ("run", "--rm", "--network", "none", "-v", "/usr:/usr:ro", *options, "--rootfs", str(root))
    begin = time.perf_counter()
    done = podman(*words, "/bin/true")
    seconds = time.perf_counter() - begin
    if done.returncode:
        sys.exit(f"The container did not start: {done.stderr.strip()}")
    return seconds


async def measure() -> list[Table]:
    """Measure three ways to start a container in turn, and give their medians and ratios."""
    return await asyncio.to_thread(_measure)


def _measure() -> list[Table]:
    with contextlib.ExitStack() as stack:
        try:
            podman = stack.enter_context(contextlib.contextmanager(running_podman)())
        except pytest.skip.Exception as reason:
            sys.exit(f"The benchmark “containers” cannot run here: {reason}.")
        pool = stack.enter_context(Pool("v100:1"))
        stack.enter_context(cdi_file(pool, "--share", "0.02"))
        stack.enter_context(cdi_file(pool, "--share", "0.05", "--at-start"))
        root = root_filesystem(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "image")
        ways: dict[str, tuple[str, ...]] = {
            "without a slice": (),
            "with one, asked for on first use": ("--device", SLICE),
            "with `--at-start`": ("--device", OTHER),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        load = [os.getloadavg()[0]]
        for _ in range(FIRST + ROUNDS):
            for name, options in ways.items():
                times[name].append(_start(podman, root, *options))
        load.append(os.getloadavg()[0])
    counted = {name: of[FIRST:] for name, of in times.items()}
    (_, without), *_ = counted.items()
    ratios = {
        name: statistics.median(own / bare for own, bare in zip(of, without, strict=True))
        for name, of in counted.items()
    }
    name = "with one, asked for on first use"
    first = statistics.median(counted[name]) / statistics.median(without)
    met = "met" if max(first, ratios[name]) <= AIM else "missed"
    return [
        Table(
            "Start of a container",
            (
                "`podman run --rm … /bin/true`",
                "median",
                "÷ without, of medians",
                "÷ without, median of rounds",
            ),
            [
                (
                    name,
                    f"{statistics.median(of) * 1e3:.0f} ms",
                    ratio(statistics.median(of), statistics.median(without)),
                    f"{ratios[name]:.2f}",
                )
                for name, of in counted.items()
            ],
            f"Medians of {ROUNDS}, in turn, {os.cpu_count()} processors, load {load[0]:.1f} to {load[1]:.1f}. "
            f"The aim for a slice on first use is {AIM}: {met}.",
        )
    ]
