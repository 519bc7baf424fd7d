"""Kills pool processes with SIGKILL at every transaction boundary of a scripted workload, and looks at what they left.

A program of its own, because it forks: ``python -m tests.pool.crashing DATABASE MOMENTS STRIDE`` runs the workload again and
again, killed just before and just after its first commit, its second …  (every STRIDE-th), and MOMENTS times killed at random.  After
each death another pool starts on the same database, with the workers that are really alive, and everything is compared with what
holders and workers know.  Where the database is shared, a second pool works on it all the time.  Prints what it did as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.default import DefaultDialect

from gpukernel.pool import schema
from gpukernel.pool.course import Course
from gpukernel.pool.database import open_database
from gpukernel.pool.errors import Refused
from gpukernel.pool.model import Holder, Lease, SliceRequest, Usage
from gpukernel.pool.quota import Bounds
from gpukernel.pool.store import Store
from tests.pool.books import check_books
from tests.pool.world import START, Agent, World

MIB = 2**20
MODELS = {"s": "Tesla V100", "t": "Tesla T4"}
COURSE = Course("ml", members={"*": "student"})
ANNA, BEN = Holder("anna", course="ml"), Holder("ben", course="ml")


class Diary:
    """What holders and workers know, a line each: it outlives the pool."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", buffering=1)

    def note(self, *words: Any) -> None:
        self._file.write(json.dumps(words) + "\n")

    def lines(self) -> list[list[Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]


class WritingAgent(Agent):
    """Workers that outlive the pool."""

    diary: Diary

    def start_worker(self, lease: Lease, device_index: int, memory_bytes: int, weight: float) -> None:
        self.diary.note("worker", self.name, lease.id, device_index, memory_bytes)
        super().start_worker(lease, device_index, memory_bytes, weight)

    def stop_worker(self, lease_id: str, device_index: int, reason: str) -> None:
        self.diary.note("worker", self.name, lease_id, device_index, 0)
        super().stop_worker(lease_id, device_index, reason)

    def limit_worker(self, lease_id: str, device_index: int, memory_bytes: int, weight: float) -> None:
        if (lease_id, device_index) in self.alive:
            self.diary.note("worker", self.name, lease_id, device_index, memory_bytes)
        super().limit_worker(lease_id, device_index, memory_bytes, weight)


def new_world(url: str, diary: Diary, server: str) -> World:
    """A pool, and a server whose workers are those that the diary knows."""
    world = World.__new__(World)
    world.now = START
    world.store = Store(url)
    from gpukernel.pool.broker import Broker

    world.broker = Broker(world.store, lambda: world.now)
    agent = WritingAgent(world.broker, server, devices=2)
    agent.diary = diary
    # Each pool's holders want what its own server has: the other one may be dead.
    agent.devices = [replace(device, name=MODELS[server]) for device in agent.devices]
    for kind, *rest in diary.lines():
        if kind == "worker" and rest[0] == server:
            _, lease_id, index, size = rest
            agent.caps[lease_id, index] = size
            (agent.alive.add if size else agent.alive.discard)((lease_id, index))
    world.agent = agent
    agent.attach()
    return world


class Story:
    """What one pool's holders do; each step is noted before it begins and after it ended."""

    def __init__(self, world: World, diary: Diary, name: str) -> None:
        self.world, self.diary, self.name = world, diary, name

    async def get(self, key: str, share: float, holder: Holder = ANNA, devices: int = 1) -> Lease:
        self.diary.note("asks", f"{self.name}-{key}")
        wanted = SliceRequest(share=share, devices=devices, model=MODELS[self.world.agent.name])
        async for event in self.world.broker.acquire(f"{self.name}-{key}", wanted, holder, -1, 0):
            if isinstance(event, Lease):
                self.diary.note("granted", f"{self.name}-{key}", event.id)
                return event
        raise AssertionError

    def end(self, lease: Lease) -> None:
        self.diary.note("ends", lease.id)
        self.world.broker.end(lease.id, "released")
        self.diary.note("ended", lease.id)

    async def resize(self, lease: Lease, share: float) -> None:
        self.diary.note("resizes", lease.id)
        changed = await self.world.broker.resize(lease.id, SliceRequest(share=share))
        assert changed is not None
        self.diary.note("resized", lease.id, [piece.memory_bytes for piece in changed.slices])

    async def whole(self, courses: bool) -> None:
        world = self.world
        if courses:
            world.rule(COURSE, quotas={"course:ml": Bounds(devices=4), "student:ml": Bounds(leases=5)})
        a = await self.get("a", 0.3)
        b = await self.get("b", 0.45, BEN, devices=2)
        waiting = asyncio.create_task(self.get("c", 0.65, BEN))
        given_up = asyncio.create_task(self.get("d", 0.9))
        await asyncio.sleep(0)
        server = world.agent.name
        world.broker.heartbeat(server, {(a.id, 0): Usage(cuda_calls=5, connections=1)})
        world.broker.renew(a.id)
        world.broker.renew(b.id)
        try:
            await self.resize(a, 0.32)
        except Refused:
            self.diary.note("refused", a.id)
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        await self.resize(b, 0.2)
        self.end(b)
        c = await waiting
        world.broker.tick()
        await self.resize(a, 0.1)
        self.diary.note("ends", c.id)
        (piece,) = c.slices
        self.diary.note("worker", server, c.id, piece.device_index, 0)
        world.agent.alive.discard((c.id, piece.device_index))
        world.broker.worker_ended(server, c.id, piece.device_index, "it died")
        d = await self.get("e", 1.0, BEN)
        self.end(d)
        self.end(a)


def in_child(work: Callable[[], None]) -> int:
    """Its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def ended(pid: int) -> int:
    """The exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_story(url: str, diary: Diary, server: str, at: int = 0, after: bool = False, name: str = "p") -> None:
    """The workload; this process kills itself at commit number `at`."""
    commits = 0
    commit = DefaultDialect.do_commit

    def counted(self: Any, connection: Any) -> None:
        nonlocal commits
        commits += 1
        if commits == at and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        commit(self, connection)
        if commits == at and after:
            os.kill(os.getpid(), signal.SIGKILL)

    DefaultDialect.do_commit = counted  # type: ignore[method-assign]
    diary.note("begins", time.monotonic())

    async def within() -> None:
        async with asyncio.timeout(60):
            world = new_world(url, diary, server)

            async def look_often() -> None:  # in place of the clock and of the other pool's calls
                while world.store.shared:
                    await asyncio.sleep(0.02)
                    world.broker.look()
                    world.broker.pump()

            looking = asyncio.create_task(look_often())
            await Story(world, diary, name).whole(server == "s")
            looking.cancel()

    asyncio.run(within())
    diary.note("commits", commits)


def look(url: str, diary: Diary, server: str, server_b: str = "") -> None:
    """Start a pool on what is left and compare it with what the diary knows."""

    async def within() -> None:
        world = new_world(url, diary, server)
        worlds = [world] + ([new_world(url, diary, server_b)] if server_b else [])
        for _ in range(2):
            for one in worlds:
                one.broker.tick()
        caps = {
            (lease_id, f"{one.agent.name}/{index}"): one.agent.caps[lease_id, index]
            for one in worlds
            for lease_id, index in one.agent.alive
        }
        check_books(world.store, caps, world.store.rules())
        now = {lease.id: lease for lease in world.broker.leases(False)}
        lines = diary.lines()
        asked = {rest[0] for kind, *rest in lines if kind == "asks"}
        ending = {rest[0] for kind, *rest in lines if kind == "ends"}
        over = {rest[0] for kind, *rest in lines if kind == "ended"}
        assert {lease.key for lease in now.values()} <= asked
        assert not over & set(now), "a lease that was given back lives again"
        sizes: dict[str, list[int] | None] = {}
        for kind, *rest in lines:
            if kind in ("resizes", "resized"):
                sizes[rest[0]] = rest[1] if kind == "resized" else None
            if kind == "granted" and rest[1] not in ending:
                assert rest[1] in now, "a lease that was granted is lost"
                assert now[rest[1]].state == "live"
                again = await Story(world, diary, "").world.get(rest[0])
                assert again.id == rest[1], "one use has two leases"
        for lease_id, size in sizes.items():
            if size is not None and lease_id not in ending:
                assert [piece.memory_bytes for piece in now[lease_id].slices] == size
        for _ in range(5):  # what becomes free may be granted to who waited a moment ago
            for lease in world.broker.leases(False):
                world.broker.end(lease.id, "the end")
            for one in worlds:
                one.broker.tick()
        for one in worlds:
            one.store.close()
        with open_database(url).connect() as db:
            assert not db.execute(sa.select(sa.func.sum(schema.devices.c.promised_bytes))).scalar()
            assert not db.execute(sa.select(sa.func.sum(schema.accounts.c.share_held))).scalar()

    asyncio.run(within())


def main(address: str, moments: int, stride: int) -> None:
    done = {"boundaries": 0, "killed": 0, "random": 0, "random_killed": 0}
    folder = Path(tempfile.mkdtemp(prefix="gpukernel-crash-"))
    numbers = iter(range(100_000))
    shared = address.startswith("postgresql")

    def database(template: str = "") -> str:
        number = next(numbers)
        if not shared:
            path = folder / f"{number}.db"
            if template:
                shutil.copy(template.removeprefix("sqlite:///"), path)
            return f"sqlite:///{path}"
        name = f"crash{os.getpid()}_{number}"
        url = address.replace("postgresql://", "postgresql+psycopg://").replace("DATABASE", "postgres")
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as db:
            like = sa.make_url(template).database if template else "template1"
            db.execute(sa.text(f"CREATE DATABASE {name} TEMPLATE {like}"))
        engine.dispose()
        return address.replace("DATABASE", name)

    def one(at: int, after: bool, kill_after: float | None = None) -> tuple[int, Diary]:
        # Making the tables is one transaction: with its boundary, but not again for every other one.
        url, diary = database("" if at == 1 else empty), Diary(folder / f"{next(numbers)}.diary")
        beside = []
        if shared:
            beside.append(in_child(lambda: run_story(url, diary, "t", name="q")))
        pid = in_child(lambda: run_story(url, diary, "s", at, after))
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(pid, signal.SIGKILL)
        status = ended(pid)
        assert status in (0, -signal.SIGKILL), f"the pool ended with {status}"
        for other in beside:
            assert ended(other) == 0, "the other pool did not get through"
        looking = in_child(lambda: look(url, diary, "s", "t" if shared else ""))
        assert ended(looking) == 0, (
            f"commit {at}, {'after' if after else 'before'}, {kill_after}: {diary.path}"
        )
        return status, diary

    empty = database()
    assert ended(in_child(lambda: Store(empty).close())) == 0
    begin = time.monotonic()
    status, _ = one(0, False)
    length = (time.monotonic() - begin) / 2
    assert status == 0
    at = 1
    while at < 10_000:
        statuses = [one(at, after)[0] for after in (False, True)]
        done["killed"] += sum(status < 0 for status in statuses)
        if not any(statuses):
            break
        done["boundaries"], at = done["boundaries"] + 1, at + stride
    chance = random.Random(4)
    for _ in range(moments):
        status, _ = one(0, False, chance.uniform(0, length))
        done["random"] += 1
        done["random_killed"] += status < 0
    shutil.rmtree(folder)
    print(json.dumps(done))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
