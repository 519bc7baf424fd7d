"""Leases whose holders keep a call open: that it is open is their sign of life.

A call that is open needs nothing of the holder's program, which may be busy or starved; gRPC's own threads answer its pings.  So a machine
on which a class starts its kernels all at once loses no slice, and a holder that is killed is noticed at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpukernel.pool.model import Lease
    from gpukernel.pool.store import Look, Store

__all__ = ["Held", "Listener"]

Listener = Callable[[str], None]
"""Called with the id of a lease that is different from what it was."""

RENEWALS = 4
"""So often a lease is renewed within its time to live."""


class Held:
    """Of one pool process; in its event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._calls: dict[str, list[Listener]] = {}
        self._ttls: dict[str, float] = {}
        self._seen: dict[str, Look] = {}
        self._renewed = 0.0

    def hold(self, lease: Lease, listener: Listener, now: float) -> None:
        """`lease` lives until this listener lets it go, and its time to live after that."""
        self._store.renew([lease.id], now)
        self._seen.update(self._store.looks([lease.id]))
        self._ttls[lease.id] = lease.ttl_seconds
        self._calls.setdefault(lease.id, []).append(listener)

    def let_go(self, lease_id: str, listener: Listener) -> None:
        """The same lease may be held by other calls still."""
        calls = self._calls.get(lease_id, [])
        if listener in calls:
            calls.remove(listener)
        if not calls:
            for known in (self._calls, self._ttls, self._seen):
                known.pop(lease_id, None)

    def changed(self, lease_id: str) -> None:
        """Tell those who hold this lease; they look for themselves what is different."""
        for listener in self._calls.get(lease_id, ()):
            listener(lease_id)

    def renew(self, now: float) -> None:
        """Signs of life of all that are held, where it is time."""
        if self._ttls and not 0 <= now - self._renewed < min(self._ttls.values()) / RENEWALS:
            self._renewed = now
            self._store.renew(self._calls, now)

    def look(self) -> None:
        """Tell of what has changed in the database, also through other pools."""
        if self._calls:
            before, self._seen = self._seen, self._store.looks(self._calls)
            for lease_id, look in self._seen.items():
                if look != before.get(lease_id):
                    self.changed(lease_id)
