"""Keepalive: leases that are renewed as long as their holder's ``Hold`` stream is open.

An open stream needs nothing of the holder's program, which may be busy or starved; gRPC's own threads answer its pings.  So a machine
on which a class starts its kernels all at once loses no slice, and a holder that is killed is noticed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpukernel.common.model import Lease
    from gpukernel.pool.store.leases import HolderView
    from gpukernel.pool.store.store import Store

__all__ = ["Keepalive", "Listener"]

Listener = Callable[[str], None]
"""Called with the id of a lease that is different from what it was."""

RENEWALS = 4
"""The number of renewals of a lease within its time to live."""


class Keepalive:
    """The leases that open streams hold in one pool process; used in its event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._calls: dict[str, list[Listener]] = {}
        self._ttls: dict[str, float] = {}
        self._seen: dict[str, HolderView] = {}
        self._renewed = 0.0

    def hold(self, lease: Lease, listener: Listener, now: float) -> None:
        """Renew `lease` until this listener lets it go; it lives its time to live after that."""
        self._store.leases.renew([lease.id], now)
        self._seen.update(self._store.leases.views([lease.id]))
        self._ttls[lease.id] = lease.ttl_seconds
        self._calls.setdefault(lease.id, []).append(listener)

    def let_go(self, lease_id: str, listener: Listener) -> None:
        """Stop renewing a lease for this listener; other streams may hold it still."""
        calls = self._calls.get(lease_id, [])
        if listener in calls:
            calls.remove(listener)
        if not calls:
            for known in (self._calls, self._ttls, self._seen):
                known.pop(lease_id, None)

    def changed(self, lease_id: str) -> None:
        """Tell those who hold this lease that it is different; they read it themselves."""
        for listener in tuple(self._calls.get(lease_id, ())):
            listener(lease_id)

    def renew(self, now: float) -> None:
        """Renew all that are held, where it is time."""
        if self._ttls and not 0 <= now - self._renewed < min(self._ttls.values()) / RENEWALS:
            self._renewed = now
            self._store.leases.renew(self._calls, now)

    def check(self, lease_ids: Collection[str] | None = None) -> None:
        """Tell holders what has changed in the database of these leases or of all, also through other pools."""
        ids = self._calls.keys() if lease_ids is None else self._calls.keys() & lease_ids
        for lease_id, view in self._store.leases.views(ids).items() if ids else ():
            before, self._seen[lease_id] = self._seen.get(lease_id), view
            if view != before:
                self.changed(lease_id)
