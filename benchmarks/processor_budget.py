"""A share of the processor for processes of a benchmark, as if each had a machine of its own that is that fast (`cpu` of cgroups)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["budgets"]

PERIOD_MICROSECONDS = 20_000
V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


@contextlib.contextmanager
def budgets(count: int, processors: float) -> Iterator[list[Path]]:
    """Make `count` groups that get so many processors each, and yield the files that take the numbers of their processes.

    Raises:
        OSError: This account may make no groups, or the system has none.
    """
    made: list[Path] = []
    quota = round(processors * PERIOD_MICROSECONDS)
    try:
        for number in range(count):
            first = (V1 / "cpu.cfs_quota_us").exists() or (V1 / "cpu.shares").exists()
            group = (V1 if first else V2) / f"gpukernel-benchmark-{os.getpid()}-{number}"
            group.mkdir()
            made.append(group)
            if first:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
                (group / "cpu.cfs_quota_us").write_text(str(quota))
            else:
                (group / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
        yield [group / "cgroup.procs" for group in made]
    finally:
        for group in made:
            # An empty group that stays, of a process that has not gone yet, costs nothing.
            with contextlib.suppress(OSError):
                group.rmdir()
