"""GPU servers as stored: their devices when an agent attaches, drains, faults, and servers that are away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from gpukernel.common.model import Device
from gpukernel.pool.store.compiled_sql import CompiledSql
from gpukernel.pool.store.database import Database
from gpukernel.pool.store.devices import update_availability
from gpukernel.pool.store.policy import note
from gpukernel.pool.store.schema import devices, servers, slices

__all__ = ["Servers"]

_NO_MORE = "its server has it no more"
_SEEN = CompiledSql(
    servers.update().where(servers.c.pool == sa.bindparam("us")).values(seen=sa.bindparam("now"))
)
_AWAY = CompiledSql(sa.select(servers.c.name).where(servers.c.away_since < sa.bindparam("since")))
_DRAINED = CompiledSql(
    sa.select(servers.c.name).where(servers.c.draining, servers.c.drain_until <= sa.bindparam("now"))
)


class Servers:
    """The GPU servers of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(
        self, server: str, found: Iterable[Device], pool: str, now: float, direct_machine: str = ""
    ) -> None:
        """Record the devices of a server whose agent speaks with `pool`, and its machine where it allows direct mode.

        Devices that it no longer has are deleted, unless leases still hold parts of them.
        """
        with self._database.deciding() as (db, _):
            known = {row.id: row for row in db.execute(sa.select(devices).where(devices.c.server == server))}
            for device in found:
                values = {
                    "server": server,
                    "index": device.index,
                    "name": device.name,
                    "memory_bytes": device.memory_bytes,
                    "compute_capability": device.compute_capability,
                    "multiprocessors": device.multiprocessors,
                }
                before = known.pop(device.id, None)
                if before is not None and before.fault == _NO_MORE:
                    values["fault"] = ""
                if before is None:
                    db.execute(devices.insert().values(id=device.id, promised_bytes=0, **values))
                else:
                    db.execute(devices.update().where(devices.c.id == device.id).values(**values))
            for row in known.values():
                if db.execute(sa.select(slices.c.lease_id).where(slices.c.device_id == row.id)).first():
                    db.execute(devices.update().where(devices.c.id == row.id).values(fault=_NO_MORE))
                else:
                    db.execute(devices.delete().where(devices.c.id == row.id))
            values = {"pool": pool, "seen": now, "away_since": None, "direct_machine": direct_machine}
            if not db.execute(servers.update().where(servers.c.name == server).values(**values)).rowcount:
                db.execute(servers.insert().values(name=server, **values))
            update_availability(db, [server])

    def note_faults(self, server: str, found: Mapping[int, str]) -> list[str]:
        """Record which devices of a server do not work now, by index; return the ids of those that did until now."""
        query = sa.select(devices.c.id, devices.c.index, devices.c.fault).where(devices.c.server == server)
        with self._database.transaction() as db:
            known = {row.id: (row._mapping["index"], row.fault) for row in db.execute(query)}
        changed = {
            device_id: found.get(index, "")
            for device_id, (index, fault) in known.items()
            if found.get(index, "") != fault and fault != _NO_MORE
        }
        if not changed:
            return []
        with self._database.deciding() as (db, _):
            for device_id, sentence in changed.items():
                db.execute(devices.update().where(devices.c.id == device_id).values(fault=sentence))
            update_availability(db, [server])
        return [device_id for device_id, sentence in changed.items() if sentence and not known[device_id][1]]

    def drain(self, server: str, draining: bool, until: float | None, who: str, now: float) -> bool:
        """Exclude a server from new leases, or admit it again; return False where there is no such server."""
        with self._database.deciding() as (db, _):
            before = db.execute(sa.select(servers).where(servers.c.name == server)).first()
            if before is None:
                return False
            values = {"draining": draining, "drain_until": until}
            db.execute(servers.update().where(servers.c.name == server).values(**values))
            note(db, now, who, "drain", server, *(_drained(b) for b in (before.draining, draining)))
            update_availability(db, [server])
        return True

    def drained_by(self, now: float) -> list[str]:
        """Return the servers whose drain deadline has passed."""
        with self._database.transaction() as db:
            return [row.name for row in _DRAINED.rows(db, now=now)]

    def mark_seen(self, pool: str, now: float) -> None:
        """Record that the agents of `pool` still speak with it."""
        with self._database.transaction() as db:
            _SEEN.run(db, us=pool, now=now)

    def mark_away(self, server: str, pool: str, now: float) -> None:
        """Record that the agent no longer speaks with `pool`; change nothing where it speaks with another one by now."""
        self._mark_away(sa.and_(servers.c.name == server, servers.c.pool == pool), now)

    def mark_unseen_away(self, unseen_since: float, now: float) -> None:
        """Mark all servers away whose pool has not spoken for them since a time: that pool is dead."""
        self._mark_away(servers.c.seen < unseen_since, now)

    def _mark_away(self, condition: Any, now: float) -> None:
        with self._database.deciding() as (db, _):
            query = sa.select(servers.c.name).where(condition, servers.c.away_since.is_(None))
            if gone := list(db.execute(query).scalars()):
                db.execute(servers.update().where(servers.c.name.in_(gone)).values(pool="", away_since=now))
                update_availability(db, gone)

    def away_since(self, since: float) -> list[str]:
        """Return the servers that have been away since before a time."""
        with self._database.transaction() as db:
            return [row.name for row in _AWAY.rows(db, since=since)]


def _drained(draining: bool) -> str:
    return "drained" if draining else "in use"
