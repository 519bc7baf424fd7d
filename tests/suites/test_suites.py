"""A part of other people's suites in every run; ``make suites`` runs them whole."""

from __future__ import annotations

import pytest

from tests.suites.framework_suites import DRJIT_PART
from tests.suites.repositories import drjit_is_here
from tests.suites.runner import Suite, run
from tests.suites.sources import NotHere, pycuda_is_built
from tests.suites.suites import CUDA_PYTHON_PART, NUMBA_PART, PYCUDA_PART


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_part_of_numba_s_own_suite_passes_whole() -> None:
    outcome = run(NUMBA_PART)
    assert not outcome.failed, outcome.output
    assert len(outcome.passed) > 90, outcome.output


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("suite", "least"),
    [(CUDA_PYTHON_PART, 25), (PYCUDA_PART, 15), (DRJIT_PART, 300)],
    ids=lambda x: getattr(x, "name", ""),
)
def test_a_part_of_another_suite_fails_only_where_it_is_known_to(suite: Suite, least: int) -> None:
    if suite is PYCUDA_PART and not pycuda_is_built():
        pytest.skip("PyCUDA is not built here: make suites SUITE=pycuda does it, in some minutes")
    if suite is DRJIT_PART and not drjit_is_here():
        pytest.skip("Dr.Jit and its tests are not fetched here: make suites SUITE=drjit does it")
    try:
        outcome = run(suite)
    except NotHere as why:
        pytest.skip(str(why))
    assert not suite.unexpected(outcome), outcome.output
    assert len(outcome.passed) >= least, outcome.output
