"""Who gets what, when: the pool's decisions, between the store, the agents and those who wait.

Guarantees
----------
* First come, first served: nobody is passed by a later request for a device that they could use.
* One living lease a key, so asking again is harmless.
* A lease ends by release, by expiry, by the death of a worker, or with its server; its memory is promised again only
  when its workers are dead.
* Signs of life are the holder's `renew` and, reported by the agent, a program that is connected to the worker.  A kernel ends with its
  server, its connection with the kernel, and nobody renews then: the slice is free after the lease's time to live.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Protocol

from gpukernel.pool.direct import check_mode, choose, possible
from gpukernel.pool.errors import Refused
from gpukernel.pool.model import Device, Holder, Lease, Queued, SliceRequest, Usage, Waiting
from gpukernel.pool.placement import MIB, check_request, matching, slice_bytes
from gpukernel.pool.store import Conflict, Store

__all__ = ["Agent", "Broker"]

log = logging.getLogger(__name__)

DEFAULT_TTL = 20.0
LONGEST_TTL = 3600.0
SERVER_GRACE = 30.0


class Agent(Protocol):
    """The pool's end of one attached agent."""

    def start_worker(self, lease: Lease, device_index: int, memory_bytes: int, weight: float) -> None: ...
    def start_direct(
        self, lease: Lease, device_index: int, memory_bytes: int, weight: float, user: int
    ) -> None: ...
    def stop_worker(self, lease_id: str, device_index: int, reason: str) -> None: ...
    def interrupt_worker(self, lease_id: str, device_index: int) -> None: ...


@dataclass(eq=False)
class _Waiter:
    key: str
    request: SliceRequest
    holder: Holder
    ttl: float
    since: float
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lease_id: str = ""
    replaced: bool = False


class Broker:
    """The pool's one decision maker, in one event loop; the store keeps what must not be lost."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._agents: dict[str, Agent] = {}
        self._absent: dict[str, float] = {}
        self._machines: dict[str, str] = {}  # of the servers that allow direct mode
        self._queue: list[_Waiter] = []
        self._starting: dict[str, _Waiter] = {}
        now = clock()
        for lease in store.leases():  # a restart is no reason to lose a lease: everyone gets their time again
            store.renew([lease.id], now)
            for piece in lease.slices:
                self._absent.setdefault(piece.server, now)

    # --- holders ---

    async def acquire(
        self, key: str, request: SliceRequest, holder: Holder, wait_seconds: float, ttl: float
    ) -> AsyncIterator[Queued | Lease]:
        """The places in the queue, then the lease, as `gpukernel.pool.client.PoolClient.acquire` tells them."""
        texts = (key, holder.person, holder.server, holder.course, holder.description)
        check_request(request, (*texts, request.machine))
        check_mode(request)
        if not key or not holder.person:
            raise Refused("invalid", "A request needs a key and a person.")
        if not 0 <= ttl <= LONGEST_TTL:
            raise Refused(
                "invalid", f"A time to live of {ttl!r} s is not possible; it is at most {LONGEST_TTL:.0f} s."
            )
        if wait_seconds != wait_seconds:
            raise Refused("invalid", "The time to wait is not a number.")
        matching(request, possible(request, self.devices(), self._machines))
        for other in self._queue:
            if other.key == key:  # the same use asks again: it keeps its place
                other.replaced = True
                other.changed.set()
        place_of = next((i for i, w in enumerate(self._queue) if w.key == key), len(self._queue))
        waiter = _Waiter(key, request, holder, ttl or DEFAULT_TTL, self._clock())
        if place_of < len(self._queue):
            waiter.since = self._queue[place_of].since
            self._queue[place_of] = waiter
        else:
            self._queue.append(waiter)
        deadline = None if wait_seconds < 0 else asyncio.get_running_loop().time() + wait_seconds
        delivered = False
        told: Queued | None = None
        try:
            self.pump()
            while True:
                waiter.changed.clear()
                if waiter.replaced:
                    raise Refused("replaced", "The same request was made again elsewhere.")
                if waiter.lease_id:
                    lease = self._store.lease(waiter.lease_id)
                    if lease is None or lease.state in ("ending", "ended"):
                        delivered = True
                        raise Refused(
                            "failed",
                            f"No slice could be started: {lease.end_reason if lease else 'it vanished'}.",
                        )
                    if lease.state == "live":
                        self._store.renew([lease.id], self._clock())
                        delivered = True
                        yield self._store.lease(lease.id) or lease
                        return
                else:
                    queued = self._place(waiter)
                    if wait_seconds == 0:
                        raise Refused("full", queued.reason)
                    if queued != told:
                        told = queued
                        yield queued
                        continue
                patience = deadline if not waiter.lease_id else None
                try:
                    async with asyncio.timeout_at(patience):
                        await waiter.changed.wait()
                except TimeoutError:
                    if not waiter.lease_id:
                        raise Refused(
                            "full", f"{self._place(waiter).reason} It waited {wait_seconds:.0f} s."
                        ) from None
        finally:
            if waiter in self._queue:
                self._queue.remove(waiter)
                self._tell_all()
            if waiter.lease_id:
                self._starting.pop(waiter.lease_id, None)
                if not delivered and not waiter.replaced:
                    self.end(waiter.lease_id, "the request was given up")
            self.pump()

    def _place(self, waiter: _Waiter) -> Queued:
        position = self._queue.index(waiter) + 1
        candidates = matching(waiter.request, possible(waiter.request, self.devices(), self._machines))
        free = max(d.memory_bytes - d.promised_bytes for d in candidates)
        asked = slice_bytes(waiter.request, candidates[0])
        count = f"{waiter.request.devices} devices with " if waiter.request.devices > 1 else ""
        reason = (
            f"The pool has no room for {count}{asked // MIB} MiB of {waiter.request.model or 'a device'} now "
            f"(most free on one device: {free // MIB} MiB); position {position} in the queue."
        )
        return Queued(position, -1.0, reason)

    def _tell_all(self) -> None:
        for waiter in self._queue:
            waiter.changed.set()

    def pump(self) -> None:
        """Grant what can be granted, in the order of the queue."""
        devices = self.devices()
        blocked: set[str] = set()
        granted = False
        for waiter in list(self._queue):
            living = self._store.living(waiter.key)
            if living is not None:
                if living.state in ("starting", "live"):
                    self._granted(waiter, living)
                    granted = True
                continue  # its old lease is ending: wait for that
            try:
                candidates = matching(waiter.request, possible(waiter.request, devices, self._machines))
            except Refused:
                continue  # its server is away for now
            placed, direct = choose(waiter.request, candidates, blocked, self._machines)
            if placed is None:
                blocked |= {device.id for device in candidates}
                continue
            try:
                lease = self._store.grant(waiter.key, waiter.holder, placed, waiter.ttl, self._clock())
            except Conflict:
                blocked |= {device.id for device in candidates}
                continue
            log.info("lease %s: %s for %s", lease.id, waiter.key, waiter.holder.person)
            self._granted(waiter, lease)
            granted = True
            for piece in lease.slices:
                agent = self._agents[piece.server]
                what = (lease, piece.device_index, piece.memory_bytes, piece.weight)
                if direct:
                    agent.start_direct(*what, waiter.request.user)
                else:
                    agent.start_worker(*what)
            devices = self.devices()
        if granted:
            self._tell_all()

    def _granted(self, waiter: _Waiter, lease: Lease) -> None:
        self._queue.remove(waiter)
        waiter.lease_id = lease.id
        self._starting[lease.id] = waiter
        waiter.changed.set()

    def renew(self, lease_id: str) -> Lease | None:
        """A sign of life of the holder."""
        self._store.renew([lease_id], self._clock())
        return self._store.lease(lease_id)

    def interrupt(self, lease_id: str) -> Lease | None:
        """Have the lease's workers end GPU work that does not end by itself."""
        lease = self._store.lease(lease_id)
        if lease is not None and lease.state == "live":
            for piece in lease.slices:
                if agent := self._agents.get(piece.server):
                    agent.interrupt_worker(lease_id, piece.device_index)
        return lease

    def end(self, lease_id: str, reason: str) -> Lease | None:
        """End a lease: stop its workers, and free its memory when they are dead."""
        lease = self._store.lease(lease_id)
        if lease is None:
            return None
        if self._store.end(lease_id, reason, self._clock()):
            log.info("lease %s ends: %s", lease_id, reason)
            for piece in lease.slices:
                if agent := self._agents.get(piece.server):
                    agent.stop_worker(lease_id, piece.device_index, reason)
            if waiter := self._starting.get(lease_id):
                waiter.changed.set()
        return self._store.lease(lease_id)

    def lease(self, lease_id: str) -> Lease | None:
        """The lease with its secret."""
        return self._store.lease(lease_id)

    def leases(self, include_ended: bool) -> list[Lease]:
        """Leases as tables show them."""
        return self._store.leases(include_ended=include_ended)

    def devices(self) -> list[Device]:
        """Every device; those without an attached agent are not available."""
        return self._store.devices(self._agents)

    def waiting(self) -> list[Waiting]:
        """The queue in its order."""
        return [Waiting(w.key, w.holder, w.request, i + 1, w.since) for i, w in enumerate(self._queue)]

    # --- agents ---

    def attach(
        self,
        server: str,
        agent: Agent,
        devices: list[Device],
        workers: dict[tuple[str, int], tuple[str, ...]],
        direct_machine: str = "",
    ) -> None:
        """An agent (again) speaks for `server`; `workers` are those that live there, with their endpoints.

        `direct_machine` is the identity of its machine where it allows direct mode.

        What the pool expects and what lives are brought together: leases whose workers are gone end, workers whose
        leases are over or unknown are stopped.
        """
        self._agents[server] = agent
        self._machines[server] = direct_machine
        self._absent.pop(server, None)
        self._store.register(server, devices)
        expected = {
            (lease.id, piece.device_index): (lease, piece) for lease, piece in self._store.on_server(server)
        }
        for (lease_id, index), endpoints in workers.items():
            lease, piece = expected.pop((lease_id, index), (None, None))
            if lease is None or piece is None:
                agent.stop_worker(lease_id, index, "the pool knows nothing of this lease")
            elif lease.state in ("ending", "ended"):
                agent.stop_worker(lease_id, index, lease.end_reason)
            else:
                self._store.worker_ready(lease_id, piece.device_id, endpoints)
                self._store.renew([lease_id], self._clock())
        for (lease_id, _), (_, piece) in expected.items():
            self._worker_died(
                lease_id, piece.device_id, "its worker ended while the pool or its server was away"
            )
        self.pump()
        self._tell_all()

    def detach(self, server: str, agent: Agent) -> None:
        """The agent's stream broke; its workers may well live on."""
        if self._agents.get(server) is agent:
            del self._agents[server]
            self._absent[server] = self._clock()
            log.warning("server %s is away", server)

    def worker_ready(self, server: str, lease_id: str, index: int, endpoints: tuple[str, ...]) -> None:
        """A worker listens."""
        lease = self._store.worker_ready(lease_id, f"{server}/{index}", endpoints)
        if (lease is None or lease.state in ("ending", "ended")) and (agent := self._agents.get(server)):
            agent.stop_worker(lease_id, index, lease.end_reason if lease else "the lease is not known")
        if waiter := self._starting.get(lease_id):
            waiter.changed.set()

    def worker_ended(self, server: str, lease_id: str, index: int, reason: str) -> None:
        """A worker is dead."""
        self._worker_died(lease_id, f"{server}/{index}", reason)
        self.pump()
        self._tell_all()

    def end_for(self, server: str, lease_id: str, reason: str) -> None:
        """The agent of `server` found that a lease with a slice there must end."""
        lease = self._store.lease(lease_id)
        if lease is not None and any(piece.server == server for piece in lease.slices):
            self.end(lease_id, reason)

    def _worker_died(self, lease_id: str, device_id: str, reason: str) -> None:
        self._store.worker_gone(lease_id, device_id)
        self.end(lease_id, reason)

    def heartbeat(self, server: str, usage: dict[tuple[str, int], Usage]) -> None:
        """What the workers of `server` did; a connected program is a sign of life."""
        self._store.used(server, usage)
        connected = [lease_id for (lease_id, _), figures in usage.items() if figures.connections]
        if connected:
            self._store.renew(connected, self._clock())

    # --- time ---

    def tick(self) -> None:
        """What only the clock brings: expiry, and servers that stay away."""
        now = self._clock()
        for lease_id in self._store.expired(now):
            self.end(lease_id, "its holder gave no sign of life")
        for server, since in list(self._absent.items()):
            if now - since > SERVER_GRACE:
                for lease, _ in self._store.on_server(server):
                    self.end(lease.id, f"its GPU server {server} was lost")
        self.pump()

    async def run(self, every: float = 1.0) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(every)
            with contextlib.suppress(Conflict):
                self.tick()
