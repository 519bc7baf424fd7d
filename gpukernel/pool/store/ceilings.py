"""Ceilings as stored: placed leases whose memory is lent to leases inside of them.

A ceiling promises all of its memory of a device at once.  Its own worker has the least that a slice can have, and the rest is its
*reserve*.  A lease inside takes its memory from the reserve and promises nothing of the device.

Guarantees
----------
* What is lent of a ceiling's slice never exceeds its reserve, whatever this code does: the database checks it.
* What is lent counts as promised until the worker that has it is known to be dead.  A ceiling that goes before leaves it promised to that
  worker's own slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gpukernel.common.model import Slice
from gpukernel.pool.domain.placement import MIB, Placement
from gpukernel.pool.store.compiled_sql import CompiledSql
from gpukernel.pool.store.devices import PROMISE
from gpukernel.pool.store.schema import IN_USE, LIVING, NOT_ENDED, leases, slices

__all__ = ["INSIDE", "LIVING_INSIDE", "free", "new_slice", "own_bytes", "promise", "slice_rows"]

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
    """Promise the memory of devices, or lend that of a ceiling; raises `IntegrityError` where there is not enough."""
    if not within:
        PROMISE.each(db, [{"device": p.device.id, "size": p.memory_bytes} for p in placed])
        return
    for p in placed:
        if _LEND.run(db, ceiling=within, device=p.device.id, size=p.memory_bytes) != 1:
            raise IntegrityError(
                "lend", None, Exception(f"lease {within} has nothing of device {p.device.label} to lend")
            )


def free(db: sa.Connection, lease_id: str, device_id: str, gone: Any) -> None:
    """Free what a slice had whose worker is dead; `gone` is its row."""
    if gone.lent_by:
        _LEND.run(db, ceiling=gone.lent_by, device=device_id, size=-gone.memory_bytes)
        return
    # What workers inside still have is theirs from now on.
    _LEAVE.run(db, ceiling=lease_id, device=device_id)
    size = gone.memory_bytes + gone.reserve_bytes - gone.lent_bytes
    PROMISE.run(db, device=device_id, size=-size)


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
