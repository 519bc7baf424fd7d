"""Places in the queue after a scheduling cycle: who was looked at, who was not, and who is held back by a quota of their own."""

from __future__ import annotations

import bisect
from collections.abc import Container, Iterable

from gpukernel.pool.domain.fairness import Rank
from gpukernel.pool.scheduling.own_quotas import OwnQuotas
from gpukernel.pool.scheduling.pending_request import PendingRequest
from gpukernel.pool.scheduling.queue_index import HeldBack, QueueIndex
from gpukernel.pool.scheduling.unseen_requests import UnseenRequests

__all__ = ["A_FEW", "QueuePlaces"]

A_FEW = 32
"""For so many the place is found one by one; who asks for more gets all found at once."""


class QueuePlaces:
    """The places of those who wait in `index`.

    Parameters
    ----------
    seen
        Those that the cycle looked at and that still wait, in their order, each with what it was sorted by.
    unseen
        Those that it did not look at.
    own
        Whom quotas of their own hold back.
    """

    def __init__(
        self,
        index: QueueIndex,
        seen: Iterable[tuple[Rank, PendingRequest]] = (),
        unseen: UnseenRequests | None = None,
        own: OwnQuotas | None = None,
    ) -> None:
        self._index, self._unseen, self._own = index, unseen, own
        self._values = {request.key: value for value, request in seen}
        self._at: dict[str, int] = {}
        self._sorted: list[Rank] = []
        self._all: dict[str, int] = {}
        self._asked = 0
        self.change()

    def change(self, known: Container[str] | None = None) -> None:
        """Find places anew, since somebody has left; `known`: who still waits."""
        if known is not None:
            self._values = {key: value for key, value in self._values.items() if key in known}
        self._at = {key: at for at, key in enumerate(self._values)}
        self._sorted = list(self._values.values())
        self._all, self._asked = {}, 0

    def order(self) -> list[PendingRequest]:
        """Return those who wait, in the order of the cycle."""
        known = self._index.requests
        every = [(value, known[key]) for key, value in self._values.items() if key in known]
        if self._unseen is not None:
            every += self._unseen.each()
            every += [
                (self._unseen.value(one), one)
                for line in self._index.held_lines.values()
                for *_, one in line
                if one.key not in self._values
            ]
        return [one for _, one in sorted(every, key=lambda entry: entry[0])]

    def unseen(self, key: str) -> PendingRequest | None:
        """Return the request of a key where the cycle did not look at it."""
        request = None if key in self._values else self._index.requests.get(key)
        return request if request and self._unseen and request in self._unseen else None

    def held_back(self, key: str) -> HeldBack | None:
        """Return what holds a request back, where that is a quota of its own and the cycle did not look at the request."""
        if key in self._values or self._own is None or self._own.is_absent(key):
            return None
        return self._index.held.get(key)

    def place(self, key: str) -> int:
        """Return the place of a request in the queue, 1 is next; 0 where it has none."""
        if self._all:
            return self._all.get(key, 0)
        self._asked += 1
        if self._asked > A_FEW:
            self._all = {one.key: place for place, one in enumerate(self.order(), 1)}
            return self._all.get(key, 0)
        if (value := self._value(key)) is None:
            return 0
        before = self._at.get(key)
        if before is None:
            assert self._unseen is not None
            before = bisect.bisect_left(self._sorted, value) + self._unseen.ahead_of(value)
        return before + self._held_before(value) + 1

    def _value(self, key: str) -> Rank | None:
        if (value := self._values.get(key)) is not None:
            return value
        request = self._index.requests.get(key)
        if request is None or self._unseen is None:
            return None
        if key in self._index.held or request in self._unseen:
            return self._unseen.value(request)
        return None

    def _held_before(self, value: Rank) -> int:
        """Return how many are sorted before a value of those that are held back."""
        if (unseen := self._unseen) is None:
            return 0
        return sum(
            bisect.bisect_left(line, value, key=lambda entry: unseen.value(entry[2]))
            for line in self._index.held_lines.values()
        )
