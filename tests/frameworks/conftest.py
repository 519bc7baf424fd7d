"""A pool with a simulated H100, and programs under a framework on a slice of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpukernel.embedded import EmbeddedPool
from tests.frameworks.sources import NotHere, Site, pytorch, pytorch_is_kept

PROGRAMS = Path(__file__).parent / "programs"
FETCH = os.environ.get("GPUKERNEL_FRAMEWORKS") == "1"

Run = Callable[..., str]
"""Runs a program of `PROGRAMS` with words on a slice, and returns what it prints; without ``share`` off any slice."""


@pytest.fixture(scope="session")
def pytorch_site() -> Site:
    """The folder of PyTorch's packages."""
    if not FETCH and not pytorch_is_kept():
        pytest.skip("PyTorch's packages are not here: make frameworks fetches them")
    try:
        return pytorch()
    except NotHere as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def h100() -> Iterator[EmbeddedPool]:
    """A pool with one simulated H100."""
    with EmbeddedPool("h100:1") as pool:
        yield pool


@pytest.fixture
def on_pytorch(pytorch_site: Site, h100: EmbeddedPool) -> Run:
    """Run a program under PyTorch."""

    def run(program: str, *words: str, share: str = "0.1") -> str:
        command = [sys.executable, str(PROGRAMS / f"{program}.py"), *words]
        if share:
            command = [sys.executable, "-m", "gpukernel.cli", "run", "-p", share, "--", *command]
        environment = {**h100.environment, "PYTHONPATH": str(pytorch_site)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    return run
