"""Random steps against the pool's guarantees.

Some hundred steps in the ordinary suite; ``make model`` takes 100,000, ``GPUKERNEL_MODEL_STEPS`` says how many else, and
``GPUKERNEL_MODEL_PARTS`` into how many tests, of other random steps each, they are divided for as many processes.  On SQLite, and on
PostgreSQL where it is installed.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import unittest
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpukernel.common.bounds import Bounds
from gpukernel.common.course import Course
from gpukernel.common.errors import Refused
from gpukernel.common.model import Holder, Lease, SliceRequest, Usage
from gpukernel.common.policy import Policy
from gpukernel.common.reservations import Reservation
from gpukernel.common.slice_request import class_rank
from gpukernel.pool.domain.fencing import STOP_SECONDS, VALID_SECONDS
from gpukernel.pool.leases import resizes, waiters
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.scheduling.pending_requests import ABSENT
from gpukernel.pool.store.store import Store
from tests.pool.books import (
    check_books,
    check_giving_way,
    check_heals_nothing,
    check_held_back,
    check_placements,
    naive_order,
    rows,
)
from tests.pool.databases import Databases, PostgresqlDatabases, sqlite_databases
from tests.pool.world import START, Agent, World

STEPS_OF_ONE = 50
STEPS = int(os.environ.get("GPUKERNEL_MODEL_STEPS", "1000"))
PARTS = int(os.environ.get("GPUKERNEL_MODEL_PARTS", "1"))

COURSES = (
    Course("ml", weight=2.0, members={"anna": "student", "ben": "student", "prof": "instructor"}),
    Course("phys", members={"*": "student"}),
)
QUOTAS = {
    "course:ml": Bounds(devices=1.25),
    "student:ml": Bounds(devices=0.7, largest_slice=0.6),
    "course:phys": Bounds(leases=3, longest_seconds=400, idle_seconds=100),
    "person:anna": Bounds(leases=2),
}
# Windows that open and close within the hours that a run takes, beginning at 22:13.
EVERY_DAY = tuple(range(7))
RESERVATIONS = (
    Reservation("ml", EVERY_DAY, "", 22 * 60 + 20, 22 * 60 + 40, 0.75),
    Reservation("ml", EVERY_DAY, "", 23 * 60, 24 * 60, 0.5),
    Reservation("phys", EVERY_DAY, "", 22 * 60 + 30, 23 * 60 + 30, 1.0),
    Reservation("phys", EVERY_DAY, "", 22 * 60 + 45, 23 * 60 + 15, 0.5, preempt=True),
)
HOLDERS = [
    Holder("anna", course="ml"),
    Holder("ben", course="ml"),
    Holder("prof", course="ml"),
    Holder("anna", course="phys"),
    Holder("carl", course="phys"),
    Holder("dora"),
]
TIMES = {"notice": 8.0, "least_run": 5.0, "half_life": 0.0}
"""Short enough that leases give way within the few steps for which they live."""
CLASSES = st.sampled_from(["interactive", "interactive", "batch", "scavenger"])
SHARES = st.sampled_from([0.02, 0.25, 0.3, 0.55, 0.6, 1.0])


@functools.cache
def _nowhere() -> Store:
    return Store("sqlite://")


_SERVERS: list[str] = []  # the address of PostgreSQL's server


@functools.cache
def _on_postgresql() -> Databases:
    return PostgresqlDatabases(_SERVERS[0])


@pytest.fixture(scope="module")
def _server(postgresql: str) -> Iterator[None]:
    _SERVERS.append(postgresql)
    yield
    _on_postgresql.cache_clear()
    _SERVERS.clear()


class PoolMachine(RuleBasedStateMachine):
    """Random acquire, renew, resize, release, expire, death, crash and clock steps."""

    databases = staticmethod(sqlite_databases)

    def __init__(self) -> None:
        super().__init__()
        resizes.RESIZE_SECONDS = 1e9  # of the machine's clock, which no step may depend on
        waiters.A_FEW = 1000  # are told at once, as steps are taken while no loop runs
        logging.disable()  # a thousand runs would be kept for a report that nobody reads
        self._known: list[Lease] | None = None
        self.place = self.databases().new()
        self.loop = asyncio.new_event_loop()
        self.count = 0
        self.shown: tuple[int, ...] = (0, 1)  # which devices the server has, as its driver counts them
        self.attached = True
        self.away = 0.0  # seconds without a word from the pool
        self.tasks: dict[str, asyncio.Task[Lease]] = {}
        self.resizes: list[asyncio.Task[Any]] = []
        self.granted: dict[
            str, str
        ] = {}  # leases that holders were given, until somebody has a reason to end them
        self.world = self.loop.run_until_complete(self._world(START, {}, {}))
        self.world.rule(*COURSES, quotas=QUOTAS, **TIMES)

    async def _world(self, now: float, alive: Any, caps: Any) -> World:
        world = World.__new__(World)
        world.now = now
        world.store = self.databases().store(self.place)
        world.manager = LeaseManager(world.store, lambda: world.now)
        world.agent = Agent(world.manager, devices=2, prompt=False)
        world.agent.tell_uuids()
        world.agent.count_anew(self.shown)
        world.agent.alive, world.agent.caps = set(alive), dict(caps)
        world.agent.attach()
        return world

    def settle(self) -> None:
        self.loop.run_until_complete(_some_turns())
        self._known = None
        for key, task in list(self.tasks.items()):
            if task.done():
                del self.tasks[key]
                if not task.cancelled() and task.exception() is None:
                    self.granted[task.result().id] = key
        for resize in [task for task in self.resizes if task.done()]:
            self.resizes.remove(resize)
            assert resize.cancelled() or isinstance(resize.exception(), Refused | None)

    def living(self) -> list[Lease]:
        """As the pool says; asked once a step, after which `settle` is called."""
        if self._known is None:
            self._known = self.world.manager.leases(False)
        return self._known

    def forget(self, lease_id: str) -> None:
        self.granted.pop(lease_id, None)

    # --- steps ---

    @rule(
        share=SHARES, holder=st.sampled_from(HOLDERS), devices=st.sampled_from([1, 1, 1, 2]), priority=CLASSES
    )
    def acquire(self, share: float, holder: Holder, devices: int, priority: str) -> None:
        self.count += 1
        key = f"k{self.count}"

        async def get() -> Lease:
            wanted = SliceRequest(share=share, devices=devices, priority=priority)
            async for event in self.world.manager.acquire(key, wanted, holder, -1, 0):
                if isinstance(event, Lease):
                    return event
            raise AssertionError

        self.tasks[key] = self.loop.create_task(get())
        self.settle()

    @rule(reserved=st.sets(st.sampled_from(RESERVATIONS)))
    def reserve(self, reserved: set[Reservation]) -> None:
        self.world.rule(*COURSES, quotas=QUOTAS, reservations=tuple(sorted(reserved)), **TIMES)
        self.settle()

    @rule()
    def workers_start(self) -> None:
        self.world.agent.start()
        self.settle()

    @rule()
    def workers_stop(self) -> None:
        for lease_id, _ in self.world.agent.to_stop:
            self.forget(lease_id)
        self.world.agent.stop()
        self.settle()

    @rule()
    def workers_obey_caps(self) -> None:
        self.world.agent.limit()
        self.settle()

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(self.living()))
        self.forget(lease.id)
        self.world.manager.end(lease.id, "released")
        self.settle()

    @precondition(lambda self: self.living())
    @rule(data=st.data(), share=SHARES)
    def resize(self, data: st.DataObject, share: float) -> None:
        lease = data.draw(st.sampled_from(self.living()))
        work = self.world.manager.resize(lease.id, SliceRequest(share=share))
        self.resizes.append(self.loop.create_task(work))
        self.settle()

    @precondition(lambda self: self.world.agent.alive)
    @rule(data=st.data(), part=st.sampled_from([0.0, 0.5, 1.0]))
    def allocate(self, data: st.DataObject, part: float) -> None:
        worker = data.draw(st.sampled_from(self.world.agent.workers()))
        self.world.agent.used[worker] = int(self.world.agent.caps[worker] * part)

    @precondition(lambda self: self.world.agent.alive and self.attached)
    @rule(data=st.data(), idle=st.sampled_from([0.0, 85.0, 200.0]), connections=st.sampled_from([0, 1]))
    def heartbeat(self, data: st.DataObject, idle: float, connections: int) -> None:
        worker = data.draw(st.sampled_from(self.world.agent.workers()))
        usage = Usage(connections=connections, idle_seconds=idle)
        self.world.sessions.heartbeat("s", {worker: usage})
        self.settle()

    @precondition(lambda self: self.world.agent.alive and self.attached)
    @rule(data=st.data())
    def worker_dies(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(self.world.agent.workers()))
        self.world.agent.alive.discard(worker)
        self.forget(worker[0])
        self.world.sessions.worker_ended("s", *worker, "it died")
        self.settle()

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        self.tasks.pop(data.draw(st.sampled_from(sorted(self.tasks)))).cancel()
        self.settle()

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        self.world.manager.renew(data.draw(st.sampled_from(list(self.granted))))

    @rule(seconds=st.sampled_from([1.0, 10.0, 25.0, 300.0]))
    def pass_time(self, seconds: float) -> None:
        # Who is not renewed expires, and idleness and the longest time end leases: any may end now.
        self.granted.clear()
        if self.attached:
            self.away = 0.0
        else:
            self.away += seconds
            if self.away >= VALID_SECONDS + STOP_SECONDS:  # no worker outlives what its agent was told
                self.world.agent.alive.clear()
        self.world.pass_time(seconds)
        self.settle()

    @rule(started=st.booleans())
    def server_away_and_back(self, started: bool) -> None:
        """Its agent does what it was told, or had not heard it yet."""
        if self.attached:
            self.world.sessions.detach("s", self.world.agent)
            if started:
                self.world.agent.alive.update(self.world.agent.to_start)
            self.world.agent.to_start.clear()
            self.world.agent.to_stop.clear()
            self.world.agent.to_limit.clear()
        else:
            self.world.agent.attach()
        self.attached, self.away = not self.attached, 0.0
        self.settle()

    @rule(shown=st.sampled_from([(0, 1), (1, 0), (1, 0), (0,), (1,)]), killed=st.booleans())
    def server_starts_anew(self, shown: tuple[int, ...], killed: bool) -> None:
        """The agent comes back to other numbers, or without a device, whose workers may have died with it."""
        agent = self.world.agent
        if self.attached:
            self.world.sessions.detach("s", agent)
        self.shown = shown
        agent.count_anew(shown)
        here = {device.id for device in agent.devices}
        for worker in agent.workers():
            if worker[1] not in here:
                self.forget(worker[0])
                if killed:
                    agent.alive.discard(worker)
        for order in agent.to_start:
            if order[1] not in here:
                self.forget(order[0])
        agent.attach()
        self.attached, self.away = True, 0.0
        self.settle()

    @rule(jump=st.sampled_from([-1000.0, 0.0, 5000.0]))
    def crash(self, jump: float) -> None:
        """The process dies; the next one's clock may show another time."""
        world = self.world
        # A dead process runs no clean-up code: what the cancelled calls would do must not reach the store.
        world.manager.orders._agents.clear()
        store = world.store
        world.manager.store = world.manager._queue._store = world.manager._queue._requests._store = _nowhere()
        for task in [*self.tasks.values(), *self.resizes]:
            task.cancel()
        self.tasks.clear()
        self.resizes.clear()
        self.settle()
        self.resizes.clear()
        store.close()
        used, alive, caps = world.agent.used, world.agent.alive, world.agent.caps
        self.world = self.loop.run_until_complete(self._world(world.now + jump, alive, caps))
        self.world.agent.used = used
        self.attached, self.away = True, 0.0

    def kept_policy(self) -> Policy:
        """Return the policy with the quotas that were never lowered."""
        return self.world.store.policy.current()

    # --- what must be true after each ---

    @invariant()
    def the_books_are_right(self) -> None:
        agent = self.world.agent
        caps = {worker: agent.caps[worker] for worker in agent.alive}
        check_books(self.world.store, caps, self.kept_policy())
        check_heals_nothing(self.world.store)
        check_placements(self.world.store, self.world.now)
        check_giving_way(self.world.store, self.world.manager.steady())
        for worker in agent.alive:
            assert agent.used.get(worker, 0) <= agent.caps[worker]

    @invariant()
    def leases_stay_on_their_devices(self) -> None:
        here = {device.uuid: device.index for device in self.world.agent.devices}
        for device in self.world.manager.devices():
            assert device.available <= (here.get(device.uuid) == device.index), device
        for lease in self.living():
            for piece in lease.slices:
                assert piece.device_id == f"s/{piece.uuid}"
                if piece.uuid in here:
                    assert piece.device_index == here[piece.uuid]
                elif self.attached:
                    assert lease.state == "ending", "its device is gone"

    @invariant()
    def no_lease_is_lost(self) -> None:
        known = {lease.id: lease for lease in self.living()}
        for lease_id, key in self.granted.items():
            assert known[lease_id].key == key
            assert known[lease_id].state == "live"

    def decide(self) -> None:
        """Decide until nothing is granted any more: the order is the one in which a decision began."""
        leases: set[str] | None = None
        while leases != (leases := {lease.id for lease in self.living()}):
            self.world.manager.schedule()
            self.settle()

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        assert not [lease.key for lease in self.living() if lease.state == "live" and lease.key in self.tasks]

    @invariant()
    def the_queue_is_in_its_order_and_everybody_who_waits_is_in_it(self) -> None:
        self.decide()
        requests, usage, pools = rows(self.world.store, "requests", "quota_usage", "pools")
        alive = {row.id: row.seen for row in pools}
        held = {row.course: row.share_held for row in usage if row.kind == "course"}
        tickets = {row.ticket: row.key for row in requests}
        queue, long_ago = self.world.manager._queue, self.world.manager.steady() - ABSENT
        policy, waiting = self.world.store.policy.current(), queue._requests.index.requests
        # The database refused these, and they are tried again later.
        refused = queue._refused.passed_over(waiting, policy, self.world.manager.steady())
        held_back = {r.key for r in requests if queue.reason(r.key) and not queue.refused(r.key)}
        passed = {
            r.ticket
            for r in requests
            if r.key in held_back | refused
            or r.key in queue._last.absent  # it was looked at, and the pool has no such devices now
            or (r.key not in self.tasks and max(r.seen, alive.get(r.pool, 0.0)) < long_ago)
        }
        sizes = [(row.ticket, row.course, row.size) for row in requests]
        ranks = {r.ticket: class_rank(r.priority, self.world.now - r.since) for r in requests}
        expected = naive_order(sizes, held, {"ml": 2.0}, passed, ranks)
        assert [one.key for one in self.world.manager.waiting()] == [tickets[ticket] for ticket in expected]
        by_ticket = {row.ticket: row for row in requests}
        check_held_back([by_ticket[ticket] for ticket in expected], held_back, usage, policy)
        leases = {lease.key for lease in self.living()}
        assert set(self.tasks) <= set(tickets.values()) | leases

    def teardown(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.settle()
        self.loop.close()
        self.world.store.close()
        self.databases().remove(self.place)
        logging.disable(logging.NOTSET)


async def _some_turns() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def _case(name: str, machine: type[PoolMachine], steps: int) -> type[unittest.TestCase]:
    # The steps follow from the class's name: each has other ones, and the same whenever it is run.
    case: type[unittest.TestCase] = type(name, (machine,), {}).TestCase
    case.settings = settings(  # type: ignore[attr-defined]
        max_examples=max(steps // PARTS // STEPS_OF_ONE, 1),
        stateful_step_count=STEPS_OF_ONE,
        deadline=None,
        derandomize=True,
        database=None,
        # A failing run is short as it is, and making it shorter takes minutes.
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    return case


class PostgresqlPoolMachine(PoolMachine):
    """The same on PostgreSQL."""

    databases = staticmethod(_on_postgresql)


for _number in range(PARTS):
    _name = f"PoolMachine{_number or ''}"
    globals()[f"Test{_name}"] = _case(_name, PoolMachine, STEPS)
    globals()[f"TestPostgresql{_name}"] = pytest.mark.usefixtures("_server")(
        _case(f"Postgresql{_name}", PostgresqlPoolMachine, STEPS if STEPS > 10_000 else STEPS // 4)
    )
