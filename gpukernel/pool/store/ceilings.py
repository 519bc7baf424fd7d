"""Ceilings as stored: placed leases whose memory is lent to leases inside of them.

A ceiling promises all of its memory of a device at once.  Its own worker has the least that a slice can have, and the rest is its
*reserve*.  A lease inside takes its memory from the reserve and promises nothing of the device.

Guarantees
----------
* What is lent of a ceiling's slice never exceeds its reserve, whatever this code does: the database checks it.
* What is promised of a device is what its slices in use have of it and have in reserve, except those that have it from a ceiling; `heal` says and mends
  where a fault left something else.
* What is lent counts as promised until the worker that has it is known to be dead.  A ceiling that goes before leaves it promised to that
  worker's own slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gpukernel.common.model import Slice
from gpukernel.pool.domain.placement import MIB, Placement
from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from gpukernel.pool.store.devices import PROMISE
from gpukernel.pool.store.schema import IN_USE, LIVING, NOT_ENDED, devices, leases, slices, total

__all__ = [
    "INSIDE",
    "LIVING_INSIDE",
    "WrongBytes",
    "free",
    "heal",
    "new_slice",
    "own_bytes",
    "promise",
    "slice_rows",
    "wrong_bytes",
]

OWN = MIB
"""Bytes that a ceiling's own worker has of each device: the least of a slice."""

_LEND = CompiledSql(
    slices.update()
    .where(slices.c.lease_id == sa.bindparam("ceiling"), slices.c.device_id == sa.bindparam("device"), IN_USE)
    .values(lent_bytes=slices.c.lent_bytes + sa.bindparam("size"))
)
_LEAVE = CompiledSql(
    slices.update()
    .where(slices.c.lent_by == sa.bindparam("ceiling"), slices.c.device_id == sa.bindparam("device"), IN_USE)
    .values(lent_by=None)
)
LIVING_INSIDE = CompiledSql(sa.select(leases.c.id).where(leases.c.within == sa.bindparam("ceiling"), LIVING))
INSIDE = CompiledSql(sa.select(leases.c.id).where(leases.c.within == sa.bindparam("ceiling"), NOT_ENDED))


def own_bytes(placed: Placement, *, ceiling: bool) -> int:
    """Return the bytes that a lease's own worker gets of a placement."""
    return OWN if ceiling else placed.memory_bytes


def promise(db: sa.Connection, placed: Sequence[Placement], within: str) -> None:
    """Promise the memory of devices, or lend that of a ceiling; raises `IntegrityError` where there is not enough, or the next statement does."""
    if not within:
        PROMISE.soon(db, *({"device": p.device.id, "size": p.memory_bytes} for p in placed))
        return
    for p in placed:
        if _LEND.run(db, ceiling=within, device=p.device.id, size=p.memory_bytes) != 1:
            raise IntegrityError(
                "lend", None, Exception(f"lease {within} has nothing of device {p.device.label} to lend")
            )


def free(db: sa.Connection, lease_id: str, device_id: str, gone: Any) -> None:
    """Free what a slice had whose worker is dead; `gone` is its row."""
    if gone.lent_by:
        _LEND.soon(db, {"ceiling": gone.lent_by, "device": device_id, "size": -gone.memory_bytes})
        return
    # What workers inside still have is theirs from now on.
    _LEAVE.soon(db, {"ceiling": lease_id, "device": device_id})
    size = gone.memory_bytes + gone.reserve_bytes - gone.lent_bytes
    PROMISE.soon(db, {"device": device_id, "size": -size})


def new_slice(placed: Placement, *, ceiling: bool = False) -> Slice:
    """Return a new slice."""
    device, size = placed.device, own_bytes(placed, ceiling=ceiling)
    return Slice(
        device.id,
        device.server,
        device.index,
        device.name,
        device.memory_bytes,
        size,
        size / device.memory_bytes,
        uuid=device.uuid,
        reserve_bytes=placed.memory_bytes - size,
    )


def slice_rows(lease_id: str, made: Sequence[Slice], within: str, decided_by: str) -> list[dict[str, Any]]:
    """Return the rows of a lease's new slices."""
    return [
        {
            "lease_id": lease_id,
            "ordinal": ordinal,
            "device_id": piece.device_id,
            "memory_bytes": piece.memory_bytes,
            "limit_bytes": piece.memory_bytes,
            "weight": piece.weight,
            "worker": "starting",
            "confirmed": False,
            "decided_by": decided_by,
            "reserve_bytes": piece.reserve_bytes,
            "lent_by": within or None,
        }
        for ordinal, piece in enumerate(made)
    ]


class WrongBytes(NamedTuple):
    """A device of which other bytes are promised than its slices have; or, with a lease, a ceiling's slice that has lent others than leases inside have."""

    device: str
    lease: str
    are: int
    should: int
    most: int

    def __str__(self) -> str:
        what, whose = "promised_bytes", f"device {self.device}"
        if self.lease:
            what, whose = "lent_bytes", f"lease {self.lease} on {self.device}"
        if self.should > self.most:
            return f"{whose}: {what} is {self.are}, its slices have {self.should}, and there are {self.most}: this stays wrong"
        return f"{whose}: {what} was {self.are} and is {self.should}"


def wrong_bytes(db: sa.Connection) -> list[WrongBytes]:
    """Return what is wrong; without the ledger's lock it may be that another pool changes it meanwhile."""
    has = total(slices.c.memory_bytes) + total(slices.c.reserve_bytes)
    mine = sa.select(slices.c.device_id, has).where(IN_USE, slices.c.lent_by.is_(None))
    promised = {row[0]: row[1] for row in db.execute(mine.group_by(slices.c.device_id))}
    parts = sa.select(slices.c.device_id, slices.c.lent_by, total(slices.c.memory_bytes))
    inside = parts.where(IN_USE, slices.c.lent_by.is_not(None)).group_by(slices.c.device_id, slices.c.lent_by)
    lent = {(row[0], row[1]): row[2] for row in db.execute(inside)}
    found = []
    for row in db.execute(sa.select(devices.c.id, devices.c.promised_bytes, devices.c.memory_bytes)):
        found.append(WrongBytes(row.id, "", row.promised_bytes, promised.get(row.id, 0), row.memory_bytes))
    lenders = sa.select(slices.c.device_id, slices.c.lease_id, slices.c.lent_bytes, slices.c.reserve_bytes)
    for piece in db.execute(lenders.where(IN_USE, slices.c.reserve_bytes > 0)):
        should = lent.get((piece.device_id, piece.lease_id), 0)
        found.append(
            WrongBytes(piece.device_id, piece.lease_id, piece.lent_bytes, should, piece.reserve_bytes)
        )
    return [one for one in found if one.are != one.should]


def heal(db: sa.Connection) -> list[WrongBytes]:
    """Put right what is wrong, as far as there is so much, and return it; the caller holds the ledger's lock."""
    found = wrong_bytes(db)
    for one in found:
        if one.should > one.most:
            continue
        if one.lease:
            _LEND.run(db, ceiling=one.lease, device=one.device, size=one.should - one.are)
        else:
            PROMISE.run(db, device=one.device, size=one.should - one.are)
    return found
