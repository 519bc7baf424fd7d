"""Transactions of pools that stand still, which PostgreSQL does not end by itself.

PostgreSQL ends a transaction that is idle for too long (`idle_in_transaction_session_timeout`).  One whose process stands still between
two messages of a pipeline is not idle to PostgreSQL: it is `active`, and waits for its client.  And PostgreSQL 15 was seen to leave one
alone that was `idle in transaction` for longer than the limit.  Locks, the ledger's among them, would stay until that process goes on.
So each pool looks for such transactions of others, in a thread: its own decisions may be among those that wait for the lock.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

__all__ = ["FrozenPools"]

log = logging.getLogger("gpukernel.pool")

EVERY_SECONDS = 1.0
CLOSE_SECONDS = 2.0
IDLE_SECONDS = 5.5
"""The least time for which a transaction has been idle that is ended: longer than the time after which PostgreSQL should have done it."""

ACTIVE_SECONDS = 3.5
"""The least time since the last message of an active one that waits for its client, and does so at two looks without a move between.

Whoever has just got a lock, after a long wait, has sent its last message as long ago: two looks tell it from one that stands still.
"""

_UNDER_WAY = sa.text("""
    SELECT pid, state, state_change, extract(epoch FROM clock_timestamp() - state_change)::float AS seconds
    FROM pg_stat_activity
    WHERE datname = current_database() AND usename = session_user AND application_name = current_setting('application_name')
      AND wait_event = 'ClientRead' AND state_change IS NOT NULL AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()
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
        self._active = set[tuple[int, Any]]()  # at the last look
        self._ended = set[tuple[int, Any]]()
        self._failed = ""
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Look every second, in a thread, until `close`."""
        self._thread = threading.Thread(target=self._work, name="gpukernel-frozen", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; one that waits for a database that does not answer is left to itself."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _work(self) -> None:
        while not self._closed.wait(EVERY_SECONDS):
            try:
                self.look()
                self._failed = ""
            except Exception as error:  # whatever it is, the next look may succeed
                if (failed := " ".join(str(error).split())) != self._failed:
                    log.warning("cannot look for frozen pools: %s", failed)
                self._failed = failed

    def look(self) -> None:
        """Look once, and end those that stand still."""
        with self._connect() as db:
            others = _asked(db, _UNDER_WAY)
            active, before = _waiting(others, "active", ACTIVE_SECONDS), self._active
            self._active = active
            frozen = _waiting(others, "idle in transaction", IDLE_SECONDS) | (active & before)
            for pid, since in frozen - self._ended:  # a process that is stopped itself ends when it goes on
                if any(row[0] for row in _asked(db, _END, pid=pid, since=since)):
                    self._ended.add((pid, since))
                    log.warning(
                        "ended PostgreSQL's process %d, in which a pool stood still in a transaction", pid
                    )


def _asked(db: sa.Connection, statement: sa.TextClause, **values: object) -> Sequence[Any]:
    with db.begin():  # each sees the sessions anew
        db.execute(_AS_LOGIN)
        return db.execute(statement, values).all()


def _waiting(others: Sequence[Any], state: str, seconds: float) -> set[tuple[int, Any]]:
    """Return those of pools in a state for so long, with the times at which they came into it."""
    return {
        (one.pid, one.state_change) for one in others if one.state.startswith(state) and one.seconds > seconds
    }
