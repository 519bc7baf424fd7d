"""A pool of this machine's own NVIDIA GPUs; without one every test here is skipped and says so.

``GPUKERNEL_TEST_GPU=simulated`` runs what can be run of these tests on a simulated GPU, to try the tests themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest

from gpukernel.agent.inventory import Inventory, NoDevices, real, simulated
from tests.conftest import Pool

SIMULATED = "h100:1" if os.environ.get("GPUKERNEL_TEST_GPU") == "simulated" else ""


@pytest.fixture(scope="session")
def inventory() -> Inventory:
    try:
        return simulated(SIMULATED) if SIMULATED else real()
    except NoDevices as error:
        pytest.skip(f"needs an NVIDIA GPU: {error}")


@pytest.fixture(scope="session")
def gpu_pool(inventory: Inventory) -> Iterator[Pool]:
    with Pool(SIMULATED, tcp_host="127.0.0.1") as pool:
        yield pool


@pytest.fixture(scope="module")
def direct_pool(inventory: Inventory) -> Iterator[Pool]:
    """A pool with direct mode, whose agent stops other people's processes on its devices: no other test may run beside it."""
    with Pool(SIMULATED, options=("--direct",)) as pool:
        yield pool


@pytest.fixture
def installed() -> Callable[[str], None]:
    """A function that skips the test where a framework is missing; in remote mode simulated GPUs do for all of them."""

    def check(package: str) -> None:
        if find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install {package}")

    return check


@pytest.fixture
def needs(inventory: Inventory) -> object:
    """A function that skips the test where a framework is missing."""

    def check(package: str) -> None:
        if find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install {package}")
        if SIMULATED and package in ("torch", "jax"):
            pytest.skip(f"{package} needs machine code, which a simulated GPU does not run")

    return check
