"""The index of those who wait: what a decision asks of them, kept from one decision to the next.

Each course has a line: its requests by the rank of their class and by age.  What a course holds, its weight and the decay of what it held
change only how the lines are merged (`gpukernel.pool.domain.fairness.FairOrder`), which a decision does for those alone that it looks at.
So the order is exact at every moment, and an arrival or a departure changes one line.
"""

from __future__ import annotations

import bisect
import itertools

from gpukernel.common.bounds import Account
from gpukernel.pool.domain.fairness import InLine
from gpukernel.pool.scheduling.pending_request import PendingRequest

__all__ = ["QueueIndex"]


class QueueIndex:
    """Pending requests by what decisions ask for.

    Attributes
    ----------
    requests
        All of them, by key.
    lines
        By course, in their order within it; courses without a request are missing.
    by_person, by_pool
        Keys, by the person who asks and by the process that holds the call.
    claiming
        The keys of requests with claims.
    interactive, limited
        The numbers of interactive requests, and of those that ask for a longest time.
    """

    def __init__(self) -> None:
        self.requests: dict[str, PendingRequest] = {}
        self.lines: dict[str, list[InLine[PendingRequest]]] = {}
        self.by_person: dict[str, set[str]] = {}
        self.by_pool: dict[str, set[str]] = {}
        self.claiming: set[str] = set()
        self.interactive = self.limited = 0
        self._now = 0.0
        self._ranks: dict[str, int] = {}
        self._sums: dict[str, list[int]] = {}
        # By class, those that have not waited long enough to count as interactive, the oldest first.
        self._ageing: dict[str, list[tuple[float, str]]] = {}

    def put(self, request: PendingRequest) -> None:
        """Add a request, or replace the one with its key."""
        self.remove(request.key)
        key, course, rank = request.key, request.course, request.rank(self._now)
        self.requests[key], self._ranks[key] = request, rank
        bisect.insort(self.lines.setdefault(course, []), (rank, request.ticket, request))
        self._sums.pop(course, None)
        self.by_person.setdefault(request.holder.person, set()).add(key)
        self.by_pool.setdefault(request.pool, set()).add(key)
        if request.claims:
            self.claiming.add(key)
        if rank:
            bisect.insort(self._ageing.setdefault(request.wanted.priority, []), (request.since, key))
        self.interactive += request.wanted.priority == "interactive"
        self.limited += bool(request.longest)

    def remove(self, key: str) -> None:
        """Remove the request of a key, if there is one."""
        if (request := self.requests.pop(key, None)) is None:
            return
        rank, course = self._ranks.pop(key), request.course
        line = self.lines[course]
        del line[bisect.bisect_left(line, (rank, request.ticket))]
        if not line:
            del self.lines[course]
        self._sums.pop(course, None)
        for keys, name in ((self.by_person, request.holder.person), (self.by_pool, request.pool)):
            keys[name].discard(key)
            if not keys[name]:
                del keys[name]
        self.claiming.discard(key)
        if rank:
            ageing = self._ageing[request.wanted.priority]
            del ageing[bisect.bisect_left(ageing, (request.since, key))]
        self.interactive -= request.wanted.priority == "interactive"
        self.limited -= bool(request.longest)

    def age(self, now: float) -> None:
        """Let those count as interactive that have waited long enough at a wall time."""
        back, self._now = now < self._now, now
        if back:  # the clock was set back
            for request in list(self.requests.values()):
                self.put(request)
        for ageing in self._ageing.values():
            while ageing and not (oldest := self.requests[ageing[0][1]]).rank(now):
                self.put(oldest)

    def rank(self, key: str) -> int:
        """Return the rank of a request in its line."""
        return self._ranks[key]

    def sums(self, course: str) -> list[int]:
        """Return the sizes of a line added up: of the first 0, 1, 2 … requests; the same list until the line changes."""
        if (sums := self._sums.get(course)) is None:
            sizes = (request.size for _, _, request in self.lines[course])
            sums = self._sums[course] = list(itertools.accumulate(sizes, initial=0))
        return sums

    def count(self, account: Account) -> int:
        """Return how many wait that count in an account."""
        if account.kind == "pool":
            return len(self.requests)
        if account.kind == "course":
            return len(self.lines.get(account.course, ()))
        keys = self.by_person.get(account.person, ())
        return sum(account in self.requests[key].accounts for key in keys)
