"""cuFFT computes what NumPy does, beside the simulated GPU in one process and from a slice."""

from __future__ import annotations

from tests.native.libraries import cufft_cases
from tests.native.libraries.conftest import both_ways, found_by


@both_ways(cufft_cases)
def test_cufft(where: str, name: str) -> None:
    assert found_by(cufft_cases.__name__, where)[name] == ""
