"""A small teaching day of `benchmarks.scale`, on the pool's own code, with the books checked at every sample."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.scale.figures import jain
from benchmarks.scale.pool_day import DayRecord, run_pool_day
from benchmarks.scale.teaching_day import VARIANTS, DayPlan, Failure, plan_day
from benchmarks.scale.virtual_time import VirtualLoop
from gpukernel.common.policy import Policy
from gpukernel.pool.store.store import Store
from tests.pool.books import check_books

GPUS, STUDENTS = 20, 100


def small_day() -> DayPlan:
    return plan_day(3, 0, GPUS, STUDENTS, (Failure(1, 10.4 * 3600, 1800.0),))


def run(place: Path, variant: str) -> DayRecord:
    most_of = {course.name: DayPlan.most_leases(course) for course in small_day().courses}

    def check(store: Store, living: Mapping[tuple[str, str], int], policy: Policy) -> None:
        check_books(store, living, policy)
        held: dict[str, int] = {}
        for lease in store.leases.all(include_ended=False):
            if lease.state in ("starting", "live"):
                held[lease.holder.course] = held.get(lease.holder.course, 0) + 1
        if variant != "fifo":
            assert all(count <= most_of[course] for course, count in held.items())

    return run_pool_day(place, small_day(), variant, 1, check)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_no_byte_twice_no_quota_passed_and_each_request_ends(tmp_path: Path, variant: str) -> None:
    record = run(tmp_path, variant)
    assert record.checks == len(record.samples) > 100
    assert not record.left_over
    assert len(record.requests) >= len(small_day().visits)
    for one in record.requests:
        # Who has no slice waited until the end; who has one had it while they were there.
        if one.granted is not None:
            assert one.asked <= one.granted <= one.over <= one.leaves
    assert any(one.lost for one in record.requests), "the failure of a server touched nobody"
    assert max(one.promised for one in record.samples) <= GPUS
    assert min(one.devices for one in record.samples) == GPUS - 8
    if variant == "whole":
        assert any(one.granted is None for one in record.requests), "nothing was short"


def test_plain_fifo_serves_in_the_order_of_asking(tmp_path: Path) -> None:
    plan = plan_day(3, 0, GPUS, STUDENTS)
    record = run_pool_day(tmp_path, plan, "fifo", 1)
    by_size: dict[float, list[tuple[float, float]]] = {}
    for one in record.requests:
        if one.granted is not None:
            by_size.setdefault(plan.needs[one.course], []).append((one.asked, one.granted))
    for granted in by_size.values():
        # A start takes one to four seconds, so two that were granted at once may be there in either order.
        last = 0.0
        for _, at in sorted(granted):
            assert at > last - 4
            last = max(last, at)


def test_virtual_time_passes_without_waiting_and_never_hangs() -> None:
    loop = VirtualLoop()

    async def day() -> float:
        await asyncio.gather(*(asyncio.sleep(seconds) for seconds in (5, 86_400)))
        return loop.time()

    assert loop.run_until_complete(day()) == pytest.approx(86_400)
    with pytest.raises(RuntimeError, match="somebody waits"):
        loop.run_until_complete(asyncio.Event().wait())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.close()


def test_jains_index_is_one_where_all_are_equal() -> None:
    assert jain([3, 3, 3]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([]) == 1
