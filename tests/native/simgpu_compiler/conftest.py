"""Both tiers of the simulated GPU: the same launch interpreted and compiled."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpukernel.native import NativePartMissing, simgpu_library
from tests.native.simgpu_exec.conftest import MODELS, Device, compile_cuda

Arrays = list[np.ndarray[Any, Any]]
SANITIZED = "GPUKERNEL_TEST_SANITIZED" in os.environ  # by ``make sanitize``


def _has(*wanted: str) -> bool:
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return flags is not None and set(wanted) <= set(flags[1].split())


def has_avx512() -> bool:
    return _has("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


VECTORS = [
    *(["avx512"] if has_avx512() else []),
    *(["avx2"] if _has("avx2", "fma", "bmi2", "f16c") else []),
]
"""What the compiler can write code for here."""
BOTH = (
    "test_avx2",
    "test_composed",
    "test_drawn_forms",
    "test_drawn_memory",
    "test_exact_numbers",
    "test_exchange",
    "test_lines",
    "test_programs",
    "test_shared",
    "test_together",
)
"""Tests of both kinds of code.  The others are of the newest, or of what GPUKERNEL_TEST_VECTORS names (``avx2``)."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "vectors" not in metafunc.fixturenames:
        return
    wanted = os.environ.get("GPUKERNEL_TEST_VECTORS")
    both = metafunc.module.__name__.endswith(BOTH)
    values = [wanted] if wanted else VECTORS if both else VECTORS[:1]
    metafunc.parametrize("vectors", values or [""], indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if VECTORS:
        return
    skip = pytest.mark.skip(reason="The compiler needs a processor with AVX2 or AVX-512.")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def vectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Say for which vectors the compiler writes code."""
    monkeypatch.setenv("GPUKERNEL_SIMGPU_VECTORS", request.param)
    return str(request.param)


class Tiers:
    """Runs kernels in both tiers, and keeps what the library says about each compiled one."""

    def __init__(
        self, device: Device, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.device, self._monkeypatch, self._capfd = device, monkeypatch, capfd
        self.said: list[str] = []

    def run(
        self, tier: str, ptx: str, kernel: str, grid: Any, block: Any, *args: Any, shared: int = 0
    ) -> Arrays:
        """Return what the arrays among the arguments hold afterwards; those given stay as they are."""
        self._monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER", tier)
        self._monkeypatch.setenv("GPUKERNEL_SIMGPU_TIER_LOG", "1")
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        self.device.run(ptx, kernel, grid, block, *copies, shared=shared)
        self.said += [line for line in self._capfd.readouterr().err.splitlines() if f" {kernel}: " in line]
        return [a for a in copies if isinstance(a, np.ndarray)]

    def same(
        self, ptx: str, kernel: str, grid: Any, block: Any, *args: Any, shared: int = 0, floats: int = 0
    ) -> Arrays:
        """Run it in both tiers, hold the results to the same bits, and return them.

        `floats`: the bytes of each where the results are floating-point numbers.  Which of two NaNs remains is then the C++ compiler's
        choice in the interpreter, and that of a sanitized build is another, as is that of handlers for processors without AVX-512.
        """
        before = len(self.said)
        interpreted = self.run("interpreter", ptx, kernel, grid, block, *args, shared=shared)
        assert len(self.said) == before
        compiled = self.run("compiled", ptx, kernel, grid, block, *args, shared=shared)
        assert len(self.said) == before + 1
        for one, other in zip(interpreted, compiled, strict=True):
            if floats and (SANITIZED or not has_avx512()):
                one, other = _with_one_nan(one, floats), _with_one_nan(other, floats)
            different = np.flatnonzero(one.view(np.uint8) != other.view(np.uint8))
            assert not different.size, (
                f"{self.said[-1]}: byte {different[0]} and {different.size - 1} more differ"
            )
        return compiled

    def handlers(self) -> int:
        """Return how many operations of the last kernel call the interpreter's handlers; -1: it is not compiled."""
        found = re.search(r"compiled: \d+ operations, (\d+) more by handlers", self.said[-1])
        return int(found[1]) if found else -1


def _with_one_nan(array: np.ndarray[Any, Any], width: int) -> np.ndarray[Any, Any]:
    numbers = array.copy().view(f"f{width}")
    numbers[np.isnan(numbers)] = np.nan
    return numbers


@pytest.fixture
def tiers(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Tiers]:
    try:
        library = simgpu_library()
    except NativePartMissing as missing:
        pytest.skip(str(missing))
    monkeypatch.setenv("GPUKERNEL_SIMGPU", MODELS)
    opened = Device(str(library))
    yield Tiers(opened, monkeypatch, capfd)
    opened.close()


@pytest.fixture
def nvrtc() -> Callable[..., str]:
    return compile_cuda


def beside_the_array(text: str) -> str:
    """Write addresses as distances from the last one, where the array begins: where that is, is each process's own."""
    addresses = re.findall("0x[0-9a-f]+", text)
    return re.sub("0x[0-9a-f]+", lambda one: f"{int(one[0], 16) - int(addresses[-1], 16):+d}", text)
