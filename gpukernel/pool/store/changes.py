"""The change log: what each transaction changed of leases and servers, so that the other pools on the database read what is new and nothing else.

What all pools read by a version in the ledger (requests, devices, the policy) is not in it.

Guarantees
----------
* An entry is written in the transaction of its changes, which holds the ledger's lock from its first statement.  So numbers have no gaps and
  are in the order of commits: who sees an entry sees all before it.
* Numbers never begin anew.  A reader whose next entry is missing, since it was trimmed, is told to read everything.
* At most `KEEP` entries are kept, and what comes between two trims.
* A process that alone uses its database writes none; it keeps its newest entries in memory, for itself.

PostgreSQL's default isolation, READ COMMITTED, is enough.  A number is taken after the lock, in a statement that sees all that earlier holders of the
lock committed; one SELECT of the reader sees one state of the log; and an entry only names what changed.  What that has become is read
afterwards, so it is as new as the entry or newer, and a reader may apply an entry twice.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol

import sqlalchemy as sa

from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from gpukernel.pool.store.schema import IN_USE, changes, devices, slices

__all__ = ["CHANNEL", "KEEP", "MOST_AT_ONCE", "ChangeLog", "Kind", "LeaseChange", "LogEntry"]

KEEP = 10_000
"""Entries that are kept."""

TRIM_EVERY = 1_000
"""New entries after which old ones are removed."""

MOST_AT_ONCE = 1_000
"""More new entries than these cost more than to read everything."""

CHANNEL = "gpukernel"
"""The name of this log's news for PostgreSQL's LISTEN and NOTIFY."""

Kind = Literal["granted", "live", "ends", "resized", "told"]
"""The change of a lease: it is new; its workers listen; they have to stop; their caps or sizes differ; its holder has something to read."""

_ADD = CompiledSql(
    sa.text(
        "INSERT INTO changes (number, pool, what) SELECT coalesce(max(number), 0) + 1, :us, :what FROM changes"
    )
)
_AFTER = CompiledSql(
    sa.select(changes.c.number, changes.c.pool, changes.c.what)
    .where(changes.c.number > sa.bindparam("seen"))
    .order_by(changes.c.number)
    .limit(MOST_AT_ONCE + 1)
)
_NEWEST = CompiledSql(sa.select(sa.func.coalesce(sa.func.max(changes.c.number), 0).label("number")))
_NOTIFY = CompiledSql(sa.text("SELECT pg_notify(:channel, :told)"))
_TRIM = CompiledSql(changes.delete().where(changes.c.number <= sa.bindparam("last")))
_SERVERS = CompiledSql(
    sa.select(slices.c.lease_id, devices.c.server)
    .join(devices, devices.c.id == slices.c.device_id)
    .where(slices.c.lease_id.in_(sa.bindparam("leases", expanding=True)), IN_USE)
)


class LeaseChange(NamedTuple):
    """A change of one lease; `key` is told of new ones, `servers` where their agents have something to do."""

    kind: Kind
    lease_id: str
    key: str = ""
    servers: tuple[str, ...] = ()


class LogEntry(NamedTuple):
    """The changes of one transaction of a process, `pool`; `everything`: more than can be named."""

    pool: str
    leases: tuple[LeaseChange, ...] = ()
    servers: tuple[str, ...] = ()
    everything: bool = False


class LockedTransactions(Protocol):
    """The part of a database that a change log uses."""

    engine: sa.Engine
    shared: bool
    decides: bool

    def deciding(self) -> AbstractContextManager[tuple[sa.Connection, Any]]:
        """Open a transaction that holds the ledger's lock."""
        ...


class ChangeLog:
    """The change log of `database`, as one pool process writes and reads it.

    Attributes
    ----------
    pool
        The id of this process.
    on_writing
        Called with the changes of leases of an entry that is written; returns what the commit itself notifies the others of, empty for nothing.
    on_written
        Called after each commit of an entry, with what it notified them of.
    """

    def __init__(self, database: LockedTransactions) -> None:
        self._database = database
        self.pool = ""
        self.on_writing: Callable[[Sequence[LeaseChange]], str] = lambda _: ""
        self.on_written: Callable[[str], None] = lambda _: None
        self._leases: list[LeaseChange] = []
        self._servers: dict[str, None] = {}
        self._everything = False
        self._is_written = False
        self._told = ""
        self._seen = 0
        self._trimmed = 0
        # Of a process that is alone: its entries' numbers, and the leases of each; None: everything.
        self._mine: deque[tuple[int, frozenset[str] | None]] = deque([(0, frozenset())], MOST_AT_ONCE)
        self._mine_seen = 0
        self._reader: sa.Connection | None = None
        self._through: object = None  # the driver's connection behind it

    # --- writing: in a transaction that decides ---

    def lease(self, kind: Kind, lease_id: str, key: str = "", servers: Iterable[str] = ()) -> None:
        """Note a change of a lease; the servers of one that ends or is resized are found when it is written."""
        self._check()
        self._leases.append(LeaseChange(kind, lease_id, key, tuple(servers)))

    def server(self, name: str) -> None:
        """Note that another pool speaks for a server now, or none."""
        self._check()
        self._servers[name] = None

    def everything(self) -> None:
        """Note changes that are not named one by one."""
        self._check()
        self._everything = True

    def mark(self) -> int:
        """Return how many changes of leases are noted, for `back_to`."""
        return len(self._leases)

    def back_to(self, mark: int) -> None:
        """Forget the changes of leases that were noted since `mark`, since they are undone."""
        del self._leases[mark:]

    def _check(self) -> None:
        if not self._database.decides:
            raise RuntimeError("A change is noted in a transaction that does not hold the ledger's lock.")

    def write(self, db: sa.Connection) -> None:
        """Write what was noted as one entry, at the end of its transaction."""
        if not self._database.shared or not (self._leases or self._servers or self._everything):
            return
        unknown = [c.lease_id for c in self._leases if c.kind in ("ends", "resized") and not c.servers]
        where: dict[str, list[str]] = {}
        for row in _SERVERS.rows(db, leases=unknown) if unknown else ():
            where.setdefault(row.lease_id, []).append(row.server)
        leases = [
            (c.kind, c.lease_id, c.key, sorted(set(c.servers or where.get(c.lease_id, ()))))
            for c in dict.fromkeys(self._leases)
        ]
        what = [leases, list(self._servers), self._everything]
        entry = json.dumps(what, ensure_ascii=False, separators=(",", ":"))
        _ADD.soon(db, {"us": self.pool, "what": entry})
        if told := self.on_writing(self._leases):
            _NOTIFY.soon(db, {"channel": CHANNEL, "told": told})
        self._is_written, self._told = True, told

    def committed(self) -> None:
        """Begin a new entry, since the transaction is over."""
        written, told = self._is_written, self._told
        if not self._database.shared and (self._leases or self._everything):
            self._mine.append((self._mine[-1][0] + 1, None if self._everything else self._noted()))
        self.rolled_back()
        if written:
            self.on_written(told)

    def rolled_back(self) -> None:
        """Forget what was noted."""
        if self._leases or self._servers or self._everything:
            self._leases, self._servers, self._everything = [], {}, False
        self._is_written, self._told = False, ""

    # --- reading, in a transaction that decides ---

    def newest(self, db: sa.Connection) -> int:
        """Return the number of the newest entry."""
        return int(_NEWEST.rows(db)[0].number) if self._database.shared else self._mine[-1][0]

    def leases_after(self, db: sa.Connection, number: int) -> tuple[int, frozenset[str] | None]:
        """Return the number of the newest entry, and the ids of all leases that changed after an earlier one; None where that may be any.

        What this transaction has changed so far is among them.
        """
        if not self._database.shared:
            newest, changed = self._mine[-1][0], self._mine_after(number)
        else:
            rows = _AFTER.rows(db, seen=number)
            newest = rows[-1].number if rows else number
            if len(rows) > MOST_AT_ONCE or (rows and rows[0].number != number + 1):
                return self.newest(db), None
            entries = [_entry(row.pool, row.what) for row in rows]
            changed = [None if e.everything else frozenset(c.lease_id for c in e.leases) for e in entries]
        if self._everything or None in changed:
            return newest, None
        return newest, self._noted().union(*(leases for leases in changed if leases))

    def _mine_after(self, number: int) -> list[frozenset[str] | None]:
        newest, oldest = self._mine[-1][0], self._mine[0][0]
        if oldest > number + 1:
            return [None]
        return [leases for _, leases in itertools.islice(reversed(self._mine), newest - number)]

    def _noted(self) -> frozenset[str]:
        return frozenset(change.lease_id for change in self._leases)

    # --- reading ---

    def own_news(self) -> frozenset[str] | None:
        """Return the ids of leases that changed since the last call, in a process that is alone; None where that may be any."""
        changed = self._mine_after(self._mine_seen)
        self._mine_seen = self._mine[-1][0]
        return None if None in changed else frozenset().union(*(leases for leases in changed if leases))

    def catch_up(self) -> None:
        """Take all entries there are for read, before everything is read."""
        db = self.reading()
        self._seen = _NEWEST.rows(db)[0].number
        self._through = db.connection.dbapi_connection

    def reading(self) -> sa.Connection:
        """Return the connection that is read through without transactions, for compiled SQL: each statement sees one state."""
        if self._reader is None:
            self._reader = self._database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        return self._reader

    def close(self) -> None:
        """Close the connection that the log is read through."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def news(self) -> list[LogEntry] | None:
        """Return the entries since the last call, those of this process too; None where everything has to be read, after `catch_up`.

        Through a new connection nobody knows what is there: a server that was restored, or took another one's place, may lack the last commits.
        """
        db = self.reading()
        try:
            rows = _AFTER.rows(db, seen=self._seen)
        except sa.exc.DBAPIError:
            self.close()
            raise
        if db.connection.dbapi_connection is not self._through:
            return None
        if not rows:
            return []
        if len(rows) > MOST_AT_ONCE or rows[0].number != self._seen + 1:
            return None
        self._seen = rows[-1].number
        return [_entry(row.pool, row.what) for row in rows]

    def trim(self) -> None:
        """Remove all but the newest `KEEP` entries, where many came since the last time."""
        if self._seen - self._trimmed >= TRIM_EVERY:
            self._trimmed = self._seen
            with self._database.deciding() as (db, _):
                _TRIM.run(db, last=_NEWEST.rows(db)[0].number - KEEP)


def _entry(pool: str, what: str) -> LogEntry:
    leases: Sequence[Any]
    leases, servers, everything = json.loads(what)
    return LogEntry(
        pool,
        tuple(LeaseChange(kind, lease_id, key, tuple(at)) for kind, lease_id, key, at in leases),
        tuple(servers),
        everything,
    )
