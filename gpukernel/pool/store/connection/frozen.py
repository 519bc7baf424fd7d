"""Transactions of pools that stand still, which PostgreSQL does not end by itself.

PostgreSQL ends a transaction that is idle for too long (`idle_in_transaction_session_timeout`).  One whose process stands still between
two messages of a pipeline is not idle to PostgreSQL: it is `active`, and waits for its client.  And PostgreSQL 15 was seen to leave one
alone that was `idle in transaction` for longer than the limit.  Locks, the ledger's among them, would stay until that process goes on.
So a pool that has waited for a lock in vain ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import sleep
from typing import Any

import sqlalchemy as sa

__all__ = ["FrozenPools"]

log = logging.getLogger("gpukernel.pool")

IDLE_SECONDS = 5.5
"""How long a transaction has been idle at the least that is ended: longer than the time after which PostgreSQL should have done it."""

ACTIVE_SECONDS = 4.0
"""The least time since the beginning of the last message of an active one for which PostgreSQL waits."""

AGAIN_SECONDS = 0.5
"""The time in which an active one must not move: whoever has just got a lock, after a long wait, has begun its statement as long ago."""

# What a role may not see of others' sessions is null.
_UNDER_WAY = sa.text("""
    SELECT pid, application_name, state_change, coalesce(state, 'not to be seen') AS state, coalesce(wait_event, '') AS waits,
           coalesce(extract(epoch FROM clock_timestamp() - state_change), 0)::float AS seconds,
           usename = session_user AND application_name = current_setting('application_name')
               AND wait_event = 'ClientRead' AS is_waiting_pool
    FROM pg_stat_activity
    WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()
""")
_END = sa.text("""
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE pid = :pid AND state_change = :since AND wait_event = 'ClientRead' AND backend_xid IS NOT NULL
""")

# An address may have another role than the one that logs in, which alone may see and end its own sessions.
_AS_LOGIN = sa.text("SET LOCAL ROLE none")


class FrozenPools:
    """Ends transactions of other pools that stand still.

    Parameters
    ----------
    connect
        Opens a connection.
    """

    def __init__(self, connect: Callable[[], sa.Connection]) -> None:
        self._connect = connect
        self._ended = set[tuple[int, Any]]()
        self._said = ""

    def end(self) -> None:
        """End them, after a wait for a lock was in vain; raises nothing, since whoever waited says that the database does not answer."""
        try:
            with self._connect() as db:
                self._end(db)
        except Exception as error:  # whatever it is must not hide why this was called
            self._say(logging.WARNING, f"cannot look for frozen pools: {' '.join(str(error).split())}")

    def _end(self, db: sa.Connection) -> None:
        others = _asked(db, _UNDER_WAY)
        idle, active = (
            _frozen(others, "idle in transaction", IDLE_SECONDS),
            _frozen(others, "active", ACTIVE_SECONDS),
        )
        if active - self._ended:
            sleep(AGAIN_SECONDS)
            active &= _frozen(_asked(db, _UNDER_WAY), "active", ACTIVE_SECONDS)
        found = (idle | active) - self._ended  # a process that is stopped itself ends when it goes on
        for pid, since in found:
            if any(row[0] for row in _asked(db, _END, pid=pid, since=since)):
                self._ended.add((pid, since))
                log.warning(
                    "ended PostgreSQL's process %d, in which a pool stood still in a transaction", pid
                )
        if not found:
            told = "; ".join(
                f"process {one.pid} ({one.application_name}) is {one.state} {one.waits}".rstrip()
                for one in others
            )
            self._say(logging.INFO, f"waited in vain for a lock; transactions of others: {told or 'none'}")

    def _say(self, level: int, what: str) -> None:
        if what != self._said:  # attempts may follow each other ten times a second
            log.log(level, "%s", what)
        self._said = what


def _asked(db: sa.Connection, statement: sa.TextClause, **values: object) -> Sequence[Any]:
    with db.begin():  # each sees the sessions anew
        db.execute(_AS_LOGIN)
        return db.execute(statement, values).all()


def _frozen(others: Sequence[Any], state: str, seconds: float) -> set[tuple[int, Any]]:
    """Return those of pools in a state for so long, with the times at which they came into it."""
    return {
        (one.pid, one.state_change)
        for one in others
        if one.is_waiting_pool and one.state.startswith(state) and one.seconds > seconds
    }
