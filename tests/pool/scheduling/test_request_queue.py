"""The queue: fair between courses, nobody delayed by who passes them, and remembered by the database."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpukernel.common.bounds import Bounds
from gpukernel.common.course import Course
from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, Lease, Queued, SliceRequest
from gpukernel.common.policy import HALF_LIFE
from gpukernel.common.slice_request import PROMOTED_AFTER, class_rank
from gpukernel.pool.domain.fairness import (
    AvailabilityProfile,
    fair_order,
    promise,
)
from gpukernel.pool.scheduling.pending_requests import ABSENT, KEEP_PLACE
from gpukernel.pool.store.policy import write_policy
from tests.pool.world import Agent, World, story

# --- the order ---


@dataclass(frozen=True)
class One:
    ticket: int
    course: str
    size: int = 100
    rank: int = 0


def test_the_course_that_holds_least_for_its_weight_is_next() -> None:
    line = [One(1, "a"), One(2, "a"), One(3, "a"), One(4, "b"), One(5, "b")]
    assert [o.ticket for o in fair_order(line, {}, {})] == [1, 4, 2, 5, 3]
    assert [o.ticket for o in fair_order(line, {"a": 150}, {})] == [4, 5, 1, 2, 3]
    assert [o.ticket for o in fair_order(line, {}, {"a": 2})] == [1, 4, 2, 3, 5]


class Naive:
    """The rule of `gpukernel.pool.domain.fairness`, word by word."""

    @staticmethod
    def order(waiting: list[One], held: dict[str, int], weights: dict[str, float]) -> list[One]:
        left, now, order = list(waiting), dict(held), []
        while left:
            firsts = [
                min((o for o in left if o.course == c), key=lambda o: o.ticket)
                for left in [[o for o in left if o.rank == min(o.rank for o in left)]]
                for c in {o.course for o in left}
            ]
            chosen = min(firsts, key=lambda o: (now.get(o.course, 0) / weights.get(o.course, 1), o.ticket))
            now[chosen.course] = now.get(chosen.course, 0) + chosen.size
            left.remove(chosen)
            order.append(chosen)
        return order


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 300), st.integers(0, 2)), max_size=12),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 500)),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from([0.5, 1, 2, 3.5])),
)
def test_the_order_is_what_its_definition_says(
    line: list[tuple[str, int, int]], held: dict[str, int], weights: dict[str, float]
) -> None:
    waiting = [One(i, *one) for i, one in enumerate(line)]
    order = fair_order(reversed(waiting), held, weights, lambda one: one.rank)
    assert order == Naive.order(waiting, held, weights)


def test_a_class_comes_before_fairness_and_age_until_the_next_one_has_waited_long() -> None:
    line = [One(1, "a", rank=2), One(2, "a", rank=1), One(3, "a"), One(4, "b", rank=1)]
    order = fair_order(line, {"a": 500}, {}, lambda one: one.rank)
    assert [one.ticket for one in order] == [3, 4, 2, 1]
    for priority, rank in (("interactive", 0), ("batch", 1), ("scavenger", 2)):
        assert class_rank(priority, 0.0) == rank
        assert class_rank(priority, PROMOTED_AFTER[priority] - 1) == rank or not rank
        assert class_rank(priority, PROMOTED_AFTER[priority]) == 0


# --- promises ---


def room(profile: AvailabilityProfile, when: float) -> int:
    freed = sum(size for end, size in profile.ends if end <= when)
    return profile.free + freed - sum(size for a, b, size in profile.taken if a <= when < b)


_times = st.integers(1, 20).map(float)


@given(
    st.integers(0, 10),
    st.lists(st.tuples(_times, st.integers(1, 5)), max_size=5),
    st.lists(st.tuples(_times, _times, st.integers(1, 5)), max_size=3),
    st.integers(1, 12),
    st.sampled_from([1.0, 5.0, math.inf]),
)
def test_the_earliest_start_is_the_first_with_room_all_along(
    free: int,
    ends: list[tuple[float, int]],
    taken: list[tuple[float, float, int]],
    size: int,
    length: float,
) -> None:
    profile = AvailabilityProfile("d", free, ends, [(a, a + b, s) for a, b, s in taken])

    def fits(start: int) -> bool:
        return all(room(profile, t) >= size for t in range(start, int(min(start + length, 60))))

    expected = next((float(start) for start in range(60) if fits(start)), math.inf)
    assert profile.earliest(size, length, 0.0) == expected


def test_a_promise_over_several_devices_is_when_the_last_of_them_is_free() -> None:
    profiles = [
        AvailabilityProfile("a", 0, [(30.0, 5)]),
        AvailabilityProfile("b", 0, [(10.0, 5)]),
        AvailabilityProfile("c", 0),
    ]
    sizes = dict.fromkeys("abc", 5)
    when, chosen = promise(profiles, sizes, 2, 60.0, 0.0)
    assert (when, {p.device for p in chosen}) == (30.0, {"a", "b"})
    assert promise(profiles, sizes, 3, 60.0, 0.0) == (math.inf, [])


# --- the queue of a pool ---

A, B = Holder("anna", course="a"), Holder("ben", course="b")


async def joins(
    world: World, key: str, share: float, holder: Holder, longest: float = 0
) -> AsyncIterator[Queued | Lease]:
    ask = world.ask(key, share, holder=holder, longest=longest)
    assert isinstance(await anext(ask), Queued)
    return ask


def waiting(world: World) -> list[str]:
    return [w.key for w in world.manager.waiting()]


def test_courses_take_turns_by_weight_whoever_came_first(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        world.rule(
            Course("a", weight=1, members={"*": "student"}), Course("b", weight=2, members={"*": "student"})
        )
        first = await world.get("first", 1.0, holder=Holder("x", course="a"))
        asks = [await joins(world, f"a{i}", 0.25, A) for i in range(3)]
        asks += [await joins(world, f"b{i}", 0.25, B) for i in range(3)]
        assert waiting(world) == ["b0", "b1", "b2", "a0", "a1", "a2"]  # course a holds a device
        world.manager.end(first.id, "done")
        assert sorted(lease.key for lease in world.manager.leases(False)) == ["a0", "a1", "b0", "b1"]
        for ask in asks:
            await ask.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell)


@pytest.mark.parametrize(
    ("half_life", "pause", "first"), [(HALF_LIFE, 0, "b0"), (HALF_LIFE, 60, "a0"), (0, 0, "a0")]
)
def test_what_a_course_held_of_late_counts_until_it_is_forgotten(
    tmp_path: Path, half_life: float, pause: float, first: str
) -> None:
    async def tell(world: World) -> None:
        world.rule(Course("a", members={"*": "student"}), Course("b", members={"*": "student"}))
        with world.store.deciding() as (db, row):
            policy = world.store.policy.current(db, row.policy_version)
            write_policy(db, policy, replace(policy, half_life=half_life), "admin", world.now)
        past = await world.get("past", 1.0, holder=A)
        world.now += 7 * 86400
        world.agent.beat()
        world.manager.end(past.id, "done")
        world.now += pause * 86400
        world.agent.beat()
        held = await world.get("held", 1.0, holder=Holder("x"))
        asks = [await joins(world, "a0", 0.5, A), await joins(world, "b0", 0.5, B)]
        assert waiting(world)[0] == first
        world.manager.end(held.id, "done")
        for ask in asks:
            await ask.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell)


def test_interactive_requests_pass_batch_and_batch_is_served_in_time(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        held = await world.get("held", 1.0)
        wanted = {name: SliceRequest(1.0, priority=name) for name in ("scavenger", "batch", "interactive")}
        asks = [world.manager.acquire(name, one, A, -1, 0) for name, one in wanted.items()]
        for ask in asks:
            assert isinstance(await anext(ask), Queued)
        assert waiting(world) == ["interactive", "batch", "scavenger"]
        world.manager.end(held.id, "done")
        (lease,) = world.manager.leases(False)
        assert (lease.key, lease.priority) == ("interactive", "interactive")
        # Batch has waited for so long that it is served before an interactive request that comes now.
        world.now += PROMOTED_AFTER["batch"]
        world.manager.renew(lease.id)
        late = await joins(world, "late", 1.0, A)
        assert waiting(world) == ["batch", "late", "scavenger"]
        world.manager.end(lease.id, "done")
        (lease,) = world.manager.leases(False)
        assert (lease.key, lease.priority) == ("batch", "batch")
        for ask in (*asks, late):
            await ask.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell)


def test_a_small_request_passes_only_where_it_is_over_in_time(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        held = await world.get("held", 0.75, holder=A, longest=600)
        large = await joins(world, "large", 1.0, A, longest=1000)
        assert world.manager.waiting()[0].estimate_seconds == 600
        long = await joins(world, "long", 0.25, A, longest=601)
        short = world.ask("short", 0.25, holder=A, longest=599)
        assert isinstance(await anext(short), Lease)
        assert waiting(world) == ["large", "long"]
        world.now += 599
        for lease in world.manager.leases(False):
            world.manager.renew(lease.id)
        world.manager.tick()  # the short one is over
        assert [lease.id for lease in world.manager.leases(False)] == [held.id]
        world.now += 1
        world.manager.tick()
        assert (await anext(large)).key == "large"  # type: ignore[union-attr]
        assert waiting(world) == ["long"]
        await long.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell)


def test_that_time_passes_is_no_news_for_those_who_wait(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        held = await world.get("held", 1.0, longest=600)
        ask = await joins(world, "waits", 1.0, A)
        world.now += 100
        more = asyncio.create_task(anext(ask))  # type: ignore[arg-type]
        world.manager.policy_changed()  # everybody looks anew
        for _ in range(5):
            await asyncio.sleep(0)
        assert not more.done()
        world.rule(Course("a", members={"*": "student"}), quotas={"course:a": Bounds(devices=0.5)})
        world.manager.policy_changed()
        assert "its 0.50 devices" in (await more).reason  # type: ignore[union-attr]
        world.manager.end(held.id, "done")
        await ask.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell)


def test_without_known_ends_nothing_passes(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        await world.get("held", 0.75)
        large = await joins(world, "large", 1.0, A)
        short = await joins(world, "short", 0.1, A, longest=1)
        assert waiting(world) == ["large", "short"]
        assert world.manager.waiting()[0].estimate_seconds == -1
        await large.aclose()  # type: ignore[attr-defined]
        assert isinstance(await anext(short), Lease)

    story(tmp_path, tell)


def test_other_devices_than_the_promised_ones_are_free_to_take(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        await world.get("one", 0.9, holder=A, longest=100)
        two = await world.get("two", 0.9, holder=A, longest=200)
        large = await joins(world, "large", 1.0, A)
        small = await world.get("small", 0.1, holder=A)  # on the device that is not promised
        assert small.slices[0].device_id == two.slices[0].device_id
        more = await joins(world, "more", 0.1, A)  # the other one's room is promised
        for ask in (large, more):
            await ask.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell, devices=2)


def test_a_quota_holds_back_only_those_who_need_it(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        course = Course("a", members={"*": "student"})
        world.rule(course, quotas={"course:a": Bounds(devices=0.5), "person:ben": Bounds(devices=0.1)})
        await world.get("x", 0.3, holder=A)
        over = await joins(world, "over", 0.3, A)
        behind = await joins(world, "behind", 0.1, A)  # would fit, but takes what the first one waits for
        await world.get("free", 0.5, wait=0, holder=Holder("carl"))
        assert waiting(world) == ["over", "behind"]
        for ask in (over, behind):
            await ask.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell)


def test_room_that_is_promised_counts_in_its_quota_too(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        course = Course("a", members={"*": "student"})
        world.rule(course, quotas={"course:a": Bounds(devices=1.0)})
        await world.get("other", 0.9, longest=100)  # of no course
        large = await joins(world, "large", 0.95, A)
        short = await joins(world, "short", 0.1, A, longest=10)  # room, and in time, but not in the quota
        assert waiting(world) == ["large", "short"]
        for ask in (large, short):
            await ask.aclose()  # type: ignore[attr-defined]

    story(tmp_path, tell)


def test_two_slices_freed_beside_each_other_serve_one_larger(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        leases = [await world.get(f"k{i}", 0.25) for i in range(4)]
        ask = await joins(world, "large", 0.5, A)
        world.manager.end(leases[1].id, "done")
        world.manager.end(leases[3].id, "done")
        assert isinstance(await anext(ask), Lease)

    story(tmp_path, tell)


# --- it outlives its process ---


def restarted(world: World) -> World:
    """The pool's process dies as by kill -9, and another one starts on its database."""
    world.manager.orders._agents.clear()
    world.store.close()
    return World(str(world.store.engine.url), now=world.now, alive=world.agent.alive)


def test_a_place_is_kept_while_the_pool_starts_again(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        await world.get("held", 1.0)
        asks = [await joins(world, key, 1.0, A) for key in ("one", "two", "three")]
        world.agent.prompt = False
        world = restarted(world)
        world.now += ABSENT + 1
        world.manager.tick()
        later = await joins(world, "four", 1.0, A)
        two = await joins(world, "two", 1.0, A)
        assert waiting(world) == ["one", "two", "three", "four"]
        for lease in world.manager.leases(False):
            world.manager.end(lease.id, "done")
        granted = await anext(two)  # the first one's call has not come back: nobody would take its slice
        assert isinstance(granted, Lease)
        world.now += KEEP_PLACE
        world.manager.renew(granted.id)
        world.manager.tick()
        assert waiting(world) == ["four"]
        await later.aclose()  # type: ignore[attr-defined]
        del asks

    story(tmp_path, tell)


# --- several pools ---


def test_two_pools_on_one_database_are_one_pool(database: str, tmp_path: Path) -> None:
    if database.startswith("sqlite"):
        pytest.skip("several pools share a PostgreSQL database")

    async def tell() -> None:
        one = World(database, server="s")
        two = World(database, server="t")
        assert {d.id for d in one.manager.devices()} == {"s/0", "t/0"}

        def look() -> None:
            for world in (one, two):
                world.manager.look()

        # Each grants on either's devices, and the one that the agent is attached to starts the worker.
        tasks = [asyncio.create_task(one.get(f"k{i}", 1.0)) for i in range(2)]
        await asyncio.sleep(0)
        look()
        leases = await asyncio.gather(*tasks)
        assert {lease.slices[0].server for lease in leases} == {"s", "t"}
        assert len(one.agent.alive) == len(two.agent.alive) == 1
        # One queue, in whichever pool a call waits.
        first, second = await joins(one, "first", 1.0, A), await joins(two, "second", 1.0, B)
        with pytest.raises(
            Refused, match="in use by somebody else"
        ):  # though this pool has not heard of it yet
            await anext(one.manager.acquire("second", SliceRequest(share=1.0), A, -1, 0, own_key=True))
        one.manager.look()
        one.manager.schedule()
        assert waiting(one) == waiting(two) == ["first", "second"]
        # What one granted the other renews and ends.
        mine = next(lease for lease in leases if lease.slices[0].server == "s")
        two.now += 10
        renewed = two.manager.renew(mine.id)
        assert renewed is not None
        assert renewed.expires == two.now + renewed.ttl_seconds
        two.manager.end(mine.id, "done")
        look()  # the pool of its server stops the worker, and grants
        look()
        assert isinstance(await anext(first), Lease)
        # A pool that dies takes its servers away, and another that its agents turn to brings them back.
        two.manager.orders._agents.clear()
        two.store.close()
        one.now += 30
        for lease in one.manager.leases(False):
            one.manager.renew(lease.id)
        one.manager.tick()
        assert [d.available for d in one.manager.devices()] == [True, False]
        moved = Agent(one.manager, "t")
        moved.alive |= two.agent.alive
        moved.attach()
        assert [d.available for d in one.manager.devices()] == [True, True]
        one.store.close()
        del second

    asyncio.run(tell())
