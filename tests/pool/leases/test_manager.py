"""The pool's decisions with a clock that tests turn, and agents that do what they are told when they are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, Lease, SliceRequest, Usage
from gpukernel.pool.leases import clockwork
from gpukernel.pool.leases.clockwork import run_clock
from gpukernel.pool.leases.expiry import SERVER_GRACE
from gpukernel.pool.leases.manager import DEFAULT_TTL, LeaseManager
from gpukernel.pool.store.schema import devices as devices_table
from gpukernel.pool.store.store import Store
from tests.pool.world import GIB, Agent, World, story


def test_first_come_first_served_and_the_small_does_not_pass_the_large(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        first = await world.get("first", 0.9)
        large, small = world.ask("large", 0.5), world.ask("small", 0.05)
        assert (await anext(large)).position == 1  # type: ignore[union-attr]
        assert (await anext(small)).position == 2  # type: ignore[union-attr]
        assert [w.key for w in world.manager.waiting()] == ["large", "small"]
        world.manager.end(first.id, "done")
        assert isinstance(await anext(large), Lease)
        assert isinstance(await anext(small), Lease)

    story(tmp_path, tell)


def test_leaving_the_queue_moves_the_others_up(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        await world.get("first", 1.0)
        one, two = world.ask("one"), world.ask("two")
        await anext(one)
        await anext(two)
        await one.aclose()  # type: ignore[attr-defined]
        assert (await anext(two)).position == 1  # type: ignore[union-attr]

    story(tmp_path, tell)


def test_asking_again_with_the_same_key_gives_the_same_lease(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        assert (await world.get("k")).id == (await world.get("k")).id
        assert world.promised() == pytest.approx(0.5, abs=1e-3)

    story(tmp_path, tell)


def test_no_wait_is_refused_at_once_with_the_reason(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        await world.get("first", 1.0)
        with pytest.raises(Refused, match="no room for 16384 MiB") as refusal:
            await world.get("second", 0.5, wait=0)
        assert refusal.value.code == "full"
        assert world.manager.waiting() == []

    story(tmp_path, tell)


def test_a_lease_without_a_sign_of_life_ends_and_its_memory_is_free_when_its_worker_is_dead(
    tmp_path: Path,
) -> None:
    async def tell(world: World) -> None:
        task = asyncio.create_task(world.get("k", 1.0))
        await asyncio.sleep(0)
        world.agent.start()
        lease = await task
        world.pass_time(DEFAULT_TTL - 1)
        world.manager.renew(lease.id)
        world.pass_time(DEFAULT_TTL - 1)
        assert world.store.leases.get(lease.id).state == "live"  # type: ignore[union-attr]
        world.pass_time(2)
        assert world.store.leases.get(lease.id).state == "ending"  # type: ignore[union-attr]
        assert world.promised() == 1.0  # the worker may still write: not yet anyone else's
        world.agent.stop()
        assert world.promised() == 0
        ended = world.store.leases.get(lease.id)
        assert ended is not None
        assert (ended.state, ended.end_reason) == ("ended", "its holder gave no sign of life")

    story(tmp_path, tell, prompt=False)


@pytest.mark.parametrize("heard", [True, False])
def test_a_renewal_that_waits_in_an_overrun_pool_keeps_its_lease(tmp_path: Path, heard: bool) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("k")
        world.now += DEFAULT_TTL + 1

        async def call() -> None:
            for _ in range(8):  # from the socket to the lease manager
                await asyncio.sleep(0)
            world.manager.renew(lease.id)

        arrived = asyncio.create_task(call()) if heard else None
        clock = asyncio.create_task(run_clock(world.manager, 0))
        try:
            async with asyncio.timeout(0.5 if heard else 10):
                while world.store.leases.get(lease.id).state == "live":  # type: ignore[union-attr]
                    await asyncio.sleep(0.01)
        except TimeoutError:
            assert heard
        else:
            assert not heard
        finally:
            clock.cancel()
            if arrived:
                await arrived

    story(tmp_path, tell)


def test_a_call_is_answered_between_two_parts_of_a_second_s_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clockwork, "REST_SECONDS", 1.0)  # longer than a grant takes anywhere

    async def tell(world: World) -> None:
        done, begun = list[str](), asyncio.Event()
        parts_of_tick = world.manager.parts_of_tick

        def parts() -> Iterator[None]:
            for _ in parts_of_tick():
                done.append("a part")
                begun.set()
                yield
            done.append("the last part")

        monkeypatch.setattr(world.manager, "parts_of_tick", parts)
        clock = asyncio.create_task(run_clock(world.manager, 0))
        await begun.wait()
        await world.get("k")
        done.append("granted")
        while "the last part" not in done:
            await asyncio.sleep(0.01)
        clock.cancel()
        assert done[:3] == ["a part", "granted", "a part"]

    story(tmp_path, tell)


def test_a_connected_program_is_a_sign_of_life(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("k")
        for _ in range(5):
            world.pass_time(DEFAULT_TTL - 1)
            world.sessions.heartbeat("s", {(lease.id, "s/0"): Usage(connections=1)})
        assert world.store.leases.get(lease.id).state == "live"  # type: ignore[union-attr]

    story(tmp_path, tell)


def test_a_worker_that_dies_ends_the_lease_with_the_reason_and_the_key_gets_a_new_one(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("k")
        world.agent.alive.clear()
        world.sessions.worker_ended("s", lease.id, "s/0", "its worker ended unexpectedly")
        assert world.store.leases.get(lease.id).end_reason == "its worker ended unexpectedly"  # type: ignore[union-attr]
        assert (await world.get("k")).id != lease.id

    story(tmp_path, tell)


def test_a_worker_that_does_not_start_is_told_to_the_holder_and_costs_nothing(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        task = asyncio.create_task(world.get("k"))
        await asyncio.sleep(0)
        (key,) = world.agent.to_start
        world.sessions.worker_ended("s", *key, "the disk is full")
        with pytest.raises(Refused, match="the disk is full"):
            await task
        assert world.promised() == 0

    story(tmp_path, tell, prompt=False)


def test_a_request_given_up_before_its_worker_was_ready_leaves_nothing(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        task = asyncio.create_task(world.get("k"))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        world.agent.start()
        world.agent.stop()
        assert (world.promised(), world.agent.alive) == (0, set())

    story(tmp_path, tell, prompt=False)


def test_a_server_whose_agent_could_not_be_attached_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the database is away")

    async def tell(world: World) -> None:
        world.sessions.detach("s", world.agent)
        again = Agent(world.manager)
        with monkeypatch.context() as patch:
            patch.setattr(world.store.leases, "on_server", fail)
            with pytest.raises(OSError, match="away"):
                again.attach()
        world.sessions.detach("s", again)  # as the end of its stream does
        assert [device.trouble for device in world.manager.devices()] == ["away"]

    story(tmp_path, tell)


def test_a_lost_server_ends_its_leases_after_a_grace_and_its_workers_when_it_returns(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("k")
        world.sessions.detach("s", world.agent)
        assert not world.manager.devices()[0].available
        for _ in range(3):
            world.manager.renew(lease.id)
            world.pass_time(SERVER_GRACE / 2)
        ended = world.store.leases.get(lease.id)
        assert ended is not None
        assert ended.end_reason == "its GPU server s was lost"
        assert world.promised() > 0  # nobody has seen the worker dead
        world.agent.attach()
        assert (world.promised(), world.agent.alive) == (0, set())

    story(tmp_path, tell)


def test_a_pool_started_again_keeps_leases_whose_workers_live_and_ends_the_others(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        kept, lost = await world.get("kept", 0.3), await world.get("lost", 0.3)
        world.agent.alive.discard((lost.id, "s/0"))
        world.agent.alive.add(("stranger", "s/0"))
        world.store.close()
        again = World.__new__(World)
        again.now = world.now + 1000
        again.store = Store(f"sqlite:///{tmp_path}/pool.db")
        again.manager = LeaseManager(again.store, lambda: again.now)
        again.pass_time(DEFAULT_TTL - 1)  # a time to live of grace
        agent = Agent(again.manager)
        agent.alive = set(world.agent.alive)
        agent.attach()
        assert agent.alive == {(kept.id, "s/0")}
        assert again.store.leases.get(kept.id).state == "live"  # type: ignore[union-attr]
        assert again.store.leases.get(lost.id).state == "ended"  # type: ignore[union-attr]
        assert again.promised() == pytest.approx(0.3, abs=1e-3)
        assert {r.id for r in again.manager.leases(False)} == {kept.id}

    story(tmp_path, tell)


def test_the_database_itself_refuses_to_promise_memory_twice(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        with pytest.raises(IntegrityError, match="never_promised_twice"), world.store.engine.begin() as db:
            db.execute(devices_table.update().values(promised_bytes=33 * GIB))

    story(tmp_path, tell)


@pytest.mark.parametrize(
    ("key", "person", "ttl", "wait"),
    [
        ("", "p", 0, 0),
        ("k", "", 0, 0),
        ("k" * 65536, "p", 0, 0),
        ("k", "p", -1, 0),
        ("k", "p", 1e9, 0),
        ("k", "p", 0, float("nan")),
    ],
)
def test_bad_requests_change_nothing(tmp_path: Path, key: str, person: str, ttl: float, wait: float) -> None:
    async def tell(world: World) -> None:
        with pytest.raises(Refused) as refusal:
            await anext(world.manager.acquire(key, SliceRequest(share=0.1), Holder(person), wait, ttl))
        assert refusal.value.code == "invalid"
        assert (world.promised(), world.manager.waiting()) == (0, [])

    story(tmp_path, tell)


def test_a_lease_over_two_servers_starts_a_worker_on_each(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        other = Agent(world.manager, "t")
        other.attach()
        lease = None
        async for event in world.manager.acquire(
            "k", SliceRequest(share=1.0, devices=2), Holder("anna"), -1, 0
        ):
            lease = event
        assert isinstance(lease, Lease)
        assert {piece.server for piece in lease.slices} == {"s", "t"}
        assert (len(world.agent.alive), len(other.alive)) == (1, 1)

    story(tmp_path, tell)
