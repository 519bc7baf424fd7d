"""Who gets what, when: the pool's decisions, between the store, the agents and those who wait.

Guarantees
----------
* Fair between courses, first come first served within one, and nobody is delayed by who passes them (`gpukernel.pool.fairness`).
* Nothing is granted above a quota of the pool, the course, the person's role in it, or the person (`gpukernel.pool.quota`).
* One living lease a key, so asking again is harmless; a request that is made again keeps its place.
* A lease ends by release, by expiry, after its longest time, by idleness, by the death of a worker, or with its server; its
  memory is promised again only when its workers are dead.
* Signs of life are a call of the holder's that stays open (`gpukernel.pool.held`), a `renew`, and, reported by the agent, a program that is
  connected to the worker.  A kernel ends with its server, its connection with the kernel, and the slice is free after the lease's
  time to live.
* Several pools may share a database: each speaks for the agents that are attached to it, and looks every second (at once, where
  the database can call) for what the others have decided.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from gpukernel.logs import fields, of_lease
from gpukernel.pool import resizing
from gpukernel.pool.database import steady_clock
from gpukernel.pool.direct import Places, check_mode, matching_in_mode
from gpukernel.pool.errors import Refused
from gpukernel.pool.held import Held
from gpukernel.pool.line import KEY_IN_USE, Entry, Granted, Line, reason_for_no_room
from gpukernel.pool.model import Device, Holder, Lease, Queued, Slice, SliceRequest, Usage, Waiting
from gpukernel.pool.placement import MIB, DeviceClass, check_request
from gpukernel.pool.rules import Rules, note
from gpukernel.pool.sentences import say
from gpukernel.pool.store import Conflict, Store

__all__ = ["Agent", "Broker"]

log = logging.getLogger(__name__)

DEFAULT_TTL = 20.0
LONGEST_TTL = 3600.0
SERVER_GRACE = 30.0
POOL_GRACE = 15.0
RESIZE_SECONDS = 8.0
TURNS_OF_A_CALL = 12
A_FEW = 8
"""So many who wait are told their places within one turn of the loop."""
NOTICE = 300.0
"""How long before its end a holder is told that a lease will be ended, in seconds; at most a fifth of the whole time."""

IDLE = "This slice is idle"
BORROWED = "This slice is on borrowed time"


class Agent(Protocol):
    """The pool's end of one attached agent."""

    def start_worker(self, lease: Lease, device_index: int, memory_bytes: int, weight: float) -> None: ...
    def start_direct(self, lease: Lease, device_index: int, memory_bytes: int, weight: float) -> None: ...
    def stop_worker(self, lease_id: str, device_index: int, reason: str) -> None: ...
    def interrupt_worker(self, lease_id: str, device_index: int) -> None: ...
    def limit_worker(self, lease_id: str, device_index: int, memory_bytes: int, weight: float) -> None: ...


@dataclass(eq=False)
class _Waiter:
    """A call that waits here."""

    key: str
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    lease_id: str = ""
    lease: Lease | None = None  # as it was committed last, where nothing has happened to it since
    replaced: bool = False
    given_up: str = ""  # why nobody waits for it any more


class Broker:
    """One pool process' decision maker, in one event loop; the store keeps what must not be lost."""

    def __init__(self, store: Store, clock: Callable[[], float] | None = None) -> None:
        self._store = store
        self._clock = clock or steady_clock(store.engine)
        self.id = secrets.token_hex(8)
        self._agents: dict[str, Agent] = {}
        self._ordered: set[tuple[str, str]] = set()  # workers that an attached agent was told to start
        self._waiters: dict[str, _Waiter] = {}
        self._starting: dict[str, _Waiter] = {}
        self._untold: dict[str, None] = {}  # of a crowd that waits: those whose place may have changed
        self._crier: asyncio.Task[None] | None = None
        self._resizing: dict[str, set[asyncio.Event]] = {}
        self._capping: set[tuple[str, str, int]] = set()  # caps that an attached agent was told to set
        # What the sentences for all who wait are made of, read once after each change.
        self._kinds: tuple[list[DeviceClass], Places] | None = None
        # By servers, where only some come into question, and kinds.
        self._free: dict[tuple[tuple[str, ...] | None, tuple[DeviceClass, ...]], int] = {}
        self._line = Line(store, self.id)
        self.held = Held(store)
        self.on_change: Callable[[], None] = lambda: None  # tells the other pools on this database
        now = self._clock()
        # A restart is no reason to lose a lease: everyone gets their time again.
        if not store.shared:
            store.renew_all(now)
        store.servers_away(now - POOL_GRACE if store.shared else float("inf"), now)

    # --- holders ---

    async def acquire(
        self,
        key: str,
        request: SliceRequest,
        holder: Holder,
        wait_seconds: float,
        ttl: float,
        longest: float = 0.0,
        *,
        own_key: bool = False,
    ) -> AsyncIterator[Queued | Lease]:
        """The places in the queue, then the lease, as `gpukernel.pool.client.PoolClient.acquire` tells them.

        `own_key`: who asks with a key that another person uses is refused.
        """
        self._check(key, request, holder, wait_seconds, ttl, longest)
        if own_key and (ahead := self._line.get(key)) is not None and ahead.holder.person != holder.person:
            raise Refused("invalid", KEY_IN_USE)
        if (other := self._waiters.get(key)) is not None:  # the same use asks again: it keeps its place
            other.replaced = True
            other.changed.set()
        waiter = self._waiters[key] = _Waiter(key)
        now = self._clock()
        entry = Entry(key, request, holder, "", ttl or DEFAULT_TTL, longest, now, self.id, now)
        deadline = None if wait_seconds < 0 else asyncio.get_running_loop().time() + wait_seconds
        delivered = False
        told: tuple[Queued, float | None] | None = None
        try:
            self.pump(entry, own_key=own_key)
            while True:
                waiter.changed.clear()
                if waiter.replaced:
                    raise Refused("replaced", "The same request was made again elsewhere.")
                if waiter.given_up:
                    raise Refused("ended", f"The request was given up: {waiter.given_up}.")
                if waiter.lease_id:
                    lease, waiter.lease = waiter.lease or self._store.lease(waiter.lease_id), None
                    if lease is None or lease.state in ("ending", "ended"):
                        delivered = True
                        raise Refused(
                            "failed",
                            f"No slice could be started: {lease.end_reason if lease else 'it vanished'}.",
                        )
                    if lease.state == "live":
                        delivered = True
                        yield lease
                        return
                else:
                    queued = self._place(key, request)
                    if wait_seconds == 0:
                        raise Refused(self._code(key), queued.reason)
                    # That an estimate has become shorter by the time that has passed is no news.
                    news = replace(queued, estimate_seconds=0.0), self._line.start(key)
                    if news != told:
                        told = news
                        yield queued
                        continue
                patience = deadline if not waiter.lease_id else None
                try:
                    async with asyncio.timeout_at(patience):
                        await waiter.changed.wait()
                except TimeoutError:
                    if not waiter.lease_id:
                        raise Refused(
                            self._code(key),
                            f"{self._place(key, request).reason} It waited {wait_seconds:.0f} s.",
                        ) from None
        finally:
            if self._waiters.get(key) is waiter:
                del self._waiters[key]
                if self._line.get(key) is not None:
                    self._line.leave(key)
                    self._tell_all()
                    self.pump()
            if waiter.lease_id:
                if self._starting.get(waiter.lease_id) is waiter:
                    del self._starting[waiter.lease_id]
                if not delivered and not waiter.replaced:
                    self.end(waiter.lease_id, "the request was given up")
                    self.pump()

    def _check(
        self, key: str, request: SliceRequest, holder: Holder, wait: float, ttl: float, longest: float
    ) -> None:
        asking = (key, holder.person, holder.server, holder.course, holder.description)
        texts = (*asking, request.machine, request.server)
        check_request(request, texts)
        check_mode(request)
        if not key or not holder.person:
            raise Refused("invalid", "A request needs a key and a person.")
        if not 0 <= ttl <= LONGEST_TTL:
            raise Refused(
                "invalid", f"A time to live of {ttl!r} s is not possible; it is at most {LONGEST_TTL:.0f} s."
            )
        if not (longest == 0 or 1 <= longest < 1e9):
            raise Refused("invalid", f"A longest time of {longest!r} s is not possible; it is at least 1 s.")
        if wait != wait:
            raise Refused("invalid", "The time to wait is not a number.")

    def _code(self, key: str) -> str:
        return "quota" if self._line.reason(key) else "full"

    def _place(self, key: str, request: SliceRequest) -> Queued:
        position = self._line.place(key)
        quota = self._line.reason(key)
        if quota:
            reason: str = say(
                "%(quota)s Waiting: %(n)s; position %(position)s in the queue.",
                quota=quota,
                n=len(self._line),
                position=position,
            )
        else:
            if self._kinds is None:
                self._kinds = self._store.classes(), self._store.places()
            places = self._kinds[1]
            kinds = matching_in_mode(request, self._kinds[0], places)
            place = places.of(request)
            kept = self._line.reserved(key)
            what = place.servers if place else None, tuple(kinds)
            if what not in self._free:
                self._free[what] = self._store.most_free(kinds, place)
            no_room = reason_for_no_room(request, kinds, self._free[what], kept)
            reason = say(
                "%(no_room)s; position %(position)s in the queue.", no_room=no_room, position=position
            )
        return Queued(
            position, self._line.estimate(key, self._clock()), reason, quota or self._line.reserved(key)
        )

    def _tell_all(self) -> None:
        self._free, self._kinds = {}, None
        if len(self._waiters) <= A_FEW:
            for waiter in self._waiters.values():
                waiter.changed.set()
        else:
            self._untold = dict.fromkeys(self._waiters)
            if self._crier is None or self._crier.done():
                self._crier = asyncio.get_running_loop().create_task(self._tell_crowd())

    async def _tell_crowd(self) -> None:
        """Tell a crowd its places, a few at a time, in a quarter of the time at most.

        gRPC takes in one new call for each turn of the loop.  If a turn told hundreds their places, renewals would come in too late.
        """
        clock = asyncio.get_running_loop().time
        while self._untold:
            begin = clock()
            for key in list(self._untold)[:A_FEW]:
                del self._untold[key]
                if waiter := self._waiters.get(key):
                    waiter.changed.set()
            await asyncio.sleep(0)  # they are told in this turn
            await asyncio.sleep(3 * (clock() - begin))

    def pump(self, newcomer: Entry | None = None, *, own_key: bool = False) -> None:
        """Grant what can be granted, in the order of the queue."""
        if newcomer is None and not self._line.known(self._store.shared):
            return
        try:
            granted = self._line.decide(self._clock(), self._waiters, newcomer, own_key=own_key)
        except Conflict as conflict:  # a fault of this program: the database knew better
            log.error("the database refused a grant: %s", conflict)
            if newcomer is not None:
                raise Refused("failed", "The pool's books do not agree; tell its administrator.") from None
            return
        self._hand_out(granted)
        if granted or newcomer is not None:
            self._tell_all()
            self.on_change()

    def _hand_out(self, granted: Iterable[Granted]) -> None:
        for grant in granted:
            if grant.fresh is not None:
                log.info("granted for %s", grant.key, extra=of_lease(grant.fresh))
            self._serve(grant.key, grant.lease_id)
        for grant in granted:
            if grant.fresh is not None:
                self._start_workers(grant.fresh, grant.fresh.slices)

    def _serve(self, key: str, lease_id: str) -> None:
        """The call that waits for `key` here gets this lease."""
        if (waiter := self._waiters.pop(key, None)) is not None:
            if (older := self._starting.get(lease_id)) is not None:
                older.replaced = True
                older.changed.set()
            waiter.lease_id = lease_id
            self._starting[lease_id] = waiter
            waiter.changed.set()

    def _start_workers(self, lease: Lease, pieces: Iterable[Slice]) -> None:
        for piece in pieces:
            agent = self._agents.get(piece.server)
            if agent is not None and (lease.id, piece.device_id) not in self._ordered:
                self._ordered.add((lease.id, piece.device_id))
                start = agent.start_direct if lease.mode == "direct" else agent.start_worker
                start(lease, piece.device_index, piece.memory_bytes, piece.weight)

    def renew(self, lease_id: str) -> Lease | None:
        """A sign of life of the holder."""
        with self._store.transaction():
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

    async def resize(self, lease_id: str, request: SliceRequest) -> Lease | None:
        """Make the slices of a live lease larger or smaller; returns when its workers have their new caps.

        Raises
        ------
        Refused
            With the figures; the lease keeps its size then.
        """
        check_request(replace(request, devices=1, model=""))
        self.pump()
        now = self._clock()
        try:
            granted = self._line.decide(
                now,
                self._waiters,
                then=lambda db, rules, queue: resizing.begin(db, rules, queue, lease_id, request, now),
            )
        except Conflict as conflict:
            log.error("the database refused a grant: %s", conflict)
            raise Refused("failed", "The pool's books do not agree; tell its administrator.") from None
        self._hand_out(granted)
        self._tell_all()
        self._order_caps()
        self.on_change()
        waiter = asyncio.Event()
        self._resizing.setdefault(lease_id, set()).add(waiter)
        try:
            async with asyncio.timeout(RESIZE_SECONDS):
                while resizing.outcome(self._store, lease_id)[0]:
                    waiter.clear()
                    await waiter.wait()
        except TimeoutError:
            late = "its GPU server did not answer in time; the slice keeps the size that it has."
            if resizing.grows(self._store, lease_id):
                late = "its GPU server has not answered yet; the memory is promised, and the cap follows when it does."
            resizing.give_up(self._store, lease_id, late)
            self._order_caps()
        finally:
            self._resizing[lease_id].discard(waiter)
            if not self._resizing[lease_id]:
                del self._resizing[lease_id]
        if sentence := resizing.outcome(self._store, lease_id)[1]:
            raise Refused("allocated", sentence[:1].upper() + sentence[1:])
        lease = self._store.lease(lease_id)
        if lease is not None:
            sizes = ", ".join(f"{piece.memory_bytes // MIB} MiB" for piece in lease.slices)
            log.info("resized to %s", sizes, extra=of_lease(lease))
            self.held.changed(lease_id)
        return lease

    def _order_caps(self) -> None:
        """Tell the agents that are attached here which caps are not what they should be, each once."""
        for cap in resizing.wrong_caps(self._store, self._agents):
            order = (cap.lease_id, cap.device_id, cap.memory_bytes)
            if order not in self._capping:
                self._capping.add(order)
                agent = self._agents[cap.server]
                agent.limit_worker(cap.lease_id, cap.device_index, cap.memory_bytes, cap.weight)

    def worker_limited(
        self, server: str, lease_id: str, index: int, memory_bytes: int, done: bool, allocated: int
    ) -> None:
        """A worker's cap is `memory_bytes`, or could not be lowered to that because `allocated` bytes are in use."""
        device_id = f"{server}/{index}"
        self._capping.discard((lease_id, device_id, memory_bytes))
        if done:
            resizing.capped(self._store, lease_id, device_id, memory_bytes, self._clock())
        else:
            used = -(-allocated // MIB)
            resizing.give_up(
                self._store,
                lease_id,
                f"{used} MiB are allocated on {device_id}; the slice cannot shrink to {memory_bytes // MIB} MiB. "
                "Free memory first, or ask for at least that much.",
            )
        self._order_caps()
        for waiter in self._resizing.get(lease_id, ()):
            waiter.set()
        self.pump()
        self._tell_all()
        self.on_change()

    def end(self, lease_id: str, reason: str) -> Lease | None:
        """End a lease: stop its workers, and free its memory when they are dead."""
        lease = self._store.lease(lease_id)
        if lease is None:
            return None
        if self._store.end(lease_id, reason, self._clock()):
            self._ends(lease, reason)
        return self._store.lease(lease_id)

    def _ends(self, lease: Lease, reason: str) -> None:
        log.info("ends: %s", reason, extra=of_lease(lease))
        self._stop_workers(lease, reason)
        if waiter := self._starting.get(lease.id):
            waiter.lease = None
            waiter.changed.set()
        for resizer in self._resizing.get(lease.id, ()):
            resizer.set()
        self.held.changed(lease.id)
        self.on_change()

    def _stop_workers(self, lease: Lease, reason: str) -> None:
        for piece in lease.slices:
            self._ordered.discard((lease.id, piece.device_id))
            if agent := self._agents.get(piece.server):
                agent.stop_worker(lease.id, piece.device_index, reason)

    def now(self) -> float:
        """The pool's time, in seconds since the epoch."""
        return self._clock()

    def rules(self) -> Rules:
        """The courses and quotas."""
        return self._store.rules()

    def rules_changed(self) -> None:
        """Those who wait may have room now, and their sentences may name other figures."""
        self._keep_reserved(self._clock())
        self.pump()
        self._tell_all()
        self.on_change()

    def end_server(self, person: str, server: str, reason: str) -> int:
        """End what a single-user server holds and waits for; returns how many leases."""
        held = self._store.living_of(person, server)
        for entry in self._line.order():
            if entry.holder.person == person and entry.holder.server == server:
                self._line.give_up(entry.key)
                if waiter := self._waiters.get(entry.key):
                    waiter.given_up = reason
                    waiter.changed.set()
        for lease_id in held:
            self.end(lease_id, reason)
        self.pump()
        self._tell_all()
        return len(held)

    def write_down(self, who: str, action: str, subject: str, before: str, after: str) -> None:
        """An entry in the audit table: somebody does something to what another holds."""
        with self._store.deciding() as (db, _):
            note(db, self._clock(), who, action, subject, before, after)

    def lease(self, lease_id: str) -> Lease | None:
        """The lease with its secret."""
        return self._store.lease(lease_id)

    def leases(self, include_ended: bool) -> list[Lease]:
        """Leases as tables show them."""
        return self._store.leases(include_ended=include_ended)

    def devices(self) -> list[Device]:
        """Every device; those without an attached agent are not available."""
        return self._store.devices()

    def waiting(self) -> list[Waiting]:
        """The queue in its order."""
        return self._line.waiting(self._clock())

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
        now = self._clock()
        self._store.register(server, devices, self.id, now, direct_machine)
        expected = {
            (lease.id, piece.device_index): (lease, piece) for lease, piece in self._store.on_server(server)
        }
        self._ordered -= {(lease.id, piece.device_id) for lease, piece in expected.values()}
        self._capping = {order for order in self._capping if not order[1].startswith(f"{server}/")}
        self._store.forget_caps(server)
        for (lease_id, index), endpoints in workers.items():
            lease, piece = expected.pop((lease_id, index), (None, None))
            if lease is None or piece is None:
                agent.stop_worker(lease_id, index, "the pool knows nothing of this lease")
            elif lease.state in ("ending", "ended"):
                agent.stop_worker(lease_id, index, lease.end_reason)
            else:
                self._store.worker_ready(lease_id, piece.device_id, endpoints, now)
                self._store.renew([lease_id], now)
        for (lease_id, _), (_, piece) in expected.items():
            self._worker_died(
                lease_id, piece.device_id, "its worker ended while the pool or its server was away"
            )
        self._order_caps()
        self.pump()
        self._tell_all()

    def detach(self, server: str, agent: Agent) -> None:
        """The agent's stream broke; its workers may well live on."""
        if self._agents.get(server) is agent:
            del self._agents[server]
            self._store.server_away(server, self.id, self._clock())
            log.warning("away: its agent does not speak to this pool any more", extra=fields(server=server))
            self._tell_all()

    def worker_ready(self, server: str, lease_id: str, index: int, endpoints: tuple[str, ...]) -> None:
        """A worker listens."""
        lease = self._store.worker_ready(lease_id, f"{server}/{index}", endpoints, self._clock())
        if (lease is None or lease.state in ("ending", "ended")) and (agent := self._agents.get(server)):
            agent.stop_worker(lease_id, index, lease.end_reason if lease else "the lease is not known")
        elif lease is not None and lease.state == "live":
            log.info("live", extra=of_lease(lease))
        if waiter := self._starting.get(lease_id):
            waiter.lease = lease
            waiter.changed.set()
        self.on_change()

    def worker_ended(self, server: str, lease_id: str, index: int, reason: str) -> None:
        """A worker is dead."""
        self._worker_died(lease_id, f"{server}/{index}", reason)
        self.pump()
        self._tell_all()
        self.on_change()

    def end_for(self, server: str, lease_id: str, reason: str) -> None:
        """The agent of `server` found that a lease with a slice there must end."""
        lease = self._store.lease(lease_id)
        if lease is not None and any(piece.server == server for piece in lease.slices):
            self.end(lease_id, reason)

    def _worker_died(self, lease_id: str, device_id: str, reason: str) -> None:
        living = self._store.worker_gone(lease_id, device_id, reason, self._clock())
        if living and (lease := self._store.lease(lease_id)):
            self._ends(lease, reason)

    def heartbeat(self, server: str, usage: dict[tuple[str, int], Usage]) -> None:
        """What the workers of `server` did; a connected program is a sign of life."""
        self._store.used(server, usage)
        connected = [lease_id for (lease_id, _), figures in usage.items() if figures.connections]
        if connected:
            self._store.renew(connected, self._clock())

    def faults(self, server: str, found: Mapping[int, str]) -> None:
        """Which devices of `server` do not work now: they get no leases, and those that they have are lost."""
        broken = self._store.faults(server, found)
        for lease, piece in self._store.on_server(server) if broken else ():
            if piece.device_id in broken:
                self.end(lease.id, f"its device {piece.device_id} failed: {found[piece.device_index]}")
        for device_id in broken:
            sentence = found[int(device_id.rpartition("/")[2])]
            log.error("failed: %s", sentence, extra=fields(server=server, device=device_id))
        if broken:
            self._tell_all()

    def drain(self, server: str, who: str, deadline: float = 0.0) -> int:
        """Give `server` no new leases; those that it has end by themselves, or `deadline` seconds from now, which their
        holders are told.  Returns how many they are.

        Raises
        ------
        Refused
            ``no_such_server``.
        """
        now = self._clock()
        if not 0 <= deadline < 1e9:
            raise Refused("invalid", f"A deadline of {deadline!r} s is not possible.")
        if not self._store.drain(server, True, now + deadline if deadline else None, who, now):
            raise Refused("no_such_server", f"The pool has no GPU server {server[:60]}.")
        held = {lease.id for lease, _ in self._store.on_server(server)}
        for lease_id in held if deadline else ():
            self._store.notify(
                lease_id, f"This slice ends at {_time(now + deadline)}: its GPU server is being drained."
            )
        self._tell_all()
        self.on_change()
        return len(held)

    def undrain(self, server: str, who: str) -> None:
        """`server` gets leases again; raises `Refused` as `drain` does."""
        if not self._store.drain(server, False, None, who, self._clock()):
            raise Refused("no_such_server", f"The pool has no GPU server {server[:60]}.")
        for lease, _ in self._store.on_server(server):
            self._store.notify(lease.id, "", only_over="This slice ends at")
        self.pump()
        self._tell_all()
        self.on_change()

    # --- time and the other pools ---

    def tick(self) -> None:
        """What only the clock brings: expiry, the longest time, idleness, and servers that stay away."""
        now = self._clock()
        self.held.renew(now)
        if self._agents:
            self._store.servers_seen(self.id, now)
        if self._store.shared:
            self._store.servers_away(now - POOL_GRACE, now)
        for lease_id in self._store.expired(now):
            self.end(lease_id, "its holder gave no sign of life")
        self._watch_the_time(now)
        for server in self._store.away(now - SERVER_GRACE):
            for lease, _ in self._store.on_server(server):
                self.end(lease.id, f"its GPU server {server} was lost")
        for server in self._store.drained_by(now):
            for lease, _ in self._store.on_server(server):
                self.end(lease.id, f"its GPU server {server} was drained")
        if self._line.known(self._store.shared):
            self._line.still_here(self._waiters, now)
        self._keep_reserved(now)
        self.look()
        self.pump()
        self.held.look()

    def _keep_reserved(self, now: float) -> None:
        """Reservations have their room.  Who borrowed what one that preempts needs is told before, and has to leave when its window
        opens."""
        if not self._store.rules().reservations:
            return
        leave, stay = self._line.make_room(now, NOTICE)
        for eviction in leave:
            if eviction.when <= now:
                self.end(eviction.lease_id, f"course {eviction.course} has reserved its device from now on")
            else:
                self._store.notify(
                    eviction.lease_id,
                    f"{BORROWED}: it ends at {_time(eviction.when)}, when course {eviction.course} has reserved its device.",
                )
        for lease_id in stay:
            self._store.notify(lease_id, "", only_over=BORROWED)

    def _watch_the_time(self, now: float) -> None:
        for lease_id, end, span, notice in self._store.ending_soon(now, NOTICE):
            if end <= now:
                self.end(lease_id, f"it was held for its longest time of {_minutes(span)}")
            elif end - now <= min(NOTICE, span / 5):
                self._say(
                    lease_id, notice, f"This slice ends at {_time(end)}: its longest time is over then."
                )
        for lease_id, idle, limit, notice in self._store.idle():
            left = limit - idle
            if left <= 0:
                self.end(lease_id, f"it was idle for {_minutes(limit)}")
            elif left <= min(NOTICE, limit / 5):
                self._say(
                    lease_id,
                    notice,
                    f"{IDLE} and will be released at {_time(now + left)}; any CUDA call keeps it.",
                )
            elif notice.startswith(IDLE):
                self._say(lease_id, notice, "")

    def _say(self, lease_id: str, before: str, notice: str) -> None:
        """What the holder is to know now; most seconds it is what it was before."""
        if notice != before:
            self._store.notify(lease_id, notice)

    def look(self) -> None:
        """See what other pools on the database decided: grants for calls that wait here, orders for agents attached here."""
        if self._store.shared:
            for key, (lease_id, state, _) in self._store.living(self._waiters).items():
                if state in ("starting", "live"):
                    self._serve(key, lease_id)
            for waiter in self._starting.values():
                waiter.lease = None
                waiter.changed.set()
            for server in list(self._agents):
                for lease, piece in self._store.on_server(server, unsettled=True):
                    if lease.state == "starting" and not piece.endpoints:
                        self._start_workers(lease, [piece])
                    elif lease.state == "ending" and (lease.id, piece.device_id) in self._ordered:
                        self._stop_workers(lease, lease.end_reason)
            self._order_caps()
            for resizers in self._resizing.values():
                for resizer in resizers:
                    resizer.set()
            self._tell_all()

    async def run(self, every: float = 1.0) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(every)
            try:
                if self._store.expired(self._clock()):
                    await self._hear_everybody()
                self.tick()
            except Exception:  # a database that is away comes back; the clock must go on until then
                log.exception("the clock's work was not done")

    async def _hear_everybody(self) -> None:
        """Let what has arrived come to its end: a renewal that waits in this process is a sign of life.

        A call takes some turns of the loop, and where a class starts its kernels on the pool's own machine a turn may take a second.
        """
        for _ in range(TURNS_OF_A_CALL):
            await asyncio.sleep(0.01)


def _time(when: float) -> str:
    return time.strftime("%H:%M", time.localtime(when))


def _minutes(seconds: float) -> str:
    return f"{max(seconds, 0):.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
