"""The state of one scheduling cycle: what backfill must not delay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from gpukernel.common.bounds import Account
from gpukernel.common.i18n import say
from gpukernel.common.model import Device
from gpukernel.pool.domain.direct_mode import Places
from gpukernel.pool.domain.fairness import AvailabilityProfile
from gpukernel.pool.domain.placement import DeviceClass
from gpukernel.pool.domain.quota import Claim, Standing
from gpukernel.pool.scheduling.pending_request import PendingRequest
from gpukernel.pool.scheduling.reservation_placement import ReservationPlacements
from gpukernel.pool.scheduling.reserved_device import Claimed
from gpukernel.pool.store.store import Store

__all__ = ["ENDS_FOR_A_PROMISE", "BackfillState", "read_profiles"]

ENDS_FOR_A_PROMISE = 512
"""The most ends of leases that are read at once, the earliest ones."""


@dataclass
class BackfillState:
    """The claims of requests further ahead: what they take, are promised or wait for, so that backfill never delays them."""

    now: float
    steady: float = 0.0
    quiet: frozenset[str] = frozenset()  # servers of which nothing was heard for some seconds
    avoided: Mapping[str, frozenset[str]] = field(
        default_factory=dict
    )  # servers, by the keys of requests that they failed
    standings: dict[Account, Standing] = field(default_factory=dict)
    # Quotas that somebody further ahead waits for, each with the sentence of those behind.
    full: dict[Account, str] = field(default_factory=dict)
    full_interactive: dict[Account, str] = field(default_factory=dict)  # those of interactive slices alone
    # For somebody who does not wait: what holds people back whose own quotas others of their requests wait for.
    own_quota: Callable[[Account, str], str] | None = None
    closed: set[DeviceClass] = field(default_factory=set)  # kinds that somebody waits for without a promise
    profiles: dict[str, AvailabilityProfile] = field(
        default_factory=dict
    )  # devices on which something is promised
    # Read once until something is granted: the emptiest devices, those on which nothing is promised, the available ones
    # with a reservation, and the most that a course has of its own on one device.
    emptiest: dict[DeviceClass, list[Device]] = field(default_factory=dict)
    others: dict[str, AvailabilityProfile] = field(default_factory=dict)
    with_placements: dict[str, Device] | None = None
    own_most: dict[str, int] = field(default_factory=dict)
    promises: int = 0
    places: Places = field(default_factory=Places)
    placements: ReservationPlacements | None = None  # where something is reserved
    shut: dict[str, set[str]] = field(
        default_factory=dict
    )  # devices that a request of some course waits for alone
    # By which courses' requests, and for how long those would hold what they get.
    closed_by: dict[DeviceClass, set[tuple[str, float]]] = field(default_factory=dict)
    # By device, the keys of requests that others give way to there, and what is kept for each.
    claims: dict[str, list[tuple[str, Claimed]]] = field(default_factory=dict)
    loans: int = 0  # tries of those behind to borrow what the others could not use
    loaded: Mapping[str, AvailabilityProfile] | None = (
        None  # devices with a reservation, already among the profiles
    )
    reserved: str = ""  # why the first of those without a promise waits, where a reservation is the reason

    def room(
        self, kind: DeviceClass, device_id: str, size: int, length: float, course: str, label: str
    ) -> str:
        """Return why `size` more bytes of a device, called `label`, cannot be had for `length` seconds; empty where that delays nobody."""
        if self.own(kind, device_id, size, course):
            seen = self.seen(device_id, course, own=True)
        elif kind in self.closed:
            return say("Others wait for %(model)s", model=kind.name)
        else:
            seen = self.seen(device_id, course)
        if seen is None or seen.earliest(size, length, self.now) <= self.now:
            return ""
        reason = self.placements.reason([device_id], course, self.now + length) if self.placements else ""
        if reason:
            return say("The rest of %(device)s is %(reserved)s", device=label, reserved=reason)
        return say("Others wait for %(model)s", model=kind.name)

    def own(self, kind: DeviceClass, device_id: str, size: int, course: str) -> bool:
        """Return whether `size` bytes of a device are reserved for the course now and none of its requests further ahead waits for them."""
        if not self.placements or course in self.shut.get(device_id, ()):
            return False
        if any(whose == course for whose, _ in self.closed_by.get(kind, ())):
            return False
        self.load()
        reserved_here = self.placements.on(device_id)
        return reserved_here is not None and reserved_here.own(course, self.now) >= size

    def most_own(self, course: str) -> int:
        """Return the most bytes of one device that are reserved for the course now."""
        self.load()
        if not (placements := self.placements):
            return 0
        if course not in self.own_most:
            found = (placements.on(device_id) for device_id in placements.open_for(course, self.now))
            sizes = (reserved_here.own(course, self.now) for reserved_here in found if reserved_here)
            self.own_most[course] = max(sizes, default=0)
        return self.own_most[course]

    def forget_what_was_read(self) -> None:
        """Read devices anew when they are next asked for, since something was granted."""
        self.emptiest, self.others, self.with_placements, self.own_most = {}, {}, None, {}

    def lent(self, kind: DeviceClass, device_id: str, size: int, length: float) -> bool:
        """Return whether `size` bytes can be lent for `length` seconds, being of no use to any of those who closed a kind.

        Those would have to leave for a window that the loan does not reach.  That is so where as much is left to them until
        its end as they could keep afterwards.
        """
        if device_id in self.shut or not self.lends(kind, length):
            return False
        end = self.now + length
        for course, theirs in self.closed_by[kind]:
            seen = self.seen(device_id, course)
            if seen is None:
                return False
            if seen.room(self.now, end, self.now) - size < seen.room(end, self.now + theirs, self.now):
                return False
        return True

    def lends(self, kind: DeviceClass, length: float) -> bool:
        """Return whether any device of a kind could be lent for `length` seconds: somebody closed it, and all who did would hold it longer."""
        closed_by = self.closed_by.get(kind, ())
        return bool(closed_by) and all(theirs > length for _, theirs in closed_by)

    def closes(self, kinds: list[DeviceClass]) -> bool:
        """Return whether somebody waits for every kind without a promise."""
        return len(self.closed) >= len(kinds) and self.closed.issuperset(kinds)

    def load(self) -> None:
        """Take the devices with a reservation in among the profiles."""
        if self.placements and self.loaded is not (found := self.placements.profiles()):
            self.loaded = found
            for device_id, profile in found.items():
                self.profiles.setdefault(device_id, profile)

    def seen(
        self, device_id: str, course: str, *, lasting: bool = False, own: bool = False, key: str = ""
    ) -> AvailabilityProfile | None:
        """Return a device as a request of the course sees it, with what is promised and reserved there; None where that is nothing.

        Parameters
        ----------
        lasting
            With what reserving courses may still hold after their windows, as promises must count.
        own
            For what the course has reserved, nobody but itself can have shut the device.
        key
            Of the request, whose own claims are not in its way.
        """
        reserved_here = self.placements.on(device_id) if self.placements else None
        if reserved_here is not None:
            self.load()
        profile = self.profiles.get(device_id)
        if profile is None:
            return None
        more = reserved_here.claims(self.now, course, lasting=lasting) if reserved_here else []
        if device_id in self.shut and not own:
            more = [*more, (self.now, math.inf, 2**62)]
        if claims := self.claims.get(device_id):
            more = [*more, *(claimed for whose, claimed in claims if whose != key)]
        return (
            AvailabilityProfile(device_id, profile.free, profile.ends, profile.taken + more)
            if more
            else profile
        )

    def unclaim(self, key: str) -> None:
        """Keep nothing for the request of this key any more."""
        for device_id, claims in list(self.claims.items()):
            self.claims[device_id] = [one for one in claims if one[0] != key]

    def waited_for(self, whose: Iterable[Account], priority: str) -> str:
        """Return the sentence of those behind somebody who waits for one of these quotas of a class; empty where nobody does."""
        quotas = (self.full, self.full_interactive) if priority == "interactive" else (self.full,)
        found = (full[account] for account in whose for full in quotas if account in full)
        if (sentence := next(found, "")) or self.own_quota is None:
            return sentence
        return next(filter(None, (self.own_quota(account, priority) for account in whose)), "")

    def add(self, request: PendingRequest, claim: Claim) -> None:
        """Count what `request` takes or is promised for those behind it."""
        for account in request.accounts:
            old = self.standings[account]
            self.standings[account] = Standing(
                account,
                old.bounds,
                old.share + claim.share,
                old.memory + claim.memory,
                old.leases + 1,
                old.spent,
                old.role,
                old.interactive + (claim.share if claim.interactive else 0),
            )


def read_profiles(
    db: sa.Connection, store: Store, state: BackfillState, devices: Mapping[str, Device]
) -> dict[str, AvailabilityProfile]:
    """Return the devices, by id, with the ends of the leases there; those that are not in the state are read into it."""
    unknown = [i for i in devices if i not in state.profiles and i not in state.others]
    ends = store.leases.ends_on(db, unknown, ENDS_FOR_A_PROMISE) if unknown else {}
    for i in unknown:
        free = devices[i].memory_bytes - devices[i].promised_bytes
        state.others[i] = AvailabilityProfile(i, free, list(ends.get(i, [])))
    return {i: state.profiles.get(i) or state.others[i] for i in devices}
