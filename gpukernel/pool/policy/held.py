"""New idle limits and longest times for the slices that are held already, where somebody asks for that.

Guarantees
----------
* A holder's own ``--at-most`` stays where it is shorter.
* A slice that is older than the new longest time ends `WARNING` seconds later, not at once; its holder is told as always.
* Nothing but times changes: who holds more than a new quota keeps it.
"""

from __future__ import annotations

import sqlalchemy as sa

from gpukernel.common.bounds import Subject
from gpukernel.common.policy import Policy
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.policy.changes import bounds_holder
from gpukernel.pool.store import quota_usage
from gpukernel.pool.store.changes import ChangeLog
from gpukernel.pool.store.policy import note
from gpukernel.pool.store.schema import LIVING, PLACED_BY_POOL, leases
from gpukernel.pool.store.store import Store

__all__ = ["WARNING", "apply_to_held"]

WARNING = 300.0
"""Seconds that the holder of a slice has whose new longest time is over already."""


def apply_to_held(
    manager: LeaseManager, store: Store, who: str, before: Policy, after: Policy, subject: Subject
) -> int:
    """Give the slices that `subject` bounds the times of `after`, and note it; return how many have other times now."""
    held = [lease for lease in manager.leases(False) if bounds_holder(after, subject, lease)]
    count, clock = 0, store.clock
    with store.deciding() as (db, _):
        for lease in held:
            accounts = quota_usage.accounts_of(lease.holder.person, lease.holder.course)
            was, longest = (policy.longest(accounts, lease.role) for policy in (before, after))
            idle = after.idle(accounts, lease.role)
            earliest, ahead = clock.steady() + WARNING, clock.ahead()
            count += _set_times(db, store.changes, lease.id, idle, was, longest, earliest, ahead)
        if count:
            note(db, manager.now(), who, "held", str(subject), "", f"{count} slices have the new times")
    if count:
        manager.policy_changed()
    return count


def _set_times(
    db: sa.Connection,
    changes: ChangeLog,
    lease_id: str,
    idle_limit: float,
    was: float | None,
    longest: float | None,
    earliest: float,
    ahead: float,
) -> bool:
    """Give a lease another idle limit and longest time; return whether it had others.

    A longest time shorter than `was`, the quota's of before, is what its holder asked for, and stays where it is shorter than
    `longest`.  It ends at the steady time `earliest` at the soonest, unless it was to end before.  Wall time is `ahead` of steady time.
    """
    row = db.execute(
        sa.select(leases.c.until, leases.c.span, leases.c.idle_limit, leases.c.created).where(
            leases.c.id == lease_id, LIVING, PLACED_BY_POOL
        )
    ).first()
    if row is None:
        return False
    own = row.span if row.span is not None and (was is None or row.span < was) else None
    spans = [span for span in (own, longest) if span is not None]
    span, until = (min(spans), row.until) if spans else (None, None)
    if span is not None and span != row.span:
        begin = row.created - ahead if row.until is None else row.until - row.span
        until = max(begin + span, min(earliest, row.until or earliest))
    if (span, idle_limit) == (row.span, row.idle_limit):
        return False
    values = {"until": until, "span": span, "idle_limit": idle_limit}
    db.execute(leases.update().where(leases.c.id == lease_id).values(values))
    changes.lease("told", lease_id)
    return True
