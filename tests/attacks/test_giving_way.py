"""A student asks as interactive, again and again, to throw others' batch work out; what that takes from them is bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpukernel.common.bounds import Bounds
from gpukernel.common.course import Course
from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
from tests.pool.world import World, story

NOTICE, LEAST_RUN = 60.0, 600.0
DEVICES = 6
MALLORY = Holder("mallory", course="a")
COURSES = (Course("a", members={"*": "student"}), Course("b", members={"*": "student"}))


async def honest(world: World) -> list[Lease]:
    """Everybody's batch work, one on each device, past its least run."""
    held = []
    for number in range(DEVICES):
        wanted = SliceRequest(share=1.0, priority="batch")
        async for event in world.manager.acquire(f"batch {number}", wanted, Holder(f"p{number}"), -1, 3600):
            if isinstance(event, Lease):
                held.append(event)
    passes(world, LEAST_RUN)
    return held


def passes(world: World, seconds: float) -> None:
    end = world.now + seconds
    while world.now < end:
        for one in world.manager.leases(False):
            world.manager.renew(one.id)
        world.pass_time(1.0)


def still_there(world: World) -> int:
    return sum(one.priority == "batch" and one.state == "live" for one in world.manager.leases(False))


def told(world: World) -> int:
    return sum(one.gives_way > 0 and one.state == "live" for one in world.manager.leases(False))


async def floods(
    world: World, share: float, count: int, holders: tuple[Holder, ...] = (MALLORY,)
) -> list[AsyncIterator[Queued | Lease]]:
    calls = []
    for number in range(count):
        holder = holders[number % len(holders)]
        calls.append(world.manager.acquire(f"m {number}", SliceRequest(share=share), holder, -1, 3600))
        assert isinstance(await anext(calls[-1]), Queued)
    return calls


@pytest.mark.parametrize(("quota", "most"), [(None, 1), (2.0, 2), (0.0, 0)])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_flood_of_interactive_requests_takes_what_the_quota_says(
    tmp_path: Path, quota: float | None, most: int, share: float
) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, quotas={} if quota is None else {"student:a": Bounds(interactive=quota)})
        await honest(world)
        calls: list[AsyncIterator[Queued | Lease]] = []
        if most:
            calls = await floods(world, share, 18)
        else:
            with pytest.raises(Refused, match="interactive"):
                await floods(world, share, 18)
        for _ in range(10):
            passes(world, NOTICE)
            assert still_there(world) + told(world) >= DEVICES - most
            assert still_there(world) >= DEVICES - most
        if most:
            assert still_there(world) == DEVICES - most, "it gets what everybody may"
        for call in calls:
            await call.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell, devices=DEVICES)


def test_the_bound_is_one_over_all_courses_of_a_person(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES)
        await honest(world)
        calls = await floods(world, 1.0, 10, (MALLORY, Holder("mallory", course="b"), Holder("mallory")))
        for _ in range(5):
            passes(world, NOTICE)
            assert still_there(world) >= DEVICES - 1
        for call in calls:
            await call.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell, devices=DEVICES)


def test_asking_and_leaving_ends_nobodys_work(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES)
        await honest(world)
        for _ in range(10):
            (call,) = await floods(world, 1.0, 1)
            passes(world, NOTICE - 2)
            assert told(world) == 1
            await call.aclose()  # type: ignore[attr-defined]
            assert told(world) == 0
        with pytest.raises(Refused, match="no room"):
            async for _ in world.manager.acquire("now", SliceRequest(share=1.0), MALLORY, 0, 3600):
                pass
        assert told(world) == 0
        assert still_there(world) == DEVICES

    story(tmp_path, tell, devices=DEVICES)


def test_taking_giving_back_and_asking_again_ends_no_more_than_the_quota_in_a_least_run(
    tmp_path: Path,
) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES)
        await honest(world)
        begin, left = world.now, 0
        while world.now - begin < 2 * LEAST_RUN:
            (call,) = await floods(world, 1.0, 1)
            passes(world, NOTICE + 5)
            if any(one.key == "m 0" for one in world.manager.leases(False)):
                left += 1
                # Whatever is given back, others have at once.
                (lease,) = [one for one in world.manager.leases(False) if one.key == "m 0"]
                world.manager.end(lease.id, "thrown away")
                wanted = SliceRequest(share=1.0, priority="batch")
                other = world.manager.acquire(f"again {left}", wanted, Holder(f"q{left}"), -1, 3600)
                assert isinstance(await anext(other), Lease)
            await call.aclose()  # type: ignore[attr-defined]
            assert still_there(world) == DEVICES
        assert left == 2, "one at the beginning, and one a least run later"

    story(tmp_path, tell, devices=DEVICES)


def test_who_is_over_the_bound_keeps_nobody_else_from_theirs(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES)
        await honest(world)
        calls = await floods(world, 1.0, 18)
        passes(world, NOTICE + 5)
        assert still_there(world) == DEVICES - 1
        # Anna is behind 17 requests of her course, none of which is promised anything; her own room is made all the same.
        anna = world.manager.acquire("anna", SliceRequest(share=1.0), Holder("anna", course="a"), -1, 3600)
        assert isinstance(await anext(anna), Queued)
        passes(world, NOTICE + 5)
        holders = {one.key: one.holder.person for one in world.manager.leases(False)}
        assert holders["anna"] == "anna", "what others leave for her, nobody ahead of her takes"
        assert list(holders.values()).count("mallory") == 1
        assert still_there(world) == DEVICES - 2
        for call in (*calls, anna):
            await call.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell, devices=DEVICES)
