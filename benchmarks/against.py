"""Launches, synchronous calls and copies of this build beside those of another checkout: ``python -m benchmarks.against TREE``.

Both builds run their own pool, agent, worker and shim, from their own ``.venv``; one program makes the calls of both, and
everything is measured interleaved, so that what the machine does meanwhile meets both.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.interleaving import ROOT, Subject, interleaved, median, median_ratio, subject
from benchmarks.report import Table, gigabytes_per_second, microseconds

IN_PROCESS = "in process"
WAYS = {
    IN_PROCESS: ("", ""),
    "shared memory": ("unix", "1"),
    "unix socket": ("unix", "0"),
    "TCP": ("tcp", "0"),
}
CALLS = {
    "launch": "a launch",
    "synchronous_call": "a synchronous call",
    "launch_and_synchronize": "a launch and a wait",
}
COPIES = {"host_to_device": "host → device", "device_to_host": "device → host"}
ROUNDS, LONG_ROUNDS = 201, 15

# Run by the other build's own Python: a lease of its own pool, held until standard input ends.
HOLD = """
import asyncio, json, sys
from benchmarks.pool import leased
async def main():
    if not sys.argv[1]:
        from gpukernel import native
        print(json.dumps({"LD_LIBRARY_PATH": str(native.simgpu_library().parent), "GPUKERNEL_SIMGPU": "v100:1"}), flush=True)
        return
    async with leased(0.05, transport=sys.argv[1]) as environment:
        print(json.dumps(dict(environment)), flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


@contextlib.contextmanager
def held(tree: Path, transport: str) -> Iterator[dict[str, str]]:
    """Hold a lease of the build in `tree`, and yield the environment of a program on it, until the block ends."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GPUKERNEL_")}
    process = subprocess.Popen(
        [str(tree / ".venv/bin/python"), "-c", HOLD, transport],
        cwd=tree,
        env=inherited,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise RuntimeError(f"the build in {tree} gave no lease; make .venv/.test there first")
        yield json.loads(line)
    finally:
        process.communicate()


def measure(other: Path, only: Sequence[str] = ()) -> list[Table]:
    """Return one table for each way to the worker: this build's figures, the other's, and their ratio."""
    tables = []
    for way, (transport, shared) in WAYS.items():
        if only and way not in only:
            continue
        with contextlib.ExitStack() as stack:
            callers: dict[str, Subject] = {}
            for name, tree in (("this build", ROOT), ("the other", other)):
                environment = stack.enter_context(held(tree, transport))
                environment = {**os.environ, **environment, "GPUKERNEL_SHARED_MEMORY": shared}
                callers[name] = stack.enter_context(subject("driver_calls", environment))
            tables.append(_table(way, callers))
    return tables


def _table(way: str, callers: Mapping[str, Subject]) -> Table:
    table = Table(
        f"This build beside another, by {way}",
        ["figure", *callers, "ratio of times"],
        notes=f"Interleaved, in {ROUNDS} rounds of calls and {LONG_ROUNDS} of copies; the ratio is the median of the rounds' own. Below 1 this build is the faster.",
    )
    for figure, title in (CALLS | COPIES).items():
        copies = figure in COPIES
        each = {name: partial(one.measure, figure) for name, one in callers.items()}
        rounds = interleaved(each, LONG_ROUNDS if copies else ROUNDS, 3 if copies else 1)
        shown = gigabytes_per_second if copies else microseconds
        ratio = median_ratio(rounds, "this build", "the other")
        table.rows.append(
            [
                title,
                *(shown(median(rounds, name)) for name in callers),
                f"{1 / ratio if copies else ratio:.3f}",
            ]
        )
    return table


if __name__ == "__main__":
    if len(sys.argv) < 2 or not Path(sys.argv[1], ".venv").is_dir() or set(sys.argv[2:]) - set(WAYS):
        sys.exit(
            "Usage: python -m benchmarks.against TREE [WAY …]: TREE is another checkout that `make .venv/.test` has built, "
            f"and WAY is one of {', '.join(map(repr, WAYS))}."
        )
    print("\n".join(table.markdown() for table in measure(Path(sys.argv[1]).resolve(), sys.argv[2:])))
