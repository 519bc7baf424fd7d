"""cuSOLVER computes what NumPy and SciPy do, beside the simulated GPU in one process and from a slice."""

from __future__ import annotations

from tests.native.libraries import cusolver_cases, cusolver_sparse_cases
from tests.native.libraries.conftest import NEEDS_OPENBLAS, both_ways, found_by


@NEEDS_OPENBLAS
@both_ways(cusolver_cases)
def test_cusolver(where: str, name: str) -> None:
    assert found_by(cusolver_cases.__name__, where)[name] == ""


@NEEDS_OPENBLAS
@both_ways(cusolver_sparse_cases)
def test_sparse_systems(where: str, name: str) -> None:
    assert found_by(cusolver_sparse_cases.__name__, where)[name] == ""
