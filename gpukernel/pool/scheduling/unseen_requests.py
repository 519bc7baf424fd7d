"""Those whom a scheduling cycle did not look at, since nobody behind could get anything: what each is told, found when it is asked for."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Collection, Iterator

from gpukernel.common.bounds import Account
from gpukernel.pool.domain.fairness import Rank, Rest
from gpukernel.pool.scheduling.backfill_state import BackfillState
from gpukernel.pool.scheduling.pending_request import PendingRequest
from gpukernel.pool.scheduling.queue_index import QueueIndex

__all__ = ["UnseenRequests"]


class UnseenRequests:
    """The requests of `index` that come after those that a cycle looked at.

    Whoever joined since, or left, is counted in or out; the next cycle looks at all of them again.

    Parameters
    ----------
    rest
        Where in each line the cycle stopped, and what counted for the courses then.
    state
        Whose quotas are waited for.
    absent
        The keys of requests that nobody holds a call for.
    reserved
        For whom the room is reserved that they could have.
    reserving
        Courses whose reservation is open, for which nothing of that holds.
    """

    def __init__(
        self,
        index: QueueIndex,
        rest: Rest,
        state: BackfillState,
        absent: Collection[str],
        reserved: str,
        reserving: Collection[str],
    ) -> None:
        self._index, self._rest, self._state, self._absent = index, rest, state, absent
        self._reserved, self._reserving = reserved, reserving
        self._uncounted = {key for key in absent if key in index.requests}
        full = state.full.keys() | state.full_interactive.keys()
        for person in {account.person for account in full} - {""}:
            keys = index.by_person.get(person, ())
            self._uncounted |= {key for key in keys if self._waits(index.requests[key])}
        self._sums: dict[str, tuple[list[int], list[int]]] = {}
        self._courses = {index.requests[key].course for key in self._uncounted}

    def __contains__(self, request: PendingRequest) -> bool:
        known = self._index.requests.get(request.key)
        if known is None or known.key in self._index.held:
            return False
        return self._at(known) >= self._first(known.course)

    def reason(self, request: PendingRequest) -> str:
        """Return the sentence about the quota that holds a request back."""
        return "" if request.key in self._absent else self._waits(request)

    def reserved(self, request: PendingRequest) -> str:
        """Return whose reservation a request waits for."""
        if request.key in self._absent or request.course in self._reserving or self._waits(request):
            return ""
        return self._reserved

    def place(self, request: PendingRequest) -> int:
        """Return the place of one of them among them; 1 is the first."""
        return self.ahead_of(self.value(request)) + 1

    def value(self, request: PendingRequest) -> Rank:
        """Return what one of them is sorted by, or one that is held back: where it would stand in the order, counting for nothing."""
        course, rank = request.course, self._index.rank(request.key)
        if request.key not in self._index.held:
            return self._values(course)[1](self._at(request))
        served = self._rest.served.get(course, ())
        if (i := bisect.bisect_left(served, (rank, request.ticket))) < len(served):
            counts = served[i][2]
        else:
            first, counts = self._first(course), self._rest.counts.get(course, 0)
            if line := self._index.lines.get(course):
                sums = self._counted(course)
                at = max(bisect.bisect_left(line, (rank, request.ticket)), first)
                counts += sums[at] - sums[first]
        return rank, counts / self._rest.weights.get(course, 1.0), request.ticket

    def order(self) -> list[PendingRequest]:
        """Return all of them, in their order."""
        return [request for _, request in sorted(self.each(), key=lambda one: one[0])]

    def ahead_of(self, value: Rank) -> int:
        """Return how many of them are sorted before a value."""
        return sum(bisect.bisect_left(w, value, key=v) for w, v in map(self._values, self._rest.at))

    def each(self) -> Iterator[tuple[Rank, PendingRequest]]:
        """Return all of them, each with what it is sorted by."""
        for course in self._rest.at:
            where, value = self._values(course)
            for i in where:
                yield value(i), self._index.lines[course][i][2]

    def _at(self, request: PendingRequest) -> int:
        """Return where in its line a request is."""
        where = self._index.rank(request.key), request.ticket
        return bisect.bisect_left(self._index.lines[request.course], where)

    def _first(self, course: str) -> int:
        """Return where in a line the first of them is."""
        line = self._index.lines.get(course, [])
        where = self._rest.at.get(course)
        return len(line) if where is None else bisect.bisect_left(line, where)

    def _values(self, course: str) -> tuple[range, Callable[[int], Rank]]:
        """Return where in a line they are, and what each is sorted by there, as by `FairOrder`."""
        first, line = self._first(course), self._index.lines.get(course, [])
        sums = self._counted(course) if line else [0]
        counts, weight = self._rest.counts[course] - sums[first], self._rest.weights.get(course, 1.0)

        def value(i: int) -> Rank:
            return line[i][0], (counts + sums[i]) / weight, line[i][1]

        return range(first, len(line)), value

    def _counted(self, course: str) -> list[int]:
        """Return the sizes of a line added up, without those that count for nothing."""
        every, levels = self._index.sums(course), (Account("pool"), Account("course", course))
        all_wait = any(level in self._state.full for level in levels)
        some_wait = any(level in self._state.full_interactive for level in levels)
        if not (all_wait or some_wait or course in self._courses):
            return every
        known = self._sums.get(course)
        if known is None or known[0] is not every:
            sizes = (
                0
                if all_wait
                or (some_wait and one.wanted.priority == "interactive")
                or one.key in self._uncounted
                else one.size
                for _, _, one in self._index.lines[course]
            )
            known = self._sums[course] = every, list(itertools.accumulate(sizes, initial=0))
        return known[1]

    def _waits(self, request: PendingRequest) -> str:
        return self._state.waited_for(request.accounts, request.wanted.priority)
