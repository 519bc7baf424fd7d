"""The two times of a pool: the machine's wall clock, and a steady one that only goes forward, however the machine's clock is set.

* `Clock.now` is wall time.  Reservations, reports, quotas' periods and the audit table go by it, and follow every step of it.  Pools that share
  a database go by the database server's, so that they agree.
* `Clock.steady` is for lengths of time: leases' expiry and longest time, heartbeats, fences, places in the queue.  It is written down in
  the table ``clock`` every second, and each pool on the database moves up to the furthest one: so pools with clocks apart agree to a second.
  It does not count a machine's sleep, which is like a pool that was away.

Both are in seconds since the epoch when a database is new, and drift apart with every step of the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import sqlalchemy as sa

from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from gpukernel.pool.store.schema import clock, servers, slices

__all__ = ["Clock", "boot_identity"]

LONGEST_OUTAGE = 86_400.0
"""The most that the steady time moves on for a time without a pool, which only the wall clock tells."""

OTHERS_SECONDS = 15.0
"""The time, in seconds, after which no other pool runs on the database, where nobody has moved the steady time."""

_READ = CompiledSql(sa.select(clock).with_for_update())
_MOVE = CompiledSql(
    clock.update()
    .values(
        steady=sa.case((clock.c.steady > sa.bindparam("ours"), clock.c.steady), else_=sa.bindparam("ours")),
        wall=sa.bindparam("now"),
        boot=sa.bindparam("machine"),
        since_boot=sa.bindparam("raw"),
    )
    .returning(clock.c.steady)
)


def boot_identity() -> str:
    """Return the identity of this start of the machine, within which its monotonic clock can be compared; empty where it is not told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Transactions(Protocol):
    """The part of a database that a clock uses: transactions, and whether other pools share it."""

    shared: bool

    def transaction(self, *, awaited: bool = True) -> AbstractContextManager[sa.Connection]:
        """Open a transaction, or join the one that is under way."""
        ...


class Clock:
    """The times of one pool process on `database`; `start` reads where the steady time stands, `follow` is called every second.

    Parameters
    ----------
    wall, monotonic
        The machine's clocks.
    boot
        As `boot_identity` gives it; empty: monotonic times of different processes cannot be compared.
    asks
        Whether the wall time is that of the database's server, where it has one.
    """

    def __init__(
        self,
        database: Transactions,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        boot: str = "",
        *,
        asks: bool = True,
    ) -> None:
        self._database = database
        self._wall = wall
        self._monotonic = monotonic
        self._boot = boot
        self._asks = asks
        self._steady_ahead = 0.0  # of the monotonic clock
        self._wall_ahead: float | None = None  # the database server's time, of the monotonic clock

    def now(self) -> float:
        """Return the wall time."""
        return self._wall() if self._wall_ahead is None else self._monotonic() + self._wall_ahead

    def steady(self) -> float:
        """Return the steady time."""
        return self._monotonic() + self._steady_ahead

    def ahead(self) -> float:
        """Return how far the wall time is ahead of the steady one; add it to a steady time to show it to people."""
        return self.now() - self.steady()

    def start(self) -> bool:
        """Go on from where the last pool was; return whether no other one runs on the database now.

        Fences are moved by the time without a pool: only a clock that ran all the time may open one.
        """
        with self._database.transaction() as db:
            row = _READ.first(db)
            self._ask_database(db)
            raw, now = self._monotonic(), self.now()
            if not row.wall:  # a new database, or one from before there was a steady time
                passed, alone, steady = 0.0, True, now
            else:
                same = bool(self._boot) and row.boot == self._boot and raw >= row.since_boot
                passed = raw - row.since_boot if same else min(max(now - row.wall, 0.0), LONGEST_OUTAGE)
                alone = not self._database.shared or passed > OTHERS_SECONDS
                passed = passed if alone else 0.0
                steady = row.steady + passed
            self._steady_ahead = steady - raw
            if passed:
                db.execute(servers.update().values(fenced_until=servers.c.fenced_until + passed))
                fenced = slices.c.fenced_until.is_not(None)
                db.execute(slices.update().where(fenced).values(fenced_until=slices.c.fenced_until + passed))
            self._move(db)
        return alone

    def follow(self) -> None:
        """Write the steady time down, and move up to the other pools'; look at the wall clock of the database."""
        with self._database.transaction(awaited=False) as db:
            self._ask_database(db)
            self._move(db)

    def _move(self, db: sa.Connection) -> None:
        raw = self._monotonic()
        ours = raw + self._steady_ahead
        row = _MOVE.first(db, ours=ours, now=self.now(), machine=self._boot, raw=raw)
        self._steady_ahead += max(row.steady - ours, 0.0)

    def _ask_database(self, db: sa.Connection) -> None:
        if self._asks and self._database.shared:
            told = db.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one()
            self._wall_ahead = float(told) - self._monotonic()
