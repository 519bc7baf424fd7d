"""The lease manager: grants, renews, resizes and ends leases, between the store, the agents and those who wait.

Guarantees
----------
* Fair between courses, first come first served within one, and nobody is delayed by who passes them (`gpukernel.pool.domain.fairness`).
* Nothing is granted above a quota of the pool, the course, the person's role in it, or the person (`gpukernel.pool.domain.quota`).
* One living lease a key, so asking again is harmless; a request that is made again keeps its place.
* A lease ends by release, by expiry, after its longest time, by idleness, by the death of a worker, or with its server.  Its quotas are
  free then; its memory is promised again only when its workers are dead (`gpukernel.pool.leases.server_watch`).
* Signs of life are a call of the holder's that stays open (`gpukernel.pool.leases.keepalive`), a `renew`, and, reported by the agent, a program that is
  connected to the worker.  A kernel ends with its server, its connection with the kernel, and the slice is free after the lease's
  time to live.
* Several pools may share a database: each speaks for the agents that are attached to it, and reads every second (sooner, where
  the database notifies) what the others have changed (`gpukernel.pool.leases.following`).  Who frees something lets those who wait have it,
  in whichever pool they wait; where that pool dies before it does, the next second of another one does.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import astuple, replace

from gpukernel.common.errors import Refused
from gpukernel.common.i18n import say
from gpukernel.common.logs import of_lease
from gpukernel.common.model import Device, Holder, Lease, Queued, SliceRequest, Waiting
from gpukernel.common.policy import Policy
from gpukernel.pool.domain.direct_mode import check_mode
from gpukernel.pool.domain.fencing import NEVER, VALID_SECONDS
from gpukernel.pool.domain.placement import MIB, check_request
from gpukernel.pool.leases.agent_orders import AgentOrders
from gpukernel.pool.leases.bookkeeping import heal_books
from gpukernel.pool.leases.expiry import Expiry, clock_time
from gpukernel.pool.leases.following import Following
from gpukernel.pool.leases.keepalive import Keepalive
from gpukernel.pool.leases.outages import Outages
from gpukernel.pool.leases.positions import Positions
from gpukernel.pool.leases.resizes import Resizes
from gpukernel.pool.leases.server_watch import ServerWatch
from gpukernel.pool.leases.standstill import GIVEN_UP, Standstill
from gpukernel.pool.leases.turns import Turns
from gpukernel.pool.leases.usage_reports import UsageReports
from gpukernel.pool.leases.waiters import Waiters
from gpukernel.pool.scheduling import resize
from gpukernel.pool.scheduling.cycle_result import Granted
from gpukernel.pool.scheduling.pending_request import PendingRequest
from gpukernel.pool.scheduling.request_queue import KEY_IN_USE, RequestQueue
from gpukernel.pool.store.clock import Clock
from gpukernel.pool.store.policy import note
from gpukernel.pool.store.store import Store

__all__ = ["LeaseManager"]

log = logging.getLogger(__name__)

DEFAULT_TTL = 20.0
LONGEST_TTL = 3600.0
POOL_GRACE = 15.0


class LeaseManager:
    """The leases of one pool process, in one event loop; the store keeps what must not be lost.

    `gpukernel.pool.leases.agent_sessions.AgentSessions` brings in what agents report.

    Attributes
    ----------
    id
        This process among the pools on one database.
    valid_seconds
        Seconds for which workers live without a word from the pool.
    stops
        Set when this process is told to stop: calls that break then, or as it wakes from a `standstill`, give up neither their place in the
        queue nor, for some time, what was granted to them, since their holders ask again, here or at another pool.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float] | None = None,
        *,
        steady: Callable[[], float] | None = None,
        valid_seconds: float = VALID_SECONDS,
        address: str = "",
    ) -> None:
        self.store = store
        self.stops = False
        self._address = address
        self.id = secrets.token_hex(8)
        self.orders = AgentOrders(store)
        self.waiters = Waiters()
        self.resizes = Resizes(store)
        self.keepalive = Keepalive(store)
        self.usage_reports = UsageReports(store)
        self.outages = Outages(store, self.id)
        self.valid_seconds = valid_seconds
        if clock is not None:
            store.clock = Clock(store, clock, steady or clock, asks=False)
        self._queue = RequestQueue(store, self.id)
        self._turns, self.standstill = Turns(), Standstill()
        self._positions = Positions(store, self._queue)
        self._expiry = Expiry(store, self._queue, self.end)
        self.following = Following(
            store, self.id, self.orders, self.waiters, self.resizes, self.keepalive, self._serve
        )
        store.changes.pool = self.id
        # One transaction: another pool may start at the same moment, and what its agents say then is no earlier pool's.
        with store.deciding():
            alone = store.clock.start()
            now, steady_now = self.now(), self.steady()
            store.servers.mark_seen(self.id, steady_now, address)
            # A restart is no reason to lose a lease: everyone gets their time again.
            if alone:
                store.leases.renew_all(steady_now)
                store.leases.refund_ending(now)
                store.servers.hear_again(steady_now)
                store.changes.everything()  # to one that was only asleep
            store.servers.mark_unseen_away(float("inf") if alone else steady_now - POOL_GRACE, steady_now)
        heal_books(store, now)
        lost = functools.partial(self.worker_died, fenced=True)
        self.watch = ServerWatch(store, self.orders, self._queue, self.id, self.end, lost)

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
        traceparent: str = "",
    ) -> AsyncIterator[Queued | Lease]:
        """Yield the places in the queue, then the lease, as `gpukernel.client.pool.PoolClient.acquire` does.

        `own_key`: who asks with a key that another person uses is refused.  `traceparent`: the trace of the call.
        """
        self._check(key, request, holder, wait_seconds, ttl, longest)
        if own_key and (ahead := self._queue.get(key)) is not None and ahead.holder.person != holder.person:
            raise Refused("invalid", KEY_IN_USE)
        waiter = self.waiters.enter(key, traceparent)
        entry = PendingRequest(
            key, request, holder, "", ttl or DEFAULT_TTL, longest, self.now(), self.id, self.steady()
        )
        deadline = None if wait_seconds < 0 else asyncio.get_running_loop().time() + wait_seconds
        delivered = False
        told: tuple[Queued, float | None] | None = None
        try:
            await self._turns.take()
            self.schedule(entry, own_key=own_key)
            while True:
                waiter.changed.clear()
                if waiter.replaced:
                    raise Refused("replaced", "The same request was made again elsewhere.")
                if waiter.given_up:
                    raise Refused("ended", f"The request was given up: {waiter.given_up}.")
                if waiter.asks_again:
                    waiter.asks_again = False
                    self.schedule(entry, own_key=own_key)
                if waiter.lease_id:
                    lease, waiter.lease = waiter.lease or self.store.leases.get(waiter.lease_id), None
                    if lease is None or lease.state in ("ending", "ended"):
                        delivered = True
                        why = self.watch.try_elsewhere(waiter.lease_id, key, request)
                        if why is not None:
                            why = why or (lease.end_reason if lease else "it vanished")
                            raise Refused("failed", f"No slice could be started: {why}.")
                        self.waiters.leave(waiter)
                        waiter, delivered = self.waiters.enter(key, traceparent), False
                        self.schedule(entry, own_key=own_key)
                        continue
                    if lease.state == "live":
                        delivered = True
                        yield self.shown(lease)
                        return
                else:
                    queued = self._positions.queued(key, request, self.now())
                    if wait_seconds == 0:
                        raise Refused(self._positions.refusal_code(key), queued.reason)
                    # That an estimate has become shorter by the time that has passed is no news.
                    news = replace(queued, estimate_seconds=0.0), self._queue.start(key)
                    # One that another pool has granted has no place any more, and its lease in a moment.
                    if news != told and self._queue.get(key) is not None:
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
                            self._positions.refusal_code(key),
                            f"{self._positions.queued(key, request, self.now()).reason} It waited {wait_seconds:.0f} s.",
                        ) from None
        finally:
            self.watch.forget_key(key)
            waited, stays = self.waiters.leave(waiter), self.stops or self.standstill.just_now()
            if waited and self._queue.get(key) is not None and not stays:
                self._queue.leave(key)
                self.places_changed()
                self.schedule()
            taken = delivered or waiter.replaced or self.stops
            if waiter.lease_id and not (taken or self.standstill.keep(waiter.lease_id, ours=waiter.ours)):
                self.end(waiter.lease_id, GIVEN_UP, caller=self.id)
                self.schedule()

    def holder_of(self, key: str) -> Holder | None:
        """Return who waits with a key, or has a lease by it; None where nobody does."""
        return self._queue.holder_of(key)

    def _check(
        self, key: str, request: SliceRequest, holder: Holder, wait: float, ttl: float, longest: float
    ) -> None:
        """Refuse a request that no pool could grant."""
        texts = (key, *astuple(holder), request.machine, request.server, request.device)
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

    def places_changed(self) -> None:
        """Tell all who wait their places anew."""
        self._positions.forget()
        self.waiters.places_changed()

    def schedule(self, newcomer: PendingRequest | None = None, *, own_key: bool = False) -> None:
        """Grant what can be granted, in the order of the queue."""
        if newcomer is None and not self._queue.known():
            return
        with self.store.counters.timing("decisions", "decision_seconds"):
            granted = self._queue.run_cycle(self.now(), self.waiters.keys(), newcomer, own_key=own_key)
        self._hand_out(granted)
        if granted or newcomer is not None:
            self.places_changed()

    def _hand_out(self, granted: Sequence[Granted]) -> None:
        """Give leases to the calls that wait here, and have their workers started."""
        if self.store.shared and any(grant.fresh is None for grant in granted):
            self.store.commits.made()  # by another pool, and read here
        fresh = list[Lease]()
        for grant in granted:
            if grant.fresh is not None:
                log.info("granted for %s", grant.key, extra=of_lease(grant.fresh))
                if (waiter := self.waiters.queued(grant.key)) is None and grant.pool == self.id:
                    self.standstill.expect(grant.lease_id)
                traced = waiter is not None and waiter.traceparent
                fresh.append(replace(grant.fresh, traceparent=traced) if traced else grant.fresh)
            self._serve(grant.key, grant.lease_id, grant.fresh)
        for lease in fresh:
            self.orders.start(lease, lease.slices)

    def _serve(self, key: str, lease_id: str, lease: Lease | None = None) -> None:
        """Give a lease to the call that waits for `key` here, and expect its servers to confirm that they start it."""
        if self.waiters.serve(key, lease_id, lease, ours=self.standstill.expects(lease_id)):
            self.watch.started(lease_id)
            self.standstill.served(lease_id)

    def renew(self, lease_id: str) -> Lease | None:
        """Renew a lease for its holder; return it, or None where it is not known."""
        with self.store.transaction(awaited=False):
            self.store.leases.renew([lease_id], self.steady())
            return self.lease(lease_id)

    def interrupt(self, lease_id: str) -> Lease | None:
        """Have the lease's workers end GPU work that does not end by itself."""
        if (lease := self.lease(lease_id)) is not None and lease.state == "live":
            self.orders.interrupt(lease)
        return lease

    async def resize(self, lease_id: str, request: SliceRequest) -> Lease | None:
        """Make the slices of a live lease larger or smaller; return when its workers have their new caps.

        Raises
        ------
        Refused
            With the figures; the lease keeps its size then.
        """
        check_request(replace(request, devices=1, model=""))
        self.schedule()
        now, steady = self.now(), self.steady()
        granted = self._queue.run_cycle(
            now,
            self.waiters.keys(),
            then=lambda db, policy, queue: resize.begin(
                self.store, db, policy, queue, lease_id, request, now, steady
            ),
        )
        self._hand_out(granted)
        self.places_changed()
        self.orders.send_caps()
        if not await self.resizes.wait(lease_id):
            self.orders.send_caps()
        if sentence := resize.outcome(self.store, lease_id)[1]:
            raise Refused("allocated", sentence[:1].upper() + sentence[1:])
        if (lease := self.lease(lease_id)) is not None:
            sizes = ", ".join(f"{piece.memory_bytes // MIB} MiB" for piece in lease.slices)
            log.info("resized to %s", sizes, extra=of_lease(lease))
            self.keepalive.changed(lease_id)
        return lease

    def end(self, lease_id: str, reason: str, caller: str = "", to: str = "") -> Lease | None:
        """End a lease: stop its workers, and free its memory when they are dead.

        `caller`: only where that pool was asked for it last, since its holder may have asked another one meanwhile.  `to`: only where it
        gives way to the request of that key.
        """
        if (lease := self.store.leases.get(lease_id)) is None:
            return None
        if self.store.leases.end(lease_id, reason, self.now(), caller, to):
            self._ends(lease, reason)
        return self.lease(lease_id)

    def worker_died(self, lease_id: str, device_id: str, reason: str, *, fenced: bool = False) -> None:
        """Free the memory of a dead worker, and end its lease; `fenced`: also where its server's agent does not know it."""
        living = self.store.leases.worker_gone(lease_id, device_id, reason, self.now(), fenced=fenced)
        if living and (lease := self.store.leases.get(lease_id)):
            self._ends(lease, reason)
        else:
            self.waiters.lease_changed(lease_id)

    def _ends(self, lease: Lease, reason: str) -> None:
        log.info("ends: %s", reason, extra=of_lease(lease))
        self.orders.stop(lease, reason)
        self.waiters.lease_changed(lease.id)
        self.resizes.changed(lease.id)
        self.keepalive.changed(lease.id)
        for inside in self.store.leases.inside(lease.id) if lease.ceiling else ():
            if (held := self.store.leases.get(inside)) is not None:
                self._ends(held, reason)

    def end_server(self, person: str, server: str, reason: str) -> int:
        """End what a single-user server holds and waits for; return the number of leases."""
        held = self.store.leases.living_of(person, server)
        for request in self._queue.order():
            if request.holder.person == person and request.holder.server == server:
                self._queue.give_up(request.key)
                if waiter := self.waiters.queued(request.key):
                    waiter.given_up = reason
                    waiter.changed.set()
        for lease_id in held:
            self.end(lease_id, reason)
        self.schedule()
        self.places_changed()
        return len(held)

    # --- policy and servers ---

    def policy_changed(self) -> None:
        """Apply a changed policy: those who wait may have room now, and their sentences may name other figures."""
        self._expiry.make_room_for_reservations(self.now())
        self.schedule()
        self.places_changed()

    def write_down(self, who: str, action: str, subject: str, before: str, after: str) -> None:
        """Add an entry to the audit table: somebody does something to what another holds."""
        with self.store.deciding() as (db, _):
            note(db, self.now(), who, action, subject, before, after)

    def drain(self, server: str, who: str, deadline: float = 0.0) -> int:
        """Exclude `server` from new leases; return how many it has.

        Those end by themselves, or `deadline` seconds from now, which their holders are told.

        Raises
        ------
        Refused
            ``no_such_server``.
        """
        now = self.now()
        if not 0 <= deadline < 1e9:
            raise Refused("invalid", f"A deadline of {deadline!r} s is not possible.")
        until = self.steady() + deadline if deadline else None
        if not self.store.servers.drain(server, True, until, who, now):
            raise Refused("no_such_server", say("The pool has no GPU server %(server)s.", server=server[:60]))
        held = {lease.id for lease, _ in self.store.leases.on_server(server)}
        for lease_id in held if deadline else ():
            self.store.leases.notify(
                lease_id, f"This slice ends at {clock_time(now + deadline)}: its GPU server is being drained."
            )
        self.places_changed()
        return len(held)

    def undrain(self, server: str, who: str) -> None:
        """Admit `server` to new leases again; raises `Refused` as `drain` does."""
        if not self.store.servers.drain(server, False, None, who, self.now()):
            raise Refused("no_such_server", say("The pool has no GPU server %(server)s.", server=server[:60]))
        for lease, _ in self.store.leases.on_server(server):
            self.store.leases.notify(lease.id, "", only_over="This slice ends at")
        self.schedule()
        self.places_changed()

    def forget_server(self, server: str, who: str) -> int:
        """Count a server that does not answer as gone for good: end its leases and free its memory; return how many leases that were.

        Raises
        ------
        Refused
            ``no_such_server``, or ``alive`` where it answers.
        """
        held = self.store.servers.forget(server, who, self.now(), self.steady())
        for lease_id, device_id in held:
            self.worker_died(lease_id, device_id, f"its GPU server {server} was given up", fenced=True)
        self.orders.drop(server, f"the pool's administrator gave GPU server {server} up")
        self.schedule()
        self.places_changed()
        return len({lease_id for lease_id, _ in held})

    # --- looking ---

    def now(self) -> float:
        """Return the wall time, in seconds since the epoch: that of reservations, reports and people."""
        return self.store.clock.now()

    def steady(self) -> float:
        """Return the steady time, by which leases expire."""
        return self.store.clock.steady()

    def policy(self) -> Policy:
        """Return the courses and quotas."""
        return self.store.policy.current()

    def lease(self, lease_id: str) -> Lease | None:
        """Return the lease with its secret, or None where it is not known."""
        lease = self.store.leases.get(lease_id)
        return None if lease is None else self.shown(lease)

    def shown(self, lease: Lease) -> Lease:
        """Return a lease with its times in wall time; one that needs no sign of life has 0 for its own."""
        ahead, lasts = self.store.clock.ahead(), lease.ttl_seconds >= NEVER
        expires, ttl = (0.0, 0.0) if lasts else (lease.expires + ahead, lease.ttl_seconds)
        until, gives_way = (time + ahead if time else 0.0 for time in (lease.until, lease.gives_way))
        return replace(lease, expires=expires, ttl_seconds=ttl, until=until, gives_way=gives_way)

    def leases(self, include_ended: bool) -> list[Lease]:
        """Return the leases as tables show them."""
        return [self.shown(lease) for lease in self.store.leases.all(include_ended=include_ended)]

    def devices(self) -> list[Device]:
        """Return every device; those without an attached agent are not available."""
        return self.store.devices.all()

    def waiting(self) -> list[Waiting]:
        """Return the queue in its order."""
        return self._queue.waiting(self.now())

    # --- time and the other pools ---

    def tick(self) -> None:
        """Do what only the clock brings: renewals, expiry, limits, servers that stay away, and the queue."""
        for _ in self.parts_of_tick():
            pass

    def parts_of_tick(self) -> Iterator[None]:
        """Do what `tick` does in parts, between which calls may be answered: none of them keeps a call waiting for long."""
        with self.store.transaction(awaited=False):
            self.store.clock.follow()
            steady = self.steady()
            self.store.servers.mark_seen(self.id, steady, self._address)
        self.outages.look(self.steady())
        self.keepalive.renew(steady)
        if self.store.shared:
            self.store.servers.mark_unseen_away(steady - POOL_GRACE, steady)
        yield
        if self.watch.look(steady):
            self.places_changed()
        yield
        self._expiry.check(steady)
        for lease_id in self.standstill.over():
            self.end(lease_id, GIVEN_UP, caller=self.id)
        yield
        if self._queue.known():
            self._queue.keep_alive(self.waiters.keys(), self.steady())
        self._expiry.make_room_for_reservations(self.now())
        yield
        self.look()
        self.schedule()
        if self.store.shared:
            self.places_changed()

    def look(self) -> None:
        """See what other pools on the database decided: grants for calls that wait here, orders for agents attached here."""
        self.following.look(self.steady())
