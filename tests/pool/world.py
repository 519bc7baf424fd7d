"""A pool without processes: a clock that tests turn, and agents that do what they are told when they are told."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path

from gpukernel.common.bounds import Bounds, Subject
from gpukernel.common.course import Course
from gpukernel.common.model import Device, Holder, Lease, Queued, SliceRequest
from gpukernel.common.policy import Policy
from gpukernel.common.reservations import Reservation
from gpukernel.pool.domain.fencing import LateRegistration, Registration
from gpukernel.pool.leases.agent_orders import AgentStream
from gpukernel.pool.leases.agent_sessions import AgentSessions
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.store.policy import write_policy
from gpukernel.pool.store.servers import Attachment
from gpukernel.pool.store.store import Store

GIB = 2**30
ANNA = Holder("anna")
START = 1_700_000_000.0  # a Tuesday


class Agent:
    """A server whose workers start and stop when the test says so (or at once, where `prompt`)."""

    def __init__(
        self,
        manager: LeaseManager,
        name: str = "s",
        devices: int = 1,
        prompt: bool = True,
        *,
        direct_machine: str = "",
    ) -> None:
        self.manager, self.name, self.prompt = manager, name, prompt
        self.direct_machine = direct_machine
        self.devices = [Device(f"{name}/{i}", name, i, "Tesla V100", 32 * GIB) for i in range(devices)]
        self.plugged = list(self.devices)  # of these its machine shows those that are there now
        self.alive: set[tuple[str, str]] = set()
        self.to_start: list[tuple[str, str]] = []
        self.to_stop: list[tuple[str, str]] = []
        self.to_limit: list[tuple[str, str, int]] = []
        self.users: dict[tuple[str, str], int] = {}  # of slices in direct mode
        self.caps: dict[tuple[str, str], int] = {}  # of living workers
        self.used: dict[tuple[str, str], int] = {}  # what their programs have allocated
        # Started again on the same state directory, it is another process.
        self.registration = Registration("account 0", "machine", f"place of {name}", secrets.token_hex(4))
        self.attachment: Attachment | None = None
        self._beating: asyncio.Task[None] | None = None
        self.closed: list[str] = []  # with which its streams were ended

    @property
    def sessions(self) -> AgentSessions:
        return AgentSessions(self.manager)

    def attach(self) -> None:
        self.register()
        if self._beating is None:
            self._beating = asyncio.get_running_loop().create_task(self._beat_often())

    def register(self) -> None:
        """Attach with the newest epoch that the pool has told, as agents do."""
        self.to_start, self.to_stop, self.to_limit = [], [], []
        stream, workers = self.stream(), self._living(self.workers())
        try:
            self.attachment = self.sessions.attach(
                self.name, stream, self.devices, workers, self.direct_machine, self.registration
            )
        except LateRegistration as late:
            self.registration = replace(self.registration, epoch=late.epoch)
            return self.register()
        self.registration = replace(self.registration, epoch=self.attachment.epoch)
        return None

    def stream(self) -> AgentStream:
        """Return what takes the pool's orders."""
        return self

    async def _beat_often(self) -> None:
        """Live on in a pool whose clock is the real one."""
        with contextlib.suppress(Exception):  # a pool that has ended hears nothing
            while True:
                await asyncio.sleep(1)
                self.beat()

    def beat(self) -> None:
        """Give a sign of life, as agents do every other second."""
        if self.attachment is not None and self.sessions.speaks(self.name, self):
            self.sessions.heard(self.attachment)

    def tell_uuids(self) -> None:
        """Name the devices by UUIDs from now on, as newer agents do."""
        uuids = [f"GPU-0000000{d.index}-0000-0000-0000-000000000000" for d in self.devices]
        told = zip(self.devices, uuids, strict=True)
        self.devices = [replace(d, id=f"{self.name}/{uuid}", uuid=uuid) for d, uuid in told]
        self.plugged = list(self.devices)

    def count_anew(self, order: Iterable[int]) -> None:
        """Show those of its devices with these numbers, in this order, under new numbers."""
        self.devices = [replace(self.plugged[one], index=i) for i, one in enumerate(order)]

    def close(self, displaced: str = "") -> None:
        self.closed.append(displaced)

    def workers(self) -> list[tuple[str, str]]:
        """Those that live, as they were started: ids are random, and tests are to repeat themselves."""
        started = {worker: number for number, worker in enumerate(self.caps)}
        return sorted(self.alive, key=lambda worker: (started.get(worker, -1), worker))

    def _living(self, keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, ...]]:
        return {key: ("direct:/x" if key in self.users else "unix:/x",) for key in keys}

    def start_worker(self, lease: Lease, device_id: str, memory_bytes: int, weight: float) -> None:
        self.to_start.append((lease.id, device_id))
        self.caps[lease.id, device_id] = memory_bytes
        if self.prompt:
            self.start()

    def start_direct(self, lease: Lease, device_id: str, memory_bytes: int, weight: float) -> None:
        self.users[lease.id, device_id] = lease.user
        self.start_worker(lease, device_id, memory_bytes, weight)

    def stop_worker(self, lease_id: str, device_id: str, reason: str) -> None:
        self.to_stop.append((lease_id, device_id))
        if self.prompt:
            self.stop()

    def interrupt_worker(self, lease_id: str, device_id: str) -> None:
        """Nothing runs here that could be interrupted."""

    def limit_worker(self, lease_id: str, device_id: str, memory_bytes: int, weight: float) -> None:
        self.to_limit.append((lease_id, device_id, memory_bytes))
        if self.prompt:
            self.limit()

    def limit(self) -> None:
        while self.to_limit:
            lease_id, device_id, size = self.to_limit.pop(0)
            if (lease_id, device_id) not in self.alive:
                continue
            used = self.used.get((lease_id, device_id), 0)
            if done := used <= size:
                self.caps[lease_id, device_id] = size
            self.sessions.worker_limited(self.name, lease_id, device_id, size, done, used)

    def start(self) -> None:
        while self.to_start:
            key = self.to_start.pop(0)
            self.alive.add(key)
            self.sessions.worker_ready(self.name, *key, self._living([key])[key])

    def stop(self) -> None:
        while self.to_stop:
            key = self.to_stop.pop(0)
            if key in self.to_start:  # orders are obeyed in their order
                self.to_start.remove(key)
            self.alive.discard(key)
            self.sessions.worker_ended(self.name, *key, "stopped")


class World:
    """One pool process on a database, and one server, on which the workers of `alive` live."""

    def __init__(
        self,
        place: Path | str,
        devices: int = 1,
        prompt: bool = True,
        *,
        server: str = "s",
        now: float = START,
        alive: set[tuple[str, str]] | None = None,
    ) -> None:
        self.now = now
        url = place if isinstance(place, str) else f"sqlite:///{place}/pool.db"
        self.store = Store(url)
        self.manager = LeaseManager(self.store, lambda: self.now)
        self.agent = Agent(self.manager, server, devices=devices, prompt=prompt)
        self.agent.alive = set() if alive is None else alive
        self.agent.attach()

    @property
    def sessions(self) -> AgentSessions:
        return AgentSessions(self.manager)

    def rule(
        self,
        *courses: Course,
        quotas: dict[str, Bounds] | None = None,
        term_begins: float = 0.0,
        reservations: tuple[Reservation, ...] = (),
        **times: float,
    ) -> list[str]:
        """Make these the courses, quotas and, in UTC, the reservations; `times` are the policy's others."""
        after = Policy(
            {course.name: course for course in courses},
            {Subject.parse(text): bounds for text, bounds in (quotas or {}).items()},
            term_begins,
            reservations=reservations,
            timezone="UTC" if reservations else "",
            **times,
        )
        with self.store.deciding() as (db, row):
            changes = write_policy(
                db, self.store.policy.current(db, row.policy_version), after, "admin", self.now
            )
        self.manager.schedule()
        return changes

    def ask(
        self, key: str, share: float = 0.5, wait: float = -1, holder: Holder = ANNA, longest: float = 0
    ) -> AsyncIterator[Queued | Lease]:
        return self.manager.acquire(key, SliceRequest(share=share), holder, wait, 0, longest)

    async def get(
        self, key: str, share: float = 0.5, wait: float = -1, holder: Holder = ANNA, longest: float = 0
    ) -> Lease:
        async for event in self.ask(key, share, wait, holder, longest):
            if isinstance(event, Lease):
                return event
        raise AssertionError

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        if hasattr(self, "agent"):
            self.agent.beat()
        self.manager.tick()

    def promised(self) -> float:
        return sum(d.promised_bytes for d in self.manager.devices()) / (32 * GIB)


def story(place: Path | str, tell: object, **options: object) -> None:
    async def run() -> None:
        await tell(World(place, **options))  # type: ignore[operator, arg-type]

    asyncio.run(run())
