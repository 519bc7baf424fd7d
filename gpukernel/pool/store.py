"""The pool's state in its database; every method is one transaction.

Guarantees
----------
* A lease's memory is promised before its worker is started and free only after its worker is known to be dead.
* The sum of promises on a device stays within its memory, whatever this code does: the database checks it.
* A crash between two transactions leaves a state that the next start can continue from: a lease that is
  ``starting`` or ``ending`` names the workers that have to be started or stopped.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gpukernel.pool.model import Device, Holder, Lease, Slice, Usage
from gpukernel.pool.placement import Placement
from gpukernel.pool.schema import devices, leases, metadata, slices

__all__ = ["Conflict", "Store"]

_USAGE = tuple(Usage.__dataclass_fields__)


class Conflict(Exception):
    """The database refused a grant: the memory or the key was taken in between."""


class Store:
    """The database at `url`, for example ``sqlite:////var/lib/gpukernel/pool.db``."""

    def __init__(self, url: str) -> None:
        self.engine = sa.create_engine(url)
        if self.engine.dialect.name == "sqlite":
            sa.event.listen(self.engine, "connect", _sqlite_settings)
        metadata.create_all(self.engine)

    @classmethod
    def in_directory(cls, state: Path) -> Store:
        """The SQLite database of a state directory, readable by its owner only."""
        path = state / "pool.db"
        path.touch(mode=0o600)
        path.chmod(0o600)
        return cls(f"sqlite:///{path}")

    def close(self) -> None:
        self.engine.dispose()

    # --- devices ---

    def register(self, server: str, found: Iterable[Device]) -> None:
        """Note the devices of a server; those that it no longer has go, unless leases still hold parts of them."""
        with self.engine.begin() as db:
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
                if known.pop(device.id, None) is None:
                    db.execute(devices.insert().values(id=device.id, promised_bytes=0, **values))
                else:
                    db.execute(devices.update().where(devices.c.id == device.id).values(**values))
            for row in known.values():
                if not db.execute(sa.select(slices.c.lease_id).where(slices.c.device_id == row.id)).first():
                    db.execute(devices.delete().where(devices.c.id == row.id))

    def devices(self, attached: Iterable[str]) -> list[Device]:
        """Every device; those of servers in `attached` are available."""
        present = set(attached)
        counted = (
            sa.select(slices.c.device_id, sa.func.count().label("leases"))
            .where(slices.c.worker != "gone")
            .group_by(slices.c.device_id)
            .subquery()
        )
        query = (
            sa.select(devices, sa.func.coalesce(counted.c.leases, 0).label("leases"))
            .outerjoin(counted, counted.c.device_id == devices.c.id)
            .order_by(devices.c.server, devices.c.index)
        )
        with self.engine.connect() as db:
            return [
                Device(
                    id=row.id,
                    server=row.server,
                    index=row._mapping["index"],
                    name=row.name,
                    memory_bytes=row.memory_bytes,
                    promised_bytes=row.promised_bytes,
                    leases=row.leases,
                    available=row.server in present,
                    compute_capability=row.compute_capability,
                    multiprocessors=row.multiprocessors,
                )
                for row in db.execute(query)
            ]

    # --- leases ---

    def grant(self, key: str, holder: Holder, placed: Sequence[Placement], ttl: float, now: float) -> Lease:
        """Promise the memory and write the lease down, in state ``starting``.

        Raises
        ------
        Conflict
            Where a device has no room any more or `key` has a living lease; nothing has changed then.
        """
        lease_id = secrets.token_hex(8)
        try:
            with self.engine.begin() as db:
                for piece in placed:
                    db.execute(
                        devices.update()
                        .where(devices.c.id == piece.device.id)
                        .values(promised_bytes=devices.c.promised_bytes + piece.memory_bytes)
                    )
                epoch = (
                    db.execute(sa.select(sa.func.coalesce(sa.func.max(leases.c.epoch), 0))).scalar_one() + 1
                )
                db.execute(
                    leases.insert().values(
                        id=lease_id,
                        key=key,
                        person=holder.person,
                        server=holder.server,
                        course=holder.course,
                        description=holder.description,
                        secret=secrets.token_hex(32),
                        state="starting",
                        epoch=epoch,
                        created=now,
                        expires=now + ttl,
                        ttl_seconds=ttl,
                        ended=0.0,
                        end_reason="",
                    )
                )
                for ordinal, piece in enumerate(placed):
                    db.execute(
                        slices.insert().values(
                            lease_id=lease_id,
                            ordinal=ordinal,
                            device_id=piece.device.id,
                            memory_bytes=piece.memory_bytes,
                            weight=piece.memory_bytes / piece.device.memory_bytes,
                            worker="starting",
                        )
                    )
        except IntegrityError as error:
            raise Conflict(str(error.orig)) from None
        lease = self.lease(lease_id)
        assert lease is not None
        return lease

    def worker_ready(self, lease_id: str, device_id: str, endpoints: Iterable[str]) -> Lease | None:
        """A worker listens; when all of a lease's do, it is ``live``.  None where there is no such slice."""
        with self.engine.begin() as db:
            db.execute(
                slices.update()
                .where(
                    slices.c.lease_id == lease_id, slices.c.device_id == device_id, slices.c.worker != "gone"
                )
                .values(worker="ready", endpoints=" ".join(endpoints))
            )
            waiting = sa.exists().where(slices.c.lease_id == lease_id, slices.c.worker != "ready")
            db.execute(
                leases.update()
                .where(leases.c.id == lease_id, leases.c.state == "starting", ~waiting)
                .values(state="live")
            )
        return self.lease(lease_id)

    def end(self, lease_id: str, reason: str, now: float) -> bool:
        """Begin to end a lease: its workers must be stopped now.  False where it was ending already."""
        with self.engine.begin() as db:
            changed = db.execute(
                leases.update()
                .where(leases.c.id == lease_id, leases.c.state.in_(["starting", "live"]))
                .values(state="ending", end_reason=reason, ended=now)
            )
            self._finish(db, lease_id)
            return changed.rowcount == 1

    def worker_gone(self, lease_id: str, device_id: str) -> None:
        """A worker is known to be dead: its memory is free, and the last one's end completes the lease's."""
        with self.engine.begin() as db:
            piece = db.execute(
                sa.select(slices.c.memory_bytes).where(
                    slices.c.lease_id == lease_id, slices.c.device_id == device_id, slices.c.worker != "gone"
                )
            ).first()
            if piece is None:
                return
            db.execute(
                slices.update()
                .where(slices.c.lease_id == lease_id, slices.c.device_id == device_id)
                .values(worker="gone", connections=0, memory_used_bytes=0)
            )
            db.execute(
                devices.update()
                .where(devices.c.id == device_id)
                .values(promised_bytes=devices.c.promised_bytes - piece.memory_bytes)
            )
            self._finish(db, lease_id)

    @staticmethod
    def _finish(db: sa.Connection, lease_id: str) -> None:
        alive = sa.exists().where(slices.c.lease_id == lease_id, slices.c.worker != "gone")
        db.execute(
            leases.update()
            .where(leases.c.id == lease_id, leases.c.state == "ending", ~alive)
            .values(state="ended")
        )

    def renew(self, lease_ids: Iterable[str], now: float) -> None:
        """Signs of life of these leases; those that are ending stay so."""
        with self.engine.begin() as db:
            db.execute(
                leases.update()
                .where(leases.c.id.in_(list(lease_ids)), leases.c.state.in_(["starting", "live"]))
                .values(expires=now + leases.c.ttl_seconds)
            )

    def expired(self, now: float) -> list[str]:
        """Leases whose time is over."""
        query = sa.select(leases.c.id).where(leases.c.state.in_(["starting", "live"]), leases.c.expires < now)
        with self.engine.connect() as db:
            return list(db.execute(query).scalars())

    def used(self, server: str, usage: dict[tuple[str, int], Usage]) -> None:
        """What the workers of `server` counted, by lease and device index."""
        with self.engine.begin() as db:
            for (lease_id, index), figures in usage.items():
                device = sa.select(devices.c.id).where(devices.c.server == server, devices.c.index == index)
                db.execute(
                    slices.update()
                    .where(slices.c.lease_id == lease_id, slices.c.device_id == device.scalar_subquery())
                    .values({name: getattr(figures, name) for name in _USAGE})
                )

    def lease(self, lease_id: str) -> Lease | None:
        """The lease, with its secret."""
        return next(iter(self._leases(leases.c.id == lease_id)), None)

    def living(self, key: str) -> Lease | None:
        """The lease of `key` that has not ended."""
        return next(iter(self._leases(sa.and_(leases.c.key == key, leases.c.state != "ended"))), None)

    def leases(self, *, include_ended: bool = False) -> list[Lease]:
        """Leases, oldest first; of those that have ended, the newest hundred."""
        found = self._leases(leases.c.state != "ended")
        if include_ended:
            newest = (
                sa.select(leases.c.id)
                .where(leases.c.state == "ended")
                .order_by(leases.c.epoch.desc())
                .limit(100)
            )
            found = self._leases(leases.c.id.in_(newest)) + found
        return found

    def on_server(self, server: str) -> list[tuple[Lease, Slice]]:
        """Every slice on `server` whose worker is not known to be dead, with its lease."""
        here = (
            sa.select(slices.c.lease_id)
            .join(devices, devices.c.id == slices.c.device_id)
            .where(devices.c.server == server, slices.c.worker != "gone")
        )
        with self.engine.connect() as db:
            alive = {
                (row.lease_id, row.device_id)
                for row in db.execute(
                    sa.select(slices.c.lease_id, slices.c.device_id).where(slices.c.worker != "gone")
                )
            }
        return [
            (lease, piece)
            for lease in self._leases(leases.c.id.in_(here))
            for piece in lease.slices
            if piece.server == server and (lease.id, piece.device_id) in alive
        ]

    def _leases(self, condition: Any) -> list[Lease]:
        query = sa.select(leases).where(condition).order_by(leases.c.epoch)
        with self.engine.connect() as db:
            rows = list(db.execute(query))
            pieces: dict[str, list[Slice]] = {row.id: [] for row in rows}
            parts = (
                sa.select(
                    slices,
                    devices.c.server,
                    devices.c.index,
                    devices.c.name,
                    devices.c.memory_bytes.label("whole"),
                )
                .join(devices, devices.c.id == slices.c.device_id)
                .where(slices.c.lease_id.in_(sa.select(leases.c.id).where(condition)))
                .order_by(slices.c.lease_id, slices.c.ordinal)
            )
            for part in db.execute(parts):
                if part.lease_id in pieces:
                    pieces[part.lease_id].append(
                        Slice(
                            device_id=part.device_id,
                            server=part.server,
                            device_index=part._mapping["index"],
                            device_name=part.name,
                            device_memory_bytes=part.whole,
                            memory_bytes=part.memory_bytes,
                            weight=part.weight,
                            endpoints=tuple(part.endpoints.split()),
                            usage=Usage(**{name: getattr(part, name) for name in _USAGE}),
                        )
                    )
        return [
            Lease(
                id=row.id,
                key=row.key,
                holder=Holder(row.person, row.server, row.course, row.description),
                slices=tuple(pieces[row.id]),
                state=row.state,
                created=row.created,
                expires=row.expires,
                ttl_seconds=row.ttl_seconds,
                epoch=row.epoch,
                secret=row.secret,
                end_reason=row.end_reason,
                ended=row.ended,
            )
            for row in rows
        ]


def _sqlite_settings(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=10000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
