"""cuBLASLt computes what NumPy does, beside the simulated GPU in one process and from a slice."""

from __future__ import annotations

from tests.native.libraries import cublaslt_cases
from tests.native.libraries.conftest import NEEDS_OPENBLAS, both_ways, found_by


@NEEDS_OPENBLAS
@both_ways(cublaslt_cases)
def test_cublaslt(where: str, name: str) -> None:
    assert found_by(cublaslt_cases.__name__, where)[name] == ""
