"""A pool with a simulated H100, and programs under a framework on a slice of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpukernel.embedded import EmbeddedPool
from tests.frameworks.sources import JAX, PYTORCH, Framework, NotHere

PROGRAMS = Path(__file__).parent / "programs"
FETCH = os.environ.get("GPUKERNEL_FRAMEWORKS") == "1"

Run = Callable[..., str]
"""Runs a program of `PROGRAMS` with words on a slice, and returns what it prints; without ``share`` off any slice."""


def site_of(framework: Framework) -> Path:
    if not FETCH and not framework.is_kept():
        pytest.skip(f"{framework.name} is not here: make frameworks fetches it")
    try:
        return framework.site()
    except NotHere as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def pytorch_site() -> Path:
    """The folder of PyTorch's packages."""
    return site_of(PYTORCH)


@pytest.fixture(scope="module")
def h100() -> Iterator[EmbeddedPool]:
    """A pool with one simulated H100."""
    with EmbeddedPool("h100:1") as pool:
        yield pool


def runs(site: Path, pool: EmbeddedPool) -> Run:
    def run(program: str, *words: str, share: str = "0.1") -> str:
        command = [sys.executable, str(PROGRAMS / f"{program}.py"), *words]
        if share:
            command = [sys.executable, "-m", "gpukernel.cli", "run", "-p", share, "--", *command]
        environment = {**pool.environment, "PYTHONPATH": str(site)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    return run


@pytest.fixture
def on_pytorch(pytorch_site: Path, h100: EmbeddedPool) -> Run:
    """Run a program under PyTorch."""
    return runs(pytorch_site, h100)


@pytest.fixture
def on_jax(h100: EmbeddedPool) -> Run:
    """Run a program under JAX."""
    return runs(site_of(JAX), h100)
