"""The simulated GPU takes what ptxas takes, and nothing else: a seeded part of ``make ptx``."""

from __future__ import annotations

import pytest

from tests.native.simgpu_ptx import acceptance, declarations

COUNT, SEED = 3000, 20


def test_what_ptxas_takes_is_taken_and_nothing_else() -> None:
    if not acceptance.ptxas():
        pytest.skip("ptxas (CUDA's toolkit) is not installed")
    lines = acceptance.sample(COUNT, SEED)
    different = acceptance.compare(lines, acceptance.Simulated())
    assert different == []


def test_the_modules_that_ptxas_takes_are_taken_and_no_others() -> None:
    if not acceptance.ptxas():
        pytest.skip("ptxas (CUDA's toolkit) is not installed")
    lines = declarations.sample(400, SEED)
    assert acceptance.compare(lines, acceptance.Simulated(), kind=acceptance.MODULES) == []


def test_the_corpus_is_the_same_for_the_same_seed() -> None:
    lines = acceptance.sample(500, 7)
    assert lines == acceptance.sample(500, 7)
    assert lines != acceptance.sample(500, 8)
