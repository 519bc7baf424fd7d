"""New idle limits and longest times for the slices that are held already, where somebody asks for that.

Guarantees
----------
* A holder's own ``--at-most`` stays where it is shorter.
* A slice that is older than the new longest time ends `WARNING` seconds later, not at once; its holder is told as always.
* Nothing but times changes: who holds more than a new quota keeps it.
"""

from __future__ import annotations

from gpukernel.common.bounds import Subject
from gpukernel.common.policy import Policy
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.policy.changes import bounds_holder
from gpukernel.pool.store import quota_usage
from gpukernel.pool.store.policy import note
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
            count += store.leases.set_times(db, lease.id, idle, was, longest, earliest, ahead)
        if count:
            note(db, manager.now(), who, "held", str(subject), "", f"{count} slices have the new times")
    if count:
        manager.policy_changed()
    return count
