"""Making way, in a scheduling cycle: the leases that end for an interactive request, and what is kept for it until it starts.

Guarantees
----------
* Nobody gives way to a request of the same or a later class.  Batch that counts as interactive in the order, since it has waited long,
  makes nobody give way.
* A request has one *claim*: the devices on which it starts once those have left that give way to it.  It makes nobody else give way
  meanwhile, and nobody else starts there.  So no lease ends for room that a third one takes.
* A claim delays no start that is promised to somebody further ahead.  Of a kind of device that somebody further ahead waits for
  without a promise, it has only what those give that leave for it.
* Nobody gives way to a request with which what its person claims, and holds in interactive leases, is more than the quota
  ``interactive`` of people; where none is set, more than one device's worth.  Nor where it is more together with what others gave up
  for the person within the last least run, whatever became of that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from gpukernel.common.bounds import millionths
from gpukernel.common.model import Device
from gpukernel.common.policy import Policy
from gpukernel.pool.domain.fairness import AvailabilityProfile, promise
from gpukernel.pool.domain.giving_way import Candidate, leases_giving_way
from gpukernel.pool.domain.placement import DeviceClass, slice_bytes
from gpukernel.pool.scheduling import giving_way
from gpukernel.pool.scheduling.backfill_state import BackfillState, read_profiles
from gpukernel.pool.scheduling.pending_request import PendingRequest
from gpukernel.pool.store.policy import note
from gpukernel.pool.store.store import Store

__all__ = ["MakingWay", "reason_of"]

TRIES = 16
"""For so many requests leases that give way are looked for in one cycle."""

LOOKS = 64
"""The most requests that are looked at in one cycle although others further ahead wait for every device."""

SETTLES = 2.0
"""Seconds that a request has to have waited: one that asks what is free now makes nobody give way."""

PATIENCE = 60.0
"""Seconds after its time at which a claim that did not help is given up."""


def reason_of(course: str) -> str:
    """Return to whom a lease gives way, as part of a sentence: what kind of request, and whose course; no person."""
    return f"an interactive request of course {course}" if course else "an interactive request"


class MakingWay:
    """The claims of one cycle, those that requests brought and new ones.

    Attributes
    ----------
    changed
        New claims by the keys of their requests: devices, and the steady time from which on; no devices where a claim was given up.
    """

    def __init__(
        self,
        db: sa.Connection,
        store: Store,
        policy: Policy,
        kinds: list[DeviceClass],
        state: BackfillState,
    ) -> None:
        self._db, self._store, self._policy = db, store, policy
        self._kinds, self._state = kinds, state
        self.changed: dict[str, tuple[tuple[str, ...], float]] = {}
        self._times: dict[str, float] = {}  # of claims that hold
        self._ahead: dict[
            str, tuple[str, int]
        ] = {}  # person and share of those that are still to be looked at
        self._candidates: dict[str, Candidate] | None = None
        self._until: dict[str, float | None] = {}
        self._whose: dict[str, str] = {}
        self._tries = self._looks = 0
        self._beyond: set[str] = set()  # people who have no more to claim

    # --- what requests brought ---

    def keep(self, claiming: Iterable[PendingRequest]) -> None:
        """Keep the devices of these requests' claims from everybody else; a claim on a device that is gone is given up."""
        claiming = list(claiming)
        if not claiming:
            return
        ids = sorted({device for one in claiming for device in one.claims})
        found = {d.id: d for d in self._store.devices.available_among(self._db, ids, self._kinds)}
        self._state.load()
        read_profiles(self._db, self._store, self._state, found)
        for one in claiming:
            avoided = self._state.avoided.get(one.key, frozenset())
            if any(i not in found or found[i].server in avoided for i in one.claims):
                self.give_up(one)
                continue
            self._claim(one, [found[i] for i in one.claims], one.claims_from)
            self._ahead[one.key] = one.holder.person, one.size

    def holds(self, request: PendingRequest) -> float | None:
        """Return the wall time from which on a request has a claim; None where it has none, or one that did not help in time."""
        self._ahead.pop(request.key, None)
        at = self._times.get(request.key)
        if at is None:
            return None
        if at + PATIENCE < self._state.steady:
            self.give_up(request)
            return None
        return at + self._state.now - self._state.steady

    def devices(self, request: PendingRequest) -> list[str]:
        """Return the devices of the claim that a request has."""
        return list(request.claims) if request.key in self._times else []

    def give_up(self, request: PendingRequest) -> None:
        """Give the claim of a request up, and let off who gives way to it."""
        if request.claims or request.key in self._times:
            self._times.pop(request.key, None)
            self._ahead.pop(request.key, None)
            self._state.unclaim(request.key)
            self.changed[request.key] = (), 0.0
            giving_way.withdraw_for(self._db, self._store, [request.key])

    def granted(self, request: PendingRequest) -> None:
        """Let go of the claim of a request that has its lease: its devices are those of its slices now."""
        self._times.pop(request.key, None)
        self._ahead.pop(request.key, None)
        self._state.unclaim(request.key)

    # --- new claims ---

    def worth_a_look(self, request: PendingRequest) -> bool:
        """Return whether a request may make others give way, or has, although others wait for every kind further ahead."""
        if request.key in self._times:
            return True
        if not self._may(request) or not self.may_look():
            return False
        self._looks += 1
        return True

    def may_look(self) -> bool:
        """Return whether another one without a claim may make somebody give way."""
        return self._looks < LOOKS and bool(self._there())

    def make(
        self, request: PendingRequest, kinds: list[DeviceClass], length: float, found: Mapping[str, Device]
    ) -> float | None:
        """Make leases give way to a request; return the wall time at which it starts then, or None where that does not help.

        Parameters
        ----------
        kinds
            Those on which it stays within its quotas, which it counts in already.
        length
            Seconds that it may hold what it gets.
        found
            Other devices that come into question beside those of leases that may give way.
        """
        state, policy = self._state, self._policy
        if not self._may(request) or self._tries == TRIES or not (there := self._there()):
            return None
        if not self._within(request):
            self._beyond.add(request.holder.person)
            return None
        self._tries += 1
        begin = state.now + policy.notice
        devices = self._devices(request, kinds, there.values(), found)
        sizes = {i: slice_bytes(request.wanted, device) for i, device in devices.items()}
        read_profiles(self._db, self._store, state, devices)
        seen = {i: self._seen(i, request) for i in devices}
        free = {
            i: 0 if _kind(devices[i]) in state.closed else max(one.room(begin, begin + length, state.now), 0)
            for i, one in seen.items()
        }
        leave = leases_giving_way(free, sizes, request.wanted.devices, there.values())
        if not leave:
            return None
        given = {i: sum(one.pieces.get(i, 0) for one in leave) for i in devices}
        after = [self._without(seen[i], leave, begin) for i in devices if free[i] + given[i] >= sizes[i]]
        when, chosen = promise(after, sizes, request.wanted.devices, length, state.now)
        leave = [one for one in leave if any(p.device in one.pieces for p in chosen)]
        if when > begin or not leave:
            return None  # it would be in the way of somebody further ahead
        at = state.steady + policy.notice
        for one in leave:
            self._tell(one, request, begin, at)
        self._claim(request, [devices[p.device] for p in chosen], at)
        self.changed[request.key] = tuple(p.device for p in chosen), at
        return begin

    def _may(self, request: PendingRequest) -> bool:
        waited = self._state.now - request.since
        return (
            request.wanted.priority == "interactive"
            and waited >= SETTLES
            and request.holder.person not in self._beyond
        )

    def _within(self, request: PendingRequest) -> bool:
        """Return whether the person may claim as much; the request counts in what the person holds already."""
        state, person = self._state, request.holder.person
        most = millionths(self._policy.most_giving_way(request.accounts, request.role))
        others = sum(share for whose, share in self._ahead.values() if whose == person)
        if state.standings[request.accounts[-1]].interactive + others > most:
            return False
        since = state.steady - self._policy.least_run
        return giving_way.given_up_for(self._db, person, since) + request.size <= most

    def _there(self) -> dict[str, Candidate]:
        """Return the leases that may have to give way, by id; read once."""
        if self._candidates is None:
            state, policy = self._state, self._policy
            reserved = state.placements.devices if state.placements else set[str]()
            pieces: dict[str, dict[str, int]] = {}
            about: dict[str, tuple[bool, int]] = {}
            rows = giving_way.may_give_way(
                self._db, state.now - policy.least_run, state.steady + policy.notice
            )
            for priority, row in rows:
                pieces.setdefault(row.id, {})[row.device_id] = row.memory_bytes
                about[row.id] = priority == "scavenger", row.epoch
                self._until[row.id], self._whose[row.id] = row.until, row.person
            self._candidates = {
                lease: Candidate(lease, *about[lease], there)
                for lease, there in pieces.items()
                if not reserved & there.keys()
            }
        return self._candidates

    def _devices(
        self,
        request: PendingRequest,
        kinds: list[DeviceClass],
        there: Iterable[Candidate],
        found: Mapping[str, Device],
    ) -> dict[str, Device]:
        """Return the devices that come into question, by id."""
        state = self._state
        ids = sorted({i for one in there for i in one.pieces})
        machine = state.places.of(request.wanted)
        if machine is None:
            some = self._store.devices.available_among(self._db, ids, kinds) + list(found.values())
        else:
            some = self._store.devices.on_machine(self._db, machine, kinds)
        reserved = state.placements.devices if state.placements else set[str]()
        without = state.avoided.get(request.key, frozenset()) | state.quiet
        return {
            d.id: d
            for d in some
            if _kind(d) in kinds
            and d.id not in reserved
            and d.id not in state.shut
            and d.server not in without
            and slice_bytes(request.wanted, d) <= d.memory_bytes
        }

    def _seen(self, device_id: str, request: PendingRequest) -> AvailabilityProfile:
        state = self._state
        seen = state.seen(device_id, request.course, lasting=True, key=request.key)
        return seen or state.others[device_id]

    def _without(
        self, seen: AvailabilityProfile, leave: Iterable[Candidate], begin: float
    ) -> AvailabilityProfile:
        """Return a device as it is where these leases end at a time."""
        changed = AvailabilityProfile(seen.device, seen.free, list(seen.ends), seen.taken)
        for one in leave:
            if size := one.pieces.get(seen.device):
                self._move_end(changed, one.lease, size, begin)
        return changed

    def _move_end(self, profile: AvailabilityProfile, lease: str, size: int, begin: float) -> None:
        if (until := self._until[lease]) is not None:
            end = until + self._state.now - self._state.steady
            known = (e for e in profile.ends if e[1] == size and abs(e[0] - end) < 1.0)
            if (entry := next(known, None)) is not None:
                profile.ends.remove(entry)
        profile.ends.append((begin, size))

    def _tell(self, one: Candidate, request: PendingRequest, begin: float, at: float) -> None:
        """Write down that a lease gives way, for its holder and in the audit table."""
        state, to = self._state, reason_of(request.course)
        when = time.strftime("%H:%M:%S", time.localtime(begin))
        sentence = f"{giving_way.GIVES_WAY}: it ends at {when}, since {to} finds no other room."
        giving_way.tell(self._db, self._store, one.lease, at, request.key, request.holder.person, sentence)
        subject = f"lease {one.lease} of {self._whose[one.lease]}"
        note(self._db, state.now, "the queue", "gives way", subject, "", f"to {to}, at {when}")
        for device_id, size in one.pieces.items():
            if profile := state.profiles.get(device_id) or state.others.get(device_id):
                self._move_end(profile, one.lease, size, begin)
        self._there().pop(one.lease)

    def _claim(self, request: PendingRequest, devices: Iterable[Device], at: float) -> None:
        """Keep room on these devices for a request from a steady time on."""
        state = self._state
        span = self._policy.longest(request.accounts, request.role, request.longest)
        begin = max(at + state.now - state.steady, state.now)
        end = float("inf") if span is None else begin + span
        self._times[request.key] = at
        for device in devices:
            if device.id not in state.profiles:
                state.profiles[device.id] = state.others[device.id]
            state.claims.setdefault(device.id, []).append(
                (request.key, (begin, end, slice_bytes(request.wanted, device)))
            )


def _kind(device: Device) -> DeviceClass:
    return DeviceClass(device.name, device.memory_bytes)
