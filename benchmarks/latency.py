"""The time that a training step loses to the network's delay, and the number of answers that it waits for."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import re
import statistics
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.interleaving import Subject, interleaved, median, subject
from benchmarks.pool import leased
from benchmarks.report import Table
from benchmarks.subjects.steps import FRAMEWORKS, STEPS
from gpukernel.remoting.environment import compiler_environment
from gpukernel.remoting.lease_file import LEASE_FILE_VARIABLE
from tests.frameworks.sources import JAX, PYTORCH, TENSORFLOW

DELAYS = (0.0, 0.0003, 0.001, 0.005, 0.05)  # seconds, there and back
ROUNDS = 7
SHARE = 0.5
PACKAGES = {
    "jax": JAX,
    "keras": TENSORFLOW,
    "keras train_on_batch": TENSORFLOW,
    "tensorflow GradientTape": TENSORFLOW,
    "pytorch": PYTORCH,
}
"""Those that ``make frameworks`` keeps in folders of their own."""


class Proxy:
    """A TCP proxy with a delay, in a process of its own."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "benchmarks.subjects.delay", str(port)]
        self._subject = Subject(command, None)
        self.port = int(self._subject.line())

    def set(self, seconds: float) -> None:
        """Delay by `seconds`, there and back, from now on."""
        self._subject.measure(str(seconds))

    def answers(self) -> dict[str, int]:
        """Return how many answers each call has had since this was last asked, the most frequent first."""
        return dict(json.loads(self._subject.ask("answers")))

    def close(self) -> None:
        self._subject.close()


@contextlib.contextmanager
def delayed(lease_file: Path) -> Iterator[Proxy]:
    """Lead the endpoint of `lease_file` through a proxy, until the block ends."""
    text = lease_file.read_text()
    (port,) = re.findall(r"tcp:127\.0\.0\.1:(\d+)", text)
    with contextlib.closing(Proxy(int(port))) as proxy:
        lease_file.write_text(text.replace(f"tcp:127.0.0.1:{port}", f"tcp:127.0.0.1:{proxy.port}"))
        yield proxy


async def measure() -> list[Table]:
    table = Table(
        "A training step over a network",
        [
            "step",
            *(f"{delay * 1e3:g} ms" for delay in DELAYS),
            "waits a step",
            "lost at 1 ms",
            "answers a step",
        ],
        notes=(
            "Milliseconds a step by the round trip of the network: a proxy in a process of its own delays each byte by half of it in each direction. "
            f"Waits a step: what a step takes longer at {DELAYS[-1] * 1e3:g} ms than at 0, divided by that; a step that reads its loss has one at least, and the batch's copy is queued. "
            "Answers a step: the calls that the worker answers, by name, and how often in each step, at the longest round trip; what is answered beside the program (next_host_function), or comes with another answer, does not keep it waiting. "
            f"Interleaved, in {ROUNDS} rounds; medians."
        ),
    )
    for framework in FRAMEWORKS:
        packages = PACKAGES.get(framework)
        if packages.is_kept() if packages else importlib.util.find_spec(framework) is not None:
            why = ""
        else:
            why = "make frameworks fetches it" if packages else "not installed"
        if why:
            table.rows.append([f"{framework} ({why})", *([""] * (len(DELAYS) + 3))])
            continue
        async with leased(SHARE, transport="tcp") as environment:
            if packages:
                environment = compiler_environment(environment, simulated=True, part=True)
                environment["PYTHONPATH"] = str(packages.site())
            table.rows += await asyncio.to_thread(
                _rows, environment, framework
            )  # the lease is kept alive here
    return [table]


def _rows(environment: dict[str, str], framework: str) -> list[list[str]]:
    with (
        delayed(Path(environment[LEASE_FILE_VARIABLE])) as proxy,
        subject("steps", environment, framework) as one,
    ):
        return [_row(proxy, one, framework, figure) for figure in ("queued", "read")]


def _row(proxy: Proxy, one: Subject, framework: str, figure: str) -> list[str]:
    def at(delay: float) -> float:
        proxy.set(delay)
        return one.measure(figure)

    rounds = interleaved({str(delay): partial(at, delay) for delay in DELAYS}, ROUNDS)
    longest = DELAYS[-1]
    waits = statistics.median((each[str(longest)] - each["0.0"]) / longest for each in rounds)
    lost = statistics.median(each["0.001"] / each["0.0"] - 1 for each in rounds)
    steps = (f"{median(rounds, str(delay)) * 1e3:.1f}" for delay in DELAYS)
    named = {"queued": "values read at the end", "read": "the loss read in each"}[figure]
    return [
        f"{framework}, {named}",
        *steps,
        f"{waits:.1f}",
        f"{lost:.1%}".replace("%", " %"),
        _answers(proxy, one, figure),
    ]


def _answers(proxy: Proxy, one: Subject, figure: str) -> str:
    """Return the calls of one step that are answered, far away: name × count."""
    proxy.set(DELAYS[-1])
    proxy.answers()
    one.measure(figure)
    each = {name: count / (STEPS + 1) for name, count in proxy.answers().items()}  # one step comes before
    return ", ".join(f"{name} × {count:.1f}" for name, count in each.items() if count >= 0.05) or "none"
