"""Leases that engines have placed, with a clock that tests turn: granted where they were placed, and ended by their keys."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from gpukernel.common.bounds import Bounds
from gpukernel.common.course import Course
from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, Lease, PlacedOn, SliceRequest
from gpukernel.pool.domain.fencing import START_SECONDS
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.leases.placed_leases import PlacedLeases
from gpukernel.pool.store.device_reports import GONE
from gpukernel.pool.store.store import Store
from gpukernel.pool.store.usage_log import held_between
from tests.pool.world import ANNA, GIB, START, World, story

UUID = "GPU-0000000{}-0000-0000-0000-000000000000"
FIRST, SECOND = UUID.format(0), UUID.format(1)


def engines(world: World, first: str = "slurm") -> PlacedLeases:
    """Let an engine decide over the first device of the world, whose agent tells UUIDs from now on."""
    world.agent.tell_uuids()
    world.agent.attach()
    placed = PlacedLeases(world.manager)
    placed.delegate("s/0", first, "root")
    return placed


async def place(
    placed: PlacedLeases,
    key: str = "job",
    size: int = GIB,
    holder: Holder = ANNA,
    uuid: str = FIRST,
    wait: float = 0,
    **options: Any,
) -> Lease:
    return await placed.acquire("slurm", key, [PlacedOn(uuid, size)], holder, wait, **options)


def test_a_placement_is_granted_where_it_was_placed_and_asking_again_is_harmless(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        lease = await place(placed)
        assert (lease.state, lease.decided_by, lease.key) == ("live", "slurm", "job")
        assert [(p.uuid, p.memory_bytes, p.label) for p in lease.slices] == [(FIRST, GIB, "s/0")]
        assert (lease.expires, lease.ttl_seconds, lease.until) == (0, 0, 0)
        again = await place(placed, holder=Holder("anna", description="the same job, again"))
        assert (again.id, again.secret) == (lease.id, lease.secret)
        assert world.promised() * 32 == 1
        with pytest.raises(
            Refused, match=r"it has 1024 MiB of GPU-0.*, not 2048 MiB\.  Release it first"
        ) as no:
            await place(placed, size=2 * GIB)
        assert no.value.code == "different"
        with pytest.raises(Refused, match="it is for anna, not ben"):
            await place(placed, holder=Holder("ben"))
        assert world.promised() * 32 == 1

    story(tmp_path, tell, devices=2)


def test_the_pool_never_places_on_an_engines_device(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        mine = await world.get("mine", 1.0)
        assert [piece.uuid for piece in mine.slices] == [SECOND]
        with pytest.raises(Refused, match="no room"):
            await world.get("more", 0.5, wait=0)
        wanted = SliceRequest(share=0.1, device="s/0")
        with pytest.raises(Refused, match="no device “s/0” that it can offer"):
            await anext(world.manager.acquire("named", wanted, ANNA, 0, 0))
        with pytest.raises(Refused, match="2 devices are asked for; the pool has 1"):
            await anext(world.manager.acquire("two", SliceRequest(share=0.1, devices=2), ANNA, -1, 0))
        waiting = asyncio.create_task(world.get("waits", 0.5))
        await asyncio.sleep(0)
        assert not waiting.done()
        placed.delegate("s/0", "pool", "root")
        assert [piece.uuid for piece in (await waiting).slices] == [FIRST]

    story(tmp_path, tell, devices=2)


def test_an_engine_never_places_on_the_pools_device(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        with pytest.raises(Refused, match=r"s/1 \(GPU-.*\) is decided by the pool, not by slurm") as no:
            await place(placed, uuid=SECOND)
        assert no.value.code == "not_decided"
        with pytest.raises(Refused, match="is decided by slurm, not by kubernetes"):
            await placed.acquire("kubernetes", "job", [PlacedOn(FIRST, GIB)], ANNA, 0)
        # All or nothing.
        with pytest.raises(Refused, match="decided by the pool"):
            await placed.acquire("slurm", "job", [PlacedOn(FIRST, GIB), PlacedOn(SECOND, GIB)], ANNA, 0)
        assert world.promised() == 0
        assert placed.all("slurm") == []

    story(tmp_path, tell, devices=2)


def test_a_full_device_is_refused_with_the_figures_and_nothing_waits(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        await place(placed, "one", 31 * GIB)
        with pytest.raises(Refused, match="has 1024 MiB free, not the 2048 MiB") as no:
            await place(placed, "two", 2 * GIB, wait=600)
        assert no.value.code == "full"
        world.agent.prompt = False
        ending = await placed.release("slurm", "one", "", 0)
        assert ending is not None
        assert ending.state == "ending"
        with pytest.raises(Refused, match="31744 MiB more are free once workers that end have stopped"):
            await place(placed, "two", 2 * GIB)

    story(tmp_path, tell)


def test_a_placed_lease_needs_no_sign_of_life_and_no_use(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        world.rule(quotas={"pool": Bounds(idle_seconds=60, longest_seconds=600)})
        lease = await place(placed)
        pools = await world.get("kernel", 0.5)
        for _ in range(100):
            world.pass_time(600)
        states = {one.id: one.state for one in world.manager.leases(True)}
        assert states == {lease.id: "live", pools.id: "ended"}

    story(tmp_path, tell, devices=2)


def test_a_placed_lease_ends_after_its_longest_time(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        lease = await place(placed, longest=3600)
        assert lease.until == pytest.approx(START + 3600)
        world.pass_time(3599)
        assert world.manager.lease(lease.id).state == "live"  # type: ignore[union-attr]
        world.pass_time(2)
        ended = world.manager.lease(lease.id)
        assert ended is not None
        assert (ended.state, ended.end_reason) == ("ended", "it was held for its longest time of 60 min")

    story(tmp_path, tell)


def test_a_call_that_breaks_off_ends_nothing(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        asking = asyncio.create_task(place(placed, wait=600))
        await asyncio.sleep(0)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        (lease,) = placed.all("slurm")
        assert lease.state == "starting"
        again = asyncio.create_task(place(placed, wait=600))
        await asyncio.sleep(0)
        world.agent.start()
        live = await again
        assert (live.id, live.state) == (lease.id, "live")

    story(tmp_path, tell, prompt=False)


def test_a_worker_that_takes_longer_than_the_call_waits_gives_a_lease_that_starts(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        assert (await place(placed, wait=0.01)).state == "starting"

    story(tmp_path, tell, prompt=False)


def test_a_start_that_no_server_confirms_fails_and_goes_nowhere_else(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        placed.delegate("s/1", "slurm", "root")
        asking = asyncio.create_task(place(placed, wait=600))
        await asyncio.sleep(0)
        for _ in range(int(START_SECONDS) + 2):
            world.pass_time(1)
        with pytest.raises(Refused, match="No slice could be started: GPU server s did not confirm") as no:
            await asking
        assert no.value.code == "failed"
        assert world.manager.watch._unconfirmed == {}

    story(tmp_path, tell, devices=2, prompt=False)


def test_a_release_is_answered_when_the_memory_is_free(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        lease = await place(placed)
        world.agent.prompt = False
        releasing = asyncio.create_task(placed.release("slurm", "job", "the job is over", 600))
        await asyncio.sleep(0)
        assert not releasing.done()
        world.agent.stop()
        ended = await releasing
        assert ended is not None
        assert (ended.id, ended.state, ended.end_reason) == (lease.id, "ended", "the job is over")
        assert world.promised() == 0
        assert await placed.release("slurm", "job", "", 600) is None
        assert await placed.release("slurm", "never-seen", "", 600) is None
        assert await placed.release("kubernetes", "job", "", 0) is None
        # Slurm gives a job that is requeued its number again.
        world.agent.prompt = True
        assert (await place(placed)).id != lease.id

    story(tmp_path, tell)


def test_a_pool_that_is_started_again_knows_the_keys(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        lease = await place(placed)
        world.store.close()
        next_one = World(tmp_path, alive=world.agent.alive)
        next_one.agent.tell_uuids()
        next_one.agent.attach()
        after = PlacedLeases(next_one.manager)
        assert (await place(after)).id == lease.id
        next_one.pass_time(100_000)
        assert [one.state for one in after.all("slurm", "job")] == ["live"]
        assert [d.decided_by for d in next_one.manager.devices()] == ["slurm"]

    story(tmp_path, tell)


def test_a_lease_that_starts_when_the_pool_dies_is_started_by_the_next_one(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        lease = await place(placed)
        assert lease.state == "starting"
        world.store.close()
        next_one = World(tmp_path, prompt=False)
        next_one.agent.tell_uuids()
        next_one.agent.attach()
        after = PlacedLeases(next_one.manager)
        asking = asyncio.create_task(place(after, wait=600))
        await asyncio.sleep(0)
        next_one.agent.start()
        assert (await asking).id == lease.id
        assert next_one.promised() * 32 == 1

    story(tmp_path, tell, prompt=False)


def test_a_device_that_is_gone_takes_its_placed_leases_with_it_and_gets_none(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        lease = await place(placed)
        world.agent.count_anew([1])
        world.agent.attach()
        ended = world.manager.lease(lease.id)
        assert ended is not None
        assert "is gone from GPU server s" in ended.end_reason
        with pytest.raises(Refused, match=f"gets no new leases: {GONE}") as no:
            await place(placed)
        assert no.value.code == "unavailable"
        world.agent.count_anew([1, 0])
        world.agent.attach()
        assert (await place(placed)).slices[0].label == "s/1"

    story(tmp_path, tell, devices=2)


def test_a_server_that_is_drained_or_away_gets_none(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        lease = await place(placed)
        world.manager.drain("s", "root", 60)
        with pytest.raises(Refused, match="gets no new leases: drained"):
            await place(placed, "other")
        assert (await place(placed)).id == lease.id
        world.pass_time(61)
        assert world.manager.lease(lease.id).end_reason == "its GPU server s was drained"  # type: ignore[union-attr]
        world.manager.undrain("s", "root")
        world.sessions.detach("s", world.agent)
        with pytest.raises(Refused, match="gets no new leases: away"):
            await place(placed, "other")

    story(tmp_path, tell)


def test_nobody_resizes_what_an_engine_placed(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await place(engines(world))
        for share in (0.5, 0.01):
            with pytest.raises(Refused, match="Slurm has placed this slice and says how large it is"):
                await world.manager.resize(lease.id, SliceRequest(share=share))

    story(tmp_path, tell)


def test_a_device_in_use_is_handed_over_by_the_clock(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        lease = await place(placed)
        with pytest.raises(Refused, match="1 lease that slurm placed is on s/0"):
            placed.delegate("s/0", "pool", "root")
        placed.delegate("s/0", "pool", "root", when_free=True)
        with pytest.raises(Refused, match="gets no new leases: the pool decides over it once it is free"):
            await place(placed, "other")
        assert (await place(placed)).id == lease.id
        waiting = asyncio.create_task(world.get("waits", 1.0))
        with pytest.raises(Refused, match="The pool has no device"):
            await waiting
        await placed.release("slurm", "job", "", 600)
        world.pass_time(1)
        assert [piece.uuid for piece in (await world.get("now", 1.0)).slices] == [FIRST]

    story(tmp_path, tell)


def test_what_an_engine_placed_is_accounted_like_any_other(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        ml = Course("ml", members={"anna": "student"})
        world.rule(ml, quotas={"person:anna": Bounds(devices=0.5), "course:ml": Bounds(hours_week=2)})
        student = Holder("anna", course="ml")
        lease = await place(placed, size=24 * GIB, holder=student)  # more than the quota
        assert lease.role == "student"
        with pytest.raises(Refused, match=r"anna holds 0\.75 of their 0\.50 devices"):
            await world.get("kernel", 0.1, wait=0, holder=student)
        world.pass_time(3600)
        with world.store.reader.connect() as db:
            (use,) = held_between(db, START, world.now)
        assert (use.person, use.course, round(use.device_hours, 6)) == ("anna", "ml", 0.75)
        world.pass_time(2 * 3600)
        # The hours of a job that began before its lease count from its start; asking again changes nothing.
        late = await place(placed, "late", 4 * GIB, began=world.now - 90)
        assert await place(placed, "late", 4 * GIB, began=world.now - 60) == late
        await placed.release("slurm", "late", "", 600)
        with world.store.reader.connect() as db:
            seconds = {one.lease: one.hours * 3600 for one in held_between(db, START, world.now)}
        assert seconds[late.id] == pytest.approx(90)
        with pytest.raises(Refused, match=r"-1\.0 is no time at which something began"):
            await place(placed, "late", began=-1.0)
        await placed.release("slurm", "job", "", 600)
        with pytest.raises(Refused, match=r"Course ml has used 2\.2 of its 2 GPU-hours of this week"):
            await world.get("kernel", 0.1, wait=0, holder=student)
        assert (await place(placed, holder=student)).state == "live"
        with pytest.raises(Refused, match="There is no course bio"):
            await place(placed, "other", holder=Holder("anna", course="bio"))
        # Who is in a course, the engine's associations say.
        assert (await place(placed, "bens", holder=Holder("ben", course="ml"))).role == ""

    story(tmp_path, tell, devices=2)


def test_keys_of_the_pools_queue_are_no_keys_of_engines(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        kernel = await world.get("job", 0.5)
        lease = await place(placed)
        assert lease.id != kernel.id
        assert (await world.get("job", 0.5)).id == kernel.id
        await placed.release("slurm", "job", "", 600)
        assert world.manager.lease(kernel.id).state == "live"  # type: ignore[union-attr]
        assert world.manager.end_server("anna", "", "the Hub says so") == 1
        assert (await place(placed, "another")).state == "live"
        assert world.manager.end_server("anna", "", "the Hub says so") == 0

    story(tmp_path, tell, devices=2)


@pytest.mark.parametrize("wait", [-1, 601, float("nan")])
def test_a_wait_that_is_none_is_refused(tmp_path: Path, wait: float) -> None:
    async def tell(world: World) -> None:
        placed = engines(world)
        for call in (place(placed, wait=wait), placed.release("slurm", "job", "", wait)):
            with pytest.raises(Refused, match="at most 600 s"):
                await call

    story(tmp_path, tell)


def test_two_pools_that_place_at_once_promise_no_byte_twice(new_postgresql: Callable[..., str]) -> None:
    url, tries, ready = new_postgresql(), 24, Barrier(2)

    async def ask(number: int) -> list[str]:
        if number:
            ready.wait()
            store = Store(url)
            placed = PlacedLeases(LeaseManager(store, lambda: START))
        else:  # the agent speaks with this one
            world = World(url)
            store, placed = world.store, engines(world)
            ready.wait()
        ready.wait()
        granted = []
        for one in range(tries):
            # Each key is asked for by both, and there is room for a third of them.
            with contextlib.suppress(Refused):
                granted.append((await place(placed, f"job{one ^ number}", 4 * GIB)).id)
        ready.wait()
        store.close()
        return granted

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda number: asyncio.run(ask(number)), range(2)))
    store = Store(url)
    (device,) = store.devices.all()
    leases = store.deciders.leases("slurm")
    assert device.promised_bytes == 32 * GIB == sum(lease.slices[0].memory_bytes for lease in leases)
    assert len({lease.key for lease in leases}) == len(leases) == 8
    assert {*found[0], *found[1]} == {lease.id for lease in leases}
    store.close()
