"""Leases that engines have placed: granted where there is room on exactly those devices, and ended by their keys.

Guarantees
----------
* Nothing is chosen and nothing waits for room: a placement is granted as it stands in one transaction, or refused with the figures.
* Asking again with a key gives its living lease, whoever died in between; a call that breaks off ends nothing.
* A placed lease ends by its release, after its longest time, with its worker, device or server, or with the drain of its server.  No
  silence and no idleness ends it, and nothing resizes it.
* Its hours count from when its engine gave the devices away, within bounds (`gpukernel.pool.domain.engine_placement.counts_from`);
  nothing but its hours goes by that time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from gpukernel.common.errors import Refused
from gpukernel.common.logs import of_lease
from gpukernel.common.model import ENGINES, Holder, Lease, PlacedOn
from gpukernel.pool.domain.engine_placement import (
    check_decider,
    check_key,
    check_placed,
    differences,
    place,
)
from gpukernel.pool.domain.fencing import NEVER
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.store.database import Conflict
from gpukernel.pool.store.deciders import Delegation

__all__ = ["LONGEST_WAIT", "PlacedLeases", "wait_for"]

log = logging.getLogger(__name__)

LONGEST_WAIT = 600.0
"""Seconds for which a call waits for workers to start or to stop."""


class PlacedLeases:
    """The placed leases of one pool process, whose other leases `manager` has."""

    def __init__(self, manager: LeaseManager) -> None:
        self._manager = manager
        self._store = manager.store

    async def acquire(
        self,
        engine: str,
        key: str,
        placed_on: Sequence[PlacedOn],
        holder: Holder,
        wait_seconds: float,
        longest: float = 0.0,
        *,
        ceiling: bool = False,
        began: float = 0.0,
    ) -> Lease:
        """Return the lease of a key on these devices, with its secret, once it is live or `wait_seconds` are over.

        Of a `ceiling` all memory but a MiB of each device is for leases inside (`gpukernel.pool.leases.ceilings`).

        Raises
        ------
        Refused
            As `gpukernel.pool.domain.engine_placement.place`; ``different`` where the key has a lease of another content; ``failed``
            where it did not start.
        """
        check_placed(engine, key, placed_on, holder, longest, ceiling=ceiling, began=began)
        _check_wait(wait_seconds)
        try:
            lease, fresh = self._granted(engine, key, placed_on, holder, longest, ceiling, began)
        except Conflict as conflict:  # a fault of this program: the database knew better
            log.error("the database refused a placement: %s", conflict)
            raise Refused("failed", "The pool's books do not agree; tell its administrator.") from None
        if fresh:
            log.info("placed by %s for %s", engine, key, extra=of_lease(lease))
            self._manager.orders.start(lease, lease.slices)
            self._manager.watch.started(lease.id)
            self._manager.places_changed()
        lease = (
            await wait_for(self._manager, lease.id, wait_seconds, lambda one: one.state != "starting")
            or lease
        )
        if lease.state in ("ending", "ended"):
            self._manager.watch.forget_lease(lease.id)
            raise Refused("failed", f"No slice could be started: {lease.end_reason}.")
        return self._manager.shown(lease)

    def _granted(
        self,
        engine: str,
        key: str,
        placed_on: Sequence[PlacedOn],
        holder: Holder,
        longest: float,
        ceiling: bool,
        began: float,
    ) -> tuple[Lease, bool]:
        """Return the lease of a key, and whether it was made now."""
        store, manager = self._store, self._manager
        with store.deciding() as (db, row):
            policy = store.policy.current(db, row.policy_version)
            known = store.leases.get(store.deciders.living(db, engine, key))
            if known is not None:
                if what := differences(known, placed_on, holder, ceiling=ceiling):
                    raise Refused(
                        "different",
                        f"{key} has another lease ({known.id[:8]}): {what}.  Release it first, or ask with another key.",
                    )
                return known, False
            if holder.course and policy.courses and holder.course not in policy.courses:
                raise Refused("no_such_course", f"There is no course {holder.course[:60]}.")
            placed = place(engine, placed_on, store.deciders.of_uuids(db, [one.uuid for one in placed_on]))
            now = manager.now()
            lease = store.leases.grant(
                db,
                policy,
                key,
                holder,
                policy.role_in(holder.course, holder.person) if holder.course else "",
                placed,
                NEVER,
                longest,
                now,
                manager.steady(),
                decided_by=engine,
                priority="",
                ceiling=ceiling,
            )
            if why := store.deciders.count_from(db, policy, lease, began, now):
                log.info("%s of %s began at %.1f: %s", key, engine, began, why, extra=of_lease(lease))
            return lease, True

    async def release(self, engine: str, key: str, reason: str, wait_seconds: float) -> Lease | None:
        """End the lease of a key; return it once its memory is free or `wait_seconds` are over, None where the key has none.

        Raises
        ------
        Refused
            ``invalid``.
        """
        check_decider(engine, ENGINES)
        check_key(key)
        _check_wait(wait_seconds)
        lease_id = self._store.deciders.last(engine, key)
        if not lease_id:
            return None
        self._manager.end(lease_id, reason or f"released by {engine}")
        self._manager.watch.forget_lease(lease_id)
        lease = await wait_for(self._manager, lease_id, wait_seconds, lambda one: one.state == "ended")
        return None if lease is None else self._manager.shown(lease)

    def all(self, engine: str, key: str = "") -> list[Lease]:
        """Return the leases that an engine has placed and that are not over, of one key or all; raises `Refused`, ``invalid``."""
        check_decider(engine, ENGINES)
        return [self._manager.shown(lease) for lease in self._store.deciders.leases(engine, key)]

    def delegate(self, device: str, to: str, who: str, *, when_free: bool = False) -> Delegation:
        """Have the pool or an engine decide over a device, as `gpukernel.pool.store.deciders.Deciders.delegate` does."""
        given = self._store.deciders.delegate(device, to, who, self._manager.now(), when_free=when_free)
        log.info(
            "%s is decided by %s%s",
            given.device,
            given.decided_by,
            f", then {given.next_decider}" if given.next_decider else "",
        )
        self._manager.schedule()
        self._manager.places_changed()
        return given


async def wait_for(
    manager: LeaseManager, lease_id: str, seconds: float, done: Callable[[Lease], bool]
) -> Lease | None:
    """Return a lease once it is as it should be, or the time is over."""
    store = manager.store
    with manager.waiters.watching(lease_id) as changed:
        lease = store.leases.get(lease_id)
        try:
            async with asyncio.timeout(seconds):
                while lease is not None and not done(lease):
                    await changed.wait()
                    changed.clear()
                    lease = store.leases.get(lease_id)
        except TimeoutError:
            lease = store.leases.get(lease_id)
    return lease


def _check_wait(seconds: float) -> None:
    if not 0 <= seconds <= LONGEST_WAIT:
        raise Refused(
            "invalid", f"A wait of {seconds!r} s is not possible; it is at most {LONGEST_WAIT:.0f} s."
        )
