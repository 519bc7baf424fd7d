"""The books compared with the leases when a pool starts, and put right where a fault left something else.

The books are the running totals and ceilings of quotas, and what is promised of devices and lent by ceilings.  Decisions and constraints believe
them.  A total or ceiling that is wrong refuses what there is room for, or an end, for as long as it is stored.

Guarantees
----------
* What is put right is said, a line for each row: what was wrong, and what it is now.
* The books are changed only with the ledger's lock held, after another look with it: what another pool changes meanwhile is not wrong.
* Where nothing is wrong, nothing is locked or written.
"""

from __future__ import annotations

import logging

from gpukernel.pool.store import ceilings, quota_usage
from gpukernel.pool.store.store import Store

__all__ = ["heal_books"]

log = logging.getLogger(__name__)

LINES = 50
"""The most lines of the log about one start."""


def heal_books(store: Store, now: float) -> int:
    """Compare the books with the leases and put them right, at a wall time; return how many rows were wrong."""
    with store.reader.connect() as db:
        policy = store.policy.current(db)
        if not (quota_usage.wrong_totals(db, policy) or ceilings.wrong_bytes(db)):
            return 0
    with store.deciding() as (db, row):
        policy = store.policy.current(db, row.policy_version)
        found = [*ceilings.heal(db), *quota_usage.heal(db, policy, now)]
        if found:
            store.changes.everything()  # nothing that a pool knows of them holds
    for one in found[:LINES]:
        log.error("the books were wrong, which is a fault of the pool: %s", one)
    if len(found) > LINES:
        log.error("the books were wrong in %d more rows", len(found) - LINES)
    return len(found)
