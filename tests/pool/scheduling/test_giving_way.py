"""Leases of later classes that give way to interactive requests: who does, when, for whom, and that nobody does in vain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpukernel.common.bounds import Bounds
from gpukernel.common.course import Course
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
from gpukernel.common.policy import LEAST_RUN, NOTICE
from gpukernel.common.reservations import Reservation
from gpukernel.common.slice_request import PROMOTED_AFTER
from gpukernel.pool.scheduling.making_way import PATIENCE, SETTLES
from gpukernel.pool.store.policy import write_policy
from tests.pool.books import check_books, rows
from tests.pool.world import World, story

ANNA, BEN, CARL = Holder("anna"), Holder("ben"), Holder("carl")


async def asks(
    world: World,
    key: str,
    share: float = 1.0,
    priority: str = "interactive",
    holder: Holder = ANNA,
    **more: int,
) -> AsyncIterator[Queued | Lease]:
    """Ask for a slice that is not there yet, in a call that stays open."""
    wanted = SliceRequest(share=share, priority=priority, **more)  # type: ignore[arg-type]
    events = world.manager.acquire(key, wanted, holder, -1, 3600)
    assert isinstance(await anext(events), Queued)
    return events


async def gets(
    world: World,
    key: str,
    share: float = 1.0,
    priority: str = "batch",
    holder: Holder = BEN,
    longest: float = 0,
) -> Lease:
    events = world.manager.acquire(
        key, SliceRequest(share=share, priority=priority), holder, -1, 3600, longest
    )
    async for event in events:
        if isinstance(event, Lease):
            return event
    raise AssertionError


async def granted(events: AsyncIterator[Queued | Lease]) -> Lease:
    async with asyncio.timeout(5):
        async for event in events:
            if isinstance(event, Lease):
                return event
    raise AssertionError


def lease(world: World, which: Lease) -> Lease:
    found = world.manager.lease(which.id)
    assert found is not None
    return found


def giving_way(world: World) -> set[str]:
    """The keys of leases that were told to give way and have not ended."""
    return {one.key for one in world.manager.leases(False) if one.gives_way and one.state == "live"}


def alive(world: World, *leases: Lease, seconds: float) -> None:
    """Let time pass; the holders of these leases live."""
    end = world.now + seconds
    while world.now < end:
        for one in leases:
            world.manager.renew(one.id)
        world.pass_time(min(end - world.now, 1800))


def books(world: World) -> None:
    agent = world.agent
    check_books(world.store, {w: agent.caps[w] for w in agent.alive}, world.store.policy.current())


def test_batch_is_told_has_its_notice_and_leaves_to_the_request(database: str) -> None:
    async def tell(world: World) -> None:
        batch = await gets(world, "batch")
        alive(world, batch, seconds=LEAST_RUN)
        asking = await asks(world, "notebook", holder=Holder("anna"))
        assert not giving_way(world), "it may ask only what is free now"
        alive(world, batch, seconds=SETTLES)
        told, at = lease(world, batch), world.now + NOTICE
        assert told.gives_way == pytest.approx(at)
        assert told.state == "live"
        assert told.notice.startswith("This slice gives way: it ends at ")
        assert told.notice.endswith(", since an interactive request finds no other room.")
        (waiting,) = world.manager.waiting()
        assert waiting.estimate_seconds == pytest.approx(NOTICE)
        alive(world, batch, seconds=NOTICE - 1)
        assert lease(world, batch).state == "live"
        alive(world, batch, seconds=1)
        over = lease(world, batch)
        assert (over.state, over.end_reason) == ("ended", "it gave way to an interactive request")
        assert (await granted(asking)).key == "notebook"
        books(world)
        (audit,) = rows(world.store, "audit")
        assert [one.subject for one in audit if one.action == "gives way"] == [f"lease {batch.id} of ben"]
        assert not any("anna" in one.after for one in audit)

    story(database, tell)


def test_no_lease_gives_way_within_its_least_run(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        batch = await gets(world, "batch")
        asking = await asks(world, "notebook")
        alive(world, batch, seconds=LEAST_RUN - 1)
        assert not giving_way(world)
        alive(world, batch, seconds=1)
        assert giving_way(world) == {"batch"}
        await asking.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell)


def test_times_are_those_of_the_policy(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        with world.store.deciding() as (db, row):
            before = world.store.policy.current(db, row.policy_version)
            after = replace(before, notice=300.0, least_run=0.0)
            assert len(write_policy(db, before, after, "admin", world.now)) == 2
        batch = await gets(world, "batch")
        asking = await asks(world, "notebook")
        alive(world, batch, seconds=SETTLES)
        assert lease(world, batch).gives_way == pytest.approx(world.now + 300)
        await asking.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell)


@pytest.mark.parametrize("holds", ["interactive", "batch", "scavenger"])
@pytest.mark.parametrize("wants", ["interactive", "batch", "scavenger"])
@pytest.mark.parametrize("waits", [SETTLES, PROMOTED_AFTER["scavenger"]])
def test_only_interactive_requests_make_only_later_classes_give_way(
    tmp_path: Path, holds: str, wants: str, waits: float
) -> None:
    async def tell(world: World) -> None:
        held = await gets(world, "held", priority=holds)
        alive(world, held, seconds=LEAST_RUN)
        asking = await asks(world, "wanted", priority=wants)
        for _ in range(2):  # with the second one it counts as interactive in the order
            alive(world, held, seconds=waits / 2 + 1)
        expected = wants == "interactive" and holds != "interactive"
        assert (lease(world, held).gives_way > 0) == expected
        await asking.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell)


def test_the_fewest_give_way_a_scavenger_first_then_the_youngest(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        held = [await gets(world, f"batch {n}", 0.5) for n in range(3)]
        held.append(await gets(world, "scavenger", 0.5, "scavenger"))
        alive(world, *held, seconds=LEAST_RUN)
        first = await asks(world, "first", 0.5)
        alive(world, *held, seconds=SETTLES)
        assert giving_way(world) == {"scavenger"}
        second = await asks(world, "second", 0.5, holder=CARL)
        alive(world, *held, seconds=SETTLES)
        assert giving_way(world) == {"scavenger", "batch 2"}
        for _ in range(5):
            alive(world, *held, seconds=1)
        assert giving_way(world) == {"scavenger", "batch 2"}, "nobody takes two for one"
        alive(world, *held, seconds=NOTICE)
        assert {(await granted(first)).key, (await granted(second)).key} == {"first", "second"}
        books(world)

    story(tmp_path, tell, devices=2)


def test_a_worker_that_takes_long_to_stop_costs_nobody_else_a_lease(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        held = []
        for name in ("one", "two"):
            task = asyncio.create_task(gets(world, name))
            await asyncio.sleep(0)
            world.agent.start()
            held.append(await task)
        alive(world, *held, seconds=LEAST_RUN)
        asking = await asks(world, "notebook")
        alive(world, *held, seconds=SETTLES)
        assert giving_way(world) == {"two"}
        for _ in range(20):
            alive(world, held[0], seconds=(NOTICE + 20) / 20)
        assert lease(world, held[1]).state == "ending"
        assert not giving_way(world)
        (waiting,) = world.manager.waiting()
        assert waiting.key == "notebook"
        world.agent.stop()
        world.agent.start()
        assert (await granted(asking)).key == "notebook"
        assert lease(world, held[0]).state == "live"
        books(world)

    story(tmp_path, tell, devices=2, prompt=False)


def test_a_request_that_leaves_or_finds_room_lets_off_who_gives_way(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        one, two = await gets(world, "one"), await gets(world, "two")
        alive(world, one, two, seconds=LEAST_RUN)
        asking = await asks(world, "notebook")
        alive(world, one, two, seconds=SETTLES)
        assert giving_way(world) == {"two"}
        await asking.aclose()  # type: ignore[attr-defined]
        assert not giving_way(world)
        assert (lease(world, two).notice, lease(world, two).gives_way) == ("", 0.0)
        asking = await asks(world, "other")
        alive(world, one, two, seconds=SETTLES)
        assert giving_way(world) == {"two"}
        world.manager.end(one.id, "done")
        assert (await granted(asking)).key == "other"
        assert lease(world, two).gives_way == 0.0
        alive(world, two, seconds=2 * NOTICE)
        assert lease(world, two).state == "live"
        books(world)

    story(tmp_path, tell, devices=2)


@pytest.mark.parametrize("class_ahead", ["interactive", "batch"])
def test_room_that_is_made_goes_to_whom_it_was_made_for(tmp_path: Path, class_ahead: str) -> None:
    async def tell(world: World) -> None:
        world.rule(Course("a", members={"*": "student"}), Course("b", members={"*": "student"}))
        batch = await gets(world, "batch", 0.5, holder=Holder("ben", course="a"))
        other = await gets(world, "other", 0.5, "interactive", holder=Holder("dora", course="b"))
        alive(world, batch, other, seconds=LEAST_RUN)
        # It comes first in the order, as its course holds nothing, but may make nobody give way: its person holds too much.
        ahead = Holder("dora", course="")
        early = await asks(world, "ahead", 0.75, class_ahead, ahead)
        wait = PROMOTED_AFTER["batch"] if class_ahead == "batch" else SETTLES
        alive(world, batch, other, seconds=wait / 2)
        alive(world, batch, other, seconds=wait / 2)
        assert not giving_way(world)
        asking = await asks(world, "notebook", 0.5, holder=Holder("anna", course="a"))
        alive(world, batch, other, seconds=SETTLES)
        assert [one.key for one in world.manager.waiting()] == ["ahead", "notebook"]
        assert giving_way(world) == {"batch"}
        alive(world, batch, other, seconds=NOTICE)
        assert (await granted(asking)).key == "notebook"
        assert [one.key for one in world.manager.waiting()] == ["ahead"]
        books(world)
        await early.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell)


@pytest.mark.parametrize(
    ("quota", "most"), [(None, 1), (Bounds(interactive=2), 2), (Bounds(interactive=0.5), 0)]
)
def test_a_person_makes_others_give_way_within_the_quota_of_interactive_slices(
    tmp_path: Path, quota: Bounds | None, most: int
) -> None:
    async def tell(world: World) -> None:
        held = [await gets(world, f"batch {n}") for n in range(4)]
        if quota is not None:
            world.rule(quotas={"person:*": quota})
        alive(world, *held, seconds=LEAST_RUN)
        asking = []
        for n in range(4 if most else 0):
            asking.append(await asks(world, f"notebook {n}"))
        for _ in range(4):
            alive(world, *held, seconds=SETTLES)
        assert len(giving_way(world)) == most
        for _ in range(3):
            alive(world, *held, seconds=NOTICE)
        living = [one for one in world.manager.leases(False) if one.state == "live"]
        assert sum(one.priority == "interactive" for one in living) == most
        assert sum(one.priority == "batch" for one in living) == 4 - most
        books(world)
        for one in asking:
            await one.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell, devices=4)


def test_leases_on_reserved_devices_and_those_that_end_in_time_do_not_give_way(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        held = await gets(world, "soon", longest=LEAST_RUN + NOTICE)
        alive(world, held, seconds=LEAST_RUN)
        asking = await asks(world, "notebook")
        alive(world, held, seconds=SETTLES)
        assert not giving_way(world), "it ends within the notice by itself"
        await asking.aclose()  # type: ignore[attr-defined]
        world.manager.end(held.id, "done")
        course = Course("ml", members={"*": "student"})
        every = Reservation("ml", tuple(range(7)), "", 0, 24 * 60, 1.0)
        world.rule(course, reservations=(every,))
        own = await gets(world, "own", holder=Holder("ben", course="ml"))
        alive(world, own, seconds=LEAST_RUN)
        asking = await asks(world, "notebook")
        alive(world, own, seconds=SETTLES)
        assert not giving_way(world)
        await asking.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell)


def test_a_pool_that_starts_again_in_the_middle_goes_on_from_there(database: str) -> None:
    async def tell(world: World) -> None:
        batch = await gets(world, "batch")
        alive(world, batch, seconds=LEAST_RUN)
        await asks(world, "notebook")
        alive(world, batch, seconds=SETTLES)
        at = lease(world, batch).gives_way
        world.manager.orders._agents.clear()
        world.store.close()
        again = World(database, now=world.now, alive=world.agent.alive)
        again.agent.caps = world.agent.caps
        assert lease(again, batch).gives_way == pytest.approx(at)
        assert giving_way(again) == {"batch"}
        asking = await asks(again, "notebook")
        (request,) = rows(again.store, "requests")[0]
        assert request.claims == '["s/0"]'
        alive(again, batch, seconds=NOTICE / 2)
        assert lease(again, batch).gives_way == pytest.approx(at), "it was told once"
        alive(again, batch, seconds=at - again.now)
        assert lease(again, batch).end_reason == "it gave way to an interactive request"
        assert (await granted(asking)).key == "notebook"
        books(again)

    story(database, tell)


def test_nobody_leaves_while_nobody_would_take_the_room(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        batch = await gets(world, "batch")
        alive(world, batch, seconds=LEAST_RUN)
        asking = await asks(world, "notebook")
        alive(world, batch, seconds=SETTLES)
        world.manager.stops = True  # the pool ends: whoever asked asks again, here or elsewhere
        await asking.aclose()  # type: ignore[attr-defined]
        world.manager.stops = False
        for _ in range(10):
            alive(world, batch, seconds=NOTICE / 10 - 1)
            assert lease(world, batch).gives_way
        alive(world, batch, seconds=20)
        assert lease(world, batch).state == "live"
        assert lease(world, batch).gives_way == 0.0, "its place was kept for a minute"
        assert not world.manager.waiting()

    story(tmp_path, tell)


def test_a_claim_that_does_not_help_is_given_up(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        batch = await gets(world, "batch", 0.5)
        other = await gets(world, "other", 0.5, "interactive", holder=CARL)
        alive(world, batch, other, seconds=LEAST_RUN)
        asking = await asks(world, "notebook", 0.5)
        alive(world, batch, other, seconds=SETTLES)
        assert giving_way(world) == {"batch"}
        # Its own quota is full by now: it keeps nobody from the room.
        world.rule(quotas={"person:anna": Bounds(leases=0)})
        alive(world, batch, other, seconds=1)
        assert not giving_way(world)
        (request,) = rows(world.store, "requests")[0]
        assert request.claims == ""
        alive(world, batch, other, seconds=NOTICE + PATIENCE)
        assert lease(world, batch).state == "live"
        await asking.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell)
