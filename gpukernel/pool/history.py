"""What every lease held from when until when: the book behind reports.

The running totals in `gpukernel.pool.accounts` answer quickly and forget; this book keeps every lease, so that any span of time can be
added up afterwards.  Each row is written in the transaction that changes what the lease holds.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from gpukernel.pool.quota import MILLION, period_end, period_start
from gpukernel.pool.schema import leases, spans
from gpukernel.pool.statement import Statement

__all__ = ["DayOfUse", "Held", "close_span", "first_span", "held_between", "open_span", "use_by_day"]


_FIRST = Statement(spans.insert())
_CLOSE = Statement(
    spans.update()
    .where(spans.c.lease_id == sa.bindparam("lease"), spans.c.ends.is_(None))
    .values(ends=sa.case((spans.c.begins > sa.bindparam("now"), spans.c.begins), else_=sa.bindparam("now")))
)


def first_span(db: sa.Connection, lease_id: str, share: int, memory: int, now: float) -> None:
    """A new lease holds this much: millionths of a device, bytes."""
    _FIRST.run(db, lease_id=lease_id, begins=now, share=share, memory_bytes=memory)


def open_span(db: sa.Connection, lease_id: str, share: int, memory: int, now: float) -> None:
    """From `now` on the lease holds this much instead."""
    close_span(db, lease_id, now)
    values = {"share": share, "memory_bytes": memory, "ends": None}
    again = spans.update().where(spans.c.lease_id == lease_id, spans.c.begins >= now)
    if not db.execute(again.values(**values)).rowcount:
        db.execute(spans.insert().values(lease_id=lease_id, begins=now, **values))


def close_span(db: sa.Connection, lease_id: str, now: float) -> None:
    """From `now` on the lease holds something else, or nothing."""
    _CLOSE.run(db, lease=lease_id, now=now)


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


@dataclass(frozen=True)
class DayOfUse:
    """What a person held in one day of the pool's calendar, in the units of `Held`."""

    day: datetime.date
    person: str
    device_hours: float
    memory_hours: float


def use_by_day(db: sa.Connection, begin: float, end: float, course: str) -> list[DayOfUse]:
    """The use of one course between two times by day and person, in this order; days without use are not in it."""
    totals: dict[tuple[datetime.date, str], tuple[float, float]] = {}
    for held in held_between(db, begin, end, course):
        at, last = held.begins, held.begins + held.hours * 3600
        while at < last:
            # What a lease holds is constant within a part, so a part can be cut at midnight.
            until = min(period_end("day", at), last)
            part = (until - at) / 3600 / held.hours
            where = datetime.date.fromtimestamp(period_start("day", at)), held.person
            devices, memory = totals.get(where, (0.0, 0.0))
            totals[where] = devices + part * held.device_hours, memory + part * held.memory_hours
            at = until
    return [DayOfUse(day, person, *use) for (day, person), use in sorted(totals.items())]


def held_between(db: sa.Connection, begin: float, end: float, course: str | None = None) -> Iterator[Held]:
    """Every lease that held something between two times, the part of it that lies between them; of `course`, or of all."""
    last = sa.func.coalesce(spans.c.ends, end)
    query = (
        sa.select(spans, leases.c.person, leases.c.course, leases.c.description, last.label("last"))
        .join(leases, leases.c.id == spans.c.lease_id)
        .where(spans.c.begins < end, sa.or_(spans.c.ends.is_(None), spans.c.ends > begin))
        .order_by(leases.c.epoch, spans.c.begins)
    )
    if course is not None:
        query = query.where(leases.c.course == course)
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
