"""Grants that the database refuses since the books disagree: nobody but the request that is refused is held up, and it is tried again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa

from gpukernel.common.bounds import Bounds
from gpukernel.common.course import Course
from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, SliceRequest
from gpukernel.pool.domain.refused_grants import FIRST_SECONDS, MOST_SECONDS, RefusedGrants
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.scheduling import cycle_end
from gpukernel.pool.scheduling.making_way import SETTLES
from gpukernel.pool.store import leases as leases_module
from gpukernel.pool.store.database import Conflict
from gpukernel.pool.store.leases import Leases
from gpukernel.pool.store.store import Store
from tests.pool.books import check_books
from tests.pool.scheduling.test_giving_way import alive, giving_way
from tests.pool.scheduling.test_own_quotas import CALLS, asks, gets, has, reason
from tests.pool.world import World, story

ANNA, BEN, CARL, ZOE = (Holder(name, course="ml") for name in ("anna", "ben", "carl", "zoe"))
ML = Course("ml", members={"*": "student"})
WRONG = "UPDATE quota_usage SET share_ceiling = share_held WHERE kind = 'person' AND person = 'anna'"
RIGHT = "UPDATE quota_usage SET share_ceiling = NULL WHERE kind = 'person' AND person = 'anna'"
SENTENCE = (
    "The pool found room, but its database refused this slice (share_within_quota); it is tried again by itself. "
    "Tell the pool's administrator."
)


@pytest.fixture(autouse=True)
def _calls_end() -> Iterator[None]:
    yield
    CALLS.clear()


def write(world: World, statement: str) -> None:
    """Change a row behind the pool's back."""
    with world.store.deciding() as (db, _):
        db.execute(sa.text(statement))


def books(world: World) -> None:
    agent = world.agent
    check_books(world.store, {worker: agent.caps[worker] for worker in agent.alive})


@contextmanager
def tries() -> Iterator[list[str]]:
    """The keys of grants that are tried."""
    found: list[str] = []
    grant = Leases.grant

    def noted(self: Leases, db: Any, policy: Any, key: str, *rest: Any, **more: Any) -> Any:
        found.append(key)
        return grant(self, db, policy, key, *rest, **more)

    with mock.patch.object(Leases, "grant", noted):
        yield found


async def one_is_refused(world: World) -> None:
    """Let the database have a wrong ceiling for anna, who is first in the queue; then there is room."""
    world.rule(ML)
    await gets(world, "hers", 0.1, holder=ANNA)
    full = await gets(world, "all", 0.9, holder=BEN)
    await asks(world, "bad", 0.3, "batch", ANNA)
    await asks(world, "c", 0.3, "batch", CARL)
    await asks(world, "z", 0.3, "batch", ZOE)
    write(world, WRONG)
    world.manager.end(full.id, "released")
    world.manager.schedule()


def test_the_others_are_served(database: str, caplog: pytest.LogCaptureFixture) -> None:
    async def tell(world: World) -> None:
        await one_is_refused(world)
        assert has(world, "c", "z")
        assert [one.key for one in world.manager.waiting()] == ["bad"]
        books(world)

    with caplog.at_level(logging.WARNING):
        story(database, tell)
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("gpukernel")]
    assert line == (
        "the database refused a lease for request bad of anna for course ml (share_within_quota): "
        "it is tried again in 1 s, and others are served meanwhile"
    )


def test_who_was_refused_is_told(database: str) -> None:
    async def tell(world: World) -> None:
        await one_is_refused(world)
        assert reason(world, "bad") == SENTENCE
        (waiting,) = world.manager.waiting()
        assert waiting.reason == SENTENCE
        queued = await anext(CALLS[0])
        assert str(queued.reason) == f"{SENTENCE} Waiting: 1; position 1 in the queue."  # type: ignore[union-attr]
        with pytest.raises(Refused) as refused:
            await anext(world.ask("another", 0.1, wait=0, holder=ANNA))
        assert refused.value.code == "failed"

    story(database, tell)


def test_it_is_tried_again_later_each_time(database: str) -> None:
    async def tell(world: World) -> None:
        with tries() as tried:
            await one_is_refused(world)
            wait = FIRST_SECONDS
            for _ in range(12):
                tried.clear()
                for _ in range(3):
                    world.manager.schedule()
                world.now += wait - 0.1
                world.manager.schedule()
                assert not tried
                world.now += 0.1
                world.manager.schedule()
                assert tried == ["bad"]  # once: nothing was taken back for it
                wait = min(2 * wait, MOST_SECONDS)
        assert wait == MOST_SECONDS

    story(database, tell)


def test_it_has_its_lease_once_the_books_agree(database: str) -> None:
    async def tell(world: World) -> None:
        await one_is_refused(world)
        write(world, RIGHT)
        world.manager.schedule()
        assert not has(world, "bad")
        world.now += FIRST_SECONDS
        world.manager.schedule()
        assert has(world, "bad")
        books(world)

    story(database, tell)


def test_a_change_of_quotas_brings_the_next_try_at_once(database: str) -> None:
    async def tell(world: World) -> None:
        await one_is_refused(world)
        world.rule(ML, quotas={"person:*": Bounds(leases=9)})  # all ceilings are written anew
        assert has(world, "bad")

    story(database, tell)


def test_the_sentence_goes_once_it_waits_for_something_else(database: str) -> None:
    async def tell(world: World) -> None:
        await one_is_refused(world)
        await gets(world, "more", 0.2, holder=BEN)
        write(world, RIGHT)
        world.now += FIRST_SECONDS
        world.manager.schedule()
        assert reason(world, "bad") == ""
        assert not has(world, "bad")

    story(database, tell)


def test_the_sentence_goes_once_a_quota_holds_it_back(database: str) -> None:
    async def tell(world: World) -> None:
        await one_is_refused(world)
        world.rule(ML, quotas={"person:anna": Bounds(devices=0.35)})
        assert not has(world, "bad")
        assert reason(world, "bad") == "anna holds 0.10 of their 0.35 devices; 0.30 more does not fit."

    story(database, tell)


def test_the_sentence_goes_once_it_waits_behind_others(database: str) -> None:
    async def tell(world: World) -> None:
        await one_is_refused(world)
        write(world, RIGHT)
        await asks(world, "first", 0.65, "interactive", BEN)
        await asks(world, "second", 0.65, "interactive", ZOE)
        world.now += FIRST_SECONDS
        world.manager.schedule()
        assert not has(world, "bad")
        assert reason(world, "bad") == ""
        assert world.manager._positions.refusal_code("bad") == "full"

    story(database, tell)


def test_a_newcomer_waits(database: str) -> None:
    async def tell(world: World) -> None:
        world.rule(ML)
        await gets(world, "hers", 0.1, holder=ANNA)
        write(world, WRONG)
        await asks(world, "bad", 0.3, "batch", ANNA)
        assert reason(world, "bad") == SENTENCE
        await gets(world, "b", 0.3, holder=BEN)
        write(world, RIGHT)
        await asks_anew(world, "bad", 0.2)  # with the same key, but for something else
        assert has(world, "bad")

    story(database, tell)


async def asks_anew(world: World, key: str, share: float) -> None:
    wanted = SliceRequest(share=share, priority="batch")
    events = world.manager.acquire(key, wanted, ANNA, -1, 3600)
    CALLS.append(events)
    await anext(events)


def test_who_calls_again_is_not_tried_sooner(database: str) -> None:
    async def tell(world: World) -> None:
        await one_is_refused(world)
        with tries() as tried:
            await asks(world, "bad", 0.3, "batch", ANNA)
        assert not tried
        assert reason(world, "bad") == SENTENCE

    story(database, tell)


def test_nobody_gives_way_for_who_is_refused(database: str) -> None:
    async def tell(world: World) -> None:
        world.rule(ML, notice=8.0, least_run=5.0)
        held = await gets(world, "hers", 0.1, holder=ANNA)
        batch = await gets(world, "batch", 0.5, holder=BEN)
        other = await gets(world, "other", 0.4, holder=CARL)
        alive(world, held, batch, other, seconds=6)
        await asks(world, "bad", 0.3, "interactive", ANNA)
        alive(world, held, batch, other, seconds=SETTLES + 1)
        assert giving_way(world) == {"other"} or giving_way(world) == {"batch"}
        write(world, WRONG)
        free = other if giving_way(world) == {"batch"} else batch
        world.manager.end(free.id, "released")
        world.manager.schedule()
        assert reason(world, "bad") == SENTENCE
        assert not giving_way(world)
        (request,) = world.manager._queue.order()
        assert not request.claims
        books(world)

    story(database, tell)


def test_many_are_refused_in_one_decision(database: str) -> None:
    async def tell(world: World) -> None:
        world.rule(ML)
        await gets(world, "hers", 0.1, holder=ANNA)
        full = await gets(world, "all", 0.9, holder=BEN)
        for i in range(6):
            await asks(world, f"bad {i}", 0.1, "batch", ANNA)
            await asks(world, f"good {i}", 0.1, "batch", Holder(f"p{i}", course="ml"))
        write(world, WRONG)
        with tries() as tried:
            world.manager.end(full.id, "released")
            world.manager.schedule()
        assert has(world, *(f"good {i}" for i in range(6)))
        assert [one.key for one in world.manager.waiting()] == [f"bad {i}" for i in range(6)]
        assert len(tried) == 1 + 12  # the decision was made twice, not once for each of them
        books(world)

    story(database, tell)


def test_what_was_refused_is_no_grant_in_the_count_of_all(database: str) -> None:
    async def tell(world: World) -> None:
        await one_is_refused(world)
        assert has(world, "c", "z")
        with world.store.reader.connect() as db:
            granted, epoch = db.execute(
                sa.text("SELECT (SELECT count(*) FROM leases), epoch FROM ledger")
            ).one()
        assert (granted, epoch) == (4, 4)

    story(database, tell)


def test_so_many_refusals_end_a_decision(database: str) -> None:
    async def tell(world: World) -> None:
        world.rule(ML)
        await gets(world, "hers", 0.1, holder=ANNA)
        full = await gets(world, "all", 0.9, holder=BEN)
        for i in range(5):
            await asks(world, f"bad {i}", 0.1, "batch", ANNA)
        await asks(world, "good", 0.1, "batch", ZOE)
        write(world, WRONG)
        with mock.patch.object(cycle_end, "DEPTH", 3), tries() as tried:
            world.manager.end(full.id, "released")
            assert tried == ["bad 0", "bad 0", "bad 1", "bad 2"]
            world.manager.schedule()
        assert tried[4:] == ["bad 3", "bad 3", "bad 4", "good"]
        assert has(world, "good")

    story(database, tell)


def test_a_refusal_that_does_not_come_again_costs_one_more_decision(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def tell(world: World) -> None:
        world.rule(ML)
        full = await gets(world, "all", 1.0, holder=BEN)
        await asks(world, "a", 0.3, "batch", ANNA)
        await asks(world, "z", 0.3, "batch", ZOE)
        refuses = iter([True])
        with refusing(lambda key: key == "z" and next(refuses, False)), tries() as tried:
            world.manager.end(full.id, "released")
            world.manager.schedule()
        assert has(world, "a", "z")
        assert tried == ["a", "z", "a", "z"]
        books(world)

    story(database, tell)
    assert not caplog.records


@contextmanager
def refusing(refuses: Callable[[str], bool]) -> Iterator[None]:
    """Have the database refuse the grants of some keys, at the end of all that a grant writes."""
    first_span = leases_module.first_span

    def then_refuse(db: sa.Connection, lease_id: str, *rest: Any) -> None:
        first_span(db, lease_id, *rest)
        key = db.execute(sa.text("SELECT key FROM leases WHERE id = :id"), {"id": lease_id}).scalar_one()
        if refuses(key):
            db.execute(sa.text("UPDATE ledger SET id = 2"))

    with mock.patch.object(leases_module, "first_span", then_refuse):
        yield


def test_decisions_have_no_savepoints_where_nothing_was_refused(database: str) -> None:
    async def tell(world: World) -> None:
        found: list[str] = []
        sa.event.listen(world.store.engine, "savepoint", lambda _, name: found.append(name))
        world.rule(ML)
        await gets(world, "a", 0.5, holder=ANNA)
        assert not found
        with refusing(lambda key: key == "b"):
            await asks(world, "b", 0.2, "batch", BEN)
        assert len(found) == 1

    story(database, tell)


def test_a_resize_goes_on_beside_who_is_refused(database: str) -> None:
    async def tell(world: World) -> None:
        world.rule(ML)
        mine = await gets(world, "c", 0.2, holder=CARL)
        with refusing(lambda key: key == "b"):
            await asks(world, "b", 0.2, "batch", BEN)
            world.now += FIRST_SECONDS
            grown = await world.manager.resize(mine.id, SliceRequest(share=0.3))
        assert grown is not None
        assert grown.slices[0].weight == pytest.approx(0.3, abs=1e-3)
        books(world)

    story(database, tell)


def test_another_pool_serves_the_others_too(new_postgresql: Callable[[], str]) -> None:
    address = new_postgresql()

    async def tell(world: World) -> None:
        store = Store(address)
        other = LeaseManager(store, lambda: world.now)  # one that starts later puts the ceiling right
        await one_is_refused(world)
        with tries() as tried:
            other.schedule()
            other.schedule()
        assert tried == ["bad", "bad"]  # the second one in the decision that is made again
        assert other._queue.reason("bad") == SENTENCE
        write(world, RIGHT)
        world.now += FIRST_SECONDS
        world.manager.schedule()
        assert has(world, "bad")
        books(world)
        store.close()

    story(address, tell)


def test_the_secret_of_a_lease_is_not_in_the_error(new_postgresql: Callable[[], str]) -> None:
    async def tell(world: World) -> None:
        policy, grant = world.store.policy.current(), world.store.leases.grant
        with pytest.raises(Conflict) as conflict, world.store.deciding() as (db, _):
            grant(db, policy, "k", ANNA, "", [], 60, 0, world.now, world.now, priority="unknown")
        assert conflict.value.constraint == "known_priority"
        assert "Failing row" not in str(conflict.value)

    story(new_postgresql(), tell)


def test_who_waits_no_more_is_forgotten() -> None:
    world_policy: Any = object()
    refused = RefusedGrants[Any]()
    request = mock.Mock(key="k", wanted=SliceRequest(share=0.1), holder=ANNA)
    refused.refuse(request, "some", world_policy, 100.0)
    assert refused.passed_over({"k": request}, world_policy, 100.5) == {"k"}
    assert "k" in refused
    assert refused.passed_over({}, world_policy, 100.6) == set()
    assert "k" not in refused
