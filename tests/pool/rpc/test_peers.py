"""Pools on one database that notify each other: at once what somebody waits for, and all else a few times a second."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from gpukernel.common.model import Holder, Lease, SliceRequest
from gpukernel.pool.rpc import peers
from tests.pool.world import Agent, World

NEVER = 600.0


@contextlib.asynccontextmanager
async def following(url: str, count: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[World]]:
    """Pools that notify all others once, and then no more, so that only what is told at once arrives; each has a GPU server."""
    worlds = [World(url, server=f"own {number}") for number in range(count)]
    for number, world in enumerate(worlds):
        agent = Agent(world.manager, f"server-{number}")
        agent.attach()
    for world in worlds:
        world.manager.look()
    monkeypatch.setattr(peers, "NOTIFY_SECONDS", NEVER)
    tasks = [asyncio.create_task(peers.follow_peers(world.store, world.manager)) for world in worlds]
    await asyncio.sleep(0.5)  # until all listen
    # The one notification of all others: what follows comes within its time.
    for world in worlds:
        with world.store.deciding():
            world.store.changes.lease("told", "nobody's")
    await asyncio.sleep(0.5)
    try:
        yield worlds
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for world in worlds:
            world.store.close()


async def lease_of(world: World, key: str, server: str, share: float = 0.1) -> Lease:
    """Wait for a lease on `server`, at most some seconds."""
    wanted = SliceRequest(share=share, server=server)
    async with asyncio.timeout(20):
        async for event in world.manager.acquire(key, wanted, Holder("anna"), NEVER, 600):
            if isinstance(event, Lease):
                return event
    raise AssertionError


def counted(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often a pool looks."""
    looks: list[int] = []
    look = world.manager.look
    monkeypatch.setattr(world.manager, "look", lambda: (looks.append(1), look()))
    return looks


def test_a_lease_on_another_pools_server_waits_for_no_notification_of_all(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell() -> None:
        async with following(new_postgresql(), 3, monkeypatch) as (one, two, three):
            looks = counted(three, monkeypatch)
            for number in range(3):
                lease = await lease_of(one, f"k{number}", "server-1")
                assert lease.state == "live"
            assert [len(world.store.leases.all()) for world in (one, two)] == [3, 3]
            assert looks == []  # nobody there waits for any of it

    asyncio.run(tell())


def test_a_call_in_the_queue_hears_at_once_of_a_grant_that_another_pool_made(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell() -> None:
        async with following(new_postgresql(), 2, monkeypatch) as (one, two):
            held = await lease_of(two, "whole", "server-1", share=1.0)
            waiting = asyncio.create_task(lease_of(one, "waits", "server-1"))
            while not one.manager.waiters.is_awaited("waits") or not one.manager.waiting():
                await asyncio.sleep(0.05)
            two.manager.tick()  # the queue's version tells of the request
            two.manager.end(held.id, "released by its holder")
            two.manager.tick()
            lease = await waiting
            assert lease.state == "live"

    asyncio.run(tell())


def test_what_stays_within_one_pool_is_not_told_at_once(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell() -> None:
        async with following(new_postgresql(), 2, monkeypatch) as (one, two):
            looks = counted(two, monkeypatch)
            for number in range(5):
                await lease_of(one, f"k{number}", "server-0")
            await asyncio.sleep(0.3)
            assert looks == []

    asyncio.run(tell())
