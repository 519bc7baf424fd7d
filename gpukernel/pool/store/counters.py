"""Counters of one pool process: what only it knows of its own work, for Prometheus; they begin at 0 when it starts."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Literal

__all__ = ["Counter", "Counters"]

Counter = Literal[
    "decisions",
    "decision_seconds",
    "commit_waits",
    "commit_wait_seconds",
    "changes_read",
    "everything_read",
    "database_outages",
    "database_errors",
]
"""Scheduling cycles; answers that waited for PostgreSQL's disk; entries of the change log, and reads of everything in place of them;
outages of the database that ended; seconds in which the clock's work failed since it did not answer."""


class Counters:
    """Sums that any thread may add to."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, name: Counter, amount: float = 1.0) -> None:
        """Add to a counter."""
        with self._lock:
            self._sums[name] = self._sums.get(name, 0.0) + amount

    def value(self, name: Counter) -> float:
        """Return a counter's sum."""
        with self._lock:
            return self._sums.get(name, 0.0)

    @contextlib.contextmanager
    def timing(self, number: Counter, seconds: Counter) -> Iterator[None]:
        """Count what is done in a context, and its seconds, whether or not it succeeds."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(number)
            self.add(seconds, time.perf_counter() - begin)
