"""The usage log: what every lease held from when until when, for reports.

The running totals in `gpukernel.pool.store.quota_usage` answer quickly and forget; this book keeps every lease, so that any span of time can be
added up afterwards.  Each row is written in the transaction that changes what the lease holds.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import sqlalchemy as sa

from gpukernel.common.bounds import MILLION
from gpukernel.common.model import DailyUse, LeaseUse
from gpukernel.pool.domain.quota import period_end, period_start
from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from gpukernel.pool.store.schema import leases, usage_log

__all__ = ["begin_earlier", "close_span", "first_span", "held_between", "open_span", "use_by_day"]


_FIRST = CompiledSql(usage_log.insert())
_CLOSE = CompiledSql(
    usage_log.update()
    .where(usage_log.c.lease_id == sa.bindparam("lease"), usage_log.c.ends.is_(None))
    .values(
        ends=sa.case(
            (usage_log.c.begins > sa.bindparam("now"), usage_log.c.begins), else_=sa.bindparam("now")
        )
    )
)

_EARLIER = CompiledSql(
    usage_log.update()
    .where(usage_log.c.lease_id == sa.bindparam("lease"), usage_log.c.ends.is_(None))
    .values(begins=sa.bindparam("since"))
    .returning(usage_log.c.share)
)


def first_span(db: sa.Connection, lease_id: str, share: int, memory: int, now: float) -> None:
    """Log a new lease: millionths of a device, bytes."""
    span = {"lease_id": lease_id, "begins": now, "share": share, "memory_bytes": memory}
    _FIRST.soon(db, span)


def begin_earlier(db: sa.Connection, lease_id: str, since: float) -> int:
    """Log that a lease, new in this transaction, has held since before; return its millionths of a device."""
    return int(_EARLIER.first(db, lease=lease_id, since=since).share)


def open_span(db: sa.Connection, lease_id: str, share: int, memory: int, now: float) -> None:
    """Log that the lease holds this much instead, from `now` on."""
    close_span(db, lease_id, now)
    values = {"share": share, "memory_bytes": memory, "ends": None}
    again = usage_log.update().where(usage_log.c.lease_id == lease_id, usage_log.c.begins >= now)
    if not db.execute(again.values(**values)).rowcount:
        db.execute(usage_log.insert().values(lease_id=lease_id, begins=now, **values))


def close_span(db: sa.Connection, lease_id: str, now: float) -> bool:
    """Log that the lease holds something else, or nothing, from `now` on; return whether it held something."""
    return _CLOSE.run(db, lease=lease_id, now=now) > 0


def use_by_day(db: sa.Connection, begin: float, end: float, course: str) -> list[DailyUse]:
    """Return the use of one course between two times by day and person, in this order; days without use are not in it."""
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
    return [DailyUse(day, person, *use) for (day, person), use in sorted(totals.items())]


def held_between(
    db: sa.Connection, begin: float, end: float, course: str | None = None, *among: sa.ColumnElement[bool]
) -> Iterator[LeaseUse]:
    """Yield every lease that held something between two times, the part of it that lies between them; of `course`, or of all.

    `among`: conditions of leases, without which all that ever was would be read to find what is somebody's.
    """
    last = sa.func.coalesce(usage_log.c.ends, end)
    query = (
        sa.select(
            usage_log,
            leases.c.person,
            leases.c.course,
            leases.c.description,
            leases.c.decided_by,
            last.label("last"),
        )
        .join(leases, leases.c.id == usage_log.c.lease_id)
        .where(usage_log.c.begins < end, sa.or_(usage_log.c.ends.is_(None), usage_log.c.ends > begin), *among)
        .order_by(leases.c.epoch, usage_log.c.begins)
    )
    if course is not None:
        query = query.where(leases.c.course == course)
    for row in db.execute(query):
        hours = (min(row.last, end) - max(row.begins, begin)) / 3600
        if hours > 0:
            yield LeaseUse(
                row.lease_id,
                row.person,
                row.course,
                row.description,
                max(row.begins, begin),
                hours,
                hours * row.share / MILLION,
                hours * row.memory_bytes / 2**30,
                row.decided_by,
            )
