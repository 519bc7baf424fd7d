"""The index of those who wait: what a decision asks of them, kept from one decision to the next.

Each course has a line: its requests by the rank of their class and by age.  What a course holds, its weight and the decay of what it held
change only how the lines are merged (`gpukernel.pool.domain.fairness.FairOrder`), which a decision does for those alone that it looks at.
So the order is exact at every moment, and an arrival or a departure changes one line.

Those that a quota of their own holds back stand in lines of their own (`gpukernel.pool.scheduling.own_quotas`): no decision looks at them.
"""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass

from gpukernel.common.bounds import Account
from gpukernel.pool.domain.fairness import InLine
from gpukernel.pool.scheduling.pending_request import PendingRequest

__all__ = ["HeldBack", "QueueIndex"]


@dataclass(frozen=True)
class HeldBack:
    """A request that a quota of its person's or its member's, `account`, holds back.

    Attributes
    ----------
    until
        When time alone may help, in seconds since the epoch; 0 where that is not known.
    interactive
        It is the quota of interactive slices.
    ahead
        The sentence of the same person's requests behind, which wait for the same quota; empty for one that is behind itself.
    """

    sentence: str
    account: Account
    until: float = 0.0
    interactive: bool = False
    ahead: str = ""


class QueueIndex:
    """Pending requests by what decisions ask for.

    Attributes
    ----------
    requests
        All of them, by key.
    lines
        By course, those that no quota of their own holds back, in their order within it; courses without any are missing.
    held, held_lines
        Those that are held back, by key, and as `lines`.
    doubted
        People whose requests have changed, and may be held back now or not any more.
    by_person, by_pool
        Keys, by the person who asks and by the process that holds the call.
    claiming
        The keys of requests with claims.
    interactive, limited
        The numbers of interactive requests in `lines`, and of all that ask for a longest time.
    """

    def __init__(self) -> None:
        self.requests: dict[str, PendingRequest] = {}
        self.lines: dict[str, list[InLine[PendingRequest]]] = {}
        self.held: dict[str, HeldBack] = {}
        self.held_lines: dict[str, list[InLine[PendingRequest]]] = {}
        self.doubted: set[str] = set()
        self.by_person: dict[str, set[str]] = {}
        self.by_pool: dict[str, set[str]] = {}
        self.claiming: set[str] = set()
        self.interactive = self.limited = 0
        self._now = 0.0
        self._ranks: dict[str, int] = {}
        self._sums: dict[str, list[int]] = {}
        # By class, those that have not waited long enough to count as interactive, the oldest first.
        self._ageing: dict[str, list[tuple[float, str]]] = {}

    def put(self, request: PendingRequest, why: HeldBack | None = None) -> None:
        """Add a request, or replace the one with its key; it was held back, `why` says by what.

        It stays so until somebody has looked at its person's requests again, which are `doubted` now.
        """
        why = self.remove(request.key) or why
        key, rank = request.key, request.rank(self._now)
        self.requests[key], self._ranks[key] = request, rank
        self._enter(request, why)
        self.doubted.add(request.holder.person)
        self.by_person.setdefault(request.holder.person, set()).add(key)
        self.by_pool.setdefault(request.pool, set()).add(key)
        if request.claims:
            self.claiming.add(key)
        if rank:
            bisect.insort(self._ageing.setdefault(request.wanted.priority, []), (request.since, key))
        self.limited += bool(request.longest)

    def remove(self, key: str) -> HeldBack | None:
        """Remove the request of a key, if there is one; return what held it back."""
        if (request := self.requests.get(key)) is None:
            return None
        why = self._quit(request)
        del self.requests[key]
        rank = self._ranks.pop(key)
        self.doubted.add(request.holder.person)
        for keys, name in ((self.by_person, request.holder.person), (self.by_pool, request.pool)):
            keys[name].discard(key)
            if not keys[name]:
                del keys[name]
        self.claiming.discard(key)
        if rank:
            ageing = self._ageing[request.wanted.priority]
            del ageing[bisect.bisect_left(ageing, (request.since, key))]
        self.limited -= bool(request.longest)
        return why

    def hold_back(self, request: PendingRequest, why: HeldBack | None) -> None:
        """Put a request among those that are held back, or let it stand in its line."""
        if (why is None) == (request.key not in self.held):
            if why is not None:
                self.held[request.key] = why
            return
        self._quit(request)
        self._enter(request, why)

    def _enter(self, request: PendingRequest, why: HeldBack | None) -> None:
        """Put a request into a line."""
        if why is not None:
            self.held[request.key] = why
        else:
            self._sums.pop(request.course, None)
            self.interactive += request.wanted.priority == "interactive"
        line = (self.lines if why is None else self.held_lines).setdefault(request.course, [])
        bisect.insort(line, (self._ranks[request.key], request.ticket, request))

    def _quit(self, request: PendingRequest) -> HeldBack | None:
        """Take a request out of its line."""
        if (why := self.held.pop(request.key, None)) is None:
            self._sums.pop(request.course, None)
            self.interactive -= request.wanted.priority == "interactive"
        lines = self.lines if why is None else self.held_lines
        line = lines[request.course]
        del line[bisect.bisect_left(line, (self._ranks[request.key], request.ticket))]
        if not line:
            del lines[request.course]
        return why

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
            return len(self.lines.get(account.course, ())) + len(self.held_lines.get(account.course, ()))
        keys = self.by_person.get(account.person, ())
        return sum(account in self.requests[key].accounts for key in keys)
