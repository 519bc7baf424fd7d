"""The request queue of one pool process: who waits, in the database and in memory, and what they are told.

`RequestQueue.run_cycle` runs a scheduling cycle (`gpukernel.pool.scheduling.scheduling_cycle`) over the pending requests
(`gpukernel.pool.scheduling.pending_requests`) in one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Set
from dataclasses import replace

import sqlalchemy as sa

from gpukernel.common.errors import Refused
from gpukernel.common.i18n import say
from gpukernel.common.model import Holder, SliceRequest, Waiting
from gpukernel.common.policy import Policy
from gpukernel.pool.domain.direct_mode import Places, matching_in_mode
from gpukernel.pool.domain.placement import MIB, DeviceClass, slice_bytes
from gpukernel.pool.domain.quota import Standing, claim_on, never, too_many_waiting
from gpukernel.pool.domain.refused_grants import RefusedGrants
from gpukernel.pool.scheduling import giving_way
from gpukernel.pool.scheduling.backfill_state import BackfillState
from gpukernel.pool.scheduling.cycle_result import CycleResult, Granted
from gpukernel.pool.scheduling.making_way import MakingWay, reason_of
from gpukernel.pool.scheduling.pending_request import PendingRequest
from gpukernel.pool.scheduling.pending_requests import ABSENT, PendingRequests
from gpukernel.pool.scheduling.preemption import Eviction, evictions
from gpukernel.pool.scheduling.queue_places import QueuePlaces
from gpukernel.pool.scheduling.reservation_placement import ReservationPlacements
from gpukernel.pool.scheduling.resize import Queue
from gpukernel.pool.scheduling.scheduling_cycle import SchedulingCycle
from gpukernel.pool.scheduling.unseen_requests import UnseenRequests
from gpukernel.pool.store.database import Conflict
from gpukernel.pool.store.lease_queries import ASKED_FOR
from gpukernel.pool.store.store import Store

__all__ = ["KEY_IN_USE", "RequestQueue", "reason_for_no_room"]

log = logging.getLogger(__name__)

RETURNS_SECONDS = 30.0
"""For so long a server that is away is expected back: who asks for what it has waits, and is not refused."""

KEY_IN_USE = "This key is in use by somebody else."


class RequestQueue:
    """The queue as one pool process, `pool`, sees it.

    Attributes
    ----------
    quiet
        Servers of which nothing was heard for some seconds: others are preferred.
    avoided
        Servers that get no slices of a request, by its key, since they did not confirm a start for it.
    """

    def __init__(self, store: Store, pool: str) -> None:
        self._store = store
        self._pool = pool
        self._requests = PendingRequests(store, pool)
        # Of the last cycle: who was looked at, and who was not.
        self._places = QueuePlaces(self._requests.index)
        self._unseen: UnseenRequests | None = None
        self._last = CycleResult()
        self._refused = RefusedGrants[PendingRequest]()
        self.quiet: frozenset[str] = frozenset()
        self.avoided: dict[str, frozenset[str]] = {}

    # --- what those who wait are told ---

    def order(self) -> list[PendingRequest]:
        """Return those who wait, in the order of the last cycle."""
        return self._places.order()

    def get(self, key: str) -> PendingRequest | None:
        """Return the pending request of a key."""
        return self._requests.by_key.get(key)

    def holder_of(self, key: str) -> Holder | None:
        """Return who waits with a key, or has a lease by it; None where nobody does."""
        if (waiting := self.get(key)) is not None:
            return waiting.holder
        lease_id, _, _ = self._store.leases.living([key]).get(key, ("", "", ""))
        lease = self._store.leases.get(lease_id) if lease_id else None
        return None if lease is None else lease.holder

    def place(self, key: str) -> int:
        """Return the place of a request in the queue; 1 is next."""
        return self._places.place(key) or len(self._requests)

    def start(self, key: str) -> float | None:
        """Return when a request starts at the latest, where promised ends of leases tell it, or the end of a quota's period."""
        if (held := self._places.held_back(key)) is not None:
            return held.until or None
        return self._last.starts.get(key)

    def estimate(self, key: str, now: float) -> float:
        """Return the seconds until `start`, or -1."""
        start = self.start(key)
        return -1.0 if start is None else max(start - now, 0.0)

    def refused(self, key: str) -> str:
        """Return the sentence about a request whose grant the database refused; empty for others."""
        return self._refused.sentence(key) if key in self._requests.by_key else ""

    def reason(self, key: str) -> str:
        """Return the sentence about the quota, or the database, that holds a request back; empty where it only waits for room."""
        if sentence := self.refused(key):
            return sentence
        if (held := self._places.held_back(key)) is not None:
            return held.sentence
        if self._unseen and (request := self._places.unseen(key)):
            return self._unseen.reason(request)
        return self._last.reasons.get(key, "")

    def reserved(self, key: str) -> str:
        """Return whose reservation a request waits for, as the end of a sentence; empty where it waits for none."""
        if self._unseen and (request := self._places.unseen(key)):
            return self._unseen.reserved(request)
        return self._last.reserved.get(key, "")

    def waiting(self, now: float) -> list[Waiting]:
        """Return the queue in its order."""
        return [
            Waiting(
                r.key,
                r.holder,
                r.wanted,
                place,
                r.since,
                self.estimate(r.key, now),
                self.reason(r.key) or self.reserved(r.key),
            )
            for place, r in enumerate(self.order(), 1)
        ]

    def __len__(self) -> int:
        return len(self._requests)

    def known(self) -> bool:
        """Return whether anybody may wait; with other pools on the database only a scheduling cycle tells."""
        return self._requests.known()

    # --- leaving ---

    def leave(self, key: str) -> None:
        """Give up a request; change nothing where another process holds its call by now."""
        with self._store.deciding() as (db, row):
            self._requests.refresh(db, row.queue_version)
            if (request := self._requests.by_key.get(key)) and request.pool == self._pool:
                self._requests.drop(db, [key])
        self._places.change(self._requests.by_key)

    def give_up(self, key: str) -> None:
        """Remove a request, whichever process holds its call."""
        with self._store.deciding() as (db, row):
            self._requests.refresh(db, row.queue_version)
            self._requests.drop(db, [key])
        self._places.change(self._requests.by_key)

    def keep_alive(self, keys: Collection[str], steady: float) -> None:
        """Give up the requests of this process that are not among `keys`, whose calls it holds, and those that nobody has held for long."""
        if any(self._requests.neglected(keys, steady)):
            with self._store.deciding() as (db, row):
                self._requests.refresh(db, row.queue_version)
                self._requests.keep_alive(db, keys, steady)

    # --- scheduling ---

    def run_cycle(
        self,
        now: float,
        here: Set[str],
        newcomer: PendingRequest | None = None,
        then: Callable[[sa.Connection, Policy, Queue], None] | None = None,
        *,
        own_key: bool = False,
    ) -> list[Granted]:
        """Grant everything that can be granted at `now`, in one transaction; `newcomer` waits if it gets nothing.

        What the database refuses, it refuses to that request alone (`gpukernel.pool.domain.refused_grants`).

        Parameters
        ----------
        here
            Keys for which this process holds a call.
        own_key
            The newcomer gets no lease of its key's that is somebody else's.
        then
            Is called in the same transaction for somebody who does not wait, with what those who wait leave; may raise `Refused`.

        Raises
        ------
        Refused
            Where the newcomer's course or quotas can never allow what it asks for, or its key is somebody else's; it does not
            wait then.
        """
        try:
            return self._decide(now, here, newcomer, then, self._refused, own_key=own_key)
        except Conflict:
            return self._decide(now, here, newcomer, then, None, own_key=own_key)

    def _decide(
        self,
        now: float,
        here: Set[str],
        newcomer: PendingRequest | None,
        then: Callable[[sa.Connection, Policy, Queue], None] | None,
        doubted: Container[str] | None,
        *,
        own_key: bool,
    ) -> list[Granted]:
        """Decide as `run_cycle` does; raise `Conflict` where the database refused the grant of a request that is not `doubted`: nothing has changed then."""
        self._requests.mark()
        try:
            with self._store.deciding() as (db, row):
                policy = self._store.policy.current(db, row.policy_version)
                kinds = self._store.devices.classes(db, row.devices_version)
                places = self._store.devices.places(db, row.devices_version)
                self._requests.refresh(db, row.queue_version)
                self._requests.mark()
                index = self._requests.index
                index.age(now)
                self._requests.have_roles(db, policy)
                if newcomer is not None:
                    old = index.requests.get(newcomer.key)  # perhaps of another pool's on this database
                    if own_key and old is not None and old.holder.person != newcomer.holder.person:
                        raise Refused("invalid", KEY_IN_USE)
                    self._requests.doubtful.add(newcomer.key)
                    if old is None:
                        self._check_waiting(db, policy, newcomer)
                    newcomer = self._check_newcomer(db, policy, kinds, places, newcomer, row.ticket + 1)
                    self._requests.consider(newcomer)
                state = BackfillState(
                    now,
                    now - self._store.clock.ahead(),
                    self.quiet,
                    self.avoided,
                    places=places,
                    placements=self._placements(db, policy, kinds, now, row.devices_version),
                )
                self._last = CycleResult()
                cycle = SchedulingCycle(db, self._store, policy, kinds, state, index, self._last, doubted)
                living = self._living(db, newcomer if own_key else None)
                absent = self._requests.absent(here, state.steady)
                if newcomer is not None:
                    absent.discard(newcomer.key)
                passed_over = self._refused.passed_over(index.requests, policy, state.steady)
                absent |= passed_over
                claiming = [index.requests[key] for key in index.claiming - absent - living.keys()]
                state.standings = self._requests.own.refresh(
                    db,
                    self._store,
                    policy,
                    kinds,
                    places,
                    now,
                    living.keys() | index.claiming,
                    absent,
                    newcomer,
                )
                cycle.way.keep(sorted(claiming, key=lambda one: one.ticket))
                granted, seen, self._unseen = cycle.run(living, absent)
                over = {g.key for g in granted}
                for one in granted:
                    if newcomer is not None and one.key == newcomer.key and one.fresh is None:
                        ASKED_FOR.run(db, lease=one.lease_id, us=self._pool)
                self._requests.doubtful = set(living)
                newcomer = self._write_claims(db, cycle.way, newcomer, over)
                waits = [(value, request) for value, request in seen if request.key not in over]
                self._places = QueuePlaces(index, waits, self._unseen, self._requests.own)
                if then is not None:
                    then(db, policy, replace(state, own_quota=self._requests.own.waited_for))
                if newcomer is not None and newcomer.key not in over:
                    self._requests.put(db, newcomer)
                self._requests.drop(db, over)
        except BaseException as error:
            self._requests.restore()
            # Of a grant that went with what came next.
            if isinstance(error, sa.exc.IntegrityError) and doubted is not None:
                raise Conflict(error) from None
            raise
        self._refused.decided(passed_over)
        self._note_refused(policy, state.steady)
        return granted

    def _note_refused(self, policy: Policy, steady: float) -> None:
        """Remember, and log, what the database refused in the last cycle."""
        for key, constraint in self._last.refused.items():
            request = self._requests.by_key[key]
            wait = self._refused.refuse(request, constraint, policy, steady)
            course = f" for course {request.course}" if request.course else ""
            log.error(
                "the database refused a lease for request %s of %s%s (%s): it is tried again in %.0f s, and others are served meanwhile",
                key,
                request.holder.person,
                course,
                constraint,
                wait,
            )

    def _write_claims(
        self,
        db: sa.Connection,
        way: MakingWay,
        newcomer: PendingRequest | None,
        over: Collection[str],
    ) -> PendingRequest | None:
        """Write down which claims are new and which were given up; return the newcomer with its own, which is not written yet."""
        for key, (devices, at) in way.changed.items():
            if newcomer is not None and key == newcomer.key:
                newcomer = replace(newcomer, claims=devices, claims_from=at)
            elif key not in over:
                request = self._requests.by_key[key]
                self._requests.put(db, replace(request, claims=devices, claims_from=at))
        return newcomer

    def due_to_give_way(self, steady: float) -> list[tuple[str, str, str]]:
        """Return the leases whose notice is over and whose request still waits: id, reason, and the request's key.

        Those whose request does not wait any more are let off.  While nobody holds its call, it is waited for.
        """
        with self._store.reading() as db:
            if not giving_way.told(db):
                return []
        due = []
        with self._store.deciding() as (db, row):
            self._requests.refresh(db, row.queue_version)
            for lease in giving_way.told(db):
                request = self._requests.by_key.get(lease.gives_way_to)
                if request is None or not request.claims:
                    giving_way.withdraw(db, self._store, [lease.id])
                elif lease.gives_way <= steady and self._requests.seen(request) >= steady - ABSENT:
                    reason = f"it gave way to {reason_of(request.course)}"
                    due.append((lease.id, reason, request.key))
        return due

    def _living(self, db: sa.Connection, owner: PendingRequest | None) -> dict[str, tuple[str, str, str]]:
        """Return the leases that keys in the queue still have; refuse the key of `owner` where it is another person's."""
        doubtful = self._requests.doubtful & self._requests.index.requests.keys()
        living = self._store.leases.living(doubtful, db) if doubtful else {}
        if owner is not None and owner.key in living and living[owner.key][2] != owner.holder.person:
            raise Refused("invalid", KEY_IN_USE)
        return living

    def _check_waiting(self, db: sa.Connection, policy: Policy, newcomer: PendingRequest) -> None:
        """Refuse a request beside as many as its person, or another level, may have waiting; one that has its lease already is none."""
        role = policy.role_in(newcomer.course, newcomer.holder.person)
        for account in newcomer.accounts:
            most = policy.most_waiting(account, role)
            if most is None:
                continue
            count = self._requests.index.count(account)
            if count >= most and not self._store.leases.living([newcomer.key], db):
                raise Refused("quota", too_many_waiting(account, role, count, most))

    def _placements(
        self, db: sa.Connection, policy: Policy, kinds: list[DeviceClass], now: float, version: int
    ) -> ReservationPlacements | None:
        if not policy.reservations:
            return None
        placements = ReservationPlacements(db, self._store, policy, now, version)
        placements.place(kinds)
        return placements

    def make_room(self, now: float, within: float) -> tuple[list[Eviction], set[str]]:
        """Return `gpukernel.pool.scheduling.preemption.evictions`, with placements that are up to date."""
        with self._store.deciding() as (db, row):
            policy = self._store.policy.current(db, row.policy_version)
            kinds = self._store.devices.classes(db, row.devices_version)
            placements = self._placements(db, policy, kinds, now, row.devices_version)
            return evictions(db, placements, now, within) if placements else ([], set())

    def _check_newcomer(
        self,
        db: sa.Connection,
        policy: Policy,
        kinds: list[DeviceClass],
        places: Places,
        request: PendingRequest,
        ticket: int,
    ) -> PendingRequest:
        """Return `request` with its role, size and ticket; raise `Refused` where it can never be granted."""
        try:
            fitting = matching_in_mode(request.wanted, kinds, places)
        except Refused as refusal:
            if refusal.code == "no_direct":
                raise
            # An agent that changes over to another pool is away for a moment; a supply brings what it announces.
            back = Places(places.machines, self._store.devices.returning(db, request.seen - RETURNS_SECONDS))
            anywhere = back.named(replace(request.wanted, server="", device="")).kinds
            announced = self._store.devices.announced(db, request.seen)
            fitting = matching_in_mode(request.wanted, [*anywhere, *announced], back)
        role = policy.role(request.course, request.holder.person)
        old = self._requests.by_key.get(request.key)
        levels = [Standing(a, policy.bounds(a, role), role=role) for a in request.accounts]
        hopeless = [never(claim_on(request.wanted, kind, request.longest), levels) for kind in fitting]
        if all(hopeless):
            assert hopeless[-1] is not None
            raise Refused("quota", hopeless[-1].sentence)
        same = old is not None and (old.wanted, old.holder.course) == (request.wanted, request.course)
        if old is not None and old.claims and not same:
            giving_way.withdraw_for(db, self._store, [old.key])
        return PendingRequest(
            request.key,
            request.wanted,
            request.holder,
            role,
            request.ttl,
            request.longest,
            old.since if old else request.since,
            self._pool,
            request.seen,
            _size(request.wanted, fitting),
            old.ticket if old else ticket,
            old.claims if old and same else (),
            old.claims_from if old and same else 0.0,
        )


def _size(request: SliceRequest, kinds: list[DeviceClass]) -> int:
    largest = max(kinds, key=lambda kind: kind.memory_bytes)
    return claim_on(request, largest).share


def reason_for_no_room(request: SliceRequest, kinds: list[DeviceClass], free: int, kept: str = "") -> str:
    """Return the sentence for somebody who only waits for room.

    Parameters
    ----------
    free
        The most bytes that one device has.
    kept
        Whose reservation keeps them, as `RequestQueue.reserved` says it.
    """
    asked = f"{slice_bytes(request, kinds[0]) // MIB} MiB"
    figures: dict[str, object] = {
        "where": say("This machine") if request.mode == "direct" else say("The pool"),
        "size": say("%(n)s devices with %(size)s", n=request.devices, size=asked)
        if request.devices > 1
        else asked,
        "model": request.model or say("a device"),
    }
    if request.server:
        figures["where"] = say("A server named “%(name)s”", name=request.server)
    if request.device:
        figures["where"] = f"“{request.device}”"
    if kept:
        return say(
            "%(where)s has room for %(size)s of %(model)s, but it is %(reserved)s", reserved=kept, **figures
        )
    return say(
        "%(where)s has no room for %(size)s of %(model)s now (most free on one device: %(free)s MiB)",
        free=free // MIB,
        **figures,
    )
