"""Pools that follow each other by the change log: their picture is what reading everything gives, after whatever they all did."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from gpukernel.common.bounds import Bounds
from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, Lease, SliceRequest
from gpukernel.pool.leases import resizes
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.scheduling import resize
from gpukernel.pool.store import changes
from tests.pool.books import check_books
from tests.pool.world import Agent, World

STEPS = 250
SHARES = (0.1, 0.25, 0.5, 1.0)


class Line:
    """The pool's end of an agent's stream; what goes into one that the agent has left is lost."""

    def __init__(self, agent: RecordedAgent) -> None:
        self._agent = agent

    def _hears(self, *order: str) -> bool:
        heard = self._agent.line is self
        if heard:
            self._agent.orders.append(order)
        return heard

    def start_worker(self, lease: Lease, device_id: str, memory_bytes: int, weight: float) -> None:
        if self._hears("start", lease.id, device_id):
            self._agent.start_worker(lease, device_id, memory_bytes, weight)

    start_direct = start_worker

    def stop_worker(self, lease_id: str, device_id: str, reason: str) -> None:
        if self._hears("stop", lease_id, device_id):
            self._agent.stop_worker(lease_id, device_id, reason)

    def interrupt_worker(self, lease_id: str, device_id: str) -> None: ...

    def limit_worker(self, lease_id: str, device_id: str, memory_bytes: int, weight: float) -> None:
        if self._hears("limit", lease_id, device_id, str(memory_bytes)):
            self._agent.limit_worker(lease_id, device_id, memory_bytes, weight)

    def close(self, displaced: str = "") -> None: ...


class RecordedAgent(Agent):
    """An agent that keeps every order it was ever given."""

    def __init__(self, manager: LeaseManager, name: str) -> None:
        super().__init__(manager, name, devices=2, prompt=False)
        self.orders: list[tuple[str, ...]] = []
        self.line = Line(self)

    def attach(self) -> None:
        self.register()

    def stream(self) -> Line:
        self.line = Line(self)
        return self.line

    def beat(self) -> None:
        assert self.attachment is not None
        if not self.sessions.heard(self.attachment):
            self.attach()  # as it is told to


class Pools:
    """Three pools on one database, two agents each, holders and calls, all of which do something at random."""

    def __init__(self, url: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.worlds = []
        for _ in range(3):
            world = World.__new__(World)
            self.worlds.append(world)
            World.__init__(world, url, server=f"first {len(self.worlds)}", prompt=False)
        self.agents = [
            RecordedAgent(world.manager, f"s{number}{half}")
            for number, world in enumerate(self.worlds)
            for half in "ab"
        ]
        for agent in self.agents:
            agent.attach()
        self.calls: dict[str, tuple[World, asyncio.Task[Any]]] = {}
        self.resizes: list[asyncio.Task[Any]] = []
        self.told: dict[tuple[World, str], Any] = {}  # what holders were told last
        self.tellings = 0
        self.count = 0

    # --- steps ---

    def step(self) -> None:
        steps: list[tuple[int, Callable[[World], None]]] = [
            (6, self.ask),
            (5, self.workers),
            (3, self.end),
            (2, self.resize),
            (2, self.hold),
            (2, self.say),
            (1, self.give_up),
            (1, self.rule),
            (1, self.drain),
            (1, self.move),
            (1, self.leave),
            (2, self.tick),
            (4, lambda world: world.manager.look()),
        ]
        work = self.random.choices([step for _, step in steps], [weight for weight, _ in steps])[0]
        work(self.random.choice(self.worlds))

    def living(self) -> list[Lease]:
        return self.worlds[0].manager.leases(False)

    def ask(self, world: World) -> None:
        self.count += 1
        key = f"k{self.count}"
        wanted = SliceRequest(share=self.random.choice(SHARES), devices=self.random.choice((1, 1, 2)))
        who = Holder(self.random.choice(("anna", "ben", "carl")))

        async def get() -> None:
            with contextlib.suppress(Refused):  # it could not be started
                async for event in world.manager.acquire(key, wanted, who, -1, 3000):
                    if isinstance(event, Lease):
                        return

        self.calls[key] = world, asyncio.get_running_loop().create_task(get())

    def workers(self, _: World) -> None:
        agent = self.random.choice(self.agents)
        for work in (agent.start, agent.stop, agent.limit):
            work()

    def end(self, world: World) -> None:
        if living := self.living():
            world.manager.end(self.random.choice(living).id, "released")

    def resize(self, world: World) -> None:
        live = [lease for lease in self.living() if lease.state == "live"]
        if live:
            work = world.manager.resize(
                self.random.choice(live).id, SliceRequest(share=self.random.choice(SHARES))
            )
            self.resizes.append(asyncio.get_running_loop().create_task(work))

    def hold(self, world: World) -> None:
        free = [lease for lease in self.living() if lease.state in ("starting", "live")]
        free = [lease for lease in free if (world, lease.id) not in self.told]
        if not free:
            return
        lease = self.random.choice(free)

        def tell(lease_id: str) -> None:
            view = self.told[world, lease_id] = world.store.leases.views([lease_id])[lease_id]
            self.tellings += 1
            if view.state in ("ending", "ended"):  # as the call does that holds leases
                del self.told[world, lease_id]
                world.manager.keepalive.let_go(lease_id, tell)

        world.manager.keepalive.hold(lease, tell, world.manager.steady())
        tell(lease.id)

    def say(self, world: World) -> None:
        if living := self.living():
            world.store.leases.say(self.random.choice(living).id, self.random.choice(("save your work", "")))

    def give_up(self, _: World) -> None:
        if self.calls:
            self.calls[self.random.choice(sorted(self.calls))][1].cancel()

    def rule(self, world: World) -> None:
        world.rule(quotas={"person:anna": Bounds(leases=self.random.choice((2, 5)))})

    def drain(self, world: World) -> None:
        server = self.random.choice(self.agents).name
        self.random.choice(
            (
                lambda: world.manager.drain(server, "root", 600.0),
                lambda: world.manager.undrain(server, "root"),
            )
        )()

    def move(self, world: World) -> None:
        """An agent's connection breaks, and it turns to another pool."""
        agent = self.random.choice(self.agents)
        agent.sessions.detach(agent.name, agent.line)
        agent.manager = world.manager
        agent.attach()

    def leave(self, world: World) -> None:
        """An agent turns to another pool, and the first one has not noticed."""
        agent = self.random.choice(self.agents)
        agent.manager = world.manager
        agent.attach()

    def tick(self, world: World) -> None:
        for one in self.worlds:
            one.now += 1
        for agent in self.agents:
            agent.beat()
        world.manager.tick()

    # --- what must be true ---

    async def settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)
        self.calls = {key: call for key, call in self.calls.items() if not call[1].done()}
        for one in [task for task in self.resizes if task.done()]:
            self.resizes.remove(one)
            assert one.cancelled() or isinstance(one.exception(), Refused | None)

    async def check(self) -> None:
        for _ in range(3):  # what one does about the news of another is news
            for world in self.worlds:
                world.manager.look()
            await self.settle()
        before = self.picture()
        for world in self.worlds:
            world.manager.following._read_all()
            await self.settle()
        assert self.picture() == before
        living = {lease.key: lease.id for lease in self.living() if lease.state in ("starting", "live")}
        for key, (world, _) in self.calls.items():
            assert (world.manager.waiters.queued(key) is None) == (key in living)
        for (world, lease_id), view in self.told.items():
            assert world.store.leases.views([lease_id])[lease_id] == view
        for world in self.worlds:
            for lease_id in world.manager.resizes._waiting:
                assert resize.outcome(world.store, lease_id)[0]
        for agent in self.agents:
            for lease, piece in self.worlds[0].store.leases.unsettled_on([agent.name]):
                ordered = (lease.id, piece.device_id)
                assert lease.state == "ending" or ordered in agent.to_start or ordered in agent.alive

    def picture(self) -> Any:
        """All that holders, calls and agents were told."""
        return (
            [list(agent.orders) for agent in self.agents],
            self.tellings,
            dict(self.told),
            {
                key: world.manager.waiters.queued(key) is None
                for key, (world, task) in sorted(self.calls.items())
                if not task.done()
            },
        )


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2, 3))])
@pytest.mark.parametrize("trimmed", [False, True])
def test_a_followers_picture_is_what_reading_everything_gives(
    new_postgresql: Callable[..., str], monkeypatch: pytest.MonkeyPatch, seed: int, trimmed: bool
) -> None:
    monkeypatch.setattr(resizes, "RESIZE_SECONDS", 1e9)
    if trimmed:
        monkeypatch.setattr(changes, "KEEP", 8)
        monkeypatch.setattr(changes, "TRIM_EVERY", 3)

    async def tell() -> None:
        pools = Pools(new_postgresql(), seed)
        for number in range(STEPS):
            pools.step()
            await pools.settle()
            if number % 10 == 9:
                await pools.check()
        await pools.check()
        caps = {
            worker: agent.caps[worker]
            for agent in [*pools.agents, *(world.agent for world in pools.worlds)]
            for worker in agent.alive
        }
        check_books(pools.worlds[0].store, caps)
        for task in [*(task for _, task in pools.calls.values()), *pools.resizes]:
            task.cancel()
        await pools.settle()
        for world in pools.worlds:
            world.store.close()

    asyncio.run(tell())


def test_a_lease_that_another_pool_ends_at_once_has_its_worker_stopped(
    new_postgresql: Callable[..., str],
) -> None:
    async def tell() -> None:
        url = new_postgresql()
        first, second = World(url, server="one"), World(url, server="two")
        agent = Agent(second.manager, "theirs")
        agent.attach()
        second.manager.look()
        first.manager.look()
        wanted = SliceRequest(share=0.1, server="theirs")
        call = asyncio.create_task(anext(aiter(first.manager.acquire("k", wanted, Holder("anna"), 0, 600))))
        while not (leases := first.store.leases.all()):
            await asyncio.sleep(0)
        call.cancel()  # before the second pool has looked
        await asyncio.gather(call, return_exceptions=True)
        first.manager.end(leases[0].id, "the request was given up")
        second.manager.look()
        await asyncio.sleep(0)
        assert first.store.leases.all() == []
        for world in (first, second):
            world.store.close()

    asyncio.run(tell())


def test_a_pool_stops_the_workers_that_an_agent_has_brought_when_another_pool_ends_their_lease(
    new_postgresql: Callable[..., str],
) -> None:
    async def tell() -> None:
        url = new_postgresql()
        first, second = World(url, server="one"), World(url, server="two")
        agent = Agent(first.manager, "moving")
        agent.attach()
        wanted = SliceRequest(share=0.1, server="moving")
        events = [event async for event in first.manager.acquire("k", wanted, Holder("anna"), 0, 600)]
        assert isinstance(events[-1], Lease)
        second.manager.look()
        agent.sessions.detach("moving", agent)
        agent.manager = second.manager
        agent.attach()
        assert agent.alive
        first.manager.end(events[-1].id, "released by its holder")
        second.manager.look()
        await asyncio.sleep(0)
        assert not agent.alive
        for world in (first, second):
            world.store.close()

    asyncio.run(tell())
