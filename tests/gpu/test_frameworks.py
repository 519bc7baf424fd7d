"""Frameworks in remote mode beside the same programs without gpukernel: the same losses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gpu import alone
from tests.conftest import Pool
from tests.gpu.conftest import SIMULATED

pytestmark = pytest.mark.timeout(1200)

MOST_SECONDS = 500  # of a program, the first one of which compiles
PROGRAMS = Path(__file__).parents[1] / "frameworks" / "programs"
TRAININGS = {
    "torch": ("pytorch_training", ("cuda",), ("cpu",)),
    "tensorflow": (
        "tensorflow_training",
        ("gpu", "mlp", "fit", "loop", "resnet20"),
        ("cpu", "mlp", "fit", "loop", "resnet20"),
    ),
}
"""By package: a program of the frameworks' tests, and its words on a device and on the CPU."""


def remote(pool: Pool, program: str, *words: str) -> dict[str, tuple[list[float], float]]:
    """Run a program on a slice of a tenth, and return the losses and the rate that it prints for each training."""
    command = ["run", "-p", "0.1", "--", sys.executable, str(PROGRAMS / f"{program}.py"), *words]
    done = pool.gpukernel(*command, timeout=MOST_SECONDS)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def native(program: str, *words: str) -> dict[str, tuple[list[float], float]]:
    """Run a program on the whole device, without gpukernel."""
    command = [sys.executable, str(PROGRAMS / f"{program}.py"), *words]
    done = subprocess.run(command, env=alone(), capture_output=True, text=True, timeout=MOST_SECONDS)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("package", TRAININGS)
def test_training_loses_as_without_gpukernel(
    package: str, gpu_pool: Pool, installed: Callable[[str], None]
) -> None:
    installed(package)
    program, on_device, on_cpu = TRAININGS[package]
    # In process the simulated device has none of the frameworks' libraries: there the CPU is what is compared with.
    wanted = native(program, *(on_cpu if SIMULATED else on_device))
    found = remote(gpu_pool, program, *on_device)
    # A real device sums in another order in each run, of which twenty steps make more.
    error = 1e-3 if SIMULATED else 2e-2
    for name, (losses, _) in wanted.items():
        assert found[name][0] == pytest.approx(losses, rel=error, abs=1e-3), name


@pytest.mark.parametrize("program", ["jax_operations", "jax_convolutions", "jax_linear_algebra"])
def test_jax_gives_what_its_cpu_gives(program: str, gpu_pool: Pool, installed: Callable[[str], None]) -> None:
    installed("jax")
    command = ["run", "-p", "0.1", "--", sys.executable, str(PROGRAMS / f"{program}.py")]
    done = gpu_pool.gpukernel(*command, timeout=MOST_SECONDS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["failed"] in ({}, [])
