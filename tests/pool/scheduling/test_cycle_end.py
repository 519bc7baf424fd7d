"""A cycle goes on behind those for whom nothing is left while somebody further behind can get something."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gpukernel.common.bounds import Bounds
from gpukernel.common.course import Course
from gpukernel.common.model import Holder
from gpukernel.common.policy import LEAST_RUN
from gpukernel.pool.scheduling.making_way import SETTLES
from tests.pool.scheduling.test_giving_way import alive, asks, books, gets, giving_way
from tests.pool.scheduling.test_reservations import HOUR, at, settle, window
from tests.pool.world import World, story

COURSES = (Course("ml", members={"*": "student"}), Course("phys", members={"*": "student"}))
ML, PHYS = Holder("anna", course="ml"), Holder("carl", course="phys")


@asynccontextmanager
async def waiting(world: World, share: float) -> AsyncIterator[None]:
    """Let two wait, each for more than there is for them: the first one's wish closes the devices, and the second is passed by.

    Their course is none, and it holds less with both of them than the others do, so they come first.
    """
    tasks = [asyncio.create_task(world.get(f"k{i}", share, holder=Holder(f"p{i}"))) for i in range(2)]
    await settle()
    assert [one.position for one in world.manager.waiting()] == [1, 2]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_behind_those_who_wait_for_all_devices_a_course_has_what_is_reserved(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.now = at("2026-11-24T08:00")
        world.rule(*COURSES, reservations=(window(world, 0, 2, 0.5),))
        await world.get("a", 0.45, holder=PHYS)
        await world.get("m0", 0.3, holder=ML)
        async with waiting(world, 0.06):
            assert await world.get("m1", 0.2, wait=0, holder=ML)
        books(world)

    story(tmp_path, tell)


def test_behind_those_who_wait_without_an_end_a_short_lease_borrows_what_is_reserved(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.now = at("2026-11-24T08:00")
        world.rule(*COURSES, reservations=(window(world, 2, 4),))
        await world.get("held", 0.4, holder=PHYS, longest=HOUR)
        async with waiting(world, 0.1):
            assert await world.get("short", 0.3, wait=0, holder=PHYS, longest=HOUR)
        books(world)

    story(tmp_path, tell)


def test_behind_those_who_may_make_nobody_give_way_another_may(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        batch = await gets(world, "batch")
        mine = await gets(world, "mine", 0.5, "interactive", Holder("anna"))
        alive(world, batch, mine, seconds=LEAST_RUN)
        # With the one that anna holds, each of these is more than one person makes others give way for.
        calls = [await asks(world, key, holder=Holder("anna")) for key in ("one", "two")]
        calls.append(await asks(world, "three", holder=Holder("carl")))
        assert not giving_way(world)
        alive(world, batch, mine, seconds=SETTLES)
        assert giving_way(world) == {"batch"}
        books(world)

    story(tmp_path, tell, devices=2)


def test_behind_those_who_wait_for_their_course_s_quota_another_course_has_room(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(*COURSES, quotas={"course:ml": Bounds(devices=0.5)})
        await world.get("m0", 0.5, holder=ML)
        await world.get("p0", 0.7, holder=PHYS)
        tasks = [asyncio.create_task(world.get(f"m{i}", 0.1, holder=ML)) for i in (1, 2, 3)]
        await settle()
        assert await world.get("p1", 0.2, wait=0, holder=PHYS)
        assert [one.key for one in world.manager.waiting()] == ["m1", "m2", "m3"]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        books(world)

    story(tmp_path, tell, devices=2)
