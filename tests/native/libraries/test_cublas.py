"""cuBLAS computes what NumPy and SciPy do, beside the simulated GPU in one process and from a slice."""

from __future__ import annotations

from tests.native.libraries import cublas_cases
from tests.native.libraries.conftest import NEEDS_OPENBLAS, both_ways, found_by


@NEEDS_OPENBLAS
@both_ways(cublas_cases)
def test_cublas(where: str, name: str) -> None:
    assert found_by(cublas_cases.__name__, where)[name] == ""
