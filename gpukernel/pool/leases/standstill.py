"""Times at which a pool process stood still: it was stopped, its machine slept, or its database kept it waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gpukernel.pool.leases.server_watch import STALL_SECONDS

__all__ = ["GIVEN_UP", "Standstill"]

GIVEN_UP = "the request was given up"
"""Why a lease ends that the call which asked for it did not take."""

HEARS_SECONDS = 3.0
"""Seconds within which a process that goes on has heard of all that happened meanwhile."""

ASKS_SECONDS = 10.0
"""Seconds within which whoever gave a pool up has asked another one: a client looks for one that answers for six."""


class Standstill:
    """The last standstill of the process of one event loop, whose clock says each second that it is awake."""

    def __init__(self) -> None:
        self._awake_at: float | None = None
        self._hears_until = float("-inf")
        self._kept: dict[str, float] = {}  # leases, and until when

    def awake(self) -> None:
        """Record that the loop turns."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        if self._is_long_ago(now):
            self._hears_until = now + HEARS_SECONDS
        self._awake_at = now

    def just_now(self) -> bool:
        """Return whether the process stood still until a moment ago, so that calls end of people who gave this pool up, and nothing else."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return now < self._hears_until or self._is_long_ago(now)

    def keep(self, lease_id: str, *, ours: bool) -> bool:
        """Keep a lease that the call which asked for it did not take, where this process stood still just now; return whether it did.

        Its holder may ask another pool for it, or had it from there, and has done with it.  One that is not `ours`, since another pool has
        granted it, is that pool's to end: its holder may have it from there.
        """
        if (stood_still := self.just_now()) and ours:
            self.expect(lease_id)
        return stood_still

    def expect(self, lease_id: str) -> None:
        """Keep a lease for which no call waits: it was granted to a place that stayed in the queue as the process woke."""
        self._kept[lease_id] = time.clock_gettime(time.CLOCK_BOOTTIME) + ASKS_SECONDS

    def expects(self, lease_id: str) -> bool:
        """Return whether a lease is kept."""
        return lease_id in self._kept

    def served(self, lease_id: str) -> None:
        """Keep a lease no longer than others: a call waits for it here again."""
        self._kept.pop(lease_id, None)

    def over(self) -> Iterator[str]:
        """Yield the kept leases whose time is over; each is kept until it was dealt with."""
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        for lease_id in [lease_id for lease_id, until in self._kept.items() if until <= now]:
            yield lease_id
            self._kept.pop(lease_id, None)

    def _is_long_ago(self, now: float) -> bool:
        return self._awake_at is not None and now - self._awake_at > STALL_SECONDS
