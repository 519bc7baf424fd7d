"""Fair order and backfill: pure functions, precise enough to be checked by a model.

**Classes.**  Interactive requests come first, then batch, then scavengers.  Within a class the fair order decides.  So that
nobody waits for ever, a batch request counts as interactive in the order after `gpukernel.common.slice_request.PROMOTED_AFTER` of waiting, and a scavenger later.

**The order.**  The next slice goes to the course that holds the least for its weight: of the courses that wait with the class that is next, the one with
the smallest (devices' worth held now and of late) / weight, and where two are equal, the one whose first request has waited longer.  Within a
course and class the first come is the first served.  The order of a whole queue is what one gets by serving it that way, one request after the
other, each adding its size to what its course holds.

What a course held of late counts beside what it holds now: a mean in which the past decays (`gpukernel.pool.store.quota_usage`).  So a course
that comes late gets the next slices until it has caught up, and a weight of 2 means twice as much.  With a half-life of 0 no history
counts: a course that holds its part gets back what it gives back.

**Backfill.**  Requests are looked at in that order.  One that fits, in quotas and on devices, is granted.  A request may start
before earlier ones only if it cannot delay them, even when every lease runs its full time:

* Where a quota holds it back, nobody behind it takes from that quota.  It holds back nothing else: until its quota has room it
  could not use a device anyway.  It counts neither for its course in the order nor among those that a cycle looks at, however many
  such requests there are.
* Where only devices are missing, it is given a *promise*: the devices and the time at which it can start even if every lease lasts as
  long as it may.  What it will take is set aside, in its quotas at once and on those devices from that time on; later requests
  that fit into the rest may start.  Where no end of leases is known, there is no promise, nor where as many have been given as a
  scheduling cycle gives; then nobody behind it gets anything on the models that it waits for.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

__all__ = [
    "AvailabilityProfile",
    "FairOrder",
    "FairShareItem",
    "InLine",
    "Rank",
    "Rest",
    "fair_order",
    "promise",
]


class FairShareItem(Protocol):
    """A waiting request as the order sees it: `size` is the devices' worth asked for, in millionths."""

    @property
    def ticket(self) -> int:
        """The number that it got when it began to wait."""
        ...

    @property
    def course(self) -> str:
        """The course that it is for."""
        ...

    @property
    def size(self) -> int:
        """The devices' worth asked for, in millionths."""
        ...


W = TypeVar("W", bound=FairShareItem)


InLine: TypeAlias = tuple[int, int, W]
"""A request in the line of its course: the rank of its class, its ticket, and it."""


Rank: TypeAlias = tuple[int, float, int]
"""The figures by which requests of all courses are sorted: the rank of the class, what counts for the course ÷ its weight, the ticket."""


class Rest(NamedTuple):
    """Those that a `FairOrder` has not served: by course, the rank and ticket of the first one and what counts for the course, in millionths.

    `served`: by course, those that were served, in their order: rank, ticket, and what counted for the course before.
    """

    at: Mapping[str, tuple[int, int]]
    counts: Mapping[str, int]
    weights: Mapping[str, float]
    served: Mapping[str, Sequence[tuple[int, int, int]]]


class FairOrder(Generic[W]):
    """The order in which requests are served (see the module), one after the other; O(log n) each, for n courses.

    Parameters
    ----------
    lines
        By course, sorted; they must not change meanwhile.
    held
        What counts for a course, in millionths of a device, by its name; a course that is missing holds nothing.
    weights
        By course; 1 for one that is missing.

    Attributes
    ----------
    value
        By what the request that was served last is sorted; it grows from one to the next.
    """

    def __init__(
        self,
        lines: Mapping[str, Sequence[InLine[W]]],
        held: Mapping[str, int],
        weights: Mapping[str, float],
    ) -> None:
        self._lines = lines
        self._weights = weights
        self._held = held
        self._now = {course: held.get(course, 0) for course in lines}
        self._next = dict.fromkeys(lines, 0)
        self._heap = [self._entry(course) for course in lines]
        heapq.heapify(self._heap)
        self._last: tuple[str, W] | None = None
        self._served: dict[str, list[tuple[int, int, int]]] = {}
        self.value: Rank = 0, 0.0, 0

    def _entry(self, course: str) -> tuple[int, float, int, str]:
        # The first of a course has the lowest rank of those that it has left: so ranks come one after the other.
        rank, ticket, _ = self._lines[course][self._next[course]]
        return rank, self._now[course] / self._weights.get(course, 1.0), ticket, course

    def __iter__(self) -> Iterator[W]:
        while (one := self._following()) is not None:
            yield one

    def _following(self) -> W | None:
        self._settle()
        if not self._heap:
            return None
        rank, share, ticket, course = heapq.heappop(self._heap)
        self.value = rank, share, ticket
        self._served.setdefault(course, []).append((rank, ticket, self._now[course]))
        one = self._lines[course][self._next[course]][2]
        self._next[course] += 1
        self._last = course, one
        return one

    def _settle(self, *, counts: bool = True) -> None:
        """Count what was served last for its course, and put the course back in."""
        if self._last is None:
            return
        (course, one), self._last = self._last, None
        if counts:
            self._now[course] += one.size
        if self.left(course):
            heapq.heappush(self._heap, self._entry(course))

    def left(self, course: str) -> bool:
        """Return whether anybody of a course is still to be served."""
        return course in self._next and self._next[course] < len(self._lines[course])

    def rest(self) -> Rest:
        """Return who is still to be served."""
        self._settle()
        at = {c: self._lines[c][i][:2] for c, i in self._next.items() if self.left(c)}
        return Rest(at, {**self._held, **self._now}, self._weights, self._served)

    def pass_over(self) -> None:
        """Say that the last one gets nothing now by its own quota: it does not count for its course, as if it did not wait."""
        self._settle(counts=False)

    def upcoming(self, count: int) -> list[W]:
        """Return some of those that follow, the first of each course first."""
        lines = [self._lines[course][at : at + count] for course, at in self._next.items()]
        firsts = (one[2] for row in itertools.zip_longest(*lines) for one in row if one is not None)
        return list(itertools.islice(firsts, count))


def fair_order(
    waiting: Iterable[W],
    held: Mapping[str, int],
    weights: Mapping[str, float],
    rank: Callable[[W], int] | None = None,
) -> list[W]:
    """Return `waiting` in the order in which it is served where each of them gets something, `rank` being that of its class; see `FairOrder`."""
    lines: dict[str, list[InLine[W]]] = {}
    for one in waiting:
        lines.setdefault(one.course, []).append((rank(one) if rank else 0, one.ticket, one))
    for line in lines.values():
        line.sort(key=lambda one: one[:2])
    return list(FairOrder(lines, held, weights))


@dataclass
class AvailabilityProfile:
    """The room of one device over time, as leases end and promises begin.

    Attributes
    ----------
    free
        Bytes that are free now.
    ends
        When leases end at the latest, and the bytes that this frees; leases without an end are not in it.
    taken
        What is set aside: from when, until when, bytes.  All times in `ends` lie in the future.
    """

    device: str
    free: int
    ends: list[tuple[float, int]] = field(default_factory=list)
    taken: list[tuple[float, float, int]] = field(default_factory=list)

    def earliest(self, size: int, length: float, now: float) -> float:
        """Return the first time from which `size` bytes are free for `length` seconds; infinity where none is known."""
        free, steps = self.free, [*self.ends, (math.inf, 0)]
        for start, end, taken in self.taken:
            if start <= now < end:
                free -= taken
            elif start > now:
                steps.append((start, -taken))
            if end > now:
                steps.append((end, taken))
        since = now if free >= size else None
        for (when, change), (after, _) in itertools.pairwise(sorted(steps)):
            if math.isinf(when) or (since is not None and when >= since + length):
                break
            free += change
            if when == after:
                continue  # what happens at one moment counts together
            if free < size:
                since = None
            elif since is None:
                since = when
        return math.inf if since is None else since

    def room(self, begin: float, end: float, now: float) -> int:
        """Return the most bytes that are free all the time from `begin` to `end`."""
        times = {max(begin, now)} | {start for start, _, _ in self.taken if begin < start < end}
        return min(
            self.free
            + sum(size for when, size in self.ends if when <= at)
            - sum(size for start, stop, size in self.taken if start <= at < stop)
            for at in times
        )

    def free_from(self, when: float, size: int, length: float) -> bool:
        """Return whether `size` bytes are free for `length` seconds from `when` on."""
        later = AvailabilityProfile(self.device, self.free + sum(s for end, s in self.ends if end <= when))
        later.ends = [entry for entry in self.ends if entry[0] > when]
        later.taken = self.taken
        return later.earliest(size, length, when) <= when


def promise(
    profiles: Sequence[AvailabilityProfile], sizes: Mapping[str, int], count: int, length: float, now: float
) -> tuple[float, list[AvailabilityProfile]]:
    """Return when `count` of the devices have room for `length` seconds at once, and which; infinity and none where that is not known.

    Parameters
    ----------
    sizes
        Bytes that are needed on each device, by its id.
    """
    starts = [(p.earliest(sizes[p.device], length, now), p.device, p) for p in profiles]
    starts.sort(key=lambda entry: entry[:2])
    if len(starts) < count or math.isinf(starts[count - 1][0]):
        return math.inf, []
    when = starts[count - 1][0]
    chosen = [
        p
        for start, _, p in starts
        if start == when or (start < when and p.free_from(when, sizes[p.device], length))
    ]
    chosen = chosen[:count]
    return (when, chosen) if len(chosen) == count else (math.inf, [])
