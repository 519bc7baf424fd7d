"""Pools on one database that notify each other: at once what somebody waits for, and all else a few times a second."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

from gpukernel.common.model import Holder, Lease, SliceRequest
from gpukernel.pool.rpc import peers
from gpukernel.pool.store.connection import frozen
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


def told_of(url: str) -> Any:
    """A connection that hears what pools on a database notify each other of."""
    import psycopg

    connection = psycopg.connect(url, autocommit=True)
    connection.execute("LISTEN gpukernel")
    return connection


def heard(connection: Any, seconds: float = 0.2) -> list[str]:
    return [notice.payload for notice in connection.notifies(timeout=seconds)]


def test_a_commit_that_is_awaited_elsewhere_notifies_by_itself(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell() -> None:
        url = new_postgresql()
        async with following(url, 2, monkeypatch) as (one, _):
            with told_of(url) as listener:
                with one.store.deciding():
                    one.store.changes.lease("granted", "lease", "key", ["server-1"])
                    assert heard(listener) == []
                # No turn of the loop has come: nothing but the commit can have said it.
                assert heard(listener) == [f'{one.manager.id} ["key", "server-1"]']
                with contextlib.suppress(ZeroDivisionError), one.store.deciding():
                    one.store.changes.lease("granted", "never", "key", ["server-1"])
                    raise ZeroDivisionError
                assert heard(listener) == []
                with one.store.deciding():
                    for number in range(1000):
                        one.store.changes.lease("granted", f"lease {number}", f"key {number}", ["server-1"])
                assert heard(listener) == [one.manager.id]  # too many to be named: all look

    asyncio.run(tell())


def test_those_who_do_not_wait_for_it_hear_of_a_commit_a_moment_later(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell() -> None:
        url = new_postgresql()
        async with following(url, 2, monkeypatch) as (one, _):
            monkeypatch.setattr(peers, "NOTIFY_SECONDS", 1.0)
            with told_of(url) as listener:
                for number in range(3):  # more of them put it off no further
                    with one.store.deciding():
                        one.store.changes.lease("granted", f"lease {number}", "key", ["server-1"])
                    await asyncio.sleep(0.3)
                assert one.manager.id not in heard(listener, 0)
                await asyncio.sleep(1.0)
                assert heard(listener) == [one.manager.id]

    asyncio.run(tell())


def test_all_hear_of_a_commit_while_others_follow_it(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell() -> None:
        url = new_postgresql()
        async with following(url, 2, monkeypatch) as (one, _):
            monkeypatch.setattr(peers, "NOTIFY_SECONDS", 1.0)
            with told_of(url) as listener:
                async with asyncio.timeout(20):
                    while one.manager.id not in heard(listener, 0):
                        with one.store.deciding():
                            one.store.changes.lease("granted", "lease", "key", ["server-1"])
                        await asyncio.sleep(0.1)

    asyncio.run(tell())


def test_a_commit_that_all_were_notified_of_is_told_once(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell() -> None:
        url = new_postgresql()
        async with following(url, 2, monkeypatch) as (one, _):
            monkeypatch.setattr(peers, "NOTIFY_SECONDS", 0.1)
            monkeypatch.setattr(peers, "MOST_BYTES", 10)
            with told_of(url) as listener:
                with one.store.deciding():
                    one.store.changes.lease("granted", "lease", "key", ["server-1"])
                await asyncio.sleep(0.5)
                assert heard(listener, 0) == [one.manager.id]

    asyncio.run(tell())


def test_a_commit_that_is_made_while_all_are_notified_is_told_too(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell() -> None:
        import psycopg

        url = new_postgresql()
        async with following(url, 2, monkeypatch) as (one, _):
            execute = psycopg.AsyncConnection.execute
            told = list[object]()

            async def and_meanwhile(self: Any, query: Any, *values: Any) -> Any:
                done = await execute(self, query, *values)
                told.append(query)
                if len(told) == 1:
                    with one.store.deciding():
                        one.store.changes.lease("told", "second")
                return done

            monkeypatch.setattr(psycopg.AsyncConnection, "execute", and_meanwhile)
            monkeypatch.setattr(peers, "NOTIFY_SECONDS", 0.0)
            with one.store.deciding():
                one.store.changes.lease("told", "first")
            async with asyncio.timeout(20):
                while len(told) < 2:
                    await asyncio.sleep(0.01)

    asyncio.run(tell())


def test_a_pool_that_stands_still_in_a_transaction_is_looked_for(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell() -> None:
        url = new_postgresql()
        async with following(url, 1, monkeypatch) as (one,):
            monkeypatch.setattr(frozen, "IDLE_SECONDS", 0.3)
            with psycopg.connect(url, application_name="gpukernel-pool", autocommit=True) as stands:
                stands.execute("BEGIN")
                stands.execute("SELECT * FROM ledger FOR UPDATE")
                with one.store.deciding() as (_, row):  # waits until that is ended
                    assert row.epoch >= 0
                with pytest.raises(psycopg.OperationalError, match="terminating connection"):
                    stands.execute("SELECT 1")

    asyncio.run(tell())
