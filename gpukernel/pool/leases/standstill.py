"""Times at which a pool process stood still: it was stopped, its machine slept, or its database kept it waiting."""

from __future__ import annotations

import time

from gpukernel.pool.leases.server_watch import STALL_SECONDS

__all__ = ["Standstill"]

HEARS_SECONDS = 3.0
"""Seconds within which a process that goes on has heard of all that happened meanwhile."""


class Standstill:
    """The last standstill of the process of one event loop, whose clock says each second that it is awake."""

    def __init__(self) -> None:
        self._awake_at: float | None = None
        self._hears_until = float("-inf")

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

    def _is_long_ago(self, now: float) -> bool:
        return self._awake_at is not None and now - self._awake_at > STALL_SECONDS
