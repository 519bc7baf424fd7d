"""The time in which a Jupyter kernel answers, on a slice and without one, and the memory of a lease."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from jupyter_client.manager import AsyncKernelManager

from benchmarks.pool import leased, pool_running, worker_memory
from benchmarks.report import Table, mebibytes, ratio
from gpukernel.jupyter.kernelspecs import SliceSpec, write

ROUNDS = 10
WORKERS = 50


FIRST_CALL = """\
import time
from cuda.bindings import driver
before = time.perf_counter()
driver.cuInit(0)
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
driver.cuMemAlloc(1 << 20)
print(time.perf_counter() - before)"""


async def _start(name: str, first_calls: list[float] | None = None) -> float:
    manager = AsyncKernelManager(kernel_name=name)
    start = time.perf_counter()
    await manager.start_kernel(extra_arguments=["--log-level=ERROR"])
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=60)
    seconds = time.perf_counter() - start
    if first_calls is not None:

        def hear(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream":
                first_calls.append(float(message["content"]["text"]))

        await client.execute_interactive(FIRST_CALL, timeout=60, output_hook=hear)
    client.stop_channels()
    await manager.shutdown_kernel(now=True)
    return seconds


@contextlib.contextmanager
def _slice_kernelspec() -> Iterator[str]:
    """Yield the name of a kernel on a slice that Jupyter finds from here, until the block ends."""
    spec = SliceSpec(0.02)
    with tempfile.TemporaryDirectory(prefix="gpukernel-") as folder:
        write(spec, Path(folder, "kernels"))
        paths = os.pathsep.join(filter(None, [folder, os.environ.get("JUPYTER_PATH")]))
        with mock.patch.dict(os.environ, {"JUPYTER_PATH": paths}):
            yield spec.name


async def measure() -> list[Table]:
    with _slice_kernelspec() as name:
        async with pool_running():
            plain, on_slice, first_calls = [], [], list[float]()
            await _start("python3"), await _start(name)  # files into the page cache
            for _ in range(ROUNDS):
                plain.append(await _start("python3"))
                on_slice.append(await _start(name, first_calls))
    baseline, ours = statistics.median(plain), statistics.median(on_slice)
    start = Table(
        "Start of a kernel",
        ["kernel", "median of 10", "÷ plain"],
        [
            ["plain ipykernel", f"{baseline * 1e3:.0f} ms", "1.00"],
            [name, f"{ours * 1e3:.0f} ms", ratio(ours, baseline)],
        ],
        notes="From `start_kernel` to the answer to `kernel_info_request`, in turn. Aim: 1.15.",
    )
    first = Table(
        "The first CUDA call of a kernel",
        ["", "median of 10", "longest"],
        [
            [
                "on a slice",
                f"{statistics.median(first_calls) * 1e3:.0f} ms",
                f"{max(first_calls) * 1e3:.0f} ms",
            ]
        ],
        notes="`cuInit`, the context and one allocation in a kernel that has just started. Aim: 150 ms.",
    )

    async with leased(0.02, count=WORKERS):
        memory = worker_memory()
    rest = Table(
        "Memory of a worker at rest",
        ["figure", f"median of {len(memory)}", "aim"],
        [
            ["proportional set size", mebibytes(statistics.median(m.pss for m in memory)), ""],
            ["resident set size", mebibytes(statistics.median(m.rss for m in memory)), "≤ 25 MiB"],
        ],
        notes="Workers on one simulated V100, live, nobody connected. The proportional size divides shared pages among those who share them.",
    )
    return [start, first, rest]
