"""The run of the teaching day: ``python -m benchmarks.scale --pools 10 --gpus 10000 --students 100000``; `make scale` is the same.

Each pool's day in each variant is a process of its own, whose result is a file in ``--results``; what is there is not run again.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from benchmarks.scale.figures import load_records, summary
from benchmarks.scale.plots import plot_all
from benchmarks.scale.runs import simulate
from benchmarks.scale.teaching_day import VARIANTS

IMAGES = Path(__file__).parents[2] / "docs" / "images"


def main() -> None:
    """Run what is missing, then print the tables and draw the plots."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--pools", type=int, default=10)
    parser.add_argument("--gpus", type=int, default=10_000, help="of all pools together")
    parser.add_argument("--students", type=int, default=100_000, help="of all pools together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--results", type=Path, default=Path("build/scale"), help="folder for one file a run")
    parser.add_argument("--plots", type=Path, help=f"folder for the plots, such as {IMAGES.name}")
    parser.add_argument("--only-figures", action="store_true", help="run nothing; show what there is")
    chosen = parser.parse_args()
    if min(chosen.pools, chosen.jobs) < 1 or min(chosen.gpus, chosen.students) < 20 * chosen.pools:
        sys.exit(
            "There must be at least one pool, one job, and 20 GPUs and 20 students for each pool; say more GPUs or fewer pools."
        )
    chosen.results.mkdir(parents=True, exist_ok=True)
    gpus, students = chosen.gpus // chosen.pools, chosen.students // chosen.pools
    if not chosen.only_figures:
        with ProcessPoolExecutor(chosen.jobs, max_tasks_per_child=1) as processes:
            work = [
                processes.submit(simulate, pool, variant, gpus, students, chosen.seed, chosen.results)
                for pool in range(chosen.pools)
                for variant in VARIANTS
                if not (chosen.results / f"{variant}-{pool:02}.json").exists()
            ]
            for done in as_completed(work):
                print(done.result(), file=sys.stderr, flush=True)
    records = load_records(chosen.results)
    print(summary(records))
    if chosen.plots is not None:
        plot_all(records, chosen.plots)


if __name__ == "__main__":
    main()
