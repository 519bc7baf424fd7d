"""The cost of shard jobs on a real Slurm: ``srun --gres=shard:1 true`` with gpukernel, without, and with ``/bin/true`` as Slurm's scripts.

Everything runs at real-time priority, so that what else the machine does counts little: as root, which Slurm needs anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Table, ratio
from tests import slurm
from tests.engines.slurm.sharing import CONF, SHARDS, sharing

ROUNDS, FIRST = 20, 3
NOTHING = "Prolog=/bin/true\nTaskProlog=/bin/true\nEpilog=/bin/true\n"


def _job(cluster: slurm.Cluster) -> float:
    begin = time.perf_counter()
    subprocess.run(
        ["srun", "--quiet", "--gres=shard:1", "true"], env={**os.environ, **cluster.environment}, check=True
    )
    return time.perf_counter() - begin


async def measure() -> list[Table]:
    """Measure the time of a job that does nothing, on three clusters in turn."""
    if missing := slurm.missing():
        sys.exit(f"The benchmark “slurm” needs Slurm: {missing}.")
    return await asyncio.to_thread(_measure)


def _measure() -> list[Table]:
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(5))
    with contextlib.ExitStack() as stack:
        clusters = {
            "without": stack.enter_context(slurm.cluster_of(1, 2, SHARDS)),
            "`/bin/true` as Prolog, TaskProlog and Epilog": stack.enter_context(
                slurm.cluster_of(1, 2, SHARDS, NOTHING)
            ),
            "gpukernel": stack.enter_context(slurm.cluster_of(1, 2, SHARDS, CONF)),
        }
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(sharing(clusters["gpukernel"], home))
        times: dict[str, list[float]] = {name: [] for name in clusters}
        for _ in range(FIRST + ROUNDS):
            for name, cluster in clusters.items():
                times[name].append(_job(cluster))
    medians = {name: statistics.median(of[FIRST:]) for name, of in times.items()}
    base, bare = (medians[name] for name in list(medians)[:2])
    return [
        Table(
            "Shard jobs of Slurm",
            ("`srun --gres=shard:1 true`", "median", "÷ without", "÷ `/bin/true`"),
            [
                (name, f"{median * 1e3:.1f} ms", ratio(median, base), ratio(median, bare))
                for name, median in medians.items()
            ],
            f"Medians of {ROUNDS}, in turn, all on one machine at real-time priority.",
        )
    ]
