"""Leases through outages of the database, and through calls that are repeated at another pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, Lease, SliceRequest
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.leases.outages import Outages
from gpukernel.pool.store import database, schema
from tests.pool.store.older_databases import plain_engine
from tests.pool.world import World

ANNA = Holder("anna")


class Passing:
    """A machine's clock."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def url(new_postgresql: Callable[[], str]) -> str:
    return new_postgresql()


async def live(manager: LeaseManager, key: str, share: float = 0.5) -> Lease:
    async for event in manager.acquire(key, SliceRequest(share=share), ANNA, -1, 0):
        if isinstance(event, Lease):
            return event
    raise AssertionError


def test_after_an_outage_everybody_has_their_time_again_and_not_twice(url: str) -> None:
    async def story() -> None:
        one = World(url)
        lease = await one.get("k")
        other = World(url, server="t")
        clock = Passing()
        theirs, ours = (Outages(world.store, world.manager.id, clock) for world in (one, other))
        theirs.answered()
        ours.answered()
        assert not ours.look(one.now + 1)
        clock.now += 60
        steady = one.manager.steady() + 60
        assert ours.look(steady)
        found = one.store.leases.get(lease.id)
        assert found is not None
        assert found.expires == pytest.approx(steady + lease.ttl_seconds)
        # The next pool finds that somebody was seen meanwhile.
        assert not theirs.look(steady + 1)

    asyncio.run(story())


def test_a_pool_that_was_paused_alone_gives_nobody_anything(url: str) -> None:
    async def story() -> None:
        one = World(url)
        lease = await one.get("k")
        other = World(url, server="t")
        clock = Passing()
        paused = Outages(one.store, one.manager.id, clock)
        paused.answered()
        clock.now += 60
        other.now += 60
        other.manager.store.servers.mark_seen(other.manager.id, other.manager.steady())
        assert not paused.look(other.manager.steady())
        found = one.store.leases.get(lease.id)
        assert found is not None
        assert found.expires == pytest.approx(lease.expires)

    asyncio.run(story())


def test_a_call_that_breaks_ends_nothing_that_another_pool_was_asked_for(url: str) -> None:
    async def story() -> None:
        one, other = World(url, prompt=False), World(url, server="t")
        other.agent.close()
        first = asyncio.create_task(live(one.manager, "k"))
        await asyncio.sleep(0)
        second = asyncio.create_task(live(other.manager, "k"))
        await asyncio.sleep(0)
        (lease,) = one.manager.leases(include_ended=True)
        assert lease.state == "starting"
        first.cancel()  # its connection is gone, which the first pool notices late
        await asyncio.gather(first, return_exceptions=True)
        assert [one.state for one in other.manager.leases(include_ended=True)] == ["starting"]
        # The same at the pool that was asked last gives the lease up.
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        (over,) = one.manager.leases(include_ended=True)
        assert (over.id, over.end_reason) == (lease.id, "the request was given up")

    asyncio.run(story())


def test_a_pool_that_is_stopped_keeps_places_and_grants(url: str) -> None:
    async def story() -> None:
        one, other = World(url), World(url, server="t")
        other.sessions.detach("t", other.agent)
        held = await one.get("held", share=0.9)
        waiting = asyncio.create_task(live(one.manager, "waits"))
        await asyncio.sleep(0)
        one.manager.stops = True
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        later = asyncio.create_task(live(other.manager, "comes later"))
        await asyncio.sleep(0)
        again = asyncio.create_task(live(other.manager, "waits"))
        await asyncio.sleep(0.05)
        assert [one.key for one in other.manager.waiting()] == ["waits", "comes later"]
        assert held.state == "live"
        for call in (again, later):
            call.cancel()
        await asyncio.gather(again, later, return_exceptions=True)

    asyncio.run(story())


def test_a_lease_whose_order_reached_no_agent_is_ordered_when_it_attaches(url: str) -> None:
    async def story() -> None:
        one = World(url, prompt=False)
        silent = one.agent
        asking = asyncio.create_task(live(one.manager, "k"))
        await asyncio.sleep(0)
        (lease,) = one.manager.leases(include_ended=False)
        assert lease.state == "starting"
        # Its pool died before the order went out: the agent has no such worker, and attaches to another pool.
        silent.alive.clear()
        one.sessions.detach("s", silent)
        other = World(url)
        (found,) = other.manager.leases(include_ended=False)
        assert (found.id, found.state) != (lease.id, "ending")
        assert (lease.id, lease.slices[0].device_id) in other.agent.alive
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(story())


def test_who_asks_for_what_a_server_has_that_is_away_for_a_moment_waits(url: str) -> None:
    async def story() -> None:
        one = World(url)
        one.sessions.detach("s", one.agent)
        waiting = asyncio.create_task(live(one.manager, "k"))
        await asyncio.sleep(0)
        assert [request.key for request in one.manager.waiting()] == ["k"]
        one.now += 31
        with pytest.raises(Refused, match="no GPU server offers one now"):
            await live(one.manager, "later")
        one.agent.attach()
        assert (await waiting).state == "live"

    asyncio.run(story())


@pytest.mark.timeout(60)
def test_a_ledger_that_somebody_holds_and_does_not_give_up_is_a_database_that_is_away(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another session holds the ledger's row, as a process of PostgreSQL does that was stopped in the middle of a decision."""
    monkeypatch.setattr(database, "_LOCK_WAIT", "SET lock_timeout = '300ms'")

    async def story() -> None:
        one, stranger = World(url), plain_engine(url)
        with stranger.begin() as holder:
            holder.execute(sa.select(schema.ledger).with_for_update())
            with pytest.raises(sa.exc.DBAPIError, match="lock timeout") as first:
                await one.get("k")
            # Those after the first wait little, whatever the session's limit is; signs of life and renewals need no ledger.
            with one.store.transaction() as db:
                db.execute(sa.text("SET lock_timeout = '1h'"))
            for _ in range(3):
                with pytest.raises(sa.exc.DBAPIError, match="lock timeout") as later:
                    await one.get("k")
                one.store.servers.mark_seen(one.manager.id, one.manager.steady())
            assert database.is_away(first.value)
            assert database.is_away(later.value)
        lease = await one.get("k")
        assert lease.state == "live"
        stranger.dispose()

    asyncio.run(story())
