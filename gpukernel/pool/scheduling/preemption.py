"""Preemption: the leases that have to leave for reservations that preempt."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from gpukernel.pool.scheduling.reservation_placement import ReservationPlacements
from gpukernel.pool.store import schema

__all__ = ["Eviction", "evictions"]

_LEASES_THERE = (
    sa.select(
        schema.leases.c.id,
        schema.leases.c.course,
        schema.leases.c.until,
        schema.leases.c.notice,
        schema.slices.c.device_id,
        schema.slices.c.memory_bytes,
    )
    .join(schema.leases, schema.leases.c.id == schema.slices.c.lease_id)
    .where(
        schema.IN_USE, schema.slices.c.device_id.in_(sa.bindparam("devices", expanding=True)), schema.LIVING
    )
    .order_by(schema.leases.c.epoch.desc())
)


@dataclass(frozen=True)
class Eviction:
    """A lease that is in the way of a reservation that preempts: at `when` it has to be gone."""

    lease_id: str
    course: str
    when: float


def evictions(
    db: sa.Connection, placements: ReservationPlacements, now: float, within: float
) -> tuple[list[Eviction], set[str]]:
    """Return the leases that have to leave for windows that are open or open `within` seconds, the newest first; and, of all that lie on
    those devices, which do not have to."""
    there: dict[str, float] = {}
    for device_id in placements.devices:
        reserved = placements.on(device_id)
        assert reserved is not None
        opens = [
            d.windows[0][0]
            for d in reserved.demands
            if d.reservation.preempt and d.windows and d.windows[0][0] <= now + within
        ]
        if opens:
            there[device_id] = max(now, min(opens))
    if not there:
        return [], set()
    profiles, ahead = placements.profiles(), placements.ahead
    leave: dict[str, Eviction] = {}
    stay: set[str] = set()
    missing: dict[str, int] = {}
    whose: dict[str, str] = {}
    for device_id, at in there.items():
        reserved = placements.on(device_id)
        assert reserved is not None
        entitled = {d.course for d in reserved.demands if any(b <= at < e for b, e in d.windows)}
        freed = sum(size for end, size in profiles[device_id].ends if end <= at)
        missing[device_id] = (
            sum(reserved.own(course, at) for course in entitled) - profiles[device_id].free - freed
        )
        whose[device_id] = min(
            d.course
            for d in reserved.demands
            if d.reservation.preempt and any(b <= at < e for b, e in d.windows)
        )
    for row in db.execute(_LEASES_THERE, {"devices": list(there)}):
        reserved, at = placements.on(row.device_id), there[row.device_id]
        assert reserved is not None
        entitled = {d.course for d in reserved.demands if any(b <= at < e for b, e in d.windows)}
        if row.id in leave:
            missing[row.device_id] -= row.memory_bytes
        elif (
            row.course in entitled
            or missing[row.device_id] <= 0
            or (row.until is not None and row.until + ahead <= at)
        ):
            stay.add(row.id)
        else:
            missing[row.device_id] -= row.memory_bytes
            leave[row.id] = Eviction(row.id, whose[row.device_id], at)
    return list(leave.values()), stay - set(leave)
