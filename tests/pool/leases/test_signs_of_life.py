"""Signs of life: heartbeats of idle agents write nothing, and who speaks for what is known all the same, in every pool of the database."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from gpukernel.common.errors import Refused
from gpukernel.common.model import Lease, SliceRequest
from gpukernel.pool.domain.fencing import QUIET_SECONDS, SILENT_SECONDS, ahead_seconds, fence_seconds
from gpukernel.pool.leases.manager import POOL_GRACE
from gpukernel.pool.scheduling.pending_requests import ABSENT, KEEP_PLACE
from gpukernel.pool.scheduling.request_queue import RequestQueue
from gpukernel.pool.store.schema import servers
from gpukernel.pool.store.signs_of_life import FOLLOWED_SECONDS
from tests.pool.world import ANNA, Agent, World, story
from tests.pool.written import Written


def row(world: World, name: str = "s") -> Any:
    with world.store.reader.connect() as db:
        return db.execute(sa.select(servers).where(servers.c.name == name)).one()


def seconds(worlds: list[World], count: int, *beating: Agent) -> None:
    """Let time pass in these pools; of these agents signs of life come every other second."""
    for number in range(count):
        for world in worlds:
            world.now += 1
            world.manager.tick()
        for agent in beating if number % 2 else ():
            agent.beat()


def test_heartbeats_of_idle_agents_change_no_row(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def tell(world: World) -> None:
        agents = [world.agent, *(Agent(world.manager, f"t{number}") for number in range(9))]
        for agent in agents[1:]:
            agent.attach()
        lease = await world.get("k")
        held = list[str]()
        world.manager.keepalive.hold(lease, held.append, world.manager.steady())
        seconds([world], 4, *agents)
        written = Written(monkeypatch, world)
        for _ in range(10):
            seconds([world], 1)
            assert written.since() <= 3, (
                "clock, pool, and the lease that a call holds, of any number of agents"
            )
            for agent in agents:
                agent.beat()
            assert written.since() == 0
        # The fence is written before it is needed, once for many heartbeats.
        rest = int(ahead_seconds(world.manager.valid_seconds)) + 2
        seconds([world], rest, *agents)
        assert written.since() <= rest * 3 + len(agents) + 5
        needed = world.manager.steady() + fence_seconds(world.manager.valid_seconds)
        assert all(row(world, agent.name).fenced_until >= needed - 2 for agent in agents)

    story(database, tell)


def test_every_answer_is_covered_by_the_fence_that_is_written(database: str) -> None:
    async def tell(world: World) -> None:
        for _ in range(400):
            world.now += 1
            world.manager.tick()
            assert world.agent.attachment is not None
            valid = world.sessions.heard(world.agent.attachment)
            assert row(world).fenced_until >= world.manager.steady() + fence_seconds(valid)

    story(database, tell)


def test_a_quiet_server_is_noted_once_and_not_any_more_when_it_is_heard_of(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell(world: World) -> None:
        seconds([world], int(SILENT_SECONDS), world.agent)
        heard, written = world.now, Written(monkeypatch, world)
        quiet = world.manager._queue
        while world.now < heard + QUIET_SECONDS + 3:
            seconds([world], 1)
        assert quiet.quiet == {"s"}
        assert (bool(row(world).quiet), row(world).heard) == (True, heard)
        assert written.since() <= 3 * (QUIET_SECONDS + 3) + 1
        world.agent.beat()
        seconds([world], 1)
        assert quiet.quiet == frozenset()
        assert not row(world).quiet

    story(database, tell)


def pair(url: str) -> tuple[World, World]:
    return World(url, server="s"), World(url, server="t")


async def get(world: World, key: str, *worlds: World) -> Lease:
    """Get a whole device, whichever of `worlds` its agent speaks with."""
    call = asyncio.create_task(world.get(key, 1.0))
    for _ in range(20):
        await asyncio.sleep(0)
        for one in worlds:
            one.manager.look()
    assert call.done()
    return call.result()


def rival_of(agent: Agent, world: World) -> Agent:
    """An agent on another state directory that says it is the same server, and turns to another pool."""
    rival = Agent(world.manager, agent.name)
    rival.registration = replace(rival.registration, place="elsewhere", instance=secrets.token_hex(4))
    return rival


def test_a_rival_at_another_pool_waits_as_long_as_the_first_agent_is_heard_of(
    new_postgresql: Callable[..., str],
) -> None:
    async def tell() -> None:
        one, two = pair(new_postgresql())
        rival = rival_of(one.agent, two)
        seconds([one, two], 60, one.agent, two.agent)
        assert row(one).heard < one.now - SILENT_SECONDS, "which is not in its row"
        with pytest.raises(Refused, match="Another agent speaks for GPU server s"):
            rival.attach()
        last = one.now
        for _ in range(60):
            seconds([one, two], 1, two.agent)
            try:
                rival.attach()
            except Refused:
                continue
            break
        assert SILENT_SECONDS <= one.now - last <= SILENT_SECONDS + 2
        # Its pool learns it from the log, and the first agent with its next sign of life.
        one.manager.look()
        assert one.agent.attachment is not None
        assert one.sessions.heard(one.agent.attachment) == 0
        for world in (one, two):
            world.store.close()

    asyncio.run(tell())


def test_a_rival_waits_as_long_after_the_death_of_the_pool_that_heard_the_agent(
    new_postgresql: Callable[..., str],
) -> None:
    async def tell() -> None:
        one, two = pair(new_postgresql())
        rival = rival_of(one.agent, two)
        seconds([one, two], 31, one.agent, two.agent)
        dead = one.now
        one.store.close()
        while two.now < dead + SILENT_SECONDS - 1:
            seconds([two], 1, two.agent)
            with pytest.raises(Refused, match="Another agent speaks"):
                rival.attach()
        while two.now < dead + POOL_GRACE + 2:
            seconds([two], 1, two.agent)
        assert row(two).away_since is not None, "the server went with its pool"
        assert row(two).heard == dead
        rival.attach()
        two.store.close()

    asyncio.run(tell())


def test_a_pool_that_was_asleep_asks_before_it_answers(new_postgresql: Callable[..., str]) -> None:
    async def tell() -> None:
        one, two = pair(new_postgresql())
        attachment = one.agent.attachment
        assert attachment is not None
        seconds([one, two], 3, one.agent, two.agent)
        seconds([two], int(POOL_GRACE) + 2, two.agent)  # the other one is stopped
        two.manager.forget_server("s", "root")
        one.now = two.now
        assert one.sessions.heard(attachment) == 0
        seconds([one, two], 1, two.agent)
        assert one.sessions.heard(attachment) == 0
        for world in (one, two):
            world.store.close()

    asyncio.run(tell())


def test_a_pool_that_follows_answers_from_memory(new_postgresql: Callable[..., str]) -> None:
    async def tell() -> None:
        one, two = pair(new_postgresql())
        seconds([one, two], 3, one.agent, two.agent)
        attachment = one.agent.attachment
        assert attachment is not None
        with two.store.deciding() as (db, _):
            db.execute(servers.update().values(epoch=99))  # which nobody is told of
        assert one.sessions.heard(attachment) > 0
        one.now += FOLLOWED_SECONDS + 1
        assert one.sessions.heard(attachment) == 0
        for world in (one, two):
            world.store.close()

    asyncio.run(tell())


def test_requests_live_as_long_as_the_pool_that_holds_their_calls(new_postgresql: Callable[..., str]) -> None:
    async def tell() -> None:
        url = new_postgresql()
        one, two = World(url, server="s", devices=2), World(url, server="t")
        held = [await get(two, f"h{number}", one, two) for number in range(3)]
        calls = [asyncio.create_task(world.get(key, 1.0)) for world, key in ((one, "dies"), (two, "lives"))]
        await asyncio.sleep(0)
        for lease in held:
            two.manager.keepalive.hold(lease, lambda _: None, two.manager.steady())
        seconds([one, two], int(KEEP_PLACE) + 5, one.agent, two.agent)
        assert [waiting.key for waiting in two.manager.waiting()] == ["dies", "lives"], "nobody renews them"
        one.store.close()
        seconds([two], int(ABSENT) + 1, two.agent)
        two.manager.end(next(lease for lease in held if lease.slices[0].server == "t").id, "done")
        two.manager.look()
        await asyncio.sleep(0)
        assert isinstance(await calls[1], Lease)
        assert [waiting.key for waiting in two.manager.waiting()] == ["dies"], (
            "it keeps its place for a while"
        )
        seconds([two], int(KEEP_PLACE), two.agent)
        assert two.manager.waiting() == []
        calls[0].cancel()
        two.store.close()

    asyncio.run(tell())


def test_a_notification_runs_no_cycle_and_an_empty_queue_none_at_all(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def tell() -> None:
        one, two = pair(new_postgresql())
        seconds([one, two], 2, one.agent, two.agent)
        cycles = list[str]()
        run = RequestQueue.run_cycle

        def counted(self: RequestQueue, *arguments: Any, **options: Any) -> Any:
            cycles.append(self._pool)
            return run(self, *arguments, **options)

        monkeypatch.setattr(RequestQueue, "run_cycle", counted)
        seconds([one, two], 5, one.agent, two.agent)
        assert cycles == [], "nobody waits"
        first, _ = await get(one, "a", one, two), await get(one, "b", one, two)
        cycles.clear()
        two.manager.look()
        assert cycles == []
        # A request waits at one pool, the other one hears of it by its version, and grants it when it frees something.
        call = asyncio.create_task(one.get("c", 1.0))
        await asyncio.sleep(0)
        cycles.clear()
        two.manager.look()
        assert cycles == []
        seconds([two], 1, two.agent)
        assert [waiting.key for waiting in two.manager.waiting()] == ["c"]
        two.manager.end(first.id, "done")
        for world in (one, two, one, two, one):
            world.manager.look()
            await asyncio.sleep(0)
        assert isinstance(await asyncio.wait_for(call, 5), Lease)
        for world in (one, two):
            world.store.close()

    asyncio.run(tell())


def test_a_call_that_moves_to_another_pool_takes_its_request_along(
    new_postgresql: Callable[..., str],
) -> None:
    async def tell() -> None:
        one, two = pair(new_postgresql())
        for key in "ab":
            await get(one, key, one, two)
        calls = [one.manager.acquire("c", SliceRequest(share=1.0), ANNA, -1, 0)]
        await anext(calls[0])
        calls.append(two.manager.acquire("c", SliceRequest(share=1.0), ANNA, -1, 0))
        await anext(calls[1])
        await calls[0].aclose()  # type: ignore[attr-defined]
        seconds([one, two], 1, one.agent, two.agent)
        assert [waiting.key for waiting in one.manager.waiting()] == ["c"]
        assert two.manager._queue.get("c").pool == two.manager.id  # type: ignore[union-attr]
        await calls[1].aclose()  # type: ignore[attr-defined]
        seconds([one, two], 1, one.agent, two.agent)
        assert one.manager.waiting() == two.manager.waiting() == []
        for world in (one, two):
            world.store.close()

    asyncio.run(tell())
