"""One run of the simulation, in a process of its own: a pool's day in one variant, with the books checked every two hours."""

from __future__ import annotations

import dataclasses
import json
import logging
import tempfile
from pathlib import Path

from benchmarks.scale.pool_day import run_pool_day
from benchmarks.scale.teaching_day import Failure, plan_day
from tests.pool.books import check_books

__all__ = ["FAILURES", "simulate"]

FAILURES = (Failure(3, 10.4 * 3600, 1800.0), Failure(7, 13.5 * 3600, 3600.0), Failure(1, 15.7 * 3600, 600.0))
"""Of the first pools one each."""


def simulate(pool: int, variant: str, gpus: int, students: int, seed: int, results: Path) -> str:
    """Run one pool's day in one variant, and keep the result in a folder; return a sentence about it."""
    logging.disable()
    plan = plan_day(seed, pool, gpus, students, FAILURES[pool : pool + 1])
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=fast) as place:
        record = run_pool_day(Path(place), plan, variant, seed, check_books, check_every=24)
    told = {"pool": pool, "variant": variant, "gpus": gpus, "students": students, "seed": seed}
    told["courses"] = [dataclasses.asdict(course) for course in plan.courses]
    path = results / f"{variant}-{pool:02}.json"
    path.with_suffix(".new").write_text(json.dumps(told | {"record": dataclasses.asdict(record)}))
    path.with_suffix(".new").rename(path)
    return (
        f"pool {pool}, {variant}: {len(record.requests)} requests, {record.events} events in {record.wall:.0f} s "
        f"({record.processor:.0f} s of the processor), {record.checks} checks of the books, {record.left_over} left over"
    )
