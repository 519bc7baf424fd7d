"""The devices that an agent reports, matched with those in the books by their UUIDs, whatever numbers they have now.

Guarantees
----------
* A device that has another number than before keeps its promises, its leases and its fault.
* A row without a UUID (of before there were any, or of an agent that tells none) gets that of the device with its number and model.
* A device that its server has no more is not promised.  Its row stays while slices name it, or an engine decides over it, and is in
  use again once the device is back.
* A device that comes to another server of its machine has the same decider there.
* A device that another server of the same machine offers, or still has leases on, is not promised a second time.  While that server is
  away, one that came with a token of others' (`_are_akin`) does not have it either: what a server says of its machine and its devices,
  everybody on that machine can read.

Call all of it in a `gpukernel.pool.store.database.Database.deciding` transaction, and `update_availability` afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from gpukernel.common.model import Device
from gpukernel.pool.domain.fencing import Registration
from gpukernel.pool.store.policy import note
from gpukernel.pool.store.schema import (
    IN_USE,
    audit,
    devices,
    reservation_placements,
    servers,
    slices,
    tokens,
)

__all__ = [
    "GONE",
    "MADE_BY",
    "GoneDevice",
    "by_agent",
    "end_own_drain",
    "found_by_pool",
    "free_to_offer",
    "note_drain",
    "record_devices",
]

GONE = "its server has it no more"
MADE_BY = ": "
"""The end of the name of a supply's token in the names of those that it makes (`gpukernel.pool.rpc.supplies`)."""
_DRAINED = {True: "drained", False: "in use"}
_ELSEWHERE = "it is offered by GPU server "
_ROW = sa.select(*(column for column in devices.c if column.name != "index"), devices.c.index.label("number"))


@dataclass(frozen=True)
class GoneDevice:
    """A device that its server has no more, although leases hold parts of it."""

    id: str
    label: str
    uuid: str

    def reason(self, server: str) -> str:
        """Return the reason with which its leases end."""
        named = f"{self.label} ({self.uuid})" if self.uuid else self.label
        return f"its device {named} is gone from GPU server {server}"


def by_agent(server: str) -> str:
    """Return who did what an agent reports, for the audit table."""
    return f"agent of {server}"


def note_drain(db: sa.Connection, now: float, who: str, server: str, before: bool, after: bool) -> None:
    """Note in the audit table that a server was excluded from new leases, or admitted again."""
    note(db, now, who, "drain", server, _DRAINED[before], _DRAINED[after])


def end_own_drain(db: sa.Connection, server: str, now: float) -> None:
    """Admit `server` to new leases again where nobody but its agent drained it: another one, which said that it ends.

    A drain of an administrator stays, whether it came before or after.
    """
    others = (
        sa.select(audit.c.after)
        .where(audit.c.action == "drain", audit.c.subject == server, audit.c.who != by_agent(server))
        .order_by(audit.c.id.desc())
        .limit(1)
    )
    here = servers.c.name == server
    drained = db.execute(sa.select(servers.c.name).where(here, servers.c.draining)).first() is not None
    if drained and db.execute(others).scalar() != _DRAINED[True]:
        db.execute(servers.update().where(here).values(draining=False, drain_until=None))
        note_drain(db, now, by_agent(server), server, True, False)


def found_by_pool(fault: str) -> bool:
    """Return whether the pool itself found a device's fault, so that no report of its health takes it back."""
    return fault == GONE or fault.startswith(_ELSEWHERE)


def record_devices(
    db: sa.Connection, server: str, who: Registration, found: Iterable[Device], now: float
) -> tuple[dict[int, str], tuple[GoneDevice, ...]]:
    """Record the devices of a server; return their ids by number, and the devices that are gone with leases on them.

    Parameters
    ----------
    who
        The server's agent.
    now
        Wall time, for the audit table.
    """
    found = list(found)
    known = {row.id: row for row in db.execute(_ROW.where(devices.c.server == server))}
    matched = {device.id: known.pop(device.id) for device in found if device.id in known}
    for device in found:
        if device.id not in matched and (row := _likely(known.values(), device)) is not None:
            matched[device.id] = known.pop(row.id)
    # Numbers may change places: until every row has its new one, none is in use.
    db.execute(
        devices.update().where(devices.c.server == server, devices.c.available).values(available=False)
    )
    told = [device.uuid for device in found if device.uuid]
    others = _offered_elsewhere(db, server, who.machine, who.credential, told)
    new = [device.uuid for device in found if device.uuid and device.id not in matched]
    deciders = _decided_elsewhere(db, server, who.machine, new)
    ids: dict[int, str] = {}
    for device in found:
        before = matched.get(device.id)
        decider = deciders.get(device.uuid, "pool")
        ids[device.index] = _record(db, device, before, others.get(device.uuid, ""), decider)
        if before is not None and before.fault == GONE:
            note(
                db, now, by_agent(server), "device", device.label, GONE, f"there again {device.uuid}".strip()
            )
    return ids, tuple(_gone(db, server, row, now) for row in known.values() if _is_missed(db, row))


def _likely(rows: Iterable[Any], device: Device) -> Any:
    """Return the row that must be `device`'s although their names differ: one of the two has no UUID, number and model agree."""
    for row in rows:
        told = bool(row.uuid), bool(device.uuid)
        agree = (row.number, row.name) == (device.index, device.name)
        if agree and told in ((True, False), (False, True)) and row.fault != GONE:
            return row
    return None


def _record(db: sa.Connection, device: Device, before: Any, other: str, decider: str) -> str:
    """Write one reported device down, a new one with its decider; return its id."""
    device_id = device.id
    if before is not None and before.id != device_id:
        if device.uuid:
            _rename(db, before, device)
        else:
            device_id = before.id  # an agent of an older version: its device is known by more than it tells
    values = {
        "server": device.server,
        "index": device.index,
        "name": device.name,
        "memory_bytes": device.memory_bytes,
        "compute_capability": device.compute_capability,
        "multiprocessors": device.multiprocessors,
    }
    if before is not None and device.memory_bytes < before.promised_bytes:
        values = {"index": device.index, "fault": GONE}  # what is promised there is not to be had any more
    elif other:
        values["fault"] = f"{_ELSEWHERE}{other}"
    elif before is not None and found_by_pool(before.fault):
        values["fault"] = ""
    if before is None:
        row = {"id": device_id, "uuid": device.uuid, "promised_bytes": 0, "decided_by": decider, **values}
        db.execute(devices.insert().values(row))
    else:
        db.execute(devices.update().where(devices.c.id == device_id).values(values))
    return device_id


def _rename(db: sa.Connection, before: Any, device: Device) -> None:
    """Give a row the name that its device has now, with everything that refers to it."""
    row = dict(before._mapping)
    row["index"] = row.pop("number")
    db.execute(devices.insert().values(row | {"id": device.id, "uuid": device.uuid, "available": False}))
    for column in (slices.c.device_id, reservation_placements.c.device):
        db.execute(sa.update(column.table).where(column == before.id).values({column.name: device.id}))
    db.execute(devices.delete().where(devices.c.id == before.id))


def _is_missed(db: sa.Connection, row: Any) -> bool:
    """Take a row out whose device is gone; return whether leases hold parts of it.

    That an engine decides over it is kept: the pool would take it for its own once it is back.
    """
    named = slices.c.device_id == row.id
    engines = row.decided_by != "pool" or row.next_decider
    if not engines and db.execute(sa.select(slices.c.lease_id).where(named).limit(1)).first() is None:
        db.execute(devices.delete().where(devices.c.id == row.id))
        return False
    db.execute(devices.update().where(devices.c.id == row.id).values(fault=GONE))
    return db.execute(sa.select(slices.c.lease_id).where(named, IN_USE).limit(1)).first() is not None


def _gone(db: sa.Connection, server: str, row: Any, now: float) -> GoneDevice:
    label = f"{server}/{row.number}"
    if row.fault != GONE:
        note(db, now, by_agent(server), "device", label, row.uuid, GONE)
    return GoneDevice(row.id, label, row.uuid)


def _offered_elsewhere(
    db: sa.Connection, server: str, machine: str, credential: str, uuids: Collection[str]
) -> Mapping[str, str]:
    """Return, as part of a sentence, the other server of this machine that has each of these devices, where one has."""
    if not (machine and uuids):
        return {}
    has_it = sa.and_(devices.c.fault != GONE, ~devices.c.fault.startswith(_ELSEWHERE))
    query = (
        sa.select(
            devices.c.uuid,
            devices.c.server,
            devices.c.promised_bytes,
            servers.c.away_since,
            servers.c.credential,
        )
        .join(servers, servers.c.name == devices.c.server)
        .where(
            devices.c.uuid.in_(uuids),
            devices.c.server != server,
            servers.c.machine == machine,
            sa.or_(devices.c.promised_bytes > 0, has_it),
        )
    )
    found: dict[str, str] = {}
    for row in db.execute(query).all():
        where = f"{row.server} of the same machine"
        if row.promised_bytes or row.away_since is None:
            found[row.uuid] = where
        elif not _are_akin(db, credential, row.credential):
            found.setdefault(
                row.uuid,
                f"{where}, which is away; where that one is gone for good, say “gpukernel server forget {row.server}”",
            )
    return found


def _are_akin(db: sa.Connection, new: str, other: str) -> bool:
    """Return whether a server may have the devices of another one of its machine that is away, by what the two came with.

    It may where it came with an account that administers the pool, where one supply of servers made both their tokens, or where both are of
    one state directory.
    """
    if new.startswith("account ") or new == other:
        return True
    names = [
        str(
            db.execute(sa.select(tokens.c.name).where(tokens.c.id == one.removeprefix("token "))).scalar()
            or ""
        )
        for one in (new, other)
    ]
    makers = [name.partition(MADE_BY)[0] for name in names if MADE_BY in name]
    return len(makers) == 2 and makers[0] == makers[1]


def _decided_elsewhere(
    db: sa.Connection, server: str, machine: str, uuids: Collection[str]
) -> Mapping[str, str]:
    """Return the engines that decide over these devices on another server of this machine."""
    if not (machine and uuids):
        return {}
    query = (
        sa.select(devices.c.uuid, devices.c.decided_by)
        .join(servers, servers.c.name == devices.c.server)
        .where(
            devices.c.uuid.in_(uuids),
            devices.c.decided_by != "pool",
            devices.c.server != server,
            servers.c.machine == machine,
        )
    )
    return {row.uuid: row.decided_by for row in db.execute(query)}


def free_to_offer(db: sa.Connection, server: str, uuids: Collection[str]) -> set[str]:
    """Return those of these devices that no other server of the same machine has any more."""
    row = db.execute(
        sa.select(servers.c.machine, servers.c.credential).where(servers.c.name == server)
    ).first()
    return (
        set(uuids) - _offered_elsewhere(db, server, row.machine, row.credential, uuids).keys()
        if row is not None
        else set(uuids)
    )
