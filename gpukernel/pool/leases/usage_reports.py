"""Reports of agents about their workers, compared with what was written down last: only news reach the database.

Guarantees
----------
* A report that says nothing new changes no row, whether the agent repeats everything or leaves it out.
* Idleness is kept as the time since which a worker has been idle, so that it grows without being written.
* A lease with a connected program is renewed with each report of its server, which changes its row only when half its time is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from gpukernel.common.model import Usage
from gpukernel.pool.store.store import Store

__all__ = ["UsageReports"]

IDLE_TOLERANCE = 2.0
"""Seconds by which the beginning of an idle time may seem to move from one report to the next, since reports take their way."""

Worker = tuple[str, str]
"""Lease and device."""


class _Known(NamedTuple):
    figures: Usage  # without idleness
    idle_since: float | None


class UsageReports:
    """The reports of the agents that speak to one pool process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, dict[Worker, _Known]] = {}

    def forget(self, server: str) -> None:
        """Compare the next report of a server with nothing: its agent attaches anew."""
        self._known.pop(server, None)

    def keep(self, server: str, living: set[Worker]) -> None:
        """Forget the workers of a server that do not live any more."""
        known = self._known.get(server, {})
        for worker in known.keys() - living:
            del known[worker]

    def record(self, server: str, usage: Mapping[Worker, Usage], steady: float) -> None:
        """Write down what is new in a report, and renew the leases of connected programs."""
        known = self._known.setdefault(server, {})
        told = {worker: _known(figures, steady) for worker, figures in usage.items()}
        news = {worker: one for worker, one in told.items() if _differs(known.get(worker), one)}
        self._store.leases.record_usage(
            {worker: (usage[worker], one.idle_since) for worker, one in news.items()}
        )
        known |= news
        connected = {lease_id for (lease_id, _), one in known.items() if one.figures.connections}
        if connected:
            self._store.leases.renew_due(connected, steady)


def _known(figures: Usage, steady: float) -> _Known:
    since = steady - figures.idle_seconds if figures.idle_seconds else None
    return _Known(replace(figures, idle_seconds=0.0), since)


def _differs(before: _Known | None, now: _Known) -> bool:
    if before is None or before.figures != now.figures:
        return True
    if before.idle_since is None or now.idle_since is None:
        return before.idle_since is not now.idle_since
    return abs(before.idle_since - now.idle_since) > IDLE_TOLERANCE
