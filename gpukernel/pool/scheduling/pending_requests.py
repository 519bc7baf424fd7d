"""Pending requests: rows of the table ``requests``, and their copy in the memory of one pool process.

A request that cannot be granted at once has a row with a ticket, so that a pool that is started again, or another pool on the same
database, knows it.  It lives as long as the process that holds its call is alive (`gpukernel.pool.store.signs_of_life`).  Without that it
keeps its place for `KEEP_PLACE` seconds, but is granted nothing, since nobody would take it.

The table is read again only when its version in the ledger has grown.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Set
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from gpukernel.common.model import Holder, SliceRequest
from gpukernel.common.policy import Policy
from gpukernel.pool.scheduling import giving_way
from gpukernel.pool.scheduling.own_quotas import OwnQuotas
from gpukernel.pool.scheduling.pending_request import PendingRequest
from gpukernel.pool.scheduling.queue_index import QueueIndex
from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from gpukernel.pool.store.schema import ledger, requests
from gpukernel.pool.store.signs_of_life import last_seen
from gpukernel.pool.store.store import Store

__all__ = ["ABSENT", "KEEP_PLACE", "PendingRequests"]

KEEP_PLACE = 60.0
"""Seconds for which a request that nobody waits for keeps its place."""

ABSENT = 5.0
"""Seconds after which a request whose pool is not seen any more, or whose call nobody holds, is passed over."""

_ALL = CompiledSql(sa.select(requests).order_by(requests.c.ticket))
_ADD = CompiledSql(requests.insert())
_REPLACE = CompiledSql(
    requests.update()
    .where(requests.c.key == sa.bindparam("this"))
    .values({c.name: sa.bindparam(f"new_{c.name}") for c in requests.c})
)
_REMOVE = CompiledSql(requests.delete().where(requests.c.key == sa.bindparam("this")))
_LEFT = CompiledSql(
    requests.update().where(requests.c.key == sa.bindparam("this")).values(pool="", seen=sa.bindparam("now"))
)
_CHANGED = CompiledSql(ledger.update().values(queue_version=ledger.c.queue_version + 1))
_TICKET = CompiledSql(ledger.update().values(ticket=sa.bindparam("new")))


class PendingRequests:
    """All pending requests, as one pool process keeps them.

    Every method with a connection is called in a `gpukernel.pool.store.database.Database.deciding` transaction.

    Parameters
    ----------
    pool
        The id of this process.

    Attributes
    ----------
    by_key
        The requests by their keys.
    index
        The same, and a newcomer during its decision.
    own
        Which of them quotas of their own hold back.
    doubtful
        Keys that may have a lease that has not ended.
    """

    def __init__(self, store: Store, pool: str) -> None:
        self._store = store
        self._pool = pool
        self._version = -1
        self._policy: Policy | None = None  # whose roles they have
        self._policy_before: Policy | None = None
        self.by_key: dict[str, PendingRequest] = {}
        self.index = QueueIndex()
        self.own = OwnQuotas(self.index)
        self.doubtful: set[str] = set()
        self._seen: dict[str, float] = {}
        self._before: tuple[int, dict[str, PendingRequest | None]] = -1, {}
        store.on_renewed.append(self.forget)

    def __len__(self) -> int:
        return len(self.by_key)

    def forget(self) -> None:
        """Read everything anew at the next refresh, as a new process does."""
        self._version = -1
        self.own.forget()

    def known(self) -> bool:
        """Return whether anybody may wait."""
        if self.by_key or self._version < 0:
            return True
        if not self._store.shared:
            return False
        return bool(self._store.versions(self._store.changes.reading()).queue_version != self._version)

    def mark(self) -> None:
        """Remember how things are, for `restore`."""
        self._before = self._version, {}
        self._policy_before = self._policy
        self.own.mark()

    def restore(self) -> None:
        """Go back to the last `mark`, as the database has gone back; what `forget` said holds."""
        version, before = self._before
        self._change(dict(before))
        self.own.restore()
        self._version = version if self._version >= 0 else -1
        self._policy = self._policy_before

    def refresh(self, db: sa.Connection, version: int) -> None:
        """Read the table where its version has grown, and which pools are alive where anybody waits."""
        if version != self._version:
            found: dict[str, PendingRequest | None] = {row.key: _request(row) for row in _ALL.rows(db)}
            gone = dict.fromkeys(self.by_key.keys() - found.keys())
            self._change(gone | {key: one for key, one in found.items() if self.by_key.get(key) != one})
            self.doubtful |= set(found)
            self._version = version
            self._policy = None
        self._seen = last_seen(db) if self.by_key else {}

    def have_roles(self, db: sa.Connection, policy: Policy) -> None:
        """Give those who wait the roles that they have in their courses by a policy that is new; who is in a course no more keeps the last one.

        A role that is not the member's any more has other bounds than the database holds the member to, which would refuse the whole decision.
        """
        if policy is self._policy:
            return
        for request in list(self.by_key.values()):
            role = policy.role_in(request.course, request.holder.person) if request.course else ""
            if role and role != request.role:
                self.put(db, replace(request, role=role))
        self._policy = policy

    def _change(self, now: dict[str, PendingRequest | None]) -> None:
        """Let these requests be so in memory; None: gone."""
        why = {}
        for key in now:
            self._before[1].setdefault(key, self.by_key.get(key))
            why[key] = self.index.remove(key)  # first all: they may have changed places with one another
        for key, request in now.items():
            if request is None:
                self.by_key.pop(key, None)
            else:
                self.by_key[key] = request
                self.index.put(request, why[key])

    def consider(self, newcomer: PendingRequest) -> None:
        """Take a request into the index that is not written down yet; `put`, `drop` or `restore` follow."""
        self._before[1].setdefault(newcomer.key, self.by_key.get(newcomer.key))
        self.index.put(newcomer)

    def seen(self, request: PendingRequest) -> float:
        """Return when the call of a request was known to be open, in steady time."""
        return max(request.seen, self._seen.get(request.pool, request.seen))

    def absent(self, here: Set[str], steady: float) -> set[str]:
        """Return the keys for which no process that is alive holds a call; for those of `here` this one does."""
        long_ago = steady - ABSENT
        return {
            key
            for pool, keys in self.index.by_pool.items()
            if self._seen.get(pool, long_ago - 1) < long_ago
            for key in keys - here
            if self.seen(self.index.requests[key]) < long_ago
        }

    def put(self, db: sa.Connection, request: PendingRequest) -> None:
        """Add a request, or replace the one with its key."""
        values = _values(request)
        if request.key in self.by_key:
            _REPLACE.run(db, this=request.key, **{f"new_{name}": value for name, value in values.items()})
        else:
            _ADD.run(db, **values)
            _TICKET.run(db, new=request.ticket)
        self._change({request.key: request})
        self._changed(db)

    def drop(self, db: sa.Connection, keys: Collection[str]) -> None:
        """Remove the requests of these keys; who gives way to them stays."""
        gone = [request for key in keys if (request := self.by_key.get(key)) is not None]
        self._change(dict.fromkeys(keys))
        if gone:
            giving_way.withdraw_for(db, self._store, [one.key for one in gone if one.claims])
            _REMOVE.each(db, [{"this": one.key} for one in gone])
            self._changed(db)

    def neglected(self, keys: Collection[str], steady: float) -> tuple[list[PendingRequest], list[str]]:
        """Return the requests of this process that are not among `keys`, whose calls it holds; and the keys of all that nobody has held a
        call for in `KEEP_PLACE` seconds."""
        left = [r for r in self.by_key.values() if r.pool == self._pool and r.key not in keys]
        lost = [r.key for r in self.by_key.values() if self.seen(r) < steady - KEEP_PLACE]
        return left, lost

    def keep_alive(self, db: sa.Connection, keys: Collection[str], steady: float) -> None:
        """Write down which requests this process does not hold the calls of any more, and remove those that nobody has held for long."""
        left, lost = self.neglected(keys, steady)
        _LEFT.each(db, [{"this": request.key, "now": steady} for request in left])
        self._change({request.key: replace(request, pool="", seen=steady) for request in left})
        self.drop(db, lost)
        if left:
            self._changed(db)

    def _changed(self, db: sa.Connection) -> None:
        _CHANGED.run(db)
        self._version += 1


def _values(pending: PendingRequest) -> dict[str, Any]:
    request, holder = pending.wanted, pending.holder
    return {
        "key": pending.key,
        "ticket": pending.ticket,
        "person": holder.person,
        "server": holder.server,
        "course": holder.course,
        "role": pending.role,
        "description": holder.description,
        "share": request.share,
        "memory_bytes": request.memory_bytes,
        "devices": request.devices,
        "model": request.model,
        "mode": request.mode,
        "machine": request.machine,
        "on_server": request.server,
        "on_device": request.device,
        "uid": request.user,
        "priority": request.priority,
        "ttl_seconds": pending.ttl,
        "longest_seconds": pending.longest,
        "size": pending.size,
        "since": pending.since,
        "pool": pending.pool,
        "seen": pending.seen,
        "claims": json.dumps(pending.claims) if pending.claims else "",
        "claims_from": pending.claims_from,
    }


def _request(row: Any) -> PendingRequest:
    return PendingRequest(
        row.key,
        SliceRequest(
            row.share,
            row.memory_bytes,
            row.devices,
            row.model,
            row.mode,
            row.machine,
            row.uid,
            row.on_server,
            row.on_device,
            row.priority,
        ),
        Holder(row.person, row.server, row.course, row.description),
        row.role,
        row.ttl_seconds,
        row.longest_seconds,
        row.since,
        row.pool,
        row.seen,
        row.size,
        row.ticket,
        tuple(json.loads(row.claims)) if row.claims else (),
        row.claims_from,
    )
