"""A convolutional network's images a second in TensorFlow and PyTorch, at several shares of a simulated H100.

The packages are those of ``make frameworks``, kept in a folder; a framework that is not there has a line that says so.
"""

from __future__ import annotations

import contextlib
import os
import sys
from functools import partial

from benchmarks.interleaving import Subject, interleaved
from benchmarks.report import Table
from benchmarks.subjects.convolutional import BATCH
from gpukernel.embedded import EmbeddedPool
from tests.frameworks.sources import PYTORCH, TENSORFLOW, Framework

SHARES = ("1", "0.1", "0.05", "0.02")
ROUNDS = 7
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
    return [table]


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
