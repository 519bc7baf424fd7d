"""One pool's day: its lease manager, queue, placement, quotas, reservations and database, as they are; clients, agents and time stand in.

What stands in, and how:

* *Time* is `benchmarks.scale.virtual_time`'s.  The pool's clock ticks every `TICK_SECONDS` of it in place of every second, so ends that only the
  clock brings are late by up to that; the times after which a pool takes itself for one that slept are longer by as much.
* *Agents* say what real ones say, through `gpukernel.pool.leases.agent_sessions`, and start no workers: a start takes one to four seconds.
* *Clients* are coroutines that ask the lease manager, hold what they get, give it back or forget it.  No call crosses a network, nobody has a token.
* Waiting clients are not told each change of their place, which costs the real pool a bounded part of its time and decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from benchmarks.scale.teaching_day import BEGIN, MIDNIGHT, DayPlan, Failure, Visit
from benchmarks.scale.virtual_time import VirtualLoop
from gpukernel.common.bounds import Subject
from gpukernel.common.model import Device, Holder, Lease, SliceRequest, Usage
from gpukernel.common.policy import Policy
from gpukernel.pool.domain.fencing import Registration
from gpukernel.pool.leases import following, server_watch
from gpukernel.pool.leases.agent_sessions import AgentSessions
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.store import signs_of_life
from gpukernel.pool.store.policy import write_policy
from gpukernel.pool.store.schema import devices
from gpukernel.pool.store.servers import Attachment
from gpukernel.pool.store.store import Store

__all__ = ["DayRecord", "PoolDay", "RequestRecord", "Sample", "run_pool_day"]

TICK_SECONDS = 30.0
SAMPLE_SECONDS = 300.0
TTL_SECONDS = 600.0
VALID_SECONDS = 300.0
GPUS_OF_A_SERVER = 8
DEVICE_BYTES = 32 * 2**30
CLOSES = 24.0 * 3600

Check = Callable[[Store, Mapping[tuple[str, str], int], Policy], None]
"""Fails where the books are wrong; given the store, the bytes of each living worker by lease and device, and the policy."""


@dataclass
class RequestRecord:
    """One request: seconds after midnight, `granted` None where its student left before; `lost`: its server failed."""

    course: str
    asked: float
    leaves: float
    granted: float | None = None
    over: float = 0.0
    lost: bool = False


@dataclass
class Sample:
    """One moment: devices' worth promised, devices' worth in use by somebody who is there, requests that wait, devices that work."""

    at: float
    promised: float
    useful: float
    waiting: int
    devices: int


@dataclass
class DayRecord:
    """All that is kept of a day; its own costs in seconds, of the wall clock and of the processor."""

    requests: list[RequestRecord] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    events: int = 0
    checks: int = 0
    decisions: list[tuple[int, int, float]] = field(default_factory=list)
    """By how many waited, in powers of two: that number, the decisions, their seconds of the processor."""
    wall: float = 0.0
    processor: float = 0.0
    left_over: int = 0
    """Requests, leases and bytes' holders that the day's end did not find ended."""


class _SimulatedServer:
    """A server as the pool hears it."""

    def __init__(self, day: PoolDay, number: int, gpus: int) -> None:
        self._day = day
        self.name = f"s{number:04}"
        self.devices = [
            Device(f"{self.name}/{i}", self.name, i, "Tesla V100", DEVICE_BYTES) for i in range(gpus)
        ]
        self.workers: dict[tuple[str, str], int] = {}
        self.attachment: Attachment | None = None
        self._starts = 0  # of the machine; what an earlier one began is over
        self._epoch = 0

    def attach(self) -> None:
        """Come (back) with no workers, as after a start of the machine."""
        self._starts += 1
        known = f"machine of {self.name}", f"place of {self.name}", f"{self.name}.{self._starts}"
        new = Registration("agent", *known, self._epoch)
        self.attachment = self._day.sessions.attach(self.name, self, self.devices, {}, "", new)
        self._epoch = self.attachment.epoch
        self._day.events()

    def fail(self) -> None:
        """Lose the power."""
        self.workers.clear()
        self.attachment = None
        self._day.sessions.detach(self.name, self)
        self._day.events()

    def _is_up(self, start: int) -> bool:
        return self.attachment is not None and self._starts == start

    def beat(self) -> None:
        """Give a sign of life."""
        if self.attachment is not None:
            self._day.sessions.heard(self.attachment)

    def report(self, worker: tuple[str, str], usage: Usage) -> None:
        """Report what a worker did."""
        if worker in self.workers:
            self._day.sessions.heartbeat(self.name, {worker: usage})
            self._day.events()

    def start_worker(self, lease: Lease, device_id: str, memory_bytes: int, weight: float) -> None:
        """See `gpukernel.pool.leases.agent_orders.AgentStream`."""
        key, start = (lease.id, device_id), self._starts
        loop = asyncio.get_running_loop()

        def ready() -> None:
            if self._is_up(start) and key in self.workers:
                self._day.sessions.worker_ready(self.name, *key, ("unix:/simulated",))
                self._day.events()

        def starting() -> None:
            if self._is_up(start):
                self._day.sessions.worker_starting(*key)
                self.workers[key] = memory_bytes
                loop.call_later(self._day.dice.uniform(1, 4), ready)

        loop.call_soon(starting)

    def stop_worker(self, lease_id: str, device_id: str, reason: str) -> None:
        """See `gpukernel.pool.leases.agent_orders.AgentStream`."""
        start = self._starts

        def ended() -> None:
            if self._is_up(start):
                self.workers.pop((lease_id, device_id), None)
                self._day.sessions.worker_ended(self.name, lease_id, device_id, "stopped")
                self._day.events()

        asyncio.get_running_loop().call_later(0.5, ended)

    def start_direct(self, lease: Lease, device_id: str, memory_bytes: int, weight: float) -> None:
        """Refuse what nobody asks for here."""
        raise AssertionError("Nobody asks for direct mode.")

    def limit_worker(self, lease_id: str, device_id: str, memory_bytes: int, weight: float) -> None:
        """Refuse what nobody asks for here."""
        raise AssertionError("Nobody resizes.")

    def interrupt_worker(self, lease_id: str, device_id: str) -> None:
        """Refuse what nobody asks for here."""
        raise AssertionError("Nobody interrupts.")

    def close(self, displaced: str = "") -> None:
        """See `gpukernel.pool.leases.agent_orders.AgentStream`."""
        raise AssertionError(f"The pool gave server {self.name} up: {displaced}")


class PoolDay:
    """A pool, its servers and its students, from morning to midnight; `run` it in a `VirtualLoop`."""

    def __init__(
        self,
        place: Path,
        plan: DayPlan,
        variant: str,
        seed: int,
        check: Check | None = None,
        check_every: int = 1,
    ) -> None:
        self.plan, self.variant, self.dice = plan, variant, random.Random(seed)
        self.record = DayRecord()
        signs_of_life.FOLLOWED_SECONDS = server_watch.STALL_SECONDS = server_watch.SILENT_SECONDS = (
            server_watch.QUIET_SECONDS
        ) = 2 * TICK_SECONDS
        self._check, self._check_every = check, check_every
        following.EVERYTHING_SECONDS = 10 * TICK_SECONDS
        self.store = Store(f"sqlite:///{place}/pool.db")
        self.manager = LeaseManager(self.store, self._wall, valid_seconds=VALID_SECONDS)
        self.sessions = AgentSessions(self.manager)
        self.manager.waiters.places_changed = lambda: None  # type: ignore[method-assign]
        self._useful = 0.0
        self._needs = plan.needs
        self._decided: dict[int, list[float]] = {}
        self._servers = {
            server.name: server
            for number, first in enumerate(range(0, plan.gpus, GPUS_OF_A_SERVER))
            for server in [_SimulatedServer(self, number, min(GPUS_OF_A_SERVER, plan.gpus - first))]
        }
        self._timed()

    def _wall(self) -> float:
        return MIDNIGHT + self.now()

    @staticmethod
    def now() -> float:
        """Return the seconds after midnight."""
        return BEGIN + asyncio.get_running_loop().time()

    def events(self) -> None:
        """Count something that happened."""
        self.record.events += 1

    def _timed(self) -> None:
        """Measure each scheduling cycle."""
        cycle = self.manager._queue.run_cycle

        def timed(*arguments: object, **named: object) -> object:
            begin = time.thread_time()
            try:
                return cycle(*arguments, **named)  # type: ignore[arg-type]
            finally:
                took = time.thread_time() - begin
                known = self._decided.setdefault(len(self.manager._queue).bit_length(), [0.0, 0.0])
                known[0] += 1
                known[1] += took

        self.manager._queue.run_cycle = timed  # type: ignore[method-assign, assignment]

    async def run(self) -> DayRecord:
        """Live through the day."""
        begin, processor = time.perf_counter(), time.process_time()
        self._write_rules()
        for server in self._servers.values():
            server.attach()
        clock = asyncio.create_task(self._tick())
        async with asyncio.TaskGroup() as everybody:
            for failure in self.plan.failures:
                everybody.create_task(self._fail(failure))
            for visit in self.plan.visits:
                everybody.create_task(self._visit(visit))
            everybody.create_task(self._sample())
        clock.cancel()
        await asyncio.gather(clock, return_exceptions=True)
        self._look_at_the_end()
        self.record.decisions = [
            (1 << bits >> 1, int(count), seconds) for bits, (count, seconds) in sorted(self._decided.items())
        ]
        self.record.wall = time.perf_counter() - begin
        self.record.processor = time.process_time() - processor
        self.store.close()
        return self.record

    def _write_rules(self) -> None:
        courses, quotas, reservations = self.plan.rules(self.variant)
        after = Policy(
            {course.name: course for course in courses},
            {Subject.parse(text): bounds for text, bounds in quotas.items()},
            0.0,
            reservations=reservations,
            timezone="UTC",
        )
        with self.store.deciding() as (db, row):
            before = self.store.policy.current(db, row.policy_version)
            write_policy(db, before, after, "admin", self._wall())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            for server in self._servers.values():
                server.beat()
            self.manager.tick()
            self.events()

    async def _until(self, when: float) -> None:
        await asyncio.sleep(max(when - self.now(), 0.0))

    async def _fail(self, failure: Failure) -> None:
        server = list(self._servers.values())[failure.server % len(self._servers)]
        await self._until(failure.at)
        server.fail()
        await self._until(failure.at + failure.lasts)
        server.attach()

    async def _sample(self) -> None:
        total = sa.select(
            sa.func.sum(devices.c.promised_bytes), sa.func.count(sa.case((devices.c.available, 1)))
        )
        while self.now() < CLOSES - SAMPLE_SECONDS:
            await asyncio.sleep(SAMPLE_SECONDS)
            with self.store.reader.connect() as db:
                promised, there = db.execute(total).one()
            waiting = len(self.manager._queue)
            self.record.samples.append(
                Sample(self.now(), promised / DEVICE_BYTES, self._useful, waiting, int(there))
            )
            if self._check is not None and len(self.record.samples) % self._check_every == 0:
                living = {
                    key: size for server in self._servers.values() for key, size in server.workers.items()
                }
                self._check(self.store, living, self.manager.policy())
                self.record.checks += 1

    async def _visit(self, visit: Visit) -> None:
        """Come, ask, work; ask again where the slice is lost; leave."""
        await self._until(visit.begins)
        attempt = 0
        while self.now() < visit.leaves - 60:
            attempt += 1
            request = RequestRecord(visit.course, self.now(), visit.leaves)
            self.record.requests.append(request)
            self.events()
            lease = await self._ask(visit, f"{visit.person}@{visit.begins:.0f}#{attempt}")
            if lease is None:
                return
            request.granted = self.now()
            request.lost = not await self._work(visit, lease)
            request.over = min(self.now(), visit.leaves)
            if not request.lost:
                return

    async def _ask(self, visit: Visit, key: str) -> Lease | None:
        """Return the lease, or None where it was not granted before the student leaves."""
        course = "everybody" if self.variant == "fifo" else visit.course
        asked = SliceRequest(share=self.plan.share(visit.course, self.variant))
        places = self.manager.acquire(key, asked, Holder(visit.person, course=course), -1, TTL_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(visit.leaves - self.now()), contextlib.aclosing(places):  # type: ignore[type-var]
                async for event in places:
                    if isinstance(event, Lease):
                        self.events()
                        return event
        return None

    async def _work(self, visit: Visit, lease: Lease) -> bool:
        """Hold a lease until it is given back or ended; return False where it was lost while the student was there."""
        ended, need = asyncio.Event(), self._needs[visit.course]

        def changed(lease_id: str) -> None:
            known = self.manager.lease(lease_id)
            if known is None or known.state in ("ending", "ended"):
                ended.set()

        self.manager.keepalive.hold(lease, changed, self.manager.steady())
        piece = lease.slices[0]
        worker, server = (lease.id, piece.device_id), self._servers[piece.server]
        server.report(worker, Usage(memory_used_bytes=piece.memory_bytes // 2, connections=1))
        self._useful += need
        try:
            async with asyncio.timeout(max(visit.leaves - self.now(), 0.0)):
                await ended.wait()
            return False
        except TimeoutError:
            pass
        finally:
            self._useful -= need
            if ended.is_set() or not visit.forgets:
                self.manager.keepalive.let_go(lease.id, changed)
        if visit.forgets:
            # The kernel stays, and holds its slice, until the pool finds it idle.
            server.report(
                worker, Usage(memory_used_bytes=piece.memory_bytes // 2, connections=1, idle_seconds=1.0)
            )
            await ended.wait()
            self.manager.keepalive.let_go(lease.id, changed)
        else:
            self.manager.end(lease.id, "released by its holder")
        self.events()
        return True

    def _look_at_the_end(self) -> None:
        with self.store.reader.connect() as db:
            held = db.execute(
                sa.select(sa.func.count()).where(devices.c.promised_bytes > sa.literal(0))
            ).scalar_one()
        self.record.left_over = len(self.manager._queue) + len(self.manager.leases(False)) + held


def run_pool_day(
    place: Path, plan: DayPlan, variant: str, seed: int, check: Check | None = None, check_every: int = 1
) -> DayRecord:
    """Run a day with its database in the folder `place`; `check` the books with each `check_every`-th sample."""
    loop = VirtualLoop()
    try:

        async def day() -> DayRecord:
            return await PoolDay(place, plan, variant, seed, check, check_every).run()

        return loop.run_until_complete(day())
    finally:
        loop.close()
