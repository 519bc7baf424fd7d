"""The longest pauses of a pool's two event loops, alone and under a flood, by the clock and by the processor: ``python -m benchmarks pauses``."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.pools import new_database, postgresql
from benchmarks.report import Table
from tests.attacks.test_event_loop import flood_a_pool

ROUNDS = 5
THREADS = {"gpukernel-io": "receives and sends", "MainThread": "decides"}


async def measure() -> list[Table]:
    """Return the table for `python -m benchmarks`."""
    table = Table(
        "The longest pause of a pool's loops",
        ["database", "loop", "clock", "somebody works", "and a flood beside it", "aim"],
        notes=f"The longest callback of each event loop, the median of {ROUNDS} runs: the pool is in one process with everybody who works or floods "
        "(`tests/attacks/test_event_loop.py`), so the loop that decides is theirs as well. "
        f"Load of the machine's {os.cpu_count()} processors before: {os.getloadavg()[0]:.1f}.",
    )
    await _add(table, "SQLite")
    with postgresql() as address:
        for number in range(2 * ROUNDS):
            new_database(address, f"pauses{number}")
        await _add(table, "PostgreSQL", address)
    return [table]


async def _add(table: Table, name: str, address: str = "") -> None:
    number = 0
    for clock, called in ((time.perf_counter, "wall"), (time.thread_time, "processor")):
        found: dict[str, list[tuple[float, float]]] = {thread: [] for thread in THREADS}
        for _ in range(ROUNDS):
            if address:
                os.environ["GPUKERNEL_DATABASE"] = address.replace("DATABASE", f"pauses{number}")
                number += 1
            with tempfile.TemporaryDirectory() as folder:
                usual, flooded = await flood_a_pool(Path(folder), clock)
            os.environ.pop("GPUKERNEL_DATABASE", None)
            for thread, rows in found.items():
                rows.append((usual.longest[thread], flooded.longest[thread]))
        for thread, rows in found.items():
            alone, beside = (statistics.median(column) for column in zip(*rows, strict=True))
            aim = "≤ 50 ms" if called == "wall" else ""
            table.rows.append(
                [name, THREADS[thread], called, f"{1000 * alone:.1f} ms", f"{1000 * beside:.1f} ms", aim]
            )
