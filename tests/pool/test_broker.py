"""The pool's decisions with a clock that tests turn, and agents that do what they are told when they are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy.exc import IntegrityError

from gpukernel.pool.broker import DEFAULT_TTL, SERVER_GRACE, Broker
from gpukernel.pool.errors import Refused
from gpukernel.pool.model import Device, Holder, Lease, Queued, SliceRequest, Usage
from gpukernel.pool.schema import devices as devices_table
from gpukernel.pool.store import Store

GIB = 2**30
ANNA = Holder("anna")


class Agent:
    """A server whose workers start and stop when the test says so (or at once, where `prompt`)."""

    def __init__(self, broker: Broker, name: str = "s", devices: int = 1, prompt: bool = True) -> None:
        self.broker, self.name, self.prompt = broker, name, prompt
        self.devices = [Device(f"{name}/{i}", name, i, "Tesla V100", 32 * GIB) for i in range(devices)]
        self.alive: set[tuple[str, int]] = set()
        self.to_start: list[tuple[str, int]] = []
        self.to_stop: list[tuple[str, int]] = []

    def attach(self) -> None:
        self.to_start, self.to_stop = [], []
        self.broker.attach(self.name, self, self.devices, dict.fromkeys(self.alive, ("unix:/x",)))

    def start_worker(self, lease: Lease, device_index: int, memory_bytes: int, weight: float) -> None:
        self.to_start.append((lease.id, device_index))
        if self.prompt:
            self.start()

    def stop_worker(self, lease_id: str, device_index: int, reason: str) -> None:
        self.to_stop.append((lease_id, device_index))
        if self.prompt:
            self.stop()

    def start(self) -> None:
        while self.to_start:
            key = self.to_start.pop(0)
            self.alive.add(key)
            self.broker.worker_ready(self.name, *key, ("unix:/x",))

    def stop(self) -> None:
        while self.to_stop:
            key = self.to_stop.pop(0)
            if key in self.to_start:  # orders are obeyed in their order
                self.to_start.remove(key)
            self.alive.discard(key)
            self.broker.worker_ended(self.name, *key, "stopped")


class World:
    def __init__(self, folder: Path, devices: int = 1, prompt: bool = True) -> None:
        self.now = 1000.0
        self.store = Store.in_directory(folder)
        self.broker = Broker(self.store, lambda: self.now)
        self.agent = Agent(self.broker, devices=devices, prompt=prompt)
        self.agent.attach()

    def ask(self, key: str, share: float = 0.5, wait: float = -1) -> AsyncIterator[Queued | Lease]:
        return self.broker.acquire(key, SliceRequest(share=share), ANNA, wait, 0)

    async def get(self, key: str, share: float = 0.5, wait: float = -1) -> Lease:
        async for event in self.ask(key, share, wait):
            if isinstance(event, Lease):
                return event
        raise AssertionError

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.broker.tick()

    def promised(self) -> float:
        return sum(d.promised_bytes for d in self.broker.devices()) / (32 * GIB)


def story(tmp_path: Path, tell: object, **options: object) -> None:
    async def run() -> None:
        await tell(World(tmp_path, **options))  # type: ignore[operator, arg-type]

    asyncio.run(run())


def test_first_come_first_served_and_the_small_does_not_pass_the_large(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        first = await world.get("first", 0.9)
        large, small = world.ask("large", 0.5), world.ask("small", 0.05)
        assert (await anext(large)).position == 1  # type: ignore[union-attr]
        assert (await anext(small)).position == 2  # type: ignore[union-attr]
        assert [w.key for w in world.broker.waiting()] == ["large", "small"]
        world.broker.end(first.id, "done")
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
        assert world.broker.waiting() == []

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
        world.broker.renew(lease.id)
        world.pass_time(DEFAULT_TTL - 1)
        assert world.store.lease(lease.id).state == "live"  # type: ignore[union-attr]
        world.pass_time(2)
        assert world.store.lease(lease.id).state == "ending"  # type: ignore[union-attr]
        assert world.promised() == 1.0  # the worker may still write: not yet anyone else's
        world.agent.stop()
        assert world.promised() == 0
        ended = world.store.lease(lease.id)
        assert ended is not None
        assert (ended.state, ended.end_reason) == ("ended", "its holder gave no sign of life")

    story(tmp_path, tell, prompt=False)


def test_a_connected_program_is_a_sign_of_life(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("k")
        for _ in range(5):
            world.pass_time(DEFAULT_TTL - 1)
            world.broker.heartbeat("s", {(lease.id, 0): Usage(connections=1)})
        assert world.store.lease(lease.id).state == "live"  # type: ignore[union-attr]

    story(tmp_path, tell)


def test_a_worker_that_dies_ends_the_lease_with_the_reason_and_the_key_gets_a_new_one(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("k")
        world.agent.alive.clear()
        world.broker.worker_ended("s", lease.id, 0, "its worker ended unexpectedly")
        assert world.store.lease(lease.id).end_reason == "its worker ended unexpectedly"  # type: ignore[union-attr]
        assert (await world.get("k")).id != lease.id

    story(tmp_path, tell)


def test_a_worker_that_does_not_start_is_told_to_the_holder_and_costs_nothing(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        task = asyncio.create_task(world.get("k"))
        await asyncio.sleep(0)
        (key,) = world.agent.to_start
        world.broker.worker_ended("s", *key, "the disk is full")
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


def test_a_lost_server_ends_its_leases_after_a_grace_and_its_workers_when_it_returns(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        lease = await world.get("k")
        world.broker.detach("s", world.agent)
        assert not world.broker.devices()[0].available
        for _ in range(3):
            world.broker.renew(lease.id)
            world.pass_time(SERVER_GRACE / 2)
        ended = world.store.lease(lease.id)
        assert ended is not None
        assert ended.end_reason == "its GPU server s was lost"
        assert world.promised() > 0  # nobody has seen the worker dead
        world.agent.attach()
        assert (world.promised(), world.agent.alive) == (0, set())

    story(tmp_path, tell)


def test_a_pool_started_again_keeps_leases_whose_workers_live_and_ends_the_others(tmp_path: Path) -> None:
    async def tell(world: World) -> None:
        kept, lost = await world.get("kept", 0.3), await world.get("lost", 0.3)
        world.agent.alive.discard((lost.id, 0))
        world.agent.alive.add(("stranger", 0))
        world.store.close()
        again = World.__new__(World)
        again.now = world.now + 1000
        again.store = Store.in_directory(tmp_path)
        again.broker = Broker(again.store, lambda: again.now)
        again.pass_time(DEFAULT_TTL - 1)  # a time to live of grace
        agent = Agent(again.broker)
        agent.alive = set(world.agent.alive)
        agent.attach()
        assert agent.alive == {(kept.id, 0)}
        assert again.store.lease(kept.id).state == "live"  # type: ignore[union-attr]
        assert again.store.lease(lost.id).state == "ended"  # type: ignore[union-attr]
        assert again.promised() == pytest.approx(0.3, abs=1e-3)
        assert {r.id for r in again.broker.leases(False)} == {kept.id}

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
            await anext(world.broker.acquire(key, SliceRequest(share=0.1), Holder(person), wait, ttl))
        assert refusal.value.code == "invalid"
        assert (world.promised(), world.broker.waiting()) == (0, [])

    story(tmp_path, tell)


class PoolMachine(RuleBasedStateMachine):
    """Random acquire, release, renew, death, crash and clock steps against the guarantees."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.count = 0
        self.tasks: dict[str, asyncio.Task[Lease]] = {}
        self.world = self.run(self._world())

    def run(self, work: object) -> object:  # type: ignore[type-arg]
        return self.loop.run_until_complete(work)  # type: ignore[arg-type]

    async def _world(self) -> World:
        return World(Path(self.folder.name), devices=2, prompt=False)

    def settle(self) -> None:
        for _ in range(4):
            self.loop.run_until_complete(asyncio.sleep(0))

    @rule(share=st.sampled_from([0.02, 0.3, 0.6, 1.0]))
    def acquire(self, share: float) -> None:
        self.count += 1
        key = f"k{self.count}"
        self.tasks[key] = self.loop.create_task(self.world.get(key, share))
        self.settle()

    @rule()
    def workers_start(self) -> None:
        self.world.agent.start()
        self.settle()

    @rule()
    def workers_stop(self) -> None:
        self.world.agent.stop()
        self.settle()

    def living(self) -> list[Lease]:
        return self.world.broker.leases(False)

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.living()))
        self.world.broker.end(lease.id, "released")
        self.settle()

    @precondition(lambda self: self.world.agent.alive)
    @rule(data=st.data())
    def worker_dies(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.world.agent.alive)))
        self.world.agent.alive.discard(key)
        self.world.broker.worker_ended("s", *key, "it died")
        self.settle()

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.tasks.pop(data.draw(st.sampled_from(sorted(self.tasks)))).cancel()
        self.settle()

    @rule(seconds=st.sampled_from([1.0, 10.0, 25.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)
        self.settle()

    @rule()
    def crash(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        world = self.world
        alive, now = world.agent.alive, world.now
        # A dead process runs no clean-up code: what the cancelled calls would do must not reach the store.
        world.broker._agents.clear()
        store = world.store
        world.broker._store = Store("sqlite://")
        self.tasks.clear()
        self.settle()
        store.close()

        async def again() -> World:
            fresh = World.__new__(World)
            fresh.now = now
            fresh.store = Store.in_directory(Path(self.folder.name))
            fresh.broker = Broker(fresh.store, lambda: fresh.now)
            fresh.agent = Agent(fresh.broker, devices=2, prompt=False)
            fresh.agent.alive = alive
            fresh.agent.attach()
            return fresh

        self.world = self.run(again())

    @invariant()
    def never_promised_twice(self) -> None:
        for device in self.world.broker.devices():
            assert 0 <= device.promised_bytes <= device.memory_bytes

    @invariant()
    def every_living_worker_s_memory_is_promised(self) -> None:
        alive: dict[int, int] = {}
        sizes = {
            (lease.id, s.device_index): s.memory_bytes
            for lease in self.world.broker.leases(True)
            for s in lease.slices
        }
        for key in self.world.agent.alive:
            alive[key[1]] = alive.get(key[1], 0) + sizes[key]
        for device in self.world.broker.devices():
            assert alive.get(device.index, 0) <= device.promised_bytes

    @invariant()
    def one_living_lease_a_key(self) -> None:
        keys = [lease.key for lease in self.living()]
        assert len(keys) == len(set(keys))

    def teardown(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        self.settle()
        self.loop.close()
        self.world.store.close()
        self.folder.cleanup()


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
