"""Launches, synchronous calls and copies of this build beside those of another checkout: ``python -m benchmarks.against TREE``.

Both builds run their own pool, agent, worker and shim, from their own ``.venv``; one program makes the calls of both, and
everything is measured interleaved, so that what the machine does meanwhile meets both.  Where a build has TLS, its TCP with and without is
measured in the same way.

Seconds of the clock grow with whatever else the machine does.  So the seconds that both ends have had of a processor are counted, too: of
calls those of both ends, which take turns, and of copies those of the busier end, which the other waits for.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.interleaving import ROOT, Subject, processor_seconds, subject
from benchmarks.pool import workers
from benchmarks.report import Table, gigabytes_per_second, microseconds
from benchmarks.subjects.driver_calls import COPY_BYTES

IN_PROCESS, PLAIN, ENCRYPTED = "in process", "TCP", "TCP with TLS"
WAYS = {
    IN_PROCESS: ("", ""),
    "shared memory": ("unix", "1"),
    "unix socket": ("unix", "0"),
    PLAIN: ("tcp", "0"),
    ENCRYPTED: ("tls", "0"),
}
CALLS = {  # with the calls of one round
    "launch": ("a launch", 500),
    "launch_of_many": ("a launch, of 5,000 in a row", 5000),
    "synchronous_call": ("a synchronous call", 2000),
    "launch_and_synchronize": ("a launch and a wait", 300),
}
COPIES = {"host_to_device": "host → device", "device_to_host": "device → host"}
THIS, UNCONFINED, OTHER = "this build", "unconfined", "the other"
ROUNDS, LONG_ROUNDS = 201, 15
REST_SECONDS = 0.005

# Run by the other build's own Python: what its TLS is made of.
TELL = """
import ctypes
from gpukernel import native
try:
    library = ctypes.CDLL(str(native.tls_library()))
    library.gpukernel_tls_provider.restype = ctypes.c_char_p
    print(library.gpukernel_tls_provider().decode())
except (AttributeError, OSError, native.NativePartMissing):
    pass
"""

# And a lease of its own pool, held until standard input ends.
HOLD = """
import asyncio, json, sys
from benchmarks.pool import leased
async def main():
    if not sys.argv[1]:
        from gpukernel import native
        print(json.dumps({"LD_LIBRARY_PATH": str(native.simgpu_library().parent), "GPUKERNEL_SIMGPU": "v100:1"}), flush=True)
        return
    options = {"options": tuple(sys.argv[2:])} if sys.argv[2:] else {}  # which older builds do not take
    async with leased(0.05, transport=sys.argv[1], **options) as environment:
        print(json.dumps(dict(environment)), flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


def provider(tree: Path) -> str:
    """Return the name and version of the OpenSSL in the build of `tree`; empty where it has no TLS."""
    told = [str(tree / ".venv/bin/python"), "-c", TELL]
    return subprocess.run(told, cwd=tree, capture_output=True, text=True, check=True).stdout.strip()


@contextlib.contextmanager
def held(tree: Path, transport: str, *options: str) -> Iterator[dict[str, str]]:
    """Hold a lease of the build in `tree`, and yield the environment of a program on it, until the block ends."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GPUKERNEL_")}
    process = subprocess.Popen(
        [str(tree / ".venv/bin/python"), "-c", HOLD, transport, *options],
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


class Round(NamedTuple):
    """One round of a figure: what the program measured (seconds a call, or bytes a second), and the seconds that each end had of a processor."""

    figure: float
    ends: tuple[float, ...]


class Caller(NamedTuple):
    """A program of one build by one way, and the processes at both ends."""

    program: Subject
    ends: tuple[int, ...]

    def measure(self, figure: str) -> Round:
        """Measure one round."""
        before = [processor_seconds(end) for end in self.ends]
        found = self.program.measure(figure)
        return Round(
            found, tuple(processor_seconds(end) - at for end, at in zip(self.ends, before, strict=True))
        )


@contextlib.contextmanager
def caller(tree: Path, way: str, *options: str) -> Iterator[Caller]:
    """Run the program of the calls on a lease of the build in `tree`, whose agent has the options, until the block ends."""
    transport, shared = WAYS[way]
    environment = tree / ".venv"

    def own() -> set[int]:
        return {one for one in workers() if Path(f"/proc/{one}/exe").readlink().is_relative_to(environment)}

    before = own()
    with held(tree, transport, *options) as lease:
        there = own() - before
        words = {**os.environ, **lease, "GPUKERNEL_SHARED_MEMORY": shared}
        with subject("driver_calls", words) as program:
            yield Caller(program, (program.pid, *there))


Rounds = Sequence[Mapping[str, Round]]


def rounds_of(callers: Mapping[str, Caller], figure: str, parts: int = 1) -> Rounds:
    """Measure a figure of each caller in every round of one of so many parts; of copies three in a row, of which the median counts.

    A first round does not count.
    Each round has an order of its own, and a rest before each figure: whoever came before may still be at work, or spin, on one of few
    processors.
    """
    copies, order = figure in COPIES, random.Random(0)

    def one(caller: Caller) -> Round:
        time.sleep(REST_SECONDS)
        found = sorted(caller.measure(figure) for _ in range(3 if copies else 1))
        return found[len(found) // 2]

    count = -(-(LONG_ROUNDS if copies else ROUNDS) // parts)
    return [
        {name: one(callers[name]) for name in order.sample(sorted(callers), len(callers))}
        for _ in range(count + 1)
    ][1:]


def processor(figure: str, one: Round) -> float:
    """Return the seconds of a processor that one call, or one copy, takes."""
    return max(one.ends) if figure in COPIES else sum(one.ends) / CALLS[figure][1]


def _shown(figure: str, rounds: Rounds, names: Sequence[str]) -> list[str]:
    show = gigabytes_per_second if figure in COPIES else microseconds
    return [show(statistics.median(one[name].figure for one in rounds)) for name in names]


def _worked(figure: str, rounds: Rounds, names: Sequence[str]) -> list[str]:
    found = [statistics.median(processor(figure, one[name]) for one in rounds) for name in names]
    if figure in COPIES:
        return [gigabytes_per_second(COPY_BYTES / seconds) for seconds in found]
    return [microseconds(seconds) for seconds in found]


def _ratio(figure: str, rounds: Rounds, name: str, baseline: str) -> tuple[str, str]:
    """Return how many times as long `name` takes as `baseline`, by the clock and of the processor."""
    clock = statistics.median(one[name].figure / one[baseline].figure for one in rounds)
    worked = statistics.median(
        processor(figure, one[name]) / processor(figure, one[baseline]) for one in rounds
    )
    return f"{1 / clock if figure in COPIES else clock:.3f}", f"{worked:.3f}"


def beside(other: Path, only: Sequence[str] = ()) -> Iterator[Table]:
    """Yield one table for each way to the worker: this build's figures, the other's, and their ratios."""
    encrypts = all(map(provider, (ROOT, other)))
    for way in WAYS:
        if (only and way not in only) or (way == ENCRYPTED and not encrypts):
            continue
        found: dict[str, list[Mapping[str, Round]]] = {figure: [] for figure in (*CALLS, *COPIES)}
        kinds: dict[str, tuple[Path, *tuple[str, ...]]] = {THIS: (ROOT,), OTHER: (other,)}
        if WAYS[way][0]:  # there is a worker
            kinds[UNCONFINED] = (ROOT, "--confinement", "off")
        # What starts later is faster, by up to a fifth where a build is measured beside itself: each has every place.
        orders = list(itertools.permutations(kinds))
        for order in orders:
            with contextlib.ExitStack() as stack:
                callers = {
                    name: stack.enter_context(caller(kinds[name][0], way, *kinds[name][1:])) for name in order
                }
                for figure, rounds in found.items():
                    rounds += rounds_of(callers, figure, len(orders))
        own = [name for name in (THIS, UNCONFINED) if name in kinds]
        table = Table(
            f"This build beside another, by {way}",
            ["figure", *own, OTHER, *(f"{name} ÷ {OTHER}" for name in own)],
            notes=f"Interleaved, in {ROUNDS} rounds of calls and {LONG_ROUNDS} of copies, shared among the orders in which the builds can be started; a ratio of times is the median of the rounds' own, by the clock and of the processor. Below 1 this build is the faster.",
        )
        for figure, rounds in found.items():
            ratios = [" / ".join(_ratio(figure, rounds, name, OTHER)) for name in own]
            title = COPIES.get(figure) or CALLS[figure][0]
            table.rows.append([title, *_shown(figure, rounds, (*own, OTHER)), *ratios])
        yield table


def encrypted(trees: Mapping[str, Path]) -> Iterator[Table]:
    """Yield a table for each build that has TLS: TCP with it beside TCP without, in the same rounds."""
    for name, tree in trees.items():
        if not (made_of := provider(tree)):
            continue
        with contextlib.ExitStack() as stack:
            callers = {way: stack.enter_context(caller(tree, way)) for way in (PLAIN, ENCRYPTED)}
            table = Table(
                f"TLS beside plain TCP, {name} ({made_of})",
                ["figure", *callers, "difference", "of the processor", " ", "difference  ", "aim"],
                notes="Of copies the difference is TLS ÷ TCP, of calls what they take more. The processor's: of calls both ends' seconds, of copies what the busier end could do alone.",
            )
            both = tuple(callers)
            call = rounds_of(callers, "synchronous_call")
            clock, worked = (
                statistics.median(figure(one[ENCRYPTED]) - figure(one[PLAIN]) for one in call)
                for figure in (lambda one: one.figure, lambda one: processor("synchronous_call", one))
            )
            seen, used = _shown("synchronous_call", call, both), _worked("synchronous_call", call, both)
            table.rows.append(
                ["a synchronous call", *seen, microseconds(clock), *used, microseconds(worked), "≤ 3 µs"]
            )
            for figure, title in COPIES.items():
                rounds = rounds_of(callers, figure)
                seen, used = _shown(figure, rounds, both), _worked(figure, rounds, both)
                by_clock, by_processor = (
                    f"{float(one):.2f}" for one in _ratio(figure, rounds, PLAIN, ENCRYPTED)
                )
                table.rows.append([title, *seen, by_clock, *used, by_processor, "≥ 0.6"])
            yield table


def main(words: Sequence[str]) -> None:
    """Measure and print, table by table."""
    if not words or not Path(words[0], ".venv").is_dir() or set(words[1:]) - set(WAYS):
        sys.exit(
            "Usage: python -m benchmarks.against TREE [WAY …]: TREE is another checkout that `make .venv/.test` has built, "
            f"and WAY is one of {', '.join(map(repr, WAYS))}."
        )
    other, only = Path(words[0]).resolve(), words[1:]
    for table in beside(other, only):
        print(table.markdown(), flush=True)
    if not only or ENCRYPTED in only:
        for table in encrypted({THIS: ROOT, OTHER: other}):
            print(table.markdown(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
