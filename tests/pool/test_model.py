"""Random steps against the pool's guarantees."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpukernel.pool.broker import Broker
from gpukernel.pool.model import Lease
from gpukernel.pool.store import Store
from tests.pool.world import Agent, World


class PoolMachine(RuleBasedStateMachine):
    """Random acquire, release, renew, death, crash and clock steps against the guarantees."""

    def __init__(self) -> None:
        super().__init__()
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
            fresh.store = Store(f"sqlite:///{self.folder.name}/pool.db")
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
