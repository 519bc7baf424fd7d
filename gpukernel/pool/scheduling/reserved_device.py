"""Reserved devices: what courses have reserved on one device, and what of it they do not hold yet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpukernel.common.reservations import Reservation, Window

__all__ = ["Claimed", "Demand", "ReservedDevice", "outstanding"]

Claimed = tuple[float, float, int]
"""From when, until when, how many bytes; as in `gpukernel.pool.domain.fairness.AvailabilityProfile.taken`."""


@dataclass(frozen=True)
class Demand:
    """The demand of one reservation on one device: `bytes` in each of `windows`.

    `span`: for how long leases of the course go on after a window at most; infinite where they have no end.
    """

    reservation: Reservation
    bytes: int
    windows: tuple[Window, ...]
    span: float = math.inf

    @property
    def course(self) -> str:
        """Return the course that reserves."""
        return self.reservation.course

    def claims(self, now: float, *, lasting: bool) -> list[Claimed]:
        """Return when others must leave the bytes alone.

        Parameters
        ----------
        lasting
            Also for as long as the course's leases may go on after a window: for promises, which must be kept.
        """
        if not lasting:
            # What has to leave when the window opens may be lent until then.
            return [(b, e, self.bytes) for b, e in self.windows if b <= now or not self.reservation.preempt]
        merged: list[Claimed] = []
        for begin, end in self.windows:
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end + self.span), self.bytes)
            else:
                merged.append((begin, end + self.span, self.bytes))
        return merged


def outstanding(claims: Iterable[Claimed], held: Iterable[tuple[float, int]], now: float) -> list[Claimed]:
    """Return what of `claims` is left, from `now` on, after what is held until some time."""
    ahead = [(max(b, now), e, size) for b, e, size in claims if e > now and size]
    kept = [(until, size) for until, size in held if until > now]
    times = sorted({t for b, e, _ in ahead for t in (b, e)} | {until for until, _ in kept})
    left: list[Claimed] = []
    for begin, end in itertools.pairwise(times):
        size = sum(s for b, e, s in ahead if b <= begin < e) - sum(s for until, s in kept if until > begin)
        if size > 0:
            left.append((begin, end, size))
    return left


@dataclass
class ReservedDevice:
    """A device on which something is reserved; `held` is what those courses hold there, and until when."""

    demands: list[Demand] = field(default_factory=list)
    held: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    # Asked for by every request that looks at the device, and the same until one of the courses here gets something.
    _claims: dict[tuple[float, str, bool], list[Claimed]] = field(default_factory=dict, repr=False)

    def claims(self, now: float, besides: str, *, lasting: bool = False) -> list[Claimed]:
        """Return what all courses but one may still claim; the list is not the caller's to change."""
        besides = besides if any(demand.course == besides for demand in self.demands) else ""
        known = self._claims.get((now, besides, lasting))
        if known is None:
            by: dict[str, list[Claimed]] = {}
            for demand in self.demands:
                if demand.course != besides:
                    by.setdefault(demand.course, []).extend(demand.claims(now, lasting=lasting))
            known = self._claims[now, besides, lasting] = [
                left
                for course, claims in by.items()
                for left in outstanding(claims, self.held.get(course, ()), now)
            ]
        return known

    def hold(self, course: str, until: float, size: int) -> None:
        """Count what a course holds here until some time."""
        self.held.setdefault(course, []).append((until, size))
        self._claims = {}

    def demand(self, one: Demand) -> None:
        """Add what a reservation wants here."""
        self.demands.append(one)
        self._claims = {}

    def drop(self, reservation_id: str) -> None:
        """Forget what a reservation wants here."""
        self.demands = [d for d in self.demands if d.reservation.id != reservation_id]
        self._claims = {}

    def forget_held(self) -> None:
        """Forget what courses hold here, before it is read anew."""
        self.held, self._claims = {}, {}

    def own(self, course: str, at: float) -> int:
        """Return the bytes that are reserved for the course at a time and that it does not hold."""
        wanted = sum(
            d.bytes for d in self.demands if d.course == course and any(b <= at < e for b, e in d.windows)
        )
        return max(wanted - sum(size for until, size in self.held.get(course, ()) if until > at), 0)

    def total(self, besides: str) -> int:
        """Return the most that all courses but one can claim at any time."""
        return sum(d.bytes for d in self.demands if d.course != besides)

    def first(self, besides: str, until: float) -> tuple[Demand, Window] | None:
        """Return whose window is open, or opens next before `until`."""
        ahead = [(w, d) for d in self.demands if d.course != besides for w in d.windows[:1] if w[0] < until]
        return min(((d, w) for w, d in ahead), key=lambda one: (one[1], one[0].course), default=None)
