"""The decisions of other pools on the database, followed by reading their change log: grants for calls that wait here, orders for agents here.

Guarantees
----------
* The work grows with what was changed since the last time, not with what is attached or held here; so it does in a pool that is alone on its database.
* Everything is read when nothing is known, when the log does not tell what comes next, and every `EVERYTHING_SECONDS`.
* What was applied twice, or is older than what was read, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from gpukernel.pool.store.changes import LogEntry

if TYPE_CHECKING:
    from gpukernel.common.model import Lease, Slice
    from gpukernel.pool.leases.agent_orders import AgentOrders
    from gpukernel.pool.leases.keepalive import Keepalive
    from gpukernel.pool.leases.resizes import Resizes
    from gpukernel.pool.leases.waiters import Waiters
    from gpukernel.pool.store.changes import LeaseChange
    from gpukernel.pool.store.store import Store

__all__ = ["EVERYTHING_SECONDS", "Following"]

EVERYTHING_SECONDS = 30.0
"""Seconds after which everything is read although the log was whole: the longest that a fault of it can last."""


class Following:
    """The other pools as one pool process, `pool`, follows them; on a database of its own there is nothing to follow.

    Parameters
    ----------
    serve
        Gives a lease to the call that waits for a key here.
    """

    def __init__(
        self,
        store: Store,
        pool: str,
        orders: AgentOrders,
        waiters: Waiters,
        resizes: Resizes,
        keepalive: Keepalive,
        serve: Callable[[str, str], None],
    ) -> None:
        self._store, self._pool = store, pool
        self._orders, self._waiters, self._resizes = orders, waiters, resizes
        self._keepalive, self._serve = keepalive, serve
        self._read_everything = float("-inf")
        self._renewals = 0

    def look(self, steady: float) -> None:
        """Apply what is new."""
        if not self._store.shared:
            changed = self._store.changes.own_news()
            if not 0 <= steady - self._read_everything < EVERYTHING_SECONDS:
                changed, self._read_everything = None, steady
            self._keepalive.check(changed)
            self._store.servers.agents.followed(steady)
            return
        if self._renewals != self._store.renewals:
            self._renewals = self._store.renewals
            self._begin_anew()
        news = None
        if 0 <= steady - self._read_everything < EVERYTHING_SECONDS:
            news = self._store.changes.news()
        if news is None or any(entry.everything and entry.pool != self._pool for entry in news):
            self._store.changes.catch_up()
            self._store.commits.made()  # those of others are not on disk because they can be read
            self._read_all()
            self._store.counters.add("everything_read")
            self._read_everything = steady
        elif news:
            if any(entry.pool != self._pool for entry in news):
                self._store.commits.made()
            self._apply(news)
            self._store.counters.add("changes_read", len(news))
        self._store.servers.agents.followed(steady)
        self._store.changes.trim()

    def awaited_elsewhere(self, leases: Iterable[LeaseChange]) -> set[str]:
        """Return what other pools may wait for of changes that were made here: keys of grants, leases that listen now, servers that have to start some."""
        found = set[str]()
        for change in leases:
            if change.kind == "granted":
                found.update(set(change.servers).difference(self._orders.servers()))
                if not self._waiters.is_awaited(change.key):
                    found.add(change.key)
            elif change.kind == "live" and not self._waiters.is_awaited(change.lease_id):
                found.add(change.lease_id)
        return found

    def awaits(self, names: Iterable[str]) -> bool:
        """Return whether a call or a server here waits for one of these changes of another pool."""
        servers = self._orders.servers()
        return any(name in servers or self._waiters.is_awaited(name) for name in names)

    def _begin_anew(self) -> None:
        """Have everybody ask and report again, since what they were told or have said may not be in the database any more."""
        self._read_everything = float("-inf")
        self._orders.attach_again()
        self._waiters.ask_again()

    def _read_all(self) -> None:
        servers = self._orders.servers()
        with self._store.transaction() as db:
            self._store.servers.agents.check(db, self._pool)
        self._serve_calls(self._waiters.keys())
        self._waiters.leases_changed()
        self._order(self._store.leases.unsettled_on(servers))
        self._orders.send_caps()
        self._resizes.all_changed()
        self._keepalive.check()

    def _apply(self, news: Iterable[LogEntry]) -> None:
        here = set(self._orders.servers())
        keys, ordered, capped, theirs = set[str](), dict[str, None](), dict[str, None](), dict[str, None]()
        for entry in news:
            own = entry.pool == self._pool
            for change in entry.leases:
                theirs[change.lease_id] = None
                if own:
                    continue  # all but its holders knew at once
                if change.key:
                    keys.add(change.key)
                if not here.isdisjoint(change.servers):
                    (capped if change.kind == "resized" else ordered)[change.lease_id] = None
                self._waiters.lease_changed(change.lease_id)
                self._resizes.changed(change.lease_id)
            for server in () if own else entry.servers:
                self._store.servers.agents.doubt(server)
        if called := keys.intersection(self._waiters.keys()):
            self._serve_calls(called)
        if ordered:
            self._order(self._store.leases.pieces_on(ordered, here))
        if capped:
            self._orders.send_caps(capped)
        self._keepalive.check(theirs)

    def _serve_calls(self, keys: Iterable[str]) -> None:
        living: Mapping[str, tuple[str, str, str]] = self._store.leases.living(keys)
        for key, (lease_id, state, _) in living.items():
            if state in ("starting", "live"):
                self._serve(key, lease_id)

    def _order(self, pieces: Iterable[tuple[Lease, Slice]]) -> None:
        # Who waits for a worker goes before who has done with one.
        for lease, piece in sorted(pieces, key=lambda one: one[0].state != "starting"):
            if lease.state == "starting" and not piece.endpoints:
                self._orders.start(lease, [piece])
            elif lease.state == "ending" and not self._orders.is_stopped(lease, piece):
                self._orders.stop(lease, lease.end_reason)
