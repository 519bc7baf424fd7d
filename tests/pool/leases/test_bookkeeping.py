"""Books that a fault has left wrong are put right, and that is said, when a pool starts: on SQLite and PostgreSQL."""

from __future__ import annotations

import logging
from collections.abc import Callable
from unittest import mock

import pytest
import sqlalchemy as sa

from gpukernel.common.bounds import Account, Bounds
from gpukernel.common.course import Course
from gpukernel.common.model import Holder
from gpukernel.pool.domain.placement import MIB
from gpukernel.pool.leases import bookkeeping
from gpukernel.pool.leases.bookkeeping import heal_books
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.scheduling import own_quotas
from gpukernel.pool.store import quota_usage
from gpukernel.pool.store.store import Store
from tests.pool.books import check_books, rows
from tests.pool.scheduling.test_own_quotas import CALLS, asks, gets, held
from tests.pool.store.test_ceilings import grant
from tests.pool.store.test_device_reports import A, device, report
from tests.pool.world import START, World, story

GIB = 2**30
ML = Course("ml", members={"*": "student"})
ANNA, BEN = Holder("anna", course="ml"), Holder("ben", course="ml")
QUOTAS = {
    "student:ml": Bounds(devices=0.5),
    "course:ml": Bounds(leases=5),
    "person:*": Bounds(interactive=0.7),
}
MEMBER = "kind = 'member' AND person = 'anna'"


def write(world: World, statement: str) -> None:
    with world.store.deciding() as (db, _):
        db.execute(sa.text(statement))


def books(world: World) -> None:
    agent = world.agent
    check_books(world.store, {worker: agent.caps[worker] for worker in agent.alive})


def restart(world: World) -> None:
    """Have another process begin where this one stops, which lets go of the agent."""
    world.agent.attachment = None
    world.manager = LeaseManager(world.store, lambda: world.now)
    world.agent.manager = world.manager
    world.agent.attach()


async def some_leases(world: World) -> None:
    world.rule(ML, quotas=QUOTAS)
    await gets(world, "a", 0.25, "interactive", ANNA)
    await gets(world, "b", 0.25, "batch", BEN)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("share_ceiling = share_held", "share_ceiling was 250000 and is 500000"),
        ("share_ceiling = NULL", "share_ceiling was None and is 500000"),
        ("memory_ceiling = memory_held", "memory_ceiling was 8589934592 and is None"),
        ("leases_held = 3", "leases_held was 3 and is 1"),
        (
            "share_held = 0, interactive_held = 100000",
            "share_held was 0 and is 250000, interactive_held was 100000 and is 250000",
        ),
    ],
)
def test_a_wrong_row(database: str, caplog: pytest.LogCaptureFixture, wrong: str, said: str) -> None:
    async def tell(world: World) -> None:
        await some_leases(world)
        (before,) = rows(world.store, "quota_usage")
        write(world, f"UPDATE quota_usage SET {wrong} WHERE {MEMBER}")
        restart(world)
        assert sorted(rows(world.store, "quota_usage")[0]) == sorted(before)
        books(world)

    with caplog.at_level(logging.WARNING):
        story(database, tell)
    lines = [record.getMessage() for record in caplog.records if record.name == bookkeeping.__name__]
    assert lines == [f"the books were wrong, which is a fault of the pool: member ml anna: {said}"]


def test_a_ceiling_that_refused_everything_is_healed_for_those_who_wait(database: str) -> None:
    async def tell(world: World) -> None:
        await some_leases(world)
        write(world, f"UPDATE quota_usage SET share_ceiling = share_held WHERE {MEMBER}")
        await asks(world, "more", 0.2, "batch", ANNA)
        restart(world)
        world.manager.schedule()
        assert {lease.key for lease in world.manager.leases(False)} >= {"a", "b", "more"}
        books(world)

    story(database, tell)
    CALLS.clear()


def test_a_row_that_is_missing(database: str, caplog: pytest.LogCaptureFixture) -> None:
    async def tell(world: World) -> None:
        await some_leases(world)
        write(world, f"DELETE FROM quota_usage WHERE {MEMBER}")
        restart(world)
        books(world)

    story(database, tell)
    assert "member ml anna: share_held was 0 and is 250000" in caplog.text


def test_hours_that_were_counted_stay(database: str) -> None:
    async def tell(world: World) -> None:
        await some_leases(world)
        world.now += 100
        write(world, f"UPDATE quota_usage SET leases_held = 2 WHERE {MEMBER}")
        restart(world)
        world.now += 100
        (usage,) = rows(world.store, "quota_usage")
        (mine,) = [row for row in usage if (row.kind, row.person) == ("member", "anna")]
        assert mine.spent_day == pytest.approx(25.0)
        assert mine.settled == START + 100

    story(database, tell)


def test_a_lowered_quota_is_no_wrong_ceiling(database: str, caplog: pytest.LogCaptureFixture) -> None:
    async def tell(world: World) -> None:
        await some_leases(world)
        world.rule(ML, quotas={"student:ml": Bounds(devices=0.1), "course:ml": Bounds(leases=1)})
        (before,) = rows(world.store, "quota_usage")
        with mock.patch.object(quota_usage, "heal") as heal:
            restart(world)
        assert not heal.called  # nothing was locked either
        assert sorted(rows(world.store, "quota_usage")[0]) == sorted(before)

    story(database, tell)
    assert "wrong" not in caplog.text


def test_what_is_promised_of_a_device(database: str, caplog: pytest.LogCaptureFixture) -> None:
    async def tell(world: World) -> None:
        await some_leases(world)
        write(world, f"UPDATE devices SET promised_bytes = {17 * GIB}")
        restart(world)
        books(world)

    story(database, tell)
    assert f"device s/0: promised_bytes was {17 * GIB} and is {16 * GIB}" in caplog.text


def test_what_there_is_not_stays_wrong(database: str, caplog: pytest.LogCaptureFixture) -> None:
    async def tell(world: World) -> None:
        await some_leases(world)
        write(world, f"UPDATE slices SET memory_bytes = {30 * GIB}")
        restart(world)
        (found,) = world.manager.devices()
        assert found.promised_bytes == 16 * GIB

    story(database, tell)
    assert (
        f"promised_bytes is {16 * GIB}, its slices have {60 * GIB}, and there are {32 * GIB}" in caplog.text
    )


def test_what_a_ceiling_has_lent(database: str, caplog: pytest.LogCaptureFixture) -> None:
    store = Store(database)
    store.clock.start()
    report(store, [device(0, A)])
    store.deciders.delegate("s/0", "slurm", "root", 1000.0)
    pod = grant(store, "pod", GIB, ceiling=True)
    one = grant(store, "one", 100 * MIB, within=pod)
    assert heal_books(store, 1000.0) == 0
    with store.deciding() as (db, _):
        assert db.execute(sa.text("SELECT max(leases_held) FROM quota_usage")).scalar() == 1
    store.leases.end(one, "over", 1000.0)
    assert heal_books(store, 1000.0) == 0
    with store.deciding() as (db, _):
        db.execute(sa.text("UPDATE slices SET lent_bytes = 0 WHERE reserve_bytes > 0"))
    assert heal_books(store, 1000.0) == 1
    assert f"lease {pod} on s/{A}: lent_bytes was 0 and is {100 * MIB}" in caplog.text
    assert heal_books(store, 1000.0) == 0
    store.close()


def test_what_another_pool_changes_meanwhile_is_not_wrong(
    new_postgresql: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    """The look without the lock sees the totals of before a grant, and the leases of after it."""

    async def tell(world: World) -> None:
        await some_leases(world)
        other = Store(address)
        early = quota_usage.WrongTotals(Account("pool"), {"leases_held": 1}, {"leases_held": 2})
        with mock.patch.object(quota_usage, "wrong_totals", side_effect=[[early], []]) as look:
            assert heal_books(other, world.now) == 0
        assert look.call_count == 2
        books(world)
        other.close()

    address = new_postgresql()
    story(address, tell)
    assert "wrong" not in caplog.text


def test_other_pools_look_again_at_whom_a_wrong_total_held_back(new_postgresql: Callable[[], str]) -> None:
    address = new_postgresql()

    async def tell(world: World) -> None:
        await some_leases(world)
        wrong = f"UPDATE quota_usage SET share_held = 450000, share_ceiling = 500000 WHERE {MEMBER}"
        write(world, wrong)
        await asks(world, "more", 0.2, "batch", ANNA)
        assert held(world) == {"more"}
        another = Store(address)
        with mock.patch.object(own_quotas, "IN_TURN", 0):  # nobody is looked at without a reason
            LeaseManager(another, lambda: world.now)
            world.manager.schedule()
        assert {lease.key for lease in world.manager.leases(False)} == {"a", "b", "more"}
        another.close()

    story(address, tell)
    CALLS.clear()
