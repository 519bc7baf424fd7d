"""Giving way: which leases of later classes end so that an interactive request fits.  Pure functions.

As few as possible do: the fewest batch leases, then the fewest scavengers, then the youngest.  That is exact on each device by itself.
Where a request asks for several devices, or leases lie on several, the best of each device are taken together; what is not needed then
stays.  In any case no proper subset of what is chosen would do.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Candidate", "leases_giving_way"]


@dataclass(frozen=True)
class Candidate:
    """A lease that may have to give way.

    Attributes
    ----------
    scavenger
        Whether it is a scavenger; else it is batch.
    epoch
        Grows with every grant: the younger of two has the larger one.
    pieces
        Bytes by device.
    """

    lease: str
    scavenger: bool
    epoch: int
    pieces: Mapping[str, int]


def leases_giving_way(
    free: Mapping[str, int], sizes: Mapping[str, int], count: int, candidates: Iterable[Candidate]
) -> list[Candidate] | None:
    """Return the leases whose end makes room on `count` devices; none where there is room already, None where all of them are not enough.

    Parameters
    ----------
    free
        Bytes by device that are free, or become free without anybody giving way.
    sizes
        Bytes that are needed on each device that would do.
    """
    by_device: dict[str, list[Candidate]] = {}
    for one in candidates:
        for device in one.pieces:
            by_device.setdefault(device, []).append(one)
    plans = []
    for device, size in sizes.items():
        plan = _on_device(device, size - free.get(device, 0), by_device.get(device, []))
        if plan is not None:
            batch = sum(not one.scavenger for one in plan)
            plans.append(
                (batch, len(plan) - batch, -min((one.epoch for one in plan), default=0), device, plan)
            )
    if len(plans) < count:
        return None
    best = heapq.nsmallest(count, plans, key=lambda plan: plan[:4])
    chosen = {one.lease: one for *_, plan in best for one in plan}
    return _needed(free, sizes, count, list(chosen.values()))


def _on_device(device: str, missing: int, there: Sequence[Candidate]) -> list[Candidate] | None:
    """Return who gives `missing` bytes of one device; None where all there are not enough."""
    if missing <= 0:
        return []

    def largest(scavenger: bool) -> list[Candidate]:
        found = [one for one in there if one.scavenger == scavenger]
        return sorted(found, key=lambda one: (-one.pieces[device], -one.epoch))

    def given(some: Iterable[Candidate]) -> int:
        return sum(one.pieces[device] for one in some)

    batch, scavengers = largest(scavenger=False), largest(scavenger=True)
    left = given(scavengers)
    few = next((n for n in range(len(batch) + 1) if given(batch[:n]) + left >= missing), None)
    if few is None:
        return None
    chosen = batch[:few]
    chosen += scavengers[
        : next(n for n in range(len(scavengers) + 1) if given([*chosen, *scavengers[:n]]) >= missing)
    ]
    # Of equally many, younger ones: each that is chosen makes way for the youngest of its class that gives enough, the oldest first.
    spare = given(chosen) - missing
    for old in sorted(chosen, key=lambda one: one.epoch):
        younger = [
            one
            for one in there
            if one not in chosen
            and one.scavenger == old.scavenger
            and one.epoch > old.epoch
            and old.pieces[device] - one.pieces[device] <= spare
        ]
        if younger:
            new = max(younger, key=lambda one: one.epoch)
            chosen[chosen.index(old)] = new
            spare -= old.pieces[device] - new.pieces[device]
    return chosen


def _needed(
    free: Mapping[str, int], sizes: Mapping[str, int], count: int, chosen: list[Candidate]
) -> list[Candidate]:
    """Return those of `chosen` that are needed for room on `count` devices; batch is let off first, the oldest before others."""

    def enough(some: Iterable[Candidate]) -> bool:
        room = dict(free)
        for one in some:
            for device, size in one.pieces.items():
                room[device] = room.get(device, 0) + size
        return sum(room.get(device, 0) >= size for device, size in sizes.items()) >= count

    for one in sorted(chosen, key=lambda one: (one.scavenger, one.epoch)):
        rest = [other for other in chosen if other is not one]
        if enough(rest):
            chosen = rest
    return chosen
