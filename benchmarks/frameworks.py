"""Training steps of frameworks on a simulated H100: a convolutional network's at several shares, and several programs' by the tier of kernels.

The packages are those of ``make frameworks``, kept in a folder; a framework that is not there has a line that says so.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

from benchmarks.interleaving import Subject, interleaved, median
from benchmarks.report import Table
from benchmarks.subjects.convolutional import BATCH
from gpukernel.embedded import EmbeddedPool
from tests.frameworks.sources import JAX, PYTORCH, TENSORFLOW, TENSORFLOW_ALONE, Framework

SHARES = ("1", "0.1", "0.05", "0.02")
ROUNDS = 7
TIERS = ("interpreter", "auto", "compiled")
TIER_ROUNDS = 5
NETWORKS = (("Keras", "tensorflow", TENSORFLOW), ("PyTorch", "pytorch", PYTORCH))
"""By title: the word of `benchmarks.subjects.convolutional`, and the packages."""


def on_a_slice(pool: EmbeddedPool, word: str, framework: Framework, share: str) -> Subject:
    """Start `benchmarks.subjects.convolutional` on a slice; its figure is seconds a step."""
    program = [sys.executable, "-m", "benchmarks.subjects.convolutional", word]
    command = [sys.executable, "-m", "gpukernel.cli", "run", "-p", share, "--", *program]
    environment = {**os.environ, **pool.environment, "PYTHONPATH": str(framework.site())}
    return Subject(command, environment)


async def measure() -> list[Table]:
    table = Table(
        "ResNet-20 at several shares",
        ["program", *(f"share {share}" for share in SHARES), "fastest ÷ slowest"],
        notes=(
            f"Images a second in batches of {BATCH} of CIFAR-10's shape on a simulated H100, the loss read in each step. "
            "Each share has a slice and a process of its own; they train in turns, so that one has the processors to itself at a time. "
            f"Interleaved, in {ROUNDS} rounds of ten steps; the best round of each counts, since others on the machine can only slow one."
        ),
    )
    for title, word, framework in NETWORKS:
        if framework.is_kept():
            table.rows.append([title, *_figures(word, framework)])
        else:
            table.rows.append([f"{title} (make frameworks fetches it)", *([""] * (len(SHARES) + 1))])
    return [table, _tiers()]


def _figures(word: str, framework: Framework) -> list[str]:
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(EmbeddedPool("h100:2"))
        subjects = {
            share: stack.enter_context(contextlib.closing(on_a_slice(pool, word, framework, share)))
            for share in SHARES
        }
        rounds = interleaved({share: partial(one.measure, "step") for share, one in subjects.items()}, ROUNDS)
    rates = [BATCH / min(one[share] for one in rounds) for share in SHARES]
    return [*(f"{rate:.0f}" for rate in rates), f"{max(rates) / min(rates):.3f}"]


class Program(NamedTuple):
    """A program of `benchmarks.subjects`, its word and figure, and the packages that it needs: the first that is kept."""

    title: str
    subject: str
    word: str
    figure: str
    packages: tuple[Framework, ...] = ()

    def site(self) -> str | None:
        """Return the folder of its packages, empty where it needs none; None: they are not there."""
        if not self.packages:
            return "" if importlib.util.find_spec(self.word) else None
        return next((str(one.site()) for one in self.packages if one.is_kept()), None)


PROGRAMS = (
    Program("Numba, a perceptron", "steps", "numba", "read"),
    Program("tinygrad, a perceptron", "steps", "tinygrad", "read"),
    Program("JAX, a perceptron", "steps", "jax", "read", (JAX,)),
    Program("Keras, ResNet-20", "convolutional", "tensorflow", "step", (TENSORFLOW, TENSORFLOW_ALONE)),
)


@contextlib.contextmanager
def in_a_tier(program: Program, site: str, tier: str) -> Iterator[Subject]:
    """Run the program on a slice whose kernels the tier runs, until the block ends."""
    with patch.dict(os.environ, GPUKERNEL_SIMGPU_TIER=tier), EmbeddedPool("h100:1") as pool:
        command = [sys.executable, "-m", "gpukernel.cli", "run", "-p", "0.5", "--"]
        command += [sys.executable, "-m", f"benchmarks.subjects.{program.subject}", program.word]
        paths = [path for path in (site, os.environ.get("PYTHONPATH")) if path]
        environment = {**os.environ, **pool.environment, "PYTHONPATH": os.pathsep.join(paths)}
        with contextlib.closing(Subject(command, environment)) as one:
            yield one


def _tiers() -> Table:
    """Measure training steps by the tier of the simulated GPU that runs their kernels."""
    table = Table(
        "Training steps by tier",
        ["program", *TIERS, "interpreter ÷ compiled"],
        notes=(
            "Milliseconds a step, its loss read, on a slice of a simulated H100; `GPUKERNEL_SIMGPU_TIER` says which tier runs the kernels. "
            "The perceptron has 784, 32 and 10 neurons and batches of 64; ResNet-20 has batches of 64 of CIFAR-10's shape. Products and convolutions of JAX and Keras are the "
            "math libraries' work, in every tier the same. "
            f"Interleaved, in {TIER_ROUNDS} rounds; medians."
        ),
    )
    for program in PROGRAMS:
        site = program.site()
        if site is None:
            table.rows.append([f"{program.title} (not installed)", *([""] * (len(TIERS) + 1))])
            continue
        with contextlib.ExitStack() as stack:
            subjects = {tier: stack.enter_context(in_a_tier(program, site, tier)) for tier in TIERS}
            rounds = interleaved(
                {tier: partial(one.measure, program.figure) for tier, one in subjects.items()}, TIER_ROUNDS
            )
        figures = [median(rounds, tier) for tier in TIERS]
        table.rows.append(
            [program.title, *(f"{each * 1e3:.1f}" for each in figures), f"{figures[0] / figures[-1]:.2f}"]
        )
    return table
