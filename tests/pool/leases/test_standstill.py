"""Calls that end as a pool process wakes from a standstill: nobody left, they gave this pool up."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpukernel.pool.leases.clockwork import run_clock
from gpukernel.pool.leases.server_watch import STALL_SECONDS
from gpukernel.pool.leases.standstill import ASKS_SECONDS, HEARS_SECONDS, Standstill
from gpukernel.pool.scheduling.pending_requests import KEEP_PLACE
from tests.pool.world import World, story


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Give the time that the machine's clock says."""
    now = [1000.0]
    monkeypatch.setattr(time, "clock_gettime", lambda _: now[0])
    return now


def test_a_standstill_is_seen_before_and_after_the_loop_turns_again(clock: list[float]) -> None:
    one = Standstill()
    clock[0] += 3600
    assert not one.just_now(), "it has not begun"
    for _ in range(5):
        one.awake()
        clock[0] += STALL_SECONDS
        assert not one.just_now()
    clock[0] += 0.1
    assert one.just_now()
    one.awake()
    assert one.just_now()
    clock[0] += HEARS_SECONDS - 0.1
    one.awake()
    assert one.just_now()
    clock[0] += 0.1
    assert not one.just_now()


@pytest.mark.parametrize("stood_still", [True, False])
def test_who_waits_at_a_pool_that_stands_still_keeps_the_place(
    tmp_path: Path, clock: list[float], *, stood_still: bool
) -> None:
    async def tell(world: World) -> None:
        await world.get("holder", 1.0)
        world.manager.standstill.awake()
        waiting = asyncio.create_task(world.get("waits", 1.0))
        await asyncio.sleep(0.01)
        assert [one.key for one in world.manager.waiting()] == ["waits"]
        clock[0] += STALL_SECONDS + 1 if stood_still else 1
        waiting.cancel()
        await asyncio.wait([waiting])
        assert len(world.manager.waiting()) == stood_still
        world.manager.standstill.awake()
        world.now += 1
        world.manager.tick()
        assert len(world.manager.waiting()) == stood_still
        world.now += KEEP_PLACE + 1
        world.manager.tick()
        assert not world.manager.waiting()

    story(tmp_path, tell)


async def break_off(world: World, clock: list[float], seconds: float) -> None:
    """Have a call for “a” end whose worker starts, `seconds` after its pool was awake last."""
    world.agent.prompt = False
    world.manager.standstill.awake()
    asking = asyncio.create_task(world.get("a"))
    while not world.agent.to_start:
        await asyncio.sleep(0.01)
    clock[0] += seconds
    asking.cancel()
    await asyncio.wait([asking])


def states(world: World) -> list[tuple[str, str]]:
    return [(lease.state, lease.end_reason) for lease in world.manager.leases(include_ended=True)]


@pytest.mark.parametrize("stood_still", [True, False])
def test_a_slice_that_nobody_took_as_its_pool_woke_is_kept_for_some_time(
    database: str, clock: list[float], *, stood_still: bool
) -> None:
    async def tell(world: World) -> None:
        await break_off(world, clock, STALL_SECONDS + 1 if stood_still else 1)
        given_up = [("ending", "the request was given up")]
        assert states(world) == ([("starting", "")] if stood_still else given_up)
        clock[0] += ASKS_SECONDS - 0.1
        world.manager.tick()
        assert states(world) == ([("starting", "")] if stood_still else given_up)
        clock[0] += 0.1
        world.manager.tick()
        assert states(world) == given_up
        world.agent.stop()
        world.manager.tick()
        assert world.promised() == 0

    story(database, tell)


def test_a_slice_that_its_holder_asks_the_same_pool_for_again_stays(
    database: str, clock: list[float]
) -> None:
    async def tell(world: World) -> None:
        await break_off(world, clock, STALL_SECONDS + 1)
        again = asyncio.create_task(world.get("a"))
        await asyncio.sleep(0.05)
        world.agent.start()
        assert (await again).state == "live"
        clock[0] += ASKS_SECONDS
        world.manager.tick()
        assert states(world) == [("live", "")]

    story(database, tell)


def test_a_slice_that_its_holder_asks_another_pool_for_is_not_given_up_by_the_one_that_stood_still(
    new_postgresql: Callable[[], str], clock: list[float]
) -> None:
    url = new_postgresql()

    async def tell(world: World) -> None:
        other = World(url, server="t")
        other.sessions.detach("t", other.agent)
        world.agent.prompt = False
        world.manager.standstill.awake()
        asking = asyncio.create_task(world.get("a"))
        while not world.agent.to_start:
            await asyncio.sleep(0.01)
        clock[0] += STALL_SECONDS + 1
        again = asyncio.create_task(other.get("a"))
        await asyncio.sleep(0.05)
        asking.cancel()
        await asyncio.wait([asking])
        clock[0] += ASKS_SECONDS
        world.manager.tick()
        assert states(world) == [("starting", "")]
        world.agent.start()
        other.manager.tick()
        assert (await again).state == "live"

    story(url, tell)


def test_a_call_that_was_left_over_at_a_pool_ends_no_slice_that_its_holder_has_from_another_one(
    new_postgresql: Callable[[], str], clock: list[float]
) -> None:
    url = new_postgresql()

    async def tell(world: World) -> None:
        other = World(url, server="t")
        other.sessions.detach("t", other.agent)
        world.agent.prompt = False
        other.manager.standstill.awake()
        asking = asyncio.create_task(world.get("a"))
        while not world.agent.to_start:
            await asyncio.sleep(0.01)
        clock[0] += STALL_SECONDS + 1
        left_over = asyncio.create_task(other.get("a"))  # the holder made it before; it is read now
        await asyncio.sleep(0.05)
        left_over.cancel()
        await asyncio.wait([left_over])
        world.agent.start()
        world.manager.tick()
        assert (await asking).state == "live"
        clock[0] += ASKS_SECONDS
        other.manager.tick()
        assert states(world) == [("live", "")]

    story(url, tell)


async def grant_to_a_place(world: World, clock: list[float]) -> None:
    """Grant a device to “waits”, whose call has ended as its pool woke."""
    world.manager.standstill.awake()
    held = await world.get("holder", 1.0)
    waiting = asyncio.create_task(world.get("waits", 1.0))
    await asyncio.sleep(0.01)
    clock[0] += STALL_SECONDS + 1
    waiting.cancel()
    await asyncio.wait([waiting])
    world.manager.end(held.id, "released")
    world.agent.stop()
    world.manager.schedule()


def test_a_slice_for_a_place_whose_call_ended_as_the_pool_woke_is_kept_for_some_time(
    database: str, clock: list[float]
) -> None:
    async def tell(world: World) -> None:
        await grant_to_a_place(world, clock)
        assert states(world) == [("ended", "released"), ("live", "")]
        clock[0] += ASKS_SECONDS - 0.1
        world.manager.tick()
        assert states(world)[1:] == [("live", "")]
        clock[0] += 0.1
        world.manager.tick()
        assert states(world)[1:] == [("ended", "the request was given up")]

    story(database, tell)


def test_a_slice_for_a_place_whose_call_ended_stays_once_its_holder_asks_again(
    database: str, clock: list[float]
) -> None:
    async def tell(world: World) -> None:
        await grant_to_a_place(world, clock)
        assert (await world.get("waits", 1.0)).state == "live"
        clock[0] += ASKS_SECONDS
        world.manager.tick()
        assert states(world)[1:] == [("live", "")]

    story(database, tell)


def test_the_clock_of_a_pool_says_that_it_is_awake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell(world: World) -> None:
        said = itertools.count()
        monkeypatch.setattr(world.manager.standstill, "awake", lambda: next(said))
        running = asyncio.create_task(run_clock(world.manager, every=0.01))
        await asyncio.sleep(0.2)
        running.cancel()
        assert next(said) > 2

    story(tmp_path, tell)
