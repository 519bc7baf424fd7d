"""One scheduling cycle: the decision about every request that waits, in one transaction.

`SchedulingCycle.run` is the only place where leases are granted.  Its order and its backfill rule are those of
`gpukernel.pool.domain.fairness`.  It ends where nobody behind could get anything, and those whom quotas of
their own hold back take no part (`gpukernel.pool.scheduling.own_quotas`); so its cost grows with the courses that wait, but not with who waits for room or for a quota, nor with what is held: room is found in an index, quotas in running totals, and only the `DEVICES_FOR_A_PROMISE` emptiest devices of a kind are looked at when a start has to be promised.
For direct mode only the devices of one machine are looked at.

Reservations (`gpukernel.common.reservations`) come before that order: in its window, a course takes what is reserved for it whoever
waits further ahead, since nobody else could have it.  Everything else that it takes, it takes in the order.

Where the database refuses a grant, the books disagree.  The whole decision is taken back then, and made again with a savepoint for each
grant: so nobody but the request that is refused is held up (`gpukernel.pool.domain.refused_grants`).
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Container, Iterable, Mapping, Set
from dataclasses import replace

import sqlalchemy as sa

from gpukernel.common.bounds import millionths
from gpukernel.common.errors import Refused
from gpukernel.common.model import Device, Lease
from gpukernel.common.policy import Policy
from gpukernel.pool.domain.direct_mode import matching_in_mode
from gpukernel.pool.domain.fairness import FairOrder, Rank, promise
from gpukernel.pool.domain.placement import DeviceClass, Placement, best_fit, slice_bytes
from gpukernel.pool.domain.quota import Claim, claim_on, refusal
from gpukernel.pool.scheduling import cycle_end
from gpukernel.pool.scheduling.backfill_state import BackfillState, read_profiles
from gpukernel.pool.scheduling.cycle_result import CycleResult, Granted
from gpukernel.pool.scheduling.making_way import MakingWay
from gpukernel.pool.scheduling.pending_request import PendingRequest
from gpukernel.pool.scheduling.queue_index import QueueIndex
from gpukernel.pool.scheduling.unseen_requests import UnseenRequests
from gpukernel.pool.store import quota_usage
from gpukernel.pool.store.database import Conflict
from gpukernel.pool.store.store import Store

__all__ = ["DEVICES_FOR_A_PROMISE", "SchedulingCycle"]

PROMISES = 16
DEVICES_FOR_A_PROMISE = 8
READ_AHEAD = 32


class SchedulingCycle:
    """One cycle, in the transaction `db`.

    Parameters
    ----------
    kinds
        The kinds of available devices.
    state
        Who must not be delayed where; it begins empty.
    index
        Those who wait.
    result
        Is filled in.
    doubted
        Keys of requests whose grants have savepoints of their own; None: all have.

    Attributes
    ----------
    way
        What leases that give way leave to whom.
    """

    def __init__(
        self,
        db: sa.Connection,
        store: Store,
        policy: Policy,
        kinds: list[DeviceClass],
        state: BackfillState,
        index: QueueIndex,
        result: CycleResult,
        doubted: Container[str] | None = (),
    ) -> None:
        self._db = db
        self._store = store
        self._policy = policy
        self._kinds = kinds
        self._state = state
        self._index = index
        self._result = result
        self._doubted = doubted
        self.way = MakingWay(db, store, policy, kinds, state)
        self._end = cycle_end.CycleEnd(policy, kinds, state, index, self.way)
        self._announced: list[DeviceClass] | None = None  # once somebody waits for what is not there

    def run(
        self, living: Mapping[str, tuple[str, str, str]], absent: Set[str]
    ) -> tuple[list[Granted], list[tuple[Rank, PendingRequest]], UnseenRequests]:
        """Grant what can be granted, in the order; return it, the requests that were looked at, and those behind, of which none could get anything.

        Those that a quota of a course or the pool holds back cost a look at a dictionary once somebody of that quota was refused, and count for nothing: not for their
        course in the order, and not for `DEPTH`.  Nor do those that wait for devices of which there is none now.

        Parameters
        ----------
        living
            Id, state and person of leases that have not ended, by the keys of requests.
        absent
            Keys for which no process that is alive holds a call.
        """
        state, granted, seen = self._state, list[Granted](), list[tuple[Rank, PendingRequest]]()
        ahead, tried, own = 1, 0, 0
        order = self._order()
        special = living.keys() | self._index.claiming  # those who are looked at wherever they are
        interactive = self._index.interactive
        for request in order:
            seen.append((order.value, request))
            special.discard(request.key)
            interactive -= request.wanted.priority == "interactive"
            if request.key in living:
                lease_id, lease_state, _ = living[request.key]
                if lease_state in ("starting", "live"):
                    granted.append(Granted(request.key, lease_id))
                continue  # its old lease is ending: wait for that
            if request.key in absent:
                order.pass_over()
                continue  # nobody would take it
            if sentence := state.waited_for(request.accounts, request.wanted.priority):
                self._result.reasons[request.key] = sentence
                self.way.give_up(request)
                order.pass_over()
                if not special and self._end.all_wait_for_quotas(order):
                    break
                continue
            # What is reserved waits for nobody further ahead.
            beyond = tried >= cycle_end.DEPTH and (
                own >= cycle_end.DEPTH or request.course not in self._end.reserving
            )
            closed = self._end.closed()
            if beyond or (closed and not (self._end.may_yet(request) or self.way.worth_a_look(request))):
                # Only those with a lease or a reservation of their own can get anything now.
                if closed and not (beyond and request.course in self._end.reserving):
                    self._result.reserved[request.key] = state.reserved
                if not special and self._end.nobody_may(order, tried, own, interactive):
                    break
                continue
            own += tried >= cycle_end.DEPTH
            if any(account not in state.standings for account in request.accounts):
                self._read_standings([request, *(order.upcoming(ahead - 1) if ahead > 1 else ())])
                ahead = min(2 * ahead, READ_AHEAD)  # most cycles end with the second one
            lease = self._admit(request)
            if lease is not None:
                granted.append(Granted(request.key, lease.id, lease, request.pool))
            tried += request.key in self._result.refused
            if self._result.passes_over(request.key):
                order.pass_over()
            else:
                tried += 1
        rest, reserved = order.rest(), state.reserved if self._end.closed() else ""
        return granted, seen, UnseenRequests(self._index, rest, state, absent, reserved, self._end.reserving)

    def _order(self) -> FairOrder[PendingRequest]:
        """Return those who wait in the order in which they are served."""
        lines, held = self._index.lines, dict[str, int]()
        courses = list(lines | self._index.held_lines)
        if len(courses) > 1:
            half_life = self._policy.half_life
            held = quota_usage.claimed_by_courses(self._db, courses, self._state.now, half_life)
        return FairOrder(lines, held, {course: self._policy.weight(course) for course in courses})

    def _read_standings(self, requests: Iterable[PendingRequest]) -> None:
        state = self._state
        roles = {a: e.role for e in requests for a in e.accounts if a not in state.standings}
        state.standings |= quota_usage.standings(self._db, self._policy, list(roles), roles, state.now)

    def _admit(self, request: PendingRequest) -> Lease | None:
        """Grant a request, or note in the result and the state why it waits and what for."""
        state = self._state
        try:
            fitting = matching_in_mode(request.wanted, self._kinds, state.places)
        except Refused:
            self._await(request)
            return None
        since = self.way.holds(request)
        allowed = self._within_quotas(request, fitting)
        if allowed is None:
            self.way.give_up(request)
            return None
        span = self._policy.longest(request.accounts, request.role, request.longest)
        length = math.inf if span is None else span
        placed, mode = self._find_room(request, allowed, length)
        if placed is not None:
            return self._grant(request, placed, mode, span)
        if since is not None:
            self._count(request, allowed)
            self._result.starts[request.key] = max(since, state.now)
        elif state.placements and state.closes(self._kinds) and not self.way.worth_a_look(request):
            self._result.reserved[request.key] = state.reserved
        else:
            self._set_aside(request, allowed, length)
        return None

    def _await(self, request: PendingRequest) -> None:
        """Count a request in its quotas that waits for devices which a supply announces; one whose server is away for now counts nowhere."""
        self._result.absent.add(request.key)
        if self._announced is None:
            self._announced = self._store.devices.announced(self._db, self._state.steady)
        try:
            fitting = matching_in_mode(request.wanted, self._announced, self._state.places)
        except Refused:
            return
        if allowed := self._within_quotas(request, fitting):
            self._count(request, allowed)

    def _within_quotas(
        self, request: PendingRequest, fitting: Iterable[DeviceClass]
    ) -> list[DeviceClass] | None:
        """Return the kinds on which the request stays within its quotas; None where a quota, or who waits for one, holds it back."""
        state = self._state
        allowed, refused = [], None
        levels = [state.standings[account] for account in request.accounts]
        for kind in fitting:
            claim = claim_on(request.wanted, kind, request.longest)
            why = refusal(claim, levels, state.now, self._policy.term_begins, request.wanted.model)
            if why is None:
                allowed.append(kind)
            else:
                refused = why
        waits_behind = state.waited_for(request.accounts, request.wanted.priority)
        if refused is not None and not allowed:
            self._result.reasons[request.key] = refused.sentence
            if refused.until:
                self._result.starts[request.key] = refused.until
            full = state.full_interactive if refused.interactive else state.full
            full.setdefault(refused.account, refused.ahead or refused.sentence)
            return None
        if waits_behind:
            self._result.reasons[request.key] = waits_behind
            return None
        return allowed

    def _find_room(
        self, request: PendingRequest, kinds: list[DeviceClass], length: float
    ) -> tuple[list[Placement] | None, str]:
        """Find room that is the course's own, then any that nobody waits for, then some that can be lent."""
        state = self._state
        placed, mode = self._own_room(request, kinds, length)
        if placed is None:
            placed, mode = self._room(request, [k for k in kinds if k not in state.closed], length)
        if placed is None and (claimed := self.way.devices(request)):
            placed, mode = self._room(request, kinds, length, claimed)
        may_borrow = (
            state.placements and state.closed and math.isfinite(length) and state.loans < cycle_end.LOANS
        )
        if placed is None and state.placements and may_borrow:
            state.loans += 1
            lending = [kind for kind in kinds if kind in state.closed and state.lends(kind, length)]
            if lending:
                placed, mode = self._room(request, lending, length, list(state.placements.devices), "lent")
        return placed, mode

    def _grant(
        self, request: PendingRequest, placed: list[Placement], mode: str, span: float | None
    ) -> Lease | None:
        """Write the lease down, and count it for those behind; `span` is its longest time in seconds, if it has one.

        Returns None where the database refused it, which changes nothing: not for those behind either.
        """
        state, alone = self._state, self._doubted is None or request.key in self._doubted
        try:
            with self._store.savepoint() if alone else contextlib.nullcontext():
                lease = self._store.leases.grant(
                    self._db,
                    self._policy,
                    request.key,
                    request.holder,
                    request.role,
                    placed,
                    request.ttl,
                    request.longest,
                    state.now,
                    state.steady,
                    mode,
                    request.wanted.user if mode == "direct" else 0,
                    caller=request.pool,
                    priority=request.wanted.priority,
                    at_once=alone,
                )
        except Conflict as conflict:
            if not alone:
                raise
            self._result.refused[request.key] = conflict.constraint
            self.way.give_up(request)  # for somebody who gets it
            return None
        self.way.granted(request)
        share = sum(millionths(p.memory_bytes / p.device.memory_bytes) for p in placed)
        state.add(
            request,
            Claim(
                share,
                sum(p.memory_bytes for p in placed),
                0,
                interactive=request.wanted.priority == "interactive",
            ),
        )
        state.forget_what_was_read()
        end = math.inf if span is None else state.now + span
        for piece in placed:
            if state.placements:
                state.placements.granted(request.course, piece.device.id, piece.memory_bytes, end)
            if profile := state.profiles.get(piece.device.id):
                profile.free -= piece.memory_bytes
                if span is not None:
                    profile.ends.append((end, piece.memory_bytes))
        return lease

    def _own_room(
        self, request: PendingRequest, kinds: list[DeviceClass], length: float
    ) -> tuple[list[Placement] | None, str]:
        """Find room as `_room` does, on what is reserved for the request's course: if its window is open, whoever waits further ahead."""
        state = self._state
        if not state.placements or not (
            mine := state.placements.open_for(request.course, state.now + length)
        ):
            return None, ""
        least = min((slice_bytes(request.wanted, kind) for kind in kinds), default=0)
        if state.placements.open_for(request.course, state.now) and state.most_own(request.course) >= least:
            placed, mode = self._room(request, kinds, length, mine, "own")
            if placed is not None:
                return placed, mode
        # A lease that reaches into the window counts as what is reserved for it: so it lies there.
        kinds = [kind for kind in kinds if kind not in state.closed]
        return self._room(request, kinds, length, mine) if kinds else (None, "")

    def _room(
        self,
        request: PendingRequest,
        kinds: list[DeviceClass],
        length: float,
        among: list[str] | None = None,
        only: str = "",
    ) -> tuple[list[Placement] | None, str]:
        """Find where, and in which mode, `request` can start now without breaking a promise.

        `among`: on these devices only; `only`: and there only on what is its course's ``own``, or can be ``lent`` to it.
        """
        avoided = self._state.avoided.get(request.key, frozenset())
        if quiet := self._state.quiet - avoided:
            # Servers that were heard of a moment ago come first.
            placed, mode = self._room_without(request, kinds, length, among, only, avoided | quiet)
            if placed is not None:
                return placed, mode
        return self._room_without(request, kinds, length, among, only, avoided)

    def _room_without(
        self,
        request: PendingRequest,
        kinds: list[DeviceClass],
        length: float,
        among: list[str] | None,
        only: str,
        without: Set[str],
    ) -> tuple[list[Placement] | None, str]:
        """Find room as `_room` does, on no server of `without`."""
        state = self._state
        asked = request.wanted
        direct = replace(asked, mode="direct")
        machine = state.places.of(direct) if asked.mode != "remote" else None

        def fitting(devices: Iterable[Device]) -> Iterable[Device]:
            found = (d for d in devices if (among is None or d.id in among) and d.server not in without)
            room = (d for d in found if d.memory_bytes - d.promised_bytes >= slice_bytes(asked, d))
            return (d for d in room if self._undisturbed(request, d, length, only))

        if machine is not None:
            here = fitting(self._store.devices.on_machine(self._db, machine, kinds))
            if placed := best_fit(asked, here):
                return placed, "direct"
        if asked.mode == "direct":
            return None, "direct"
        if asked.server or asked.device:
            place = state.places.named(asked)
            return best_fit(asked, fitting(self._store.devices.on_machine(self._db, place, kinds))), "remote"
        if among is not None:
            return best_fit(asked, fitting(self._available(among, kinds))), "remote"
        found: list[Device] = []
        for kind in kinds:
            size = slice_bytes(asked, kind)
            reserved_here = state.placements.devices if state.placements else ()
            most = asked.devices + len(state.profiles.keys() | reserved_here)
            # The fullest come first: of one kind the first that fit are the best, whatever else was looked at.
            found += itertools.islice(
                fitting(self._store.devices.fullest(self._db, kind, size, most, without)), asked.devices
            )
        return best_fit(asked, found), "remote"

    def _available(self, among: list[str], kinds: Iterable[DeviceClass]) -> list[Device]:
        """Return those of these devices that are available, of these kinds and not full; what is reserved is read once until something is granted."""
        state = self._state
        if state.placements is None or not all(map(state.placements.on, among)):
            return self._store.devices.available_among(self._db, among, kinds)
        if state.with_placements is None:
            found = self._store.devices.available_among(self._db, list(state.placements.devices), self._kinds)
            state.with_placements = {d.id: d for d in found if d.promised_bytes < d.memory_bytes}
        known, wanted = state.with_placements, set(kinds)
        here = (known[device_id] for device_id in among if device_id in known)
        return [d for d in here if DeviceClass(d.name, d.memory_bytes) in wanted]

    def _undisturbed(self, request: PendingRequest, device: Device, length: float, only: str = "") -> bool:
        """Return whether a slice of the device would break nothing that is promised or reserved there."""
        state = self._state
        size = slice_bytes(request.wanted, device)
        kind = DeviceClass(device.name, device.memory_bytes)
        if only == "own" and not state.own(kind, device.id, size, request.course):
            return False
        if only == "lent" and not state.lent(kind, device.id, size, length):
            return False
        reserved_here = state.placements.on(device.id) if state.placements else None
        if reserved_here is not None and device.id not in state.profiles:
            free = device.memory_bytes - device.promised_bytes
            if free - size >= reserved_here.total(request.course):
                return True  # without a look at what lies there
        seen = state.seen(device.id, request.course, own=only == "own", key=request.key)
        return seen is None or seen.earliest(size, length, state.now) <= state.now

    def _set_aside(self, request: PendingRequest, kinds: list[DeviceClass], length: float) -> None:
        """Promise a start where one is known; else close what `request` waits for to those behind it."""
        state = self._state
        open_kinds = [kind for kind in kinds if kind not in state.closed]
        self._count(request, kinds)
        if state.promises == PROMISES:
            if not self._make_way(request, kinds, length, {}):
                self._close(request, open_kinds, length)
            return
        machine = state.places.of(request.wanted)
        if machine is not None:
            found = self._store.devices.on_machine(self._db, machine, open_kinds)
        else:
            for kind in open_kinds:
                if kind not in state.emptiest:
                    state.emptiest[kind] = self._store.devices.emptiest(self._db, kind, DEVICES_FOR_A_PROMISE)
            found = [device for kind in open_kinds for device in state.emptiest[kind]]
        devices = {device.id: device for device in found}
        sizes = {device.id: slice_bytes(request.wanted, device) for device in found}
        profiles = read_profiles(self._db, self._store, state, devices)
        as_seen = [
            state.seen(i, request.course, lasting=True, key=request.key) or profiles[i] for i in devices
        ]
        self._say_whose(request, devices.values(), sizes, length)
        when, chosen = promise(as_seen, sizes, request.wanted.devices, length, state.now)
        if when > state.now + self._policy.notice and self._make_way(request, kinds, length, devices):
            return
        if math.isinf(when) and machine is None:
            self._close(request, open_kinds, length)
            return
        state.promises += 1
        if math.isinf(when):
            # It waits for this place alone: nobody behind it gets anything there, but elsewhere.
            for device_id, profile in profiles.items():
                state.profiles[device_id] = profile
                state.shut.setdefault(device_id, set()).add(request.course)
            return
        self._result.starts[request.key] = when
        for one in chosen:
            profile = state.profiles[one.device] = profiles[one.device]
            profile.taken.append((when, when + length, sizes[one.device]))

    def _count(self, request: PendingRequest, kinds: list[DeviceClass]) -> None:
        """Count a request that waits in its quotas, for the most that it may turn out to be."""
        claims = [claim_on(request.wanted, kind) for kind in kinds]
        self._state.add(request, max(claims, key=lambda claim: claim.share))

    def _make_way(
        self, request: PendingRequest, kinds: list[DeviceClass], length: float, found: Mapping[str, Device]
    ) -> bool:
        """Have leases of later classes give way to a request, and tell it when it starts; return whether that helps."""
        begin = self.way.make(request, kinds, length, found)
        if begin is not None:
            self._result.starts[request.key] = begin
        return begin is not None

    def _close(self, request: PendingRequest, kinds: list[DeviceClass], length: float) -> None:
        state = self._state
        state.closed.update(kinds)
        for kind in kinds:
            state.closed_by.setdefault(kind, set()).add((request.course, length))
        state.reserved = state.reserved or self._result.reserved.get(request.key, "")

    def _say_whose(
        self, request: PendingRequest, devices: Iterable[Device], sizes: Mapping[str, int], length: float
    ) -> None:
        """Record whose reservation is in the way, where nothing else is."""
        state = self._state
        if not state.placements:
            return
        free = [d for d in devices if d.memory_bytes - d.promised_bytes >= sizes[d.id]]
        reason = state.placements.reason((d.id for d in free), request.course, state.now + length)
        if reason and len(free) >= request.wanted.devices:
            self._result.reserved[request.key] = reason
