"""The SQL of leases and their slices, compiled once, and the records that its rows become."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from gpukernel.common.model import Holder, Lease, Slice, Usage
from gpukernel.pool.store.connection.compiled_sql import CompiledSql, rows_of
from gpukernel.pool.store.schema import (
    ENDING,
    IN_USE,
    LIVE,
    LIVING,
    NOT_ENDED,
    NOT_ENDING,
    PLACED_BY_POOL,
    STARTING,
    devices,
    leases,
    servers,
    slices,
    total,
)

STOPS = 60.0
"""Seconds that the workers of a lease that ends may take to stop, before nobody counts on their memory any more."""

_USAGE = tuple(Usage.__dataclass_fields__)
NEW_USAGE = tuple(f"new_{name}" for name in _USAGE)
usage_figures = operator.attrgetter(*_USAGE)
_THIS = slices.c.lease_id == sa.bindparam("lease"), slices.c.device_id == sa.bindparam("device")
NEW_LEASE, NEW_SLICE = CompiledSql(leases.insert()), CompiledSql(slices.insert())
_OF_SERVER = sa.select(devices.c.id).where(devices.c.server == sa.bindparam("server"))
WORKER_READY = CompiledSql(
    slices.update()
    .where(*_THIS, IN_USE, slices.c.device_id.in_(_OF_SERVER))
    .values(worker="ready", endpoints=sa.bindparam("where"), confirmed=True, fenced_until=None)
)
CONFIRM = CompiledSql(slices.update().where(*_THIS, IN_USE).values(confirmed=True))
ALL_WORKERS_READY = CompiledSql(
    leases.update()
    .where(
        leases.c.id == sa.bindparam("lease"),
        STARTING,
        ~sa.exists().where(
            slices.c.lease_id == sa.bindparam("lease"),
            slices.c.worker != sa.literal("ready", literal_execute=True),
        ),
    )
    .values(state="live", expires=sa.bindparam("now") + leases.c.ttl_seconds)
    .returning(leases.c.id)
)
ASKED_FOR = CompiledSql(
    leases.update().where(leases.c.id == sa.bindparam("lease"), LIVING).values(caller=sa.bindparam("us"))
)
# What a lease claims of quotas, and whose they are.
_CLAIMED = (
    leases.c.person,
    leases.c.course,
    leases.c.role,
    leases.c.share,
    leases.c.memory_bytes,
    leases.c.priority,
    leases.c.within,
)
# `us`: only where that pool was asked for it last; `to`: only one that gives way to this request; empty: in any case.
END = CompiledSql(
    leases.update()
    .where(
        leases.c.id == sa.bindparam("lease"),
        LIVING,
        sa.or_(sa.bindparam("us", type_=sa.String) == "", leases.c.caller.in_(["", sa.bindparam("us")])),
        sa.bindparam("to", type_=sa.String).in_(["", leases.c.gives_way_to]),
    )
    .values(state="ending", end_reason=sa.bindparam("reason"), ended=sa.bindparam("now"))
    .returning(*_CLAIMED)
)
_PROMISED = (slices.c.memory_bytes, slices.c.reserve_bytes, slices.c.lent_bytes, slices.c.lent_by)
# A fenced worker is not one of those that the server's agent speaks of.
WORKER_DEAD = CompiledSql(
    slices.update()
    .where(*_THIS, IN_USE, slices.c.fenced_until.is_(None))
    .values(worker="gone", connections=0, memory_used_bytes=0, decided_by=None)
    .returning(*_PROMISED)
)
FENCE_OVER = CompiledSql(
    slices.update()
    .where(*_THIS, IN_USE)
    .values(worker="gone", connections=0, memory_used_bytes=0, decided_by=None, fenced_until=None)
    .returning(*_PROMISED)
)
FENCE = CompiledSql(
    slices.update().where(*_THIS, IN_USE).values(fenced_until=sa.bindparam("until"), confirmed=True)
)
# What may be freed: fences that are over, and all of servers that were away for so long that no worker lives.
_FENCED = sa.select(slices.c.lease_id, slices.c.device_id, devices.c.server).join(
    devices, devices.c.id == slices.c.device_id
)
FENCES_OVER = CompiledSql(_FENCED.where(IN_USE, slices.c.fenced_until <= sa.bindparam("steady")))
_LOST = servers.c.away_since.is_not(None), servers.c.fenced_until <= sa.bindparam("steady")
SERVERS_OVER = CompiledSql(sa.select(servers.c.name).where(*_LOST))
# One of them may be back, and have new workers, since they were asked for.
WITHOUT_FENCE = CompiledSql(
    _FENCED.join(servers, servers.c.name == devices.c.server).where(
        IN_USE,
        slices.c.fenced_until.is_(None),
        servers.c.name.in_(sa.bindparam("names", expanding=True)),
        *_LOST,
    )
)
LEASE_OVER = CompiledSql(
    leases.update()
    .where(
        leases.c.id == sa.bindparam("lease"),
        ENDING,
        ~sa.exists().where(slices.c.lease_id == sa.bindparam("lease"), IN_USE),
    )
    .values(state="ended")
    .returning(*_CLAIMED)
)
RENEW = CompiledSql(
    leases.update()
    .where(leases.c.id == sa.bindparam("lease"), LIVING)
    .values(expires=sa.bindparam("now") + leases.c.ttl_seconds)
)
# A lease whose time is half over: who renews others changes nothing.
RENEW_DUE = CompiledSql(
    leases.update()
    .where(
        leases.c.id == sa.bindparam("lease"),
        LIVING,
        leases.c.expires < sa.bindparam("now") + leases.c.ttl_seconds / 2,
    )
    .values(expires=sa.bindparam("now") + leases.c.ttl_seconds)
)
RECORD_USAGE = CompiledSql(
    slices.update()
    .where(*_THIS)
    .values(
        {
            **dict(zip(_USAGE, map(sa.bindparam, NEW_USAGE), strict=True)),
            "idle_since": sa.bindparam("since"),
        }
    )
)
# One that gives way ends then at the latest, and one that is ending at once, as long as it does not take long.
LEASE_ENDS = sa.case(
    (sa.and_(ENDING, leases.c.ended >= sa.bindparam("since")), sa.literal_column("0.0")),
    (sa.or_(leases.c.until.is_(None), leases.c.gives_way < leases.c.until), leases.c.gives_way),
    else_=leases.c.until,
).label("ends")
ENDS_ON_DEVICES = CompiledSql(
    sa.select(slices.c.device_id, LEASE_ENDS, slices.c.memory_bytes)
    .join(leases, leases.c.id == slices.c.lease_id)
    .where(
        slices.c.device_id.in_(sa.bindparam("devices", expanding=True)),
        IN_USE,
        LEASE_ENDS.element.is_not(None),
    )
    .order_by(LEASE_ENDS.element)
    .limit(sa.bindparam("most"))
)
LEASE = CompiledSql(sa.select(leases).where(leases.c.id == sa.bindparam("lease")))
_PARTS = sa.select(
    slices,
    devices.c.server,
    devices.c.index.label("number"),
    devices.c.uuid,
    devices.c.name,
    devices.c.memory_bytes.label("whole"),
).join(devices, devices.c.id == slices.c.device_id)
PEOPLE_OF = CompiledSql(
    sa.select(leases.c.id, leases.c.person).where(
        leases.c.id.in_(sa.bindparam("leases", expanding=True, type_=sa.String))
    )
)
SLICES_OF_LEASE = CompiledSql(
    _PARTS.where(slices.c.lease_id == sa.bindparam("lease")).order_by(slices.c.ordinal)
)
LEASES_OF_KEYS = CompiledSql(
    sa.select(leases.c.key, leases.c.id, leases.c.state, leases.c.person).where(
        PLACED_BY_POOL, leases.c.key.in_(sa.bindparam("keys", expanding=True)), NOT_ENDING
    )
)
EXPIRED = CompiledSql(sa.select(leases.c.id).where(LIVING, leases.c.expires < sa.bindparam("now")))
ENDING_SOON = CompiledSql(
    sa.select(leases.c.id, leases.c.until, leases.c.span, leases.c.notice).where(
        LIVING, leases.c.until.is_not(None), leases.c.until < sa.bindparam("by")
    )
)
_SEEN_BY_HOLDERS = (leases.c.state, leases.c.notice, leases.c.message, leases.c.until)
HOLDER_VIEWS = CompiledSql(
    sa.select(leases.c.id, *_SEEN_BY_HOLDERS, total(slices.c.memory_bytes).label("size"))
    .join(slices, slices.c.lease_id == leases.c.id)
    .where(leases.c.id.in_(sa.bindparam("ids", expanding=True)))
    .group_by(leases.c.id, *_SEEN_BY_HOLDERS)
)
_ITS = slices.c.lease_id == leases.c.id
_IDLE_FOR = sa.case(
    (slices.c.idle_since.is_(None), slices.c.idle_seconds),
    else_=sa.bindparam("now", type_=sa.Float) - slices.c.idle_since,
)
_UNHEARD = (
    sa.exists()
    .where(_ITS, devices.c.id == slices.c.device_id)
    .where(servers.c.name == devices.c.server, servers.c.away_since.is_not(None))
)
IDLE = CompiledSql(
    sa.select(
        leases.c.id,
        sa.select(sa.func.min(_IDLE_FOR)).where(_ITS).scalar_subquery().label("idle"),
        leases.c.idle_limit,
        leases.c.notice,
    ).where(
        LIVE,
        leases.c.idle_limit > sa.literal_column("0"),
        ~_UNHEARD,  # nobody knows what its programs do
        sa.or_(leases.c.notice != "", ~sa.exists().where(_ITS, leases.c.idle_limit / 2 > _IDLE_FOR)),
    )
)


class LeaseSelection:
    """The leases that meet a condition, with their slices, oldest first."""

    def __init__(self, condition: Any) -> None:
        self._leases = CompiledSql(sa.select(leases).where(condition))
        which = slices.c.lease_id.in_(sa.select(leases.c.id).where(condition))
        self._parts = CompiledSql(_PARTS.where(which).order_by(slices.c.lease_id, slices.c.ordinal))

    def read(self, db: sa.Connection, steady: float, **values: Any) -> list[Lease]:
        """Return them as of a steady time; `values` are the condition's parameters."""
        return self.read_beside(db, steady, **values)[0]

    def read_beside(
        self, db: sa.Connection, steady: float, *others: CompiledSql, **values: Any
    ) -> tuple[list[Lease], list[list[Any]]]:
        """Return them, and in the same trip what other queries find with the same parameters."""
        queries = self._parts, self._leases, *others
        parts, rows, *found = rows_of(db, *((query, values) for query in queries))
        pieces: dict[str, list[Slice]] = {}
        for part in parts:
            pieces.setdefault(part.lease_id, []).append(slice_of(part, steady))
        # Sorted here: in its order SQLite would read all leases that ever were.
        rows.sort(key=lambda row: row.epoch)
        return [lease_of(row, pieces.get(row.id, ())) for row in rows], found


LIVING_ON_SERVER = CompiledSql(
    sa.select(leases.c.id)
    .distinct()
    .join(slices, slices.c.lease_id == leases.c.id)
    .join(devices, devices.c.id == slices.c.device_id)
    .where(devices.c.server == sa.bindparam("server"), IN_USE, LIVING)
)
NOT_OVER = LeaseSelection(NOT_ENDED)
_BY_ID: sa.BindParameter[Any] = sa.bindparam("ids", expanding=True)
LEASES_BY_ID = LeaseSelection(leases.c.id.in_(_BY_ID))
UNCONFIRMED = CompiledSql(
    sa.select(slices.c.lease_id, devices.c.server)
    .distinct()
    .join(devices, devices.c.id == slices.c.device_id)
    .join(leases, leases.c.id == slices.c.lease_id)
    .join(servers, servers.c.name == devices.c.server)
    .where(leases.c.id.in_(_BY_ID), STARTING, slices.c.confirmed.is_(False), servers.c.instance != "")
    .order_by(devices.c.server)
)
DEAD_WORKERS = CompiledSql(
    sa.select(slices.c.lease_id, slices.c.device_id).where(
        slices.c.lease_id.in_(_BY_ID), slices.c.worker == sa.literal("gone", literal_execute=True)
    )
)
NEWEST_ENDED = LeaseSelection(
    leases.c.id.in_(
        sa.select(leases.c.id)
        .where(leases.c.state == "ended")
        .order_by(leases.c.epoch.desc())
        .limit(sa.literal_column("100"))
    )
)
_HERE = (
    sa.select(slices.c.lease_id, slices.c.device_id)
    .join(devices, devices.c.id == slices.c.device_id)
    .where(devices.c.server == sa.bindparam("server"), IN_USE)
)
SLICES_ON_SERVER = CompiledSql(_HERE)
LEASES_ON_SERVER = LeaseSelection(leases.c.id.in_(_HERE.with_only_columns(slices.c.lease_id)))
SLICE_THERE = CompiledSql(
    sa.select(slices.c.device_id)
    .join(devices, devices.c.id == slices.c.device_id)
    .where(slices.c.lease_id == sa.bindparam("lease"), devices.c.server == sa.bindparam("server"))
)
UNSETTLED = CompiledSql(sa.select(leases.c.id).where(NOT_ENDED, sa.or_(STARTING, ENDING)))


def ends_on(
    db: sa.Connection, device_ids: Sequence[str], most: int, now: float, steady: float
) -> dict[str, list[tuple[float, int]]]:
    """Return what `gpukernel.pool.store.leases.Leases.ends_on` does, at a wall and a steady time."""
    found: dict[str, list[tuple[float, int]]] = {}
    rows = ENDS_ON_DEVICES.rows(db, devices=list(device_ids), most=most, since=now - STOPS)
    for row in rows:
        # What is over its time already still has to be stopped.
        end = max(row.ends, steady + 1.0) + (now - steady)
        found.setdefault(row.device_id, []).append((end, row.memory_bytes))
    return found


def slice_of(part: Any, steady: float) -> Slice:
    """Return the slice of a row of `_PARTS`, as of a steady time."""
    figures = {name: getattr(part, name) for name in _USAGE}
    if part.idle_since is not None:
        figures["idle_seconds"] = max(steady - part.idle_since, 0.0)
    return Slice(
        device_id=part.device_id,
        server=part.server,
        device_index=part.number,
        device_name=part.name,
        device_memory_bytes=part.whole,
        memory_bytes=part.memory_bytes,
        weight=part.weight,
        endpoints=tuple(part.endpoints.split()),
        usage=Usage(**figures),
        uuid=part.uuid,
        reserve_bytes=part.reserve_bytes,
        lent_bytes=part.lent_bytes,
    )


def lease_of(row: Any, pieces: Sequence[Slice]) -> Lease:
    """Return the lease of a row of ``leases`` and its slices."""
    return Lease(
        id=row.id,
        key=row.key,
        holder=Holder(row.person, row.server, row.course, row.description),
        slices=tuple(pieces),
        state=row.state,
        created=row.created,
        expires=row.expires,
        ttl_seconds=row.ttl_seconds,
        epoch=row.epoch,
        secret=row.secret,
        end_reason=row.end_reason,
        ended=row.ended,
        until=row.until or 0.0,
        notice=" ".join(filter(None, (row.message, row.notice))),
        role=row.role,
        mode=row.mode,
        user=row.uid,
        decided_by=row.decided_by,
        ceiling=row.ceiling,
        within=row.within,
        priority=row.priority,
        gives_way=row.gives_way or 0.0,
    )
