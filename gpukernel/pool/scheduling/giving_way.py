"""Leases that give way, as stored: which may have to, which were told to, and until when they have.

Guarantees
----------
* Only live leases of the classes batch and scavenger are told; never one that an engine has placed, a ceiling, or one inside of one.
* A lease that was told keeps everything until the time that it was told.  Nothing here ends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from gpukernel.pool.store.schema import IN_USE, LIVE, LIVING, NOT_ENDED, PLACED_BY_POOL, leases, slices, total
from gpukernel.pool.store.store import Store

__all__ = ["GIVES_WAY", "given_up_for", "may_give_way", "tell", "told", "withdraw", "withdraw_for"]

GIVES_WAY = "This slice gives way"
"""The beginning of the notice of a lease that gives way."""

CANDIDATES = 128
"""The most leases of a class that are looked at, the youngest ones."""


def _youngest(priority: str) -> CompiledSql:
    young = (
        sa.select(leases.c.id, leases.c.epoch, leases.c.until, leases.c.person, leases.c.course)
        .where(
            LIVE,
            leases.c.gives_way.is_(None),
            leases.c.priority == sa.literal(priority, literal_execute=True),
            leases.c.ceiling.is_(False),
            leases.c.within == "",
            PLACED_BY_POOL,
            leases.c.created <= sa.bindparam("before"),
            sa.or_(leases.c.until.is_(None), leases.c.until > sa.bindparam("lasts")),
        )
        .order_by(leases.c.epoch.desc())
        .limit(CANDIDATES)
        .subquery()
    )
    return CompiledSql(
        sa.select(young, slices.c.device_id, slices.c.memory_bytes)
        .join(slices, slices.c.lease_id == young.c.id)
        .where(IN_USE)
    )


_MAY = {name: _youngest(name) for name in ("batch", "scavenger")}
_TELL = CompiledSql(
    leases.update()
    .where(leases.c.id == sa.bindparam("lease"), LIVE, leases.c.gives_way.is_(None))
    .values(
        gives_way=sa.bindparam("when"),
        gives_way_to=sa.bindparam("to"),
        gives_way_for=sa.bindparam("whom"),
        notice=sa.bindparam("sentence"),
    )
)
_GIVEN_UP = CompiledSql(
    sa.select(sa.func.coalesce(total(leases.c.share), 0).label("share")).where(
        leases.c.gives_way_for == sa.bindparam("whom"),
        leases.c.gives_way.is_not(None),
        leases.c.gives_way >= sa.bindparam("since"),
    )
)
_TOLD = CompiledSql(
    sa.select(leases.c.id, leases.c.gives_way, leases.c.gives_way_to)
    .where(NOT_ENDED, leases.c.gives_way.is_not(None), LIVING)
    .order_by(leases.c.epoch)
)
_LET_OFF = leases.update().values(
    gives_way=None,
    gives_way_to="",
    gives_way_for="",
    # Another notice may have taken its place.
    notice=sa.case((leases.c.notice.startswith(GIVES_WAY), ""), else_=leases.c.notice),
)
_WAITING = (NOT_ENDED, leases.c.gives_way.is_not(None), LIVING)
_WITHDRAW = CompiledSql(
    _LET_OFF.where(leases.c.id == sa.bindparam("lease"), *_WAITING).returning(leases.c.id)
)
_WITHDRAW_FOR = CompiledSql(
    _LET_OFF.where(leases.c.gives_way_to == sa.bindparam("request"), *_WAITING).returning(leases.c.id)
)


def may_give_way(db: sa.Connection, created_before: float, lasts: float) -> list[tuple[str, Any]]:
    """Return the slices of the youngest leases that may have to give way, each with its class.

    Those that were granted after a wall time are left out, and those that end by a steady time anyway.
    """
    return [
        (priority, row)
        for priority, query in _MAY.items()
        for row in query.rows(db, before=created_before, lasts=lasts)
    ]


def given_up_for(db: sa.Connection, person: str, since: float) -> int:
    """Return the share, in millionths, of leases that give way to a person's requests, or did since a steady time."""
    return int(_GIVEN_UP.first(db, whom=person, since=since).share)


def tell(
    db: sa.Connection, store: Store, lease_id: str, when: float, key: str, person: str, notice: str
) -> None:
    """Write down that a lease ends at a steady time to give way to a person's request of a key, and tell its holder.

    To be called in a `Store.deciding` transaction, as everything here that writes.
    """
    if _TELL.run(db, lease=lease_id, when=when, to=key, whom=person, sentence=notice):
        store.changes.lease("told", lease_id)


def told(db: sa.Connection) -> list[Any]:
    """Return the leases that give way and have not begun to end: ``id``, ``gives_way``, ``gives_way_to``; the oldest first."""
    return _TOLD.rows(db)


def withdraw(db: sa.Connection, store: Store, lease_ids: Iterable[str]) -> None:
    """Take the notice back: these leases stay."""
    for lease_id in lease_ids:
        for row in _WITHDRAW.rows(db, lease=lease_id):
            store.changes.lease("told", row.id)


def withdraw_for(db: sa.Connection, store: Store, keys: Iterable[str]) -> None:
    """Take back the notices of leases that give way to the requests of these keys."""
    for key in keys:
        for row in _WITHDRAW_FOR.rows(db, request=key):
            store.changes.lease("told", row.id)
