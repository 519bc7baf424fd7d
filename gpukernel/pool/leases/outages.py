"""Outages of the database: while it is away nobody can give a sign of life, so afterwards everybody has their time again.

Guarantees
----------
* An outage ends no lease and takes nobody's place in the queue, however long it was.  What goes on meanwhile goes by other clocks: workers live as
  long as their servers are valid (`gpukernel.pool.domain.fencing`).
* A pool that was paused alone gives nobody anything: another one was seen meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpukernel.pool.store.signs_of_life import OUTAGE_SECONDS, see_again

if TYPE_CHECKING:
    from gpukernel.pool.store.store import Store

__all__ = ["Outages"]

log = logging.getLogger(__name__)


class Outages:
    """The outages of the database as one pool process, `pool`, has seen them, by the machine's own clock.

    On a database that other pools do not use there is nothing to see: a pool that starts gives everybody their time.
    """

    def __init__(self, store: Store, pool: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._pool, self._clock = store, pool, clock
        self._answered: float | None = None

    def answered(self) -> None:
        """Record that the database has answered now, to a whole second's work."""
        if self._store.shared:
            self._answered = self._clock()

    def look(self, steady: float) -> bool:
        """Give everybody their time again if the database was away until now; return True then."""
        if self._answered is None or self._clock() - self._answered < OUTAGE_SECONDS:
            return False
        with self._store.deciding() as (db, _):
            if not see_again(db, self._pool, steady):
                return False
            self._store.leases.renew_all(steady)
            self._store.servers.hear_again(steady)
            self._store.changes.everything()
        self._answered = self._clock()
        self._store.counters.add("database_outages")
        log.warning("the database was away; all leases have their time to live again")
        return True
