"""A live lease's slices become larger or smaller, and what a worker may allocate is never more than what is promised."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import sqlalchemy as sa

from gpukernel.common.bounds import Account, Bounds
from gpukernel.common.course import Course
from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
from gpukernel.pool.domain.quota import Standing
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.scheduling import resize
from gpukernel.pool.store import quota_usage
from gpukernel.pool.store.store import Store
from gpukernel.pool.store.usage_log import held_between
from tests.pool.world import GIB, START, Agent, World, story

MIB = 2**20
ML101 = Course("ml101", members={"anna": "student", "ben": "student"})
ANNA = Holder("anna", course="ml101")


def share(value: float) -> SliceRequest:
    return SliceRequest(share=value)


def standing(world: World, account: Account) -> Standing:
    with world.store.deciding() as (db, _):
        return quota_usage.standings(db, world.store.policy.current(db), [account], {}, world.now)[account]


def test_growing_and_shrinking_change_the_cap_the_promise_and_the_quota_together(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("k", 0.25, holder=ANNA)
        for size in (0.5, 0.5, 0.125, 1.0):
            changed = await world.manager.resize(lease.id, share(size))
            assert changed is not None
            assert changed.slices[0].memory_bytes == size * 32 * GIB
            assert changed.slices[0].weight == pytest.approx(size)
            assert world.agent.caps[lease.id, "s/0"] == size * 32 * GIB
            assert world.promised() == size
            for account in quota_usage.accounts_of("anna", "ml101"):
                held = standing(world, account)
                assert (held.share, held.memory, held.leases) == (size * 1_000_000, size * 32 * GIB, 1)
        world.manager.end(lease.id, "done")
        assert world.promised() == 0
        assert standing(world, Account("pool")).share == 0

    story(tmp_path, tell)


def test_shrinking_below_what_is_allocated_is_refused_with_the_figure_and_changes_nothing(
    tmp_path: Path,
) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("k", 0.5)
        world.agent.used[lease.id, "s/0"] = 5000 * MIB + 1
        with pytest.raises(
            Refused, match="5001 MiB are allocated on s/0; the slice cannot shrink to 3276 MiB"
        ):
            await world.manager.resize(lease.id, share(0.1))
        assert (world.promised(), world.agent.caps[lease.id, "s/0"]) == (0.5, 16 * GIB)
        assert (await world.manager.resize(lease.id, SliceRequest(memory_bytes=5001 * MIB))) is not None

    story(tmp_path, tell)


def test_of_two_devices_both_shrink_or_neither(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = None
        async for event in world.manager.acquire("k", SliceRequest(share=0.5, devices=2), ANNA, -1, 0):
            lease = event
        assert isinstance(lease, Lease)
        world.agent.used[lease.id, "s/1"] = 10 * GIB
        with pytest.raises(Refused, match="10240 MiB are allocated on s/1"):
            await world.manager.resize(lease.id, share(0.25))
        assert world.promised() == 1.0
        assert {world.agent.caps[lease.id, i] for i in ("s/0", "s/1")} == {16 * GIB}
        await world.manager.resize(lease.id, share(0.3125))
        assert world.promised() == 0.625

    story(tmp_path, tell, devices=2)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (share(0.8), "s/0 has 16384 MiB free; your slice of 8192 MiB cannot grow by 18022 MiB there"),
        (SliceRequest(memory_bytes=33 * GIB), "33792 MiB do not fit on s/0, which has 32768 MiB"),
        (share(0.4), "as a student of ml101, may have slices of up to 0.30 of a device"),
        (share(1.5), "A share of 1.5 is not possible"),
        (share(0), "A share of 0 is not possible"),
        (SliceRequest(), "exactly one of the two"),
        (SliceRequest(memory_bytes=1), "at least 1 MiB"),
    ],
)
def test_what_cannot_be_is_refused_with_its_figures(
    tmp_path: Path, request_: SliceRequest, words: str
) -> None:
    async def tell(world: World) -> None:
        if "ml101" in words:
            world.rule(ML101, quotas={"student:ml101": Bounds(largest_slice=0.3)})
        lease = await world.get("k", 0.25, holder=ANNA)
        await world.get("other", 0.25, holder=Holder("carl"))
        with pytest.raises(Refused, match=words):
            await world.manager.resize(lease.id, request_)
        assert world.promised() == 0.5

    story(tmp_path, tell)


def test_growing_counts_only_what_is_more_and_one_lease_stays_one(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(ML101, quotas={"course:ml101": Bounds(devices=0.6, leases=1)})
        lease = await world.get("k", 0.25, holder=ANNA)
        await world.manager.resize(lease.id, share(0.5))
        with pytest.raises(Refused, match=r"Course ml101 may hold at most 0\.60 devices"):
            await world.manager.resize(lease.id, share(0.7))
        world.rule(ML101, quotas={"course:ml101": Bounds(devices=0.6, leases=2)})
        other = await world.get("other", 0.05, holder=Holder("ben", course="ml101"))
        with pytest.raises(
            Refused, match=r"Course ml101 holds 0\.55 of its 0\.60 devices; 0\.10 more does not fit"
        ):
            await world.manager.resize(lease.id, share(0.6))
        world.manager.end(other.id, "done")
        await world.manager.resize(lease.id, share(0.6))

    story(tmp_path, tell)


def test_nobody_who_waits_is_passed_by_a_slice_that_grows(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("k", 0.25)
        other = await world.get("other", 0.25)
        waiting = world.ask("large", 0.75)
        assert isinstance(await anext(waiting), Queued)
        with pytest.raises(Refused, match="Others wait for Tesla V100; your slice stays at 8192 MiB"):
            await world.manager.resize(lease.id, share(0.5))
        await world.manager.resize(other.id, share(0.125))  # giving back is always possible
        with pytest.raises(Refused, match="Others wait"):
            await world.manager.resize(lease.id, share(0.5))
        world.manager.end(other.id, "done")
        assert isinstance(await anext(waiting), Lease)

    story(tmp_path, tell)


def test_two_slices_side_by_side_that_become_free_serve_one_larger_request_at_once(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        thirds = [await world.get(f"k{i}", size) for i, size in enumerate((0.31, 0.27, 0.37))]
        await world.manager.resize(thirds[2].id, share(0.38))
        large = world.ask("large", 0.6)
        assert isinstance(await anext(large), Queued)
        world.manager.end(thirds[0].id, "done")
        world.manager.end(thirds[1].id, "done")
        assert isinstance(await anext(large), Lease)

    story(tmp_path, tell)


def test_what_shrinking_frees_goes_to_who_waits_only_when_the_worker_has_its_lower_cap(
    tmp_path: Path,
) -> None:
    async def tell(world: World) -> None:
        task = asyncio.create_task(world.get("k", 1.0))
        await asyncio.sleep(0)
        world.agent.start()
        lease = await task
        waiting = asyncio.create_task(world.get("next", 0.5))
        resize = asyncio.create_task(world.manager.resize(lease.id, share(0.5)))
        for _ in range(3):
            await asyncio.sleep(0)
        assert world.agent.to_limit == [(lease.id, "s/0", 16 * GIB)]
        assert (world.promised(), world.agent.to_start) == (1.0, [])
        with pytest.raises(Refused, match="resized already"):
            await world.manager.resize(lease.id, share(0.2))
        world.agent.limit()
        assert (await resize) is not None
        assert len(world.agent.to_start) == 1
        world.agent.start()
        await waiting
        assert world.promised() == 1.0

    story(tmp_path, tell, prompt=False)


@pytest.mark.parametrize("target", [0.25, 0.75])
@pytest.mark.parametrize("applied", [False, True])
def test_a_pool_that_dies_between_the_steps_goes_on_where_it_was(
    tmp_path: Path, target: float, applied: bool
) -> None:
    async def tell(world: World) -> None:
        task = asyncio.create_task(world.get("k", 0.5))
        await asyncio.sleep(0)
        world.agent.start()
        lease = await task
        resize = asyncio.create_task(world.manager.resize(lease.id, share(target)))
        await asyncio.sleep(0)
        if applied:  # the worker obeyed, and the pool did not live to hear it
            world.agent.caps[lease.id, "s/0"] = int(target * 32) * GIB
        world.store.close()
        store = Store(f"sqlite:///{tmp_path}/pool.db")
        manager = LeaseManager(store, lambda: world.now)
        agent = Agent(manager)
        agent.alive, agent.caps = world.agent.alive, world.agent.caps
        agent.attach()
        (after,) = manager.leases(False)
        assert after.slices[0].memory_bytes == target * 32 * GIB
        assert agent.caps[lease.id, "s/0"] == target * 32 * GIB
        assert manager.devices()[0].promised_bytes == target * 32 * GIB
        resize.cancel()

    story(tmp_path, tell, prompt=False)


def test_a_server_that_is_away_or_silent_leaves_the_size_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpukernel.pool.leases.resizes.RESIZE_SECONDS", 0.01)

    async def tell(world: World) -> None:
        task = asyncio.create_task(world.get("k", 0.5))
        await asyncio.sleep(0)
        world.agent.start()
        lease = await task
        with pytest.raises(Refused, match="did not answer in time"):
            await world.manager.resize(lease.id, share(0.25))
        world.agent.limit()  # too late: it is told to go back
        assert (world.promised(), world.agent.caps[lease.id, "s/0"]) == (0.5, 16 * GIB)
        with pytest.raises(Refused, match="has not answered yet; the memory is promised"):
            await world.manager.resize(lease.id, share(0.75))
        assert (world.promised(), world.agent.caps[lease.id, "s/0"]) == (0.75, 16 * GIB)
        world.agent.limit()
        assert world.agent.caps[lease.id, "s/0"] == 24 * GIB
        world.sessions.detach("s", world.agent)
        with pytest.raises(Refused, match="GPU server s does not answer now"):
            await world.manager.resize(lease.id, share(0.25))
        world.manager.end(lease.id, "done")
        with pytest.raises(Refused, match="Only a slice that is live"):
            await world.manager.resize(lease.id, share(0.25))

    story(tmp_path, tell, prompt=False)


def test_the_database_itself_keeps_growth_within_device_and_quota(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(ML101, quotas={"course:ml101": Bounds(devices=0.5)})
        lease = await world.get("k", 0.5, holder=ANNA)

        class Blind:  # a program with a fault in its sums
            def room(self, *_: object) -> str:
                return ""

            def waited_for(self, *_: object) -> str:
                return ""

        from gpukernel.common.policy import Policy

        with pytest.raises(Refused, match="books do not agree"), world.store.deciding() as (db, _):
            resize.begin(world.store, db, Policy(), Blind(), lease.id, share(0.6), world.now, world.now)
        assert world.promised() == 0.5

    story(tmp_path, tell)


def test_the_book_says_what_was_held_when(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("k", 0.5, holder=ANNA)
        world.now += 3600
        world.manager.renew(lease.id)
        await world.manager.resize(lease.id, share(0.25))
        world.now += 7200
        world.manager.renew(lease.id)
        world.manager.end(lease.id, "done")
        world.now += 3600
        with world.store.engine.connect() as db:
            whole = list(held_between(db, START, world.now))
            part = list(held_between(db, START + 1800, START + 5400))
            assert db.execute(sa.text("SELECT count(*) FROM usage_log WHERE ends IS NULL")).scalar() == 0
        assert [(round(h.hours, 6), round(h.device_hours, 6)) for h in whole] == [(1, 0.5), (2, 0.5)]
        assert sum(h.device_hours for h in part) == pytest.approx(0.375)
        assert {(h.person, h.course) for h in whole} == {("anna", "ml101")}

    story(tmp_path, tell)
