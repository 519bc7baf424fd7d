"""Transactions of pools that stand still, which PostgreSQL does not end by itself.

PostgreSQL ends a transaction that is idle for too long (`idle_in_transaction_session_timeout`).  One whose process stands still between
two messages of a pipeline, or before it has read an answer, is not idle to PostgreSQL: it is `active`, and waits for its client.  And
PostgreSQL 15 was seen to leave one alone that was `idle in transaction` for longer than the limit.  Locks, the ledger's among them, would
stay until that process goes on.  So a pool that has waited for a lock in vain ends it.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

__all__ = ["FrozenPools"]

log = logging.getLogger("gpukernel.pool")

STANDS_SECONDS = 4.0
"""How long PostgreSQL has waited at the least for the client of a transaction that is ended."""

AGAIN_SECONDS = 0.5
"""The time between two looks: who has just got a lock, after a long wait, has begun its statement as long ago."""

_UNDER_WAY = sa.text("""
    SELECT pid, application_name, state, coalesce(wait_event_type, '') AS waits, coalesce(wait_event, '') AS wait_for, state_change,
           extract(epoch FROM clock_timestamp() - state_change)::float AS seconds,
           usename = current_user AND application_name = current_setting('application_name') AS is_pool
    FROM pg_stat_activity
    WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid()
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
            others = db.execute(_UNDER_WAY).all()
            seen = _frozen(others) - self._ended  # a process that is stopped itself ends when it goes on
            if not seen:
                log.info(
                    "waited in vain for a lock; transactions of others: %s",
                    "; ".join(
                        f"process {one.pid} ({one.application_name}) is {one.state} {one.waits}/{one.wait_for} for {one.seconds:.1f} s"
                        for one in others
                    )
                    or "none",
                )
                return
            time.sleep(AGAIN_SECONDS)
            for one in seen & _frozen(db.execute(_UNDER_WAY).all()):
                self._ended.add(one)
                db.execute(_END, {"pid": one[0]})
                log.warning(
                    "ended PostgreSQL's process %d, in which another pool stood still with a lock that this one waited for",
                    one[0],
                )


def _frozen(others: Sequence[Any]) -> set[tuple[int, object]]:
    """Return those of pools for which PostgreSQL has waited for long, with the times at which they began to."""
    return {
        (one.pid, one.state_change)
        for one in others
        if one.is_pool and one.waits == "Client" and one.seconds > STANDS_SECONDS
    }
