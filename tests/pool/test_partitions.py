"""No byte is held twice, whatever network, machines, clocks and processes do (`tests.pool.partitions` makes it up).

Some schedules in the ordinary suite; ``make partitions`` runs 10,000.
"""

from __future__ import annotations

import logging
import os

import pytest

from gpukernel.agent import validity
from gpukernel.pool.domain import fencing
from gpukernel.pool.store import servers as stored_servers
from tests.pool.databases import empty_database, sqlite_databases
from tests.pool.partitions import Held, Schedule

SCHEDULES = int(os.environ.get("GPUKERNEL_PARTITION_SCHEDULES", "12"))
PARTS = int(os.environ.get("GPUKERNEL_PARTITION_PARTS", "2"))


@pytest.fixture(autouse=True)
def _quiet() -> object:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def run(seed: int) -> Schedule:
    one = Schedule(seed, sqlite_databases().store, empty_database())
    one.run()
    return one


@pytest.mark.timeout(0 if SCHEDULES > 1000 else 900)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_byte_is_held_twice(part: int) -> None:
    granted = most = 0
    for seed in range(part, SCHEDULES, PARTS):
        try:
            one = run(seed)
        except Held as held:
            pytest.fail(f"schedule {seed}: {held}")
        granted, most = granted + one.granted, max(most, one.most)
    print(f"{SCHEDULES // PARTS} schedules, {granted} leases granted")
    assert granted > SCHEDULES // PARTS  # they are about something


@pytest.mark.parametrize("seed", [1736, 4599, 7363])
def test_what_long_runs_have_found_stays_mended(seed: int) -> None:
    run(seed)


def _held_twice(most: int) -> bool:
    for seed in range(most):
        try:
            run(seed)
        except Held:
            return True
    return False


def test_the_schedules_find_a_fence_that_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fencing, "fence_seconds", lambda valid: valid / 10)
    assert _held_twice(150)


def test_the_schedules_find_workers_that_outlive_their_validity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schedule, "_workers_look", lambda self: None)
    monkeypatch.setattr(validity.Validity, "over", lambda self: False)
    assert _held_twice(150)


def test_the_schedules_find_a_pool_that_believes_any_agent_about_missing_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stored_servers.fencing, "missing_are_dead", lambda known, new: True)
    assert _held_twice(150)
