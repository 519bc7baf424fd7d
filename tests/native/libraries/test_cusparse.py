"""cuSPARSE computes what SciPy does, beside the simulated GPU in one process and from a slice."""

from __future__ import annotations

from tests.native.libraries import cusparse_cases, cusparse_long_cases, cusparse_sum_cases
from tests.native.libraries.conftest import NEEDS_OPENBLAS, both_ways, found_by


@NEEDS_OPENBLAS
@both_ways(cusparse_cases)
def test_cusparse(where: str, name: str) -> None:
    assert found_by(cusparse_cases.__name__, where)[name] == ""


@NEEDS_OPENBLAS
@both_ways(cusparse_long_cases)
def test_what_has_many_elements(where: str, name: str) -> None:
    assert found_by(cusparse_long_cases.__name__, where)[name] == ""


@NEEDS_OPENBLAS
@both_ways(cusparse_sum_cases)
def test_sums_of_matrices(where: str, name: str) -> None:
    assert found_by(cusparse_sum_cases.__name__, where)[name] == ""
