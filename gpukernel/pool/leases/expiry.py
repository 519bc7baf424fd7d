"""The ends that only the clock brings, and the notices that announce them."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpukernel.pool.scheduling.giving_way import GIVES_WAY
from gpukernel.pool.scheduling.request_queue import RequestQueue
from gpukernel.pool.store.store import Store

__all__ = ["Expiry", "clock_time"]

SERVER_GRACE = 28.0
"""Seconds for which a server may be away before its leases end.  With the seconds between two looks, at its silence and at its leases, these
have ended 30 s after its last sign of life."""

NOTICE = 300.0
"""Seconds before its end at which a holder is told that a lease will be ended; at most a fifth of the whole time."""

IDLE = "This slice is idle"
BORROWED = "This slice is on borrowed time"


class Expiry:
    """The deadlines of all leases.

    Parameters
    ----------
    end
        Ends a lease, given its id and the reason; as ``to`` the key of the request to which alone it has to give way.
    """

    def __init__(self, store: Store, queue: RequestQueue, end: Callable[..., object]) -> None:
        self._store = store
        self._queue = queue
        self._end = end

    def check(self, steady: float) -> None:
        """End leases that were not renewed, were held or idle for too long, give way, or whose server is lost or drained."""
        for lease_id in self._store.leases.expired(steady):
            self._end(lease_id, "its holder gave no sign of life")
        self._check_limits(steady)
        for lease_id, reason, key in self._queue.due_to_give_way(steady):
            self._end(lease_id, reason, to=key)
        for server in self._store.servers.away_since(steady - SERVER_GRACE):
            for lease_id in self._store.leases.living_on(server):
                self._end(lease_id, f"its GPU server {server} was lost")
        for server in self._store.servers.drained_by(steady):
            for lease_id in self._store.leases.living_on(server):
                self._end(lease_id, f"its GPU server {server} was drained")

    def _check_limits(self, steady: float) -> None:
        """End leases at their longest time or idle limit, and announce that before."""
        ahead = self._store.clock.ahead()  # people are told wall time
        for lease_id, end, span, notice in self._store.leases.ending_soon(steady, NOTICE):
            if end <= steady:
                self._end(lease_id, f"it was held for its longest time of {_minutes(span)}")
            elif end - steady <= min(NOTICE, span / 5) and not notice.startswith(GIVES_WAY):
                at = clock_time(end + ahead)
                self._notify(lease_id, notice, f"This slice ends at {at}: its longest time is over then.")
        for lease_id, idle, limit, notice in self._store.leases.idle(steady):
            left = limit - idle
            if left <= 0:
                self._end(lease_id, f"it was idle for {_minutes(limit)}")
            elif left <= min(NOTICE, limit / 5) and not notice.startswith(GIVES_WAY):
                self._notify(
                    lease_id,
                    notice,
                    f"{IDLE} and will be released at {clock_time(steady + ahead + left)}; any CUDA call keeps it.",
                )
            elif notice.startswith(IDLE):
                self._notify(lease_id, notice, "")

    def _notify(self, lease_id: str, before: str, notice: str) -> None:
        """Set a notice; most seconds it is what it was before."""
        if notice != before:
            self._store.leases.notify(lease_id, notice)

    def make_room_for_reservations(self, now: float) -> None:
        """Give reservations their room: announce the end of what was lent from one that preempts, and end it when its window opens."""
        if not self._store.policy.current().reservations:
            return
        leave, stay = self._queue.make_room(now, NOTICE)
        for eviction in leave:
            if eviction.when <= now:
                self._end(eviction.lease_id, f"course {eviction.course} has reserved its device from now on")
            else:
                self._store.leases.notify(
                    eviction.lease_id,
                    f"{BORROWED}: it ends at {clock_time(eviction.when)}, when course {eviction.course} has reserved its device.",
                )
        for lease_id in stay:
            self._store.leases.notify(lease_id, "", only_over=BORROWED)


def clock_time(when: float) -> str:
    """Return a time of the day as people read it, for example ``14:05``."""
    return time.strftime("%H:%M", time.localtime(when))


def _minutes(seconds: float) -> str:
    return f"{max(seconds, 0):.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
