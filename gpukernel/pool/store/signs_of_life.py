"""Signs of life: those of agents in the memory of the pool that they speak with, those of pools in one row each.

A server that is not away is alive by its pool's word: the pool marks it away where it hears nothing for
`gpukernel.pool.domain.fencing.SILENT_SECONDS`, and others do where the pool itself is not seen.  So a heartbeat writes nothing, as
long as the fence that its answer needs is written down: fences are written ahead (`gpukernel.pool.domain.fencing.ahead_seconds`).

Guarantees
----------
* A heartbeat is answered from memory only where the row of the server keeps a fence that is long enough for the answer, and only while this process
  has followed the other pools within `FOLLOWED_SECONDS`; a pool that was paused asks the database first.
* A server whose agent is silent is free for another agent when it was before there was a memory of it: after `SILENT_SECONDS`.  Where its
  pool dies in between, that is the same time after the pool was seen last.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from gpukernel.pool.store.schema import pools, servers

__all__ = [
    "FOLLOWED_SECONDS",
    "OUTAGE_SECONDS",
    "HeardAgents",
    "HeardOf",
    "last_seen",
    "mark_pool_seen",
    "pool_addresses",
    "see_again",
]

FOLLOWED_SECONDS = 3.0

FORGET_SECONDS = 3600.0
"""Seconds after which the row of a pool that is no more is removed; everything that names it was settled long before."""

OUTAGE_SECONDS = 5.0
"""Seconds without a sign of life of any pool after which the database was away, and not one of them."""

_AGAIN = CompiledSql(
    pools.update().where(pools.c.seen >= sa.bindparam("since")).values(seen=sa.bindparam("now"))
)
_SEEN = CompiledSql(pools.update().where(pools.c.id == sa.bindparam("us")).values(seen=sa.bindparam("now")))
_NEW = CompiledSql(pools.insert())
_OLD = CompiledSql(pools.delete().where(pools.c.seen < sa.bindparam("before")))
_ALL = CompiledSql(sa.select(pools))
_SPEAKERS = CompiledSql(
    sa.select(servers.c.name, servers.c.instance, servers.c.epoch).where(
        servers.c.pool == sa.bindparam("us"), servers.c.away_since.is_(None)
    )
)


def mark_pool_seen(db: sa.Connection, pool: str, steady: float, address: str = "") -> None:
    """Record that a pool process is alive, and where it is reached."""
    if not _SEEN.run(db, us=pool, now=steady):
        _OLD.run(db, before=steady - FORGET_SECONDS)
        _NEW.run(db, id=pool, seen=steady, address=address)


def pool_addresses(db: sa.Connection, since: float) -> list[str]:
    """Return where the pools are reached that were alive at some time since then, in the order of their addresses."""
    return sorted({row.address for row in _ALL.rows(db) if row.address and row.seen >= since})


def see_again(db: sa.Connection, pool: str, steady: float) -> bool:
    """Give the pools that lived until the database went away their time again; return False where another one was seen since."""
    others = [row.seen for row in _ALL.rows(db) if row.id != pool]
    newest = max(others, default=float("-inf"))
    if steady - newest < OUTAGE_SECONDS:
        return False
    _AGAIN.run(db, since=newest - OUTAGE_SECONDS, now=steady)
    return True


def last_seen(db: sa.Connection) -> dict[str, float]:
    """Return when each pool process was seen last."""
    return {row.id: row.seen for row in _ALL.rows(db)}


@dataclass
class HeardOf:
    """An agent that speaks with this process: when it was heard of, and the fence that its server's row keeps."""

    instance: str
    epoch: int
    heard: float
    fenced_until: float
    quiet: bool = False


class HeardAgents:
    """The agents that one pool process hears, by the names of their servers."""

    def __init__(self) -> None:
        self._known: dict[str, HeardOf] = {}
        self._followed = float("-inf")

    def followed(self, steady: float) -> None:
        """Record that this process knows what others have decided up to now."""
        self._followed = steady

    def answer(self, server: str, instance: str, epoch: int, steady: float, needed: float) -> bool:
        """Take a heartbeat in whose answer needs a fence; return False where only the database knows whether it counts."""
        known = self._known.get(server)
        if known is None or not self.is_known(server, instance, epoch):
            return False
        if known.quiet or known.fenced_until < needed or not 0 <= steady - self._followed <= FOLLOWED_SECONDS:
            return False
        known.heard = steady
        return True

    def is_known(self, server: str, instance: str, epoch: int) -> bool:
        """Return whether this is the agent that is heard here for a server."""
        known = self._known.get(server)
        return known is not None and (known.instance, known.epoch) == (instance, epoch)

    def remember(self, server: str, agent: HeardOf) -> None:
        """Answer the heartbeats of an agent from memory from now on."""
        self._known[server] = agent

    def doubt(self, server: str) -> None:
        """Ask the database at the next heartbeat of a server's agent."""
        if (known := self._known.get(server)) is not None:
            known.fenced_until = float("-inf")

    def doubt_all(self) -> None:
        """Ask the database at the next heartbeat of each agent."""
        for server in self._known:
            self.doubt(server)

    def check(self, db: sa.Connection, pool: str) -> None:
        """Doubt every agent that does not speak with `pool`, this process, by the books."""
        rows = _SPEAKERS.rows(db, us=pool)
        true = {row.name for row in rows if self.is_known(row.name, row.instance, row.epoch)}
        for server in self._known.keys() - true:
            self.doubt(server)

    def forget(self, server: str) -> None:
        """Expect nothing of a server any more, since it is away or its agent speaks with another process."""
        self._known.pop(server, None)

    def heard(self, server: str) -> float | None:
        """Return when a server's agent was heard of here; None where it does not speak with this process."""
        known = self._known.get(server)
        return None if known is None else known.heard

    def since(self, steady: float) -> dict[str, HeardOf]:
        """Return the servers of which nothing was heard here since a time."""
        return {server: known for server, known in self._known.items() if known.heard < steady}
