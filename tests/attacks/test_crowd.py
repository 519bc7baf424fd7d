"""Five students flood, hoard, send rubbish, keep silent and guess, so that the others of a crowd are refused or get nothing."""

from __future__ import annotations

import asyncio

from tests.attacks.crowd import run


def test_no_honest_student_of_a_crowd_is_refused_or_goes_without() -> None:
    attacked = asyncio.run(run(30, 8, attack=True))
    assert attacked["refused"] == []
    assert attacked["unserved"] == 0
    assert len(attacked["waits"]) > 30
