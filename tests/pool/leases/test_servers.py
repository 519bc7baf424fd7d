"""GPU servers that fall silent, are given up, come back, and do not confirm what they are told to start."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gpukernel.common.errors import Refused
from gpukernel.common.model import Device, Holder, Lease, Queued, SliceRequest
from gpukernel.pool.domain.fencing import SILENT_SECONDS, ahead_seconds, fence_seconds
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.store import leases as leases_module
from gpukernel.pool.store.schema import audit
from gpukernel.pool.store.servers import Servers
from gpukernel.pool.store.store import Store
from tests.pool.world import Agent, World, story


async def silence(world: World, seconds: float, agent: Agent | None = None) -> None:
    """Let time pass, a second at a time, in which `agent` alone is heard of."""
    for _ in range(round(seconds)):
        world.now += 1
        if agent is not None:
            agent.beat()
        world.manager.tick()
        await asyncio.sleep(0)


def written(valid: float) -> float:
    """The seconds of a fence as it is written: for one answer, and ahead of those of the next heartbeats."""
    return fence_seconds(valid) + ahead_seconds(valid)


def test_a_silent_server_is_away_its_quotas_are_free_and_its_memory_is_fenced(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("a", 1.0)
        world.agent.prompt = False
        await silence(world, SILENT_SECONDS + 2)
        assert [device.trouble for device in world.manager.devices()] == ["away"]
        world.manager.end(lease.id, "released")
        with world.store.reader.connect() as db:
            held = db.execute(sa.text("SELECT sum(leases_held), sum(share_held) FROM quota_usage")).one()
        assert tuple(held) == (0, 0)
        assert world.promised() == 1.0
        world.agent.beat()  # it was only slow
        assert world.manager.devices()[0].available
        world.agent.stop()
        assert world.promised() == 0

    story(tmp_path, tell)


def test_the_leases_of_a_server_that_went_silent_have_ended_after_half_a_minute(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("a", 1.0)
        world.manager.tick()
        world.agent.beat()
        world.agent.prompt = False
        seconds = 0
        while (found := world.store.leases.get(lease.id)) and not found.ended and seconds < 60:
            world.manager.renew(lease.id)
            await silence(world, 1)
            seconds += 1
        assert found is not None
        assert found.end_reason == "its GPU server s was lost"
        assert 25 < seconds <= 30

    story(tmp_path, tell)


def test_who_waits_keeps_the_place_while_every_server_is_away(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        holder = await world.get("a", 1.0)
        places = list[Queued | Lease]()

        async def wait() -> None:
            async for each in world.ask("b", 1.0, wait=1000):
                places.append(each)

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        world.agent.prompt = False
        await silence(world, SILENT_SECONDS + 2)
        said = places[-1]
        assert isinstance(said, Queued)
        assert said.reason == (
            "The pool has no device: no GPU server offers one now. The request keeps its place: position 1 in the queue."
        )
        assert not waiting.done()
        world.agent.prompt = True
        world.agent.beat()
        world.manager.end(holder.id, "released")
        await asyncio.wait_for(waiting, 10)
        assert isinstance(places[-1], Lease)

    story(tmp_path, tell)


def test_what_is_fenced_is_free_after_the_fence_and_not_before(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        await world.get("a", 1.0)
        heard = world.now
        world.agent.prompt = False
        world.sessions.detach("s", world.agent)
        await silence(world, written(world.manager.valid_seconds) - (world.now - heard) - 2)
        assert world.promised() == 1.0
        await silence(world, 4)
        assert world.promised() == 0

    story(tmp_path, tell)


def test_another_place_does_not_free_what_it_does_not_know_and_the_first_one_is_displaced(
    tmp_path: Path,
) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("a", 1.0)
        other = Agent(world.manager, "s")
        other.registration = replace(other.registration, place="elsewhere", instance=secrets.token_hex(4))
        with pytest.raises(Refused, match="Another agent speaks for GPU server s"):
            other.attach()
        await silence(world, SILENT_SECONDS + 2)
        other.attach()
        assert world.agent.closed[-1].startswith("another agent speaks")
        assert world.store.leases.get(lease.id).state == "ending"  # type: ignore[union-attr]
        assert world.promised() == 1.0
        assert other.attachment is not None
        assert world.agent.attachment is not None
        assert other.attachment.epoch > world.agent.attachment.epoch
        other.sessions.worker_ended("s", lease.id, "s/0", "stopped")  # it cannot know
        assert world.promised() == 1.0
        await silence(world, written(world.manager.valid_seconds), other)
        assert world.promised() == 0

    story(tmp_path, tell)


def test_a_forgotten_server_that_comes_back_stops_its_workers_before_it_gets_leases(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("a", 1.0)
        with pytest.raises(Refused, match="gpukernel drain s"):
            world.manager.forget_server("s", "root")
        with pytest.raises(Refused, match="no GPU server x"):
            world.manager.forget_server("x", "root")
        world.agent.prompt = False
        await silence(world, SILENT_SECONDS + 2)
        assert world.manager.forget_server("s", "root") == 1
        assert world.manager.devices() == []
        assert world.store.leases.get(lease.id).end_reason == "its GPU server s was given up"  # type: ignore[union-attr]
        with world.store.reader.connect() as db:
            assert ("root", "forget", "s") in {tuple(row)[2:5] for row in db.execute(sa.select(audit))}
        world.agent.attach()
        assert world.agent.to_stop == [(lease.id, "s/0")]
        assert [device.trouble for device in world.manager.devices()] == ["its old workers are being stopped"]
        world.agent.stop()
        assert world.manager.devices()[0].available
        world.agent.prompt = True
        assert await world.get("b", 1.0)

    story(tmp_path, tell)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_start_that_is_not_confirmed_goes_elsewhere_and_the_request_stays_one(
    tmp_path: Path, devices: int
) -> None:
    async def tell(world: World) -> None:
        world.agent.prompt = False
        events: list[object] = []

        async def ask() -> Lease:
            wanted = SliceRequest(share=0.5, devices=devices)
            async for event in world.manager.acquire("k", wanted, Holder("anna"), -1, 0):
                events.append(event)
            assert isinstance(event, Lease)
            return event

        asked = asyncio.create_task(ask())
        await asyncio.sleep(0)
        assert len(world.agent.to_start) == devices
        other = Agent(world.manager, "t", devices=devices)
        other.attach()
        for _ in range(8):
            world.agent.beat()
            await silence(world, 1, other)
        lease = await asyncio.wait_for(asked, 10)
        assert {piece.server for piece in lease.slices} == {"t"}
        assert [event for event in events if isinstance(event, Lease)] == [lease]
        assert {key[0] for key in world.agent.to_stop} == {key[0] for key in world.agent.to_start}
        world.agent.start()  # the late worker
        world.agent.stop()
        assert world.promised() == 0.5 * devices

    story(tmp_path, tell, devices=devices)


def test_the_true_reason_is_told_where_no_server_confirms(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.agent.prompt = False
        asked = asyncio.create_task(world.get("k", 0.5))
        await asyncio.sleep(0)
        for _ in range(8):
            await silence(world, 1, world.agent)
        with pytest.raises(Refused, match="GPU server s did not confirm the start within 5 s"):
            await asyncio.wait_for(asked, 10)

    story(tmp_path, tell)


def test_a_start_is_given_up_though_the_database_was_away_when_it_was_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: object) -> None:
        raise sa.exc.OperationalError("SELECT", {}, Exception("away"))

    async def tell(world: World) -> None:
        world.agent.prompt = False
        asked = asyncio.create_task(world.get("k", 0.5))
        await asyncio.sleep(0)
        await silence(world, 4, world.agent)
        with monkeypatch.context() as broken:
            broken.setattr(world.store.leases, "unconfirmed", away)
            with pytest.raises(sa.exc.OperationalError):
                await silence(world, 3, world.agent)
        await silence(world, 1, world.agent)
        with pytest.raises(Refused, match="GPU server s did not confirm the start within 5 s"):
            await asyncio.wait_for(asked, 10)

    story(tmp_path, tell)


def test_a_step_of_the_wall_clock_moves_what_people_see_and_ends_nothing(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("a", 0.5, longest=3600)
        begin, step = world.now, 86_400.0
        world.store.clock._wall = lambda: world.now + step
        shown = world.manager.lease(lease.id)
        assert shown is not None
        assert shown.until == lease.until + step
        for _ in range(10):
            world.pass_time(1)
            world.manager.renew(lease.id)
        assert world.manager.now() == world.now + step
        assert [one.state for one in world.manager.leases(False)] == ["live"]
        assert (await world.get("b", 0.1)).created == world.now + step
        assert world.manager.steady() < begin + step + 100

    story(tmp_path, tell)


def test_a_pool_that_starts_beside_the_first_one_keeps_its_servers(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = new_postgresql()
    first, second = Store(url), Store(url)
    device = Device("t/0", "t", 0, "Tesla T4", 16 << 30, "7.5", 40)

    def start_beside() -> None:
        manager = LeaseManager(second)
        second.servers.register("t", [device], manager.id, manager.steady())

    beside = threading.Thread(target=start_beside)
    hear_again = Servers.hear_again

    def begin_beside(self: Servers, steady: float) -> None:
        hear_again(self, steady)
        beside.start()
        beside.join(3)  # it ends here unless the first one's start keeps it waiting

    monkeypatch.setattr(Servers, "hear_again", begin_beside)
    try:
        LeaseManager(first)
        beside.join()
        assert [found.trouble for found in second.devices.all()] == [""]
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("named", [{}, {"server": "s"}, {"device": "s/0"}, {"device": "GPU-00000000"}])
def test_a_request_waits_for_a_server_that_is_away_for_a_moment_whatever_it_names(
    tmp_path: Path, named: dict[str, str]
) -> None:
    async def tell(world: World) -> None:
        world.agent.tell_uuids()
        world.agent.register()
        world.sessions.detach("s", world.agent.stream())
        wanted = SliceRequest(share=0.5, **named)
        events = world.manager.acquire("k", wanted, Holder("anna"), -1, 0)
        assert isinstance(await anext(events), Queued)
        world.agent.register()
        async for event in events:
            if isinstance(event, Lease):
                return
        raise AssertionError

    story(tmp_path, tell)


@pytest.mark.parametrize("named", [{"server": "other"}, {"device": "s/7"}])
def test_what_no_server_had_is_refused_while_one_is_away(tmp_path: Path, named: dict[str, str]) -> None:
    async def tell(world: World) -> None:
        world.sessions.detach("s", world.agent.stream())
        with pytest.raises(Refused) as refused:
            await anext(world.manager.acquire("k", SliceRequest(share=0.5, **named), Holder("anna"), -1, 0))
        assert refused.value.code == "no_such_model"

    story(tmp_path, tell)


@pytest.mark.parametrize("new_process", [False, True])
def test_who_waits_gets_the_slice_whose_worker_became_ready_while_its_agent_spoke_to_nobody(
    database: str, *, new_process: bool
) -> None:
    async def tell(world: World) -> None:
        agent = world.agent
        agent.prompt = False
        waiting = asyncio.create_task(world.get("a"))
        while not agent.to_start:
            await asyncio.sleep(0.01)
        world.sessions.detach("s", agent)
        agent.alive.update(agent.to_start)
        if new_process:
            agent.registration = replace(agent.registration, instance="another")
        agent.attach()
        async with asyncio.timeout(5):
            assert (await waiting).state == "live"

    story(database, tell)


def test_a_server_calls_no_worker_of_another_server_ready(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.agent.prompt = False
        other = Agent(world.manager, "other", prompt=False)
        other.attach()
        wanted = SliceRequest(share=0.5, devices=2)
        events = world.manager.acquire("both", wanted, Holder("anna"), 60, 600)
        waiting = asyncio.ensure_future(anext(aiter(events)))
        while not (world.agent.to_start and other.to_start):
            await asyncio.sleep(0.01)
        [(lease_id, there)] = other.to_start
        world.agent.start()
        world.sessions.worker_ready("s", lease_id, there, ("tcp:evil:1",))
        lease = world.store.leases.get(lease_id)
        assert lease is not None
        assert lease.state == "starting"
        assert {piece.server: piece.endpoints for piece in lease.slices} == {"s": ("unix:/x",), "other": ()}
        other.start()
        lease = await waiting
        assert isinstance(lease, Lease)
        assert lease.state == "live"

    story(tmp_path, tell)


def test_a_server_that_calls_a_worker_ready_of_a_lease_elsewhere_has_to_stop_it(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("a")
        other = Agent(world.manager, "other", prompt=False)
        other.attach()
        world.sessions.worker_ready("other", lease.id, "s/0", ("tcp:evil:1",))
        assert other.to_stop == [(lease.id, "s/0")]
        found = world.store.leases.get(lease.id)
        assert found is not None
        assert [piece.endpoints for piece in found.slices] == [("unix:/x",)]

    story(tmp_path, tell)


def test_what_is_over_is_what_no_fence_keeps_and_no_server_that_is_there(database: str) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("a")
        now = world.manager.steady()

        def over_after(statement: str) -> bool:
            with world.store.deciding() as (db, _):
                db.execute(sa.text(statement), {"now": now} if ":now" in statement else {})
            found = world.store.leases.fences_over(now)
            assert found in ([], [(lease.id, "s/0", "s")])
            return bool(found)

        assert not over_after("UPDATE servers SET fenced_until = :now - 1")  # it has not been silent for long
        assert over_after("UPDATE servers SET away_since = :now - 1")
        assert not over_after("UPDATE slices SET fenced_until = :now + 1")  # that of an earlier agent
        assert over_after("UPDATE slices SET fenced_until = :now - 1")
        assert over_after("UPDATE servers SET away_since = NULL")
        assert not over_after("UPDATE slices SET fenced_until = NULL")

    story(database, tell)


def test_what_lies_on_many_servers_that_are_lost_is_free_after_their_fences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases_module, "MOST_IN_A_LIST", 1)

    async def tell(world: World) -> None:
        others = [Agent(world.manager, f"other {number}") for number in range(2)]
        for agent in others:
            agent.attach()
        for key in "abc":
            await world.get(key, 1.0)
        for agent in (world.agent, *others):
            agent.prompt = False
            world.sessions.detach(agent.name, agent)
        assert world.promised() == 3.0
        await silence(world, written(world.manager.valid_seconds) + 2)
        assert world.promised() == 0

    story(tmp_path, tell)


def test_what_is_granted_on_a_server_that_came_back_meanwhile_is_not_freed(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a transaction each query of PostgreSQL's sees a state of its own, and another pool may decide in between."""

    async def tell(world: World, other: World) -> None:
        world.agent.prompt = False
        world.sessions.detach("s", world.agent)
        for _ in range(round(written(world.manager.valid_seconds)) + 2):
            world.now = other.now = world.now + 1
            other.agent.beat()
            other.manager.tick()
        rows_of = leases_module.rows_of

        def and_then_it_comes_back(*asked: Any) -> Any:
            found = rows_of(*asked)
            monkeypatch.setattr(leases_module, "rows_of", rows_of)
            back = Agent(other.manager, "s")
            back.registration = replace(world.agent.registration, instance=secrets.token_hex(4))
            back.register()
            events = other.manager.acquire("new", SliceRequest(share=1.0, server="s"), Holder("anna"), -1, 0)
            with contextlib.suppress(StopIteration):
                anext(aiter(events)).send(None)
            return found

        monkeypatch.setattr(leases_module, "rows_of", and_then_it_comes_back)
        over = world.store.leases.fences_over(world.manager.steady())
        assert len(other.store.leases.living_on("s")) == 1
        assert over == []

    async def tell_both(world: World) -> None:
        await tell(world, World(url, server="t"))

    url = new_postgresql()
    story(url, tell_both)
