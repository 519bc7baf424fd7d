"""Everything on which it depends whether a quota of one's own holds a request back: the next decision notices each change.

Nobody is looked at in turn here, so that what is not noticed shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa

from gpukernel.common.bounds import Account, Bounds
from gpukernel.common.course import Course
from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
from gpukernel.common.slice_request import PROMOTED_AFTER
from gpukernel.pool.domain.quota import HOUR, period_end
from gpukernel.pool.scheduling import own_quotas
from gpukernel.pool.scheduling.making_way import SETTLES
from gpukernel.pool.scheduling.own_quotas import OwnQuotas
from gpukernel.pool.scheduling.pending_request import PendingRequest
from gpukernel.pool.scheduling.pending_requests import ABSENT, PendingRequests
from gpukernel.pool.store import changes, quota_usage, schema
from gpukernel.pool.store.store import Store
from tests.pool.scheduling.test_giving_way import asks as asks_once
from tests.pool.scheduling.test_giving_way import giving_way, granted
from tests.pool.world import GIB, Agent, World, story

COURSES = Course("ml", members={"*": "student"}), Course("phys", members={"*": "student"})
ML, PHYS = Holder("anna", course="ml"), Holder("anna", course="phys")
ONE = {"person:*": Bounds(leases=1)}
HOLDS_ONE = "anna holds 1 of their 1 leases; one more does not fit."


AT_MOST = changes.MOST_AT_ONCE
CALLS: list[AsyncIterator[Queued | Lease]] = []  # that stay open


@pytest.fixture(autouse=True)
def _only_with_a_reason() -> Iterator[None]:
    with mock.patch.object(own_quotas, "IN_TURN", 0):
        yield
    CALLS.clear()


async def asks(*given: Any, **more: Any) -> AsyncIterator[Queued | Lease]:
    CALLS.append(await asks_once(*given, **more))
    given[0].manager.schedule()  # a newcomer is looked at once more
    return CALLS[-1]


async def gets(world: World, key: str, share: float, priority: str = "batch", holder: Holder = ML) -> Lease:
    return await granted(
        world.manager.acquire(key, SliceRequest(share=share, priority=priority), holder, -1, 3600)
    )


def has(world: World, *keys: str) -> bool:
    return {*keys} <= {lease.key for lease in world.manager.leases(False) if lease.state == "live"}


def reason(world: World, key: str) -> str:
    return world.manager._queue.reason(key)


def held(world: World) -> set[str]:
    return set(world.manager._queue._requests.index.held)


async def full(world: World) -> Lease:
    """Let anna hold a slice, wait for another one, and be held back by a quota of her own; return the lease."""
    world.rule(*COURSES, quotas={"person:*": Bounds(leases=1)})
    lease = await gets(world, "a", 0.2, holder=ML)
    await asks(world, "b", 0.3, "batch", ML)
    assert reason(world, "b") == HOLDS_ONE
    assert held(world) == {"b"}
    return lease


def test_the_end_of_a_lease(database: str) -> None:
    async def tell(world: World) -> None:
        lease = await full(world)
        world.manager.end(lease.id, "released")
        assert has(world, "b")

    story(database, tell)


def test_the_end_of_a_lease_in_another_pool(new_postgresql: Callable[[], str]) -> None:
    async def tell(world: World) -> None:
        lease = await full(world)
        Store(url).leases.end(lease.id, "released", world.now)
        world.manager.schedule()
        assert has(world, "b")

    url = new_postgresql()
    story(url, tell)


def test_more_changes_than_the_log_names(database: str) -> None:
    async def tell(world: World) -> None:
        lease = await full(world)
        with mock.patch.object(changes, "MOST_AT_ONCE", 2):
            world.store.leases.end(lease.id, "released", world.now)
            for _ in range(3 if world.store.shared else AT_MOST):
                with world.store.deciding():
                    world.store.changes.lease("told", "of nobody")
            known, everybody = [], OwnQuotas._changed

            def note(self: OwnQuotas, *given: Any) -> set[str]:
                known.append(everybody(self, *given))
                return known[-1]

            with mock.patch.object(OwnQuotas, "_changed", note):
                world.manager.schedule()
            assert known == [{"anna"}]
        assert has(world, "b")

    story(database, tell)


def test_a_lease_that_shrinks(database: str) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, quotas={"student:ml": Bounds(devices=0.5)})
        lease = await gets(world, "a", 0.4, holder=ML)
        await asks(world, "b", 0.3, "batch", ML)
        assert held(world) == {"b"}
        await world.manager.resize(lease.id, SliceRequest(share=0.1))
        world.manager.schedule()
        assert has(world, "b")

    story(database, tell)


def test_a_lease_that_is_new(database: str) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, quotas={"student:ml": Bounds(devices=0.5)})
        await gets(world, "all", 1.0, holder=Holder("ben"))
        await asks(world, "b", 0.3, "batch", ML)
        await asks(world, "c", 0.3, "batch", ML)
        assert not held(world)  # they wait for room, the second one also for what the first will take
        Agent(world.manager, "t").attach()
        world.manager.schedule()
        assert has(world, "b")
        world.manager.schedule()
        assert held(world) == {"c"}
        assert reason(world, "c").startswith(
            "anna, as a student of ml, holds 0.30 of their 0.50 devices; 0.30 more"
        )

    story(database, tell)


def test_a_quota(database: str) -> None:
    async def tell(world: World) -> None:
        await full(world)
        world.rule(*COURSES, quotas={"person:*": Bounds(leases=2)})
        assert has(world, "b")
        await asks(world, "c", 0.1, "batch", ML)
        world.rule(*COURSES, quotas={"person:anna": Bounds(devices=0.5)})
        assert reason(world, "c") == "anna holds 0.50 of their 0.50 devices; 0.10 more does not fit."

    story(database, tell)


def test_the_end_of_a_period(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, quotas={"person:*": Bounds(hours_day=0.1)})
        lease = await gets(world, "a", 0.5, holder=ML)
        world.pass_time(HOUR / 4)
        world.manager.end(lease.id, "released")
        await asks(world, "b", 0.5, "batch", ML)
        ends = period_end("day", world.now)
        assert held(world) == {"b"}
        assert reason(world, "b").startswith(
            "anna has used 0.1 of their 0.1 GPU-hours of this day. They begin again"
        )
        assert world.manager._queue.start("b") == ends
        world.now = ends - 0.5
        world.manager.schedule()
        assert held(world) == {"b"}
        world.now = ends
        world.manager.schedule()
        assert has(world, "b")

    story(tmp_path, tell)


def test_a_term_that_begins(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        quotas = {"person:*": Bounds(hours_term=0.1)}
        world.rule(*COURSES, quotas=quotas)
        lease = await gets(world, "a", 0.5, holder=ML)
        world.pass_time(HOUR / 4)
        world.manager.end(lease.id, "released")
        await asks(world, "b", 0.5, "batch", ML)
        world.rule(*COURSES, quotas=quotas, term_begins=world.now + 100)
        assert "They begin again on" in reason(world, "b")
        world.now += 100
        world.manager.schedule()
        assert has(world, "b")
        world.pass_time(HOUR / 4)
        await asks(world, "c", 0.5, "batch", ML)
        assert held(world) == {"c"}
        world.rule(*COURSES, quotas=quotas, term_begins=world.now)
        assert not held(world)

    story(tmp_path, tell)


def test_hours_that_are_used_up_and_the_figure_that_is_told(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, quotas={"person:*": Bounds(hours_week=0.1)})
        await gets(world, "all", 0.5, holder=ML)
        await asks(world, "b", 0.6, "batch", ML)
        assert reason(world, "b") == ""  # it waits for room
        for seconds, used in ((720.0, "0.1"), (400.0, "0.2"), (720.0, "0.3")):
            world.now += seconds
            world.agent.beat()
            world.manager.schedule()
            assert held(world) == {"b"}
            assert f"anna has used {used} of their 0.1 GPU-hours of this week." in reason(world, "b")

    story(tmp_path, tell)


def test_a_clock_that_is_set_back(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, quotas={"person:*": Bounds(hours_day=0.1)})
        lease = await gets(world, "a", 0.5, holder=ML)
        world.pass_time(HOUR / 4)
        world.manager.end(lease.id, "released")
        await gets(world, "all", 1.0, holder=Holder("ben"))
        before, world.now = world.now, period_end("day", world.now) + 10
        await asks(world, "b", 0.5, "batch", ML)
        assert not held(world)
        world.now = before + 1
        world.manager.schedule()
        assert held(world) == {"b"}

    story(tmp_path, tell)


def server(world: World, name: str, *sizes: int) -> Agent:
    agent = Agent(world.manager, name, devices=len(sizes))
    agent.devices = [
        replace(d, memory_bytes=size * GIB, name=f"GPU of {size}")
        for d, size in zip(agent.devices, sizes, strict=True)
    ]
    agent.attach()
    return agent


def test_a_kind_of_device_that_comes(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, quotas={"person:*": Bounds(devices=0.6)})
        await gets(world, "a", 0.2, holder=ML)
        await asks(world, "b", None, "batch", ML, memory_bytes=16 * GIB)
        assert held(world) == {"b"}
        server(world, "t", 64)
        world.manager.schedule()
        assert has(world, "b")

    story(tmp_path, tell)


def test_a_device_that_comes_to_the_server_that_is_named(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, quotas={"person:*": Bounds(devices=0.6)})
        await gets(world, "a", 0.2, holder=ML)
        server(world, "big", 64)
        server(world, "t", 32)
        await asks(world, "b", None, "batch", ML, memory_bytes=16 * GIB, server="t")
        assert held(world) == {"b"}
        server(world, "t", 32, 64)
        world.manager.schedule()
        assert has(world, "b")

    story(tmp_path, tell)


def test_devices_that_become_too_few(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, quotas={"person:*": Bounds(leases=1)})
        await gets(world, "a", 0.2, holder=ML)
        await asks(world, "b", 0.1, "batch", ML, devices=2)
        assert held(world) == {"b"}
        world.agent.count_anew([0])
        world.agent.attach()
        world.manager.schedule()
        assert reason(world, "b") == ""  # it waits for what is not there

    story(tmp_path, tell, devices=2)


def another_pools(world: World, key: str, share: float, holder: Holder) -> None:
    """Let another pool hold a call, which is not seen any more from now on."""
    with world.store.deciding() as (db, row):
        other = PendingRequests(world.store, "other")
        other.refresh(db, row.queue_version)
        wanted = SliceRequest(share=share, priority="batch")
        request = PendingRequest(
            key,
            wanted,
            holder,
            "student",
            60,
            0.0,
            world.now,
            "other",
            world.manager.steady(),
            round(share * 1e6),
            row.ticket + 1,
        )
        other.put(db, request)
    world.manager._queue._requests.forget()
    world.manager.schedule()


def test_a_call_that_nobody_holds_any_more(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, quotas={"person:*": Bounds(devices=0.5)})
        await gets(world, "a", 0.2, holder=ML)
        another_pools(world, "large", 0.4, ML)
        await asks(world, "b", 0.3, "batch", ML)
        assert held(world) == {"large", "b"}
        assert (
            reason(world, "b")
            == "anna holds 0.20 of their 0.50 devices; a request ahead of this one waits for more."
        )
        world.now += ABSENT + 1
        world.agent.beat()
        world.manager.schedule()
        assert has(world, "b")
        assert reason(world, "large") == ""

    story(tmp_path, tell)


def test_a_request_ahead_that_is_given_up_or_made_smaller(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, quotas={"person:*": Bounds(devices=0.5)})
        await gets(world, "a", 0.2, holder=ML)
        large = await asks(world, "large", 0.4, "batch", ML)
        await asks(world, "also", 0.4, "batch", ML)
        await asks(world, "b", 0.3, "batch", PHYS)  # of another course: the quota is the same
        assert held(world) == {"large", "also", "b"}
        await large.aclose()  # type: ignore[attr-defined]
        world.manager.schedule()
        assert held(world) == {"also", "b"}
        wanted = SliceRequest(share=0.02, priority="batch")
        again = asyncio.ensure_future(anext(world.manager.acquire("also", wanted, ML, -1, 3600)))
        while not again.done():
            await asyncio.sleep(0)
        world.manager.schedule()
        assert has(world, "b")  # its course holds less

    story(tmp_path, tell)


def test_a_request_for_which_others_give_way(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, least_run=0.0)
        await gets(world, "a", 0.2, "interactive", holder=ML)
        batch = await gets(world, "batch", 0.8, holder=Holder("ben"))
        await asks(world, "b", 0.5, "interactive", ML)
        world.pass_time(SETTLES)
        assert giving_way(world) == {batch.key}
        world.rule(*COURSES, quotas=ONE, least_run=0.0)
        assert not giving_way(world)  # the request cannot use it
        world.manager.schedule()
        assert held(world) == {"b"}

    story(tmp_path, tell)


def test_a_batch_request_that_has_waited_long(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, quotas={"person:anna": Bounds(devices=0.5)})
        await gets(world, "a", 0.2, holder=ML)
        await gets(world, "ben's", 0.7, holder=Holder("ben"))
        await asks(world, "b", 0.3, "batch", ML)
        await asks(world, "large", 0.4, "interactive", ML)
        assert held(world) == {"large", "b"}
        world.now += PROMOTED_AFTER["batch"]
        world.agent.beat()
        world.manager.schedule()
        assert held(world) == {"large"}  # the older one is ahead now, and waits for room

    story(tmp_path, tell)


def test_a_database_that_has_gone_back(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        await full(world)
        with world.store.engine.begin() as db:  # as a copy that took its place may be
            db.execute(schema.quota_usage.update().values(leases_held=0, share_held=0, memory_held=0))
        world.manager.schedule()
        assert not has(world, "b")
        for forget in world.store.on_renewed:
            forget()
        world.manager.schedule()
        assert has(world, "b")

    story(tmp_path, tell)


def test_commits_of_another_pool_that_are_lost(new_postgresql: Callable[[], str]) -> None:
    async def tell(world: World) -> None:
        lease, other = await full(world), Store(url)
        for _ in range(3):
            with other.deciding():
                other.changes.lease("told", lease.id)
        world.manager.schedule()
        with world.store.engine.begin() as db:  # as PostgreSQL's crash may leave it: the numbers come again
            newest = db.execute(sa.select(sa.func.max(schema.changes.c.number))).scalar_one()
            db.execute(schema.changes.delete().where(schema.changes.c.number > newest - 3))
        for forget in world.store.on_renewed:
            forget()
        world.manager.schedule()
        assert held(world) == {"b"}
        other.leases.end(lease.id, "released", world.now)
        world.manager.schedule()
        assert has(world, "b")

    url = new_postgresql()
    story(url, tell)


def test_a_statement_that_fails_when_the_log_was_read(database: str) -> None:
    async def tell(world: World) -> None:
        lease = await full(world)
        world.store.leases.end(lease.id, "released", world.now)
        with (
            mock.patch.object(own_quotas, "PEOPLE_OF", mock.Mock(**{"rows.side_effect": TimeoutError})),
            pytest.raises(TimeoutError),
        ):
            world.manager.schedule()
        world.manager.schedule()
        assert has(world, "b")

    story(database, tell)


def test_a_decision_that_is_taken_back(database: str) -> None:
    async def tell(world: World) -> None:
        lease = await full(world)
        world.store.leases.end(lease.id, "released", world.now)

        def refuse(*_: object) -> None:
            raise Refused("full", "no")

        with pytest.raises(Refused):
            world.manager._queue.run_cycle(world.now, world.manager.waiters.keys(), then=refuse)
        world.manager.schedule()
        assert has(world, "b")

    story(database, tell)


def test_what_nobody_has_noticed_is_seen_in_turn(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        await full(world)
        people = [f"p{i}" for i in range(6)]
        for person in people:
            await gets(world, f"of {person}", 0.02, holder=Holder(person))
            await asks(world, f"more for {person}", 0.02, "batch", Holder(person))
        with world.store.engine.begin() as db:
            db.execute(
                schema.quota_usage.update().where(schema.quota_usage.c.person == "p3").values(leases_held=0)
            )
        world.manager.schedule()
        assert not has(world, "more for p3")
        with mock.patch.object(own_quotas, "IN_TURN", 2):
            for _ in range(4):  # seven people
                world.manager.schedule()
        assert has(world, "more for p3")

    story(tmp_path, tell)


def test_one_person_s_changes_have_nobody_else_looked_at(database: str) -> None:
    async def tell(world: World) -> None:
        await full(world)
        for i in range(8):
            await gets(world, f"of {i}", 0.02, holder=Holder(f"p{i}"))
            await asks(world, f"more for {i}", 0.02, "batch", Holder(f"p{i}"))
            looked, look = list[str](), OwnQuotas._look_at

        def note(self: OwnQuotas, policy: Any, kinds: Any, places: Any, requests: Any, known: Any) -> None:
            looked.extend(one.holder.person for one in requests)
            look(self, policy, kinds, places, requests, known)

        with mock.patch.object(OwnQuotas, "_look_at", note):
            for number in range(3):
                call = await asks(world, f"k{number}", 0.1, "batch", ML)
                await call.aclose()  # type: ignore[attr-defined]
            lease = next(one for one in world.manager.leases(False) if one.key == "a")
            world.manager.end(lease.id, "released")
        assert {*looked} == {"anna"}
        assert len(looked) <= 2 * 8  # one or two requests in each decision

    story(database, tell)


def test_a_lease_does_not_grow_past_its_person_s_request(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, quotas={"person:*": Bounds(devices=0.5)})
        lease = await gets(world, "a", 0.2, holder=ML)
        await asks(world, "b", 0.4, "batch", PHYS)
        assert held(world) == {"b"}
        with pytest.raises(Refused, match=r"Others wait already: anna holds 0\.20 of their 0.50 devices"):
            await world.manager.resize(lease.id, SliceRequest(share=0.3))

    story(tmp_path, tell)


def test_places_are_the_same_one_by_one_and_at_once(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, quotas=ONE | {"person:ben": Bounds(leases=50)})
        await gets(world, "all", 0.5, holder=Holder("ben"))
        for i in range(20):
            await gets(world, f"of {i}", 0.02, holder=Holder(f"p{i}"))
        for i in range(20):
            course = ("ml", "phys")[i % 3 // 2]
            await asks(world, f"more for {i}", 0.02, "batch", Holder(f"p{i}", course=("ml", "phys")[i % 2]))
            await asks(world, f"large {i}", 0.9, "batch", Holder("ben", course=course))
        queue = world.manager._queue
        assert len(held(world)) == 20
        order = [one.key for one in queue.order()]
        assert len(order) == 40
        assert [queue.place(key) for key in order[:20]] == list(range(1, 21))  # one by one
        assert [queue.place(key) for key in order] == list(range(1, 41))  # at once
        queue.give_up(order.pop(3))
        assert [queue.place(key) for key in order] == list(range(1, 40))

    story(tmp_path, tell)


def test_the_books_know_who_changed(database: str) -> None:
    """Every change of the books of people is named by the change log in the same transaction."""

    async def tell(world: World) -> None:
        lease = await full(world)
        with world.store.deciding() as (db, row):
            number = world.store.changes.newest(db)
            assert world.store.changes.leases_after(db, number) == (number, frozenset())
        world.manager.end(lease.id, "released")
        with world.store.deciding() as (db, row):
            newest, found = world.store.changes.leases_after(db, number)
            assert newest > number
            assert found is not None
            assert lease.id in found
            policy = world.store.policy.current(db, row.policy_version)
            levels = quota_usage.standings(db, policy, [Account("person", person="anna")], {}, world.now)
            assert [one.leases for one in levels.values()] == [1]  # "b" has it
            world.store.changes.lease("told", "another")
            assert world.store.changes.leases_after(db, newest) == (newest, frozenset({"another"}))
            world.store.changes.everything()
            assert world.store.changes.leases_after(db, newest) == (newest, None)

    story(database, tell)
