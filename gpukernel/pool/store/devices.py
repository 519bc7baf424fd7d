"""Devices as stored: what may be promised on them, and the indexed searches for room.

Guarantees
----------
* The sum of promises on a device stays within its memory, whatever this code does: the database checks it.
* What an engine decides over is never available, whatever this code does: the database checks it.
* The kinds of devices, the machines of direct mode and the devices of reservations are read again only when the ledger's ``devices_version``
  has grown.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from gpukernel.common.errors import Refused
from gpukernel.common.model import Device
from gpukernel.pool.domain.direct_mode import Machine, NamedDevice, Places
from gpukernel.pool.domain.placement import DeviceClass, classes
from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from gpukernel.pool.store.database import Database
from gpukernel.pool.store.schema import (
    IN_USE,
    devices,
    ledger,
    reservation_placements,
    servers,
    slices,
    tokens,
)

__all__ = [
    "PROMISE",
    "ROWS",
    "Devices",
    "PlacedDevices",
    "device_of",
    "trouble_of",
    "update_availability",
]

PlacedDevices = dict[str, dict[str, tuple[Device, int, float]]]
"""By reservation and device: the device, its bytes that are reserved, and the end of the window that it was chosen for."""

SUPPLIES_OF_A_TOKEN = 16
"""Supplies that may announce with one token at a time."""

PROMISE = CompiledSql(
    devices.update()
    .where(devices.c.id == sa.bindparam("device"))
    .values(promised_bytes=devices.c.promised_bytes + sa.bindparam("size"))
)
"""Promise ``size`` more bytes (fewer where negative) of ``device``; the database refuses more than it has."""

# As `device_of` reads them: a row that is a tuple has a method “index” already.
ROWS = sa.select(*(c for c in devices.c if c.name != "index"), devices.c.index.label("number"))
"""Devices, as `device_of` takes their rows."""
_OF_KIND = ROWS.where(
    devices.c.name == sa.bindparam("name"),
    devices.c.memory_bytes == sa.bindparam("whole"),
    devices.c.available,
).limit(sa.bindparam("count"))
_WITH_ROOM = _OF_KIND.where(devices.c.promised_bytes <= sa.bindparam("most")).order_by(
    devices.c.promised_bytes.desc(), devices.c.id.desc()
)
_FULLEST = CompiledSql(_WITH_ROOM)
_FULLEST_BUT = CompiledSql(_WITH_ROOM.where(devices.c.server.not_in(sa.bindparam("without", expanding=True))))
_EMPTIEST = CompiledSql(_OF_KIND.order_by(devices.c.promised_bytes, devices.c.id))
_SOME = CompiledSql(ROWS.where(devices.c.id.in_(sa.bindparam("ids", expanding=True))))
_ON_SERVERS = CompiledSql(ROWS.where(devices.c.server.in_(sa.bindparam("servers", expanding=True))))
_RESERVED = CompiledSql(
    sa.select(
        reservation_placements.c.reservation,
        reservation_placements.c.bytes,
        reservation_placements.c.until,
        devices.c.id,
        devices.c.server,
        devices.c.name,
        devices.c.memory_bytes,
        devices.c.available,
    ).join(devices, devices.c.id == reservation_placements.c.device)
)
_REPLACED = CompiledSql(
    reservation_placements.delete().where(reservation_placements.c.reservation == sa.bindparam("which"))
)
_RESERVE = CompiledSql(reservation_placements.insert())
_ANNOUNCED = CompiledSql(
    sa.select(tokens.c.announced).where(
        tokens.c.announced != sa.literal("", literal_execute=True), tokens.c.revoked.is_(None)
    )
)
_NAMES = (
    devices.c.id,
    devices.c.server,
    devices.c.index.label("number"),
    devices.c.uuid,
    devices.c.name,
    devices.c.memory_bytes,
)
_NAMED = CompiledSql(
    sa.select(*_NAMES).where(devices.c.available).order_by(devices.c.server, devices.c.index)
)


def _by_server(rows: Iterable[Any]) -> dict[str, tuple[NamedDevice, ...]]:
    """Return the devices of rows with `_NAMES`, by server."""
    found: dict[str, list[NamedDevice]] = {}
    for row in rows:
        kind = DeviceClass(row.name, row.memory_bytes)
        found.setdefault(row.server, []).append(
            NamedDevice(row.id, f"{row.server}/{row.number}", row.uuid, kind)
        )
    return {server: tuple(here) for server, here in found.items()}


class Devices:
    """The devices of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.forget()

    def forget(self) -> None:
        """Read the kinds and places anew at their next use."""
        self._classes: tuple[int, list[DeviceClass]] = (-1, [])
        self._places: tuple[int, Places] = (-1, Places())
        self._reserved: tuple[int, PlacedDevices] = (-1, {})

    def all(self) -> list[Device]:
        """Return every device, by server and index; those of servers whose agent is attached are available.

        Forgotten servers have none.
        """
        counted = (
            sa.select(slices.c.device_id, sa.func.count().label("leases"))
            .where(IN_USE)
            .group_by(slices.c.device_id)
            .subquery()
        )
        query = (
            sa.select(
                *ROWS.selected_columns,
                sa.func.coalesce(counted.c.leases, 0).label("leases"),
                servers.c.away_since,
                servers.c.draining,
                servers.c.settling,
            )
            .select_from(devices)
            .outerjoin(counted, counted.c.device_id == devices.c.id)
            .outerjoin(servers, servers.c.name == devices.c.server)
            .where(sa.or_(servers.c.forgotten.is_(None), servers.c.forgotten.is_(False)))
            .order_by(devices.c.server, devices.c.index)
        )
        with self._database.reading() as db:
            return [device_of(row, row.leases, trouble_of(row)) for row in db.execute(query)]

    def classes(self, db: sa.Connection | None = None, version: int | None = None) -> list[DeviceClass]:
        """Return the kinds of available devices, from memory unless devices came or went."""
        if db is None:
            with self._database.reading() as db:
                return self.classes(db)
        if version is None:
            version = self._database.versions(db).devices_version
        if self._classes[0] != version:
            query = (
                sa.select(devices.c.name, devices.c.memory_bytes, sa.func.count().label("count"))
                .where(devices.c.available)
                .group_by(devices.c.name, devices.c.memory_bytes)
                .order_by(devices.c.name, devices.c.memory_bytes)
            )
            found = [
                DeviceClass(row.name, row.memory_bytes, row._mapping["count"]) for row in db.execute(query)
            ]
            self._classes = (version, found)
        return self._classes[1]

    def reserved(self, db: sa.Connection, version: int | None = None) -> PlacedDevices:
        """Return the devices of reservations without what is promised there, from memory where `version`, the ledger's, is given and known.

        Who has changed placements in this transaction gives none.
        """
        if version is not None and self._reserved[0] == version:
            return self._reserved[1]
        found: PlacedDevices = {}
        for row in _RESERVED.rows(db):
            device = Device(row.id, row.server, 0, row.name, row.memory_bytes, available=bool(row.available))
            found.setdefault(row.reservation, {})[row.id] = (device, row.bytes, row.until)
        if version is not None:
            self._reserved = (version, found)
        return found

    def reserve(self, db: sa.Connection, reservation: str, sizes: Mapping[str, int], until: float) -> None:
        """Place a reservation on these devices, bytes by id, in place of where it was, until its window closes."""
        _REPLACED.run(db, which=reservation)
        rows = [
            {"reservation": reservation, "device": device, "bytes": size, "until": until}
            for device, size in sizes.items()
        ]
        _RESERVE.each(db, rows)
        db.execute(ledger.update().values(devices_version=ledger.c.devices_version + 1))

    def returning(self, db: sa.Connection, since: float) -> dict[str, tuple[NamedDevice, ...]]:
        """Return the devices that are available, or will be when servers come back that are away only since then, by server."""
        here = sa.or_(servers.c.away_since.is_(None), servers.c.away_since >= since)
        works = (devices.c.fault == "", devices.c.decided_by == "pool", devices.c.next_decider == "")
        query = (
            sa.select(*_NAMES)
            .join(servers, servers.c.name == devices.c.server)
            .where(here, *works, servers.c.draining.is_(False), servers.c.forgotten.is_(False))
            .order_by(devices.c.server, devices.c.index)
        )
        return _by_server(db.execute(query))

    def announced(self, db: sa.Connection | None, steady: float) -> list[DeviceClass]:
        """Return the kinds of devices that supplies bring when somebody waits, each with the most of them that one lease may have."""
        if db is None:
            with self._database.reading() as db:
                return self.announced(db, steady)
        most: dict[tuple[str, int], int] = {}
        for row in _ANNOUNCED.rows(db):
            for until, kinds in json.loads(row.announced).values():
                for name, memory_bytes, count in kinds if until > steady else ():
                    most[name, memory_bytes] = max(most.get((name, memory_bytes), 0), count)
        return [DeviceClass(name, memory, count) for (name, memory), count in sorted(most.items())]

    @staticmethod
    def announce(
        db: sa.Connection, token: str, supply: str, kinds: Iterable[DeviceClass], until: float, steady: float
    ) -> bool:
        """Put down what a supply brings, by its token, in place of what it did; return whether that is something else.

        Raises
        ------
        Refused
            ``invalid`` where the token's supplies are too many.
        """
        row = db.execute(sa.select(tokens.c.announced).where(tokens.c.id == token)).first()
        said = json.loads(row.announced) if row is not None and row.announced else {}
        said = {name: one for name, one in said.items() if one[0] > steady}
        new = [[kind.name, kind.memory_bytes, kind.count] for kind in kinds]
        before = said.pop(supply, (0.0, []))[1]
        if new and len(said) >= SUPPLIES_OF_A_TOKEN:
            raise Refused("invalid", f"One token is for {SUPPLIES_OF_A_TOKEN} supplies; make another one.")
        if new:
            said[supply] = (until, new)
        text = json.dumps(said) if said else ""
        db.execute(tokens.update().where(tokens.c.id == token).values(announced=text))
        return bool(before != new)

    def places(self, db: sa.Connection | None = None, version: int | None = None) -> Places:
        """Return the machines that allow direct mode and the servers, from memory unless devices or servers came or went."""
        if db is None:
            with self._database.reading() as db:
                return self.places(db)
        if version is None:
            version = self._database.versions(db).devices_version
        if self._places[0] != version:
            query = (
                sa.select(
                    servers.c.direct_machine,
                    servers.c.name.label("speaks_for"),
                    *ROWS.selected_columns,
                )
                .select_from(servers)
                .outerjoin(devices, sa.and_(devices.c.server == servers.c.name, devices.c.available))
                .where(servers.c.direct_machine != "")
                .order_by(servers.c.name)
            )
            names: dict[str, dict[str, None]] = {}
            offered: dict[str, list[Device]] = {}
            for row in db.execute(query):
                names.setdefault(row.direct_machine, {})[row.speaks_for] = None
                if row.id is not None:
                    offered.setdefault(row.direct_machine, []).append(device_of(row))
            found = {
                identity: Machine(tuple(here), tuple(classes(offered.get(identity, ()))))
                for identity, here in names.items()
            }
            self._places = (version, Places(found, _by_server(_NAMED.rows(db))))
        return self._places[1]

    @staticmethod
    def on_machine(db: sa.Connection, machine: Machine, kinds: Iterable[DeviceClass]) -> list[Device]:
        """Return the available devices of these kinds on one machine, the fullest first."""
        # Only the servers stand in the condition, so that their index is taken and not the one over all devices.
        rows = _ON_SERVERS.rows(db, servers=list(machine.servers))
        wanted = set(kinds)
        among = machine.devices
        found = [device_of(row) for row in rows if row.available and (among is None or row.id in among)]
        return sorted(
            (d for d in found if DeviceClass(d.name, d.memory_bytes) in wanted),
            key=lambda d: (d.promised_bytes - d.memory_bytes, d.server, d.index),
            reverse=True,
        )

    def most_free(self, kinds: Iterable[DeviceClass], machine: Machine | None = None) -> int:
        """Return the bytes that are free on the emptiest device of these kinds, of one machine or of the pool."""
        with self._database.reading() as db:
            if machine is not None:
                found = self.on_machine(db, machine, kinds)
            else:
                found = [d for kind in kinds for d in self.emptiest(db, kind, 1)]
        return max((d.memory_bytes - d.promised_bytes for d in found), default=0)

    @staticmethod
    def fullest(
        db: sa.Connection, kind: DeviceClass, size: int, count: int, without: Collection[str] = ()
    ) -> list[Device]:
        """Return the `count` fullest devices of a kind with room for `size` bytes, on no server of `without`: one step in an index."""
        whole = kind.memory_bytes
        if without:
            found = _FULLEST_BUT.rows(
                db, name=kind.name, whole=whole, most=whole - size, count=count, without=list(without)
            )
        else:
            found = _FULLEST.rows(db, name=kind.name, whole=whole, most=whole - size, count=count)
        return [device_of(row) for row in found]

    @staticmethod
    def emptiest(db: sa.Connection, kind: DeviceClass, count: int) -> list[Device]:
        """Return the `count` devices of a kind with the most room."""
        found = _EMPTIEST.rows(db, name=kind.name, whole=kind.memory_bytes, count=count)
        return [device_of(row) for row in found]

    @staticmethod
    def available_among(db: sa.Connection, ids: Sequence[str], kinds: Iterable[DeviceClass]) -> list[Device]:
        """Return those of these devices that are available and of these kinds."""
        wanted = set(kinds)
        found = [device_of(row) for row in _SOME.rows(db, ids=list(ids))]
        return [d for d in found if d.available and DeviceClass(d.name, d.memory_bytes) in wanted]


def update_availability(db: sa.Connection, names: Sequence[str]) -> None:
    """Mark which devices of these servers the pool may promise: it decides over them, the agent speaks, nobody drains the server, no
    worker lives there that nobody ordered, and they work.
    """
    ready = sa.select(servers.c.name).where(
        servers.c.away_since.is_(None),
        *(column.is_(False) for column in (servers.c.draining, servers.c.settling, servers.c.forgotten)),
    )
    works = sa.and_(
        devices.c.fault == "",
        devices.c.decided_by == "pool",
        devices.c.next_decider == "",
        devices.c.server.in_(ready),
    )
    db.execute(devices.update().where(devices.c.server.in_(names)).values(available=works))
    db.execute(ledger.update().values(devices_version=ledger.c.devices_version + 1))


def trouble_of(row: Any) -> str:
    """Return what is wrong with a device of `ROWS`, joined with its server, whoever decides over it; empty where nothing is."""
    if row.available:
        return ""
    if row.away_since is not None:
        return "away"
    if row.settling:
        return "its old workers are being stopped"
    if row.fault or row.draining:
        return str(row.fault) or "drained"
    return "away" if row.decided_by == "pool" and not row.next_decider else ""


def device_of(row: Any, count: int = 0, trouble: str = "") -> Device:
    """Return the device of a row of `ROWS`, with the number of its leases and why it is not offered."""
    return Device(
        id=row.id,
        server=row.server,
        index=row.number,
        name=row.name,
        memory_bytes=row.memory_bytes,
        promised_bytes=row.promised_bytes,
        leases=count,
        available=bool(row.available),
        trouble=trouble,
        compute_capability=row.compute_capability,
        multiprocessors=row.multiprocessors,
        uuid=row.uuid,
        decided_by=row.decided_by,
        next_decider=row.next_decider,
    )
