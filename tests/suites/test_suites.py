"""A part of other people's suites in every run; ``make suites`` runs them whole."""

from __future__ import annotations

import pytest

from tests.suites.runner import run
from tests.suites.suites import NUMBA_PART


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_part_of_numba_s_own_suite_passes_whole() -> None:
    outcome = run(NUMBA_PART)
    assert not outcome.failed, outcome.output
    assert len(outcome.passed) > 90, outcome.output
