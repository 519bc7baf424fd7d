"""What every lease held from when until when: the book behind reports.

The running totals in `gpukernel.pool.accounts` answer quickly and forget; this book keeps every lease, so that any span of time can be
added up afterwards.  Each row is written in the transaction that changes what the lease holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from gpukernel.pool.quota import MILLION
from gpukernel.pool.schema import leases, spans

__all__ = ["Held", "close_span", "first_span", "held_between", "open_span"]


_INSERT = spans.insert()
_CLOSE = (
    spans.update()
    .where(spans.c.lease_id == sa.bindparam("lease"), spans.c.ends.is_(None))
    .values(ends=sa.case((spans.c.begins > sa.bindparam("now"), spans.c.begins), else_=sa.bindparam("now")))
)


def first_span(db: sa.Connection, lease_id: str, share: int, memory: int, now: float) -> None:
    """A new lease holds this much: millionths of a device, bytes."""
    values = {"lease_id": lease_id, "begins": now, "ends": None, "share": share, "memory_bytes": memory}
    db.execute(_INSERT, values)


def open_span(db: sa.Connection, lease_id: str, share: int, memory: int, now: float) -> None:
    """From `now` on the lease holds this much instead."""
    close_span(db, lease_id, now)
    values = {"share": share, "memory_bytes": memory, "ends": None}
    again = spans.update().where(spans.c.lease_id == lease_id, spans.c.begins >= now)
    if not db.execute(again.values(**values)).rowcount:
        db.execute(spans.insert().values(lease_id=lease_id, begins=now, **values))


def close_span(db: sa.Connection, lease_id: str, now: float) -> None:
    """From `now` on the lease holds something else, or nothing."""
    db.execute(_CLOSE, {"lease": lease_id, "now": now})


@dataclass(frozen=True)
class Held:
    """What one lease held: `device_hours` is share × hours, `memory_hours` GiB × hours, `hours` its time."""

    lease: str
    person: str
    course: str
    description: str
    begins: float
    hours: float
    device_hours: float
    memory_hours: float


def held_between(db: sa.Connection, begin: float, end: float) -> Iterator[Held]:
    """Every lease that held something between two times, the part of it that lies between them."""
    last = sa.func.coalesce(spans.c.ends, end)
    query = (
        sa.select(spans, leases.c.person, leases.c.course, leases.c.description, last.label("last"))
        .join(leases, leases.c.id == spans.c.lease_id)
        .where(spans.c.begins < end, sa.or_(spans.c.ends.is_(None), spans.c.ends > begin))
        .order_by(leases.c.epoch, spans.c.begins)
    )
    for row in db.execute(query):
        hours = (min(row.last, end) - max(row.begins, begin)) / 3600
        if hours > 0:
            yield Held(
                row.lease_id,
                row.person,
                row.course,
                row.description,
                max(row.begins, begin),
                hours,
                hours * row.share / MILLION,
                hours * row.memory_bytes / 2**30,
            )
