"""Transactions of pools that stand still where no time limit of PostgreSQL's counts.

PostgreSQL ends a transaction that is idle for too long (`idle_in_transaction_session_timeout`).  One whose process stands still between
two messages of a pipeline, or before it has read an answer, is not idle to PostgreSQL: it is `active`, and waits for its client.  Its
locks, the ledger's among them, would stay until that process goes on.  So a pool that has waited for a lock in vain ends it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

import sqlalchemy as sa

__all__ = ["FrozenPools"]

log = logging.getLogger("gpukernel.pool")

STANDS_SECONDS = 4.0
"""How long PostgreSQL has waited at the least for the client of a transaction that is ended."""

AGAIN_SECONDS = 0.5
"""The time between two looks: who has just got a lock, after a long wait, has begun its statement as long ago."""

_LOOK = sa.text("""
    SELECT pid, state_change FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user
      AND application_name = current_setting('application_name') AND pid <> pg_backend_pid()
      AND state = 'active' AND wait_event_type = 'Client' AND backend_xid IS NOT NULL
      AND state_change < clock_timestamp() - make_interval(secs => :seconds)
""")
_END = sa.text("SELECT pg_terminate_backend(:pid)")


class FrozenPools:
    """Ends transactions of other pools that stand still.

    Parameters
    ----------
    connect
        Opens a connection that commits each statement by itself.
    """

    def __init__(self, connect: Callable[[], sa.Connection]) -> None:
        self._connect = connect
        self._ended = set[tuple[int, object]]()

    def end(self) -> None:
        """End them, after a wait for a lock was in vain; an error is none, since whoever waited says that the database does not answer."""
        with contextlib.suppress(sa.exc.SQLAlchemyError), self._connect() as db:
            seen = self._look(db) - self._ended  # a process that is stopped itself ends when it goes on
            if not seen:
                return
            time.sleep(AGAIN_SECONDS)
            for one in seen & self._look(db):
                self._ended.add(one)
                db.execute(_END, {"pid": one[0]})
                log.warning(
                    "ended PostgreSQL's process %d, in which another pool stood still with a lock that this one waited for",
                    one[0],
                )

    def _look(self, db: sa.Connection) -> set[tuple[int, object]]:
        return {(row.pid, row.state_change) for row in db.execute(_LOOK, {"seconds": STANDS_SECONDS})}
