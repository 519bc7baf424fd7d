"""cuRAND's numbers are those of published algorithms and of their distributions, beside the simulated GPU in one process and from a slice."""

from __future__ import annotations

from tests.native.libraries import curand_cases, curand_quasi_cases
from tests.native.libraries.conftest import both_ways, found_by


@both_ways(curand_cases)
def test_curand(where: str, name: str) -> None:
    assert found_by(curand_cases.__name__, where)[name] == ""


@both_ways(curand_quasi_cases)
def test_quasirandom_numbers(where: str, name: str) -> None:
    assert found_by(curand_quasi_cases.__name__, where)[name] == ""
