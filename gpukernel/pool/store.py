"""The pool's state in its database: devices, leases and their slices.

Guarantees
----------
* A lease's memory is promised before its worker is started and free only after its worker is known to be dead.
* The sum of promises on a device stays within its memory, and what is held under a quota within that, whatever this code
  does: the database checks it.
* A crash between two transactions leaves a state that the next start can continue from: a lease that is
  ``starting`` or ``ending`` names the workers that have to be started or stopped.
* Whoever changes what is promised holds the ledger's one row locked: pools that share a database decide one after the other.
"""

from __future__ import annotations

import contextlib
import operator
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gpukernel.pool import accounts
from gpukernel.pool.database import database_url, open_database
from gpukernel.pool.direct import Machine, Places
from gpukernel.pool.history import close_span, first_span
from gpukernel.pool.model import Device, Holder, Lease, Slice, Usage
from gpukernel.pool.placement import DeviceClass, Placement, classes
from gpukernel.pool.quota import millionths
from gpukernel.pool.rules import Rules, load_rules, note
from gpukernel.pool.schema import (
    ENDING,
    IN_USE,
    LIVE,
    LIVING,
    NOT_ENDED,
    STARTING,
    devices,
    leases,
    ledger,
    servers,
    slices,
)
from gpukernel.pool.statement import Statement

__all__ = ["Conflict", "Store"]

_USAGE = tuple(Usage.__dataclass_fields__)
_NEW_USAGE = tuple(f"new_{name}" for name in _USAGE)
_figures = operator.attrgetter(*_USAGE)
_NO_MORE = "its server has it no more"

# --- what every decision, renewal and second executes ---

_THIS = slices.c.lease_id == sa.bindparam("lease"), slices.c.device_id == sa.bindparam("device")
_LEDGER = Statement(sa.select(ledger).with_for_update())
_VERSIONS = Statement(sa.select(ledger.c.rules_version, ledger.c.devices_version))
_NEXT_EPOCH = Statement(ledger.update().values(epoch=ledger.c.epoch + 1).returning(ledger.c.epoch))
_PROMISE = Statement(
    devices.update()
    .where(devices.c.id == sa.bindparam("device"))
    .values(promised_bytes=devices.c.promised_bytes + sa.bindparam("size"))
)
_NEW_LEASE, _NEW_SLICE = Statement(leases.insert()), Statement(slices.insert())
_READY = Statement(
    slices.update().where(*_THIS, IN_USE).values(worker="ready", endpoints=sa.bindparam("where"))
)
_ALL_READY = Statement(
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
)
_END = Statement(
    leases.update()
    .where(leases.c.id == sa.bindparam("lease"), LIVING)
    .values(state="ending", end_reason=sa.bindparam("reason"), ended=sa.bindparam("now"))
)
_DEAD = Statement(
    slices.update()
    .where(*_THIS, IN_USE)
    .values(worker="gone", connections=0, memory_used_bytes=0)
    .returning(slices.c.memory_bytes)
)
_OVER = Statement(
    leases.update()
    .where(
        leases.c.id == sa.bindparam("lease"),
        ENDING,
        ~sa.exists().where(slices.c.lease_id == sa.bindparam("lease"), IN_USE),
    )
    .values(state="ended")
    .returning(leases.c.person, leases.c.course, leases.c.role, leases.c.share, leases.c.memory_bytes)
)
_RENEW = Statement(
    leases.update()
    .where(leases.c.id == sa.bindparam("lease"), LIVING)
    .values(expires=sa.bindparam("now") + leases.c.ttl_seconds)
)
_USED = Statement(
    slices.update().where(*_THIS).values(dict(zip(_USAGE, map(sa.bindparam, _NEW_USAGE), strict=True)))
)
# As `_device` reads them: a row that is a tuple has a method “index” already.
_DEVICES = sa.select(*(c for c in devices.c if c.name != "index"), devices.c.index.label("number"))
_OF_KIND = _DEVICES.where(
    devices.c.name == sa.bindparam("name"),
    devices.c.memory_bytes == sa.bindparam("whole"),
    devices.c.available,
).limit(sa.bindparam("count"))
_FULLEST = Statement(
    _OF_KIND.where(devices.c.promised_bytes <= sa.bindparam("most")).order_by(
        devices.c.promised_bytes.desc(), devices.c.id.desc()
    )
)
_EMPTIEST = Statement(_OF_KIND.order_by(devices.c.promised_bytes, devices.c.id))
_SOME = Statement(_DEVICES.where(devices.c.id.in_(sa.bindparam("ids", expanding=True))))
_ON_SERVERS = Statement(_DEVICES.where(devices.c.server.in_(sa.bindparam("servers", expanding=True))))
_ENDS = Statement(
    sa.select(slices.c.device_id, leases.c.until, slices.c.memory_bytes)
    .join(leases, leases.c.id == slices.c.lease_id)
    .where(
        slices.c.device_id.in_(sa.bindparam("devices", expanding=True)),
        IN_USE,
        leases.c.until.is_not(None),
    )
    .order_by(leases.c.until)
    .limit(sa.bindparam("most"))
)
_ONE_LEASE = Statement(sa.select(leases).where(leases.c.id == sa.bindparam("lease")))
_PARTS = sa.select(
    slices,
    devices.c.server,
    devices.c.index.label("number"),
    devices.c.name,
    devices.c.memory_bytes.label("whole"),
).join(devices, devices.c.id == slices.c.device_id)
_ITS_PARTS = Statement(_PARTS.where(slices.c.lease_id == sa.bindparam("lease")).order_by(slices.c.ordinal))
_OF_KEYS = Statement(
    sa.select(leases.c.key, leases.c.id, leases.c.state, leases.c.person).where(
        leases.c.key.in_(sa.bindparam("keys", expanding=True)), NOT_ENDED
    )
)
_SEEN = Statement(
    servers.update().where(servers.c.pool == sa.bindparam("us")).values(seen=sa.bindparam("now"))
)
_AWAY = Statement(sa.select(servers.c.name).where(servers.c.away_since < sa.bindparam("since")))
_DRAINED = Statement(
    sa.select(servers.c.name).where(servers.c.draining, servers.c.drain_until <= sa.bindparam("now"))
)
_EXPIRED = Statement(sa.select(leases.c.id).where(LIVING, leases.c.expires < sa.bindparam("now")))
_ENDING_SOON = Statement(
    sa.select(leases.c.id, leases.c.until, leases.c.created, leases.c.notice).where(
        LIVING, leases.c.until.is_not(None), leases.c.until < sa.bindparam("by")
    )
)


MOST_IN_A_LIST = 1000
_SEEN_BY_HOLDERS = (leases.c.state, leases.c.notice, leases.c.message, leases.c.until)
_LOOKS = Statement(
    sa.select(leases.c.id, *_SEEN_BY_HOLDERS, sa.func.sum(slices.c.memory_bytes).label("size"))
    .join(slices, slices.c.lease_id == leases.c.id)
    .where(leases.c.id.in_(sa.bindparam("ids", expanding=True)))
    .group_by(leases.c.id, *_SEEN_BY_HOLDERS)
)
_ITS = slices.c.lease_id == leases.c.id
_IDLE = Statement(
    sa.select(
        leases.c.id,
        sa.select(sa.func.min(slices.c.idle_seconds)).where(_ITS).scalar_subquery().label("idle"),
        leases.c.idle_limit,
        leases.c.notice,
    ).where(
        LIVE,
        leases.c.idle_limit > sa.literal_column("0"),
        sa.or_(
            leases.c.notice != "", ~sa.exists().where(_ITS, slices.c.idle_seconds < leases.c.idle_limit / 2)
        ),
    )
)


class _Leases:
    """All leases that meet a condition, with their slices, oldest first."""

    def __init__(self, condition: Any) -> None:
        self._leases = Statement(sa.select(leases).where(condition))
        which = slices.c.lease_id.in_(sa.select(leases.c.id).where(condition))
        self._parts = Statement(_PARTS.where(which).order_by(slices.c.lease_id, slices.c.ordinal))

    def read(self, db: sa.Connection, **values: Any) -> list[Lease]:
        pieces: dict[str, list[Slice]] = {}
        for part in self._parts.rows(db, **values):
            pieces.setdefault(part.lease_id, []).append(_slice(part))
        # Sorted here: in its order SQLite would read all leases that ever were.
        rows = sorted(self._leases.rows(db, **values), key=lambda row: row.epoch)
        return [_lease(row, pieces.get(row.id, ())) for row in rows]


_NOT_OVER = _Leases(NOT_ENDED)
_NEWEST_ENDED = _Leases(
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
_ALIVE = Statement(_HERE)
_WITH_PARTS_ON = _Leases(leases.c.id.in_(_HERE.with_only_columns(slices.c.lease_id)))
_UNSETTLED = _Leases(
    sa.and_(sa.or_(STARTING, ENDING), leases.c.id.in_(_HERE.with_only_columns(slices.c.lease_id)))
)

Look = tuple[str, str, str, float | None, int]
"""Of a lease: its state, its notice, what somebody has to say, its end, and the bytes of its slices."""


class Conflict(Exception):
    """The database refused a grant: the memory, the quota or the key was taken in between."""


class Store:
    """The database at `url`, for example ``sqlite:////var/lib/gpukernel/pool.db``; see `gpukernel.pool.database`."""

    def __init__(self, url: str) -> None:
        self.engine = open_database(url)
        self.reader = self.engine.execution_options(reads_only=True)
        # One connection stays open: another one's cache is empty after every change, and fetching it from the engine costs as
        # much as a statement.
        self._db = self.engine.connect()
        self._under_way = False  # a transaction on it
        self.shared = self.engine.dialect.name != "sqlite"
        self._rules: tuple[int, Rules] = (-1, Rules())
        self._classes: tuple[int, list[DeviceClass]] = (-1, [])
        self._places: tuple[int, Places] = (-1, Places())

    @classmethod
    def in_directory(cls, state: Path) -> Store:
        """The database of a state directory."""
        return cls(database_url(state))

    def write_back(self) -> None:
        """Bring what SQLite's log holds into its file: for a thread, since the disk may take longer than many decisions."""
        if not self.shared:
            with contextlib.closing(self.engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")

    def close(self) -> None:
        self._db.close()
        self.engine.dispose()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """One of its own, or a part of the one that is under way."""
        if self._under_way:
            yield self._db
            return
        with self._db.begin():
            self._under_way = True
            try:
                yield self._db
            finally:
                self._under_way = False

    @contextlib.contextmanager
    def deciding(self) -> Iterator[tuple[sa.Connection, Any]]:
        """A transaction that holds the ledger, and the ledger's row."""
        with self.transaction() as db:
            yield db, _LEDGER.first(db)

    def rules(self, db: sa.Connection | None = None, version: int | None = None) -> Rules:
        """Courses and quotas; read again only where they have changed."""
        if db is None:
            with self.transaction() as db:
                return self.rules(db)
        if version is None:
            version = _VERSIONS.first(db).rules_version
        if self._rules[0] != version:
            self._rules = (version, load_rules(db))
        return self._rules[1]

    # --- devices ---

    def register(
        self, server: str, found: Iterable[Device], pool: str, now: float, direct_machine: str = ""
    ) -> None:
        """Note the devices of a server whose agent speaks with `pool`, and its machine where it allows direct mode.

        Those that it no longer has go, unless leases still hold parts of them.
        """
        with self.deciding() as (db, _):
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
            self._what_is_available(db, [server])

    @staticmethod
    def _what_is_available(db: sa.Connection, names: Sequence[str]) -> None:
        """Devices of these servers may be promised where the agent speaks, nobody drains the server, and they work."""
        ready = sa.select(servers.c.name).where(servers.c.away_since.is_(None), servers.c.draining.is_(False))
        works = sa.and_(devices.c.fault == "", devices.c.server.in_(ready))
        db.execute(devices.update().where(devices.c.server.in_(names)).values(available=works))
        _devices_changed(db)

    def faults(self, server: str, found: Mapping[int, str]) -> list[str]:
        """Note which devices of a server do not work now; returns the ids of those that did until now."""
        query = sa.select(devices.c.id, devices.c.index, devices.c.fault).where(devices.c.server == server)
        with self.transaction() as db:
            known = {row.id: (row._mapping["index"], row.fault) for row in db.execute(query)}
        changed = {
            device_id: found.get(index, "")
            for device_id, (index, fault) in known.items()
            if found.get(index, "") != fault and fault != _NO_MORE
        }
        if not changed:
            return []
        with self.deciding() as (db, _):
            for device_id, sentence in changed.items():
                db.execute(devices.update().where(devices.c.id == device_id).values(fault=sentence))
            self._what_is_available(db, [server])
        return [device_id for device_id, sentence in changed.items() if sentence and not known[device_id][1]]

    def drain(self, server: str, draining: bool, until: float | None, who: str, now: float) -> bool:
        """Give a server no new leases, or again some; False where there is no such server."""
        with self.deciding() as (db, _):
            before = db.execute(sa.select(servers).where(servers.c.name == server)).first()
            if before is None:
                return False
            values = {"draining": draining, "drain_until": until}
            db.execute(servers.update().where(servers.c.name == server).values(**values))
            note(db, now, who, "drain", server, *(_drained(b) for b in (before.draining, draining)))
            self._what_is_available(db, [server])
        return True

    def drained_by(self, now: float) -> list[str]:
        """Servers whose leases have to be over by now."""
        with self.transaction() as db:
            return [row.name for row in _DRAINED.rows(db, now=now)]

    def servers_seen(self, pool: str, now: float) -> None:
        """The agents of these servers still speak with `pool`."""
        with self.transaction() as db:
            _SEEN.run(db, us=pool, now=now)

    def server_away(self, server: str, pool: str, now: float) -> None:
        """The agent no longer speaks with `pool`; nothing where it speaks with another one by now."""
        self._away(sa.and_(servers.c.name == server, servers.c.pool == pool), now)

    def servers_away(self, unseen_since: float, now: float) -> None:
        """The same for all servers whose pool has not spoken for them since a time: it is dead."""
        self._away(servers.c.seen < unseen_since, now)

    def _away(self, condition: Any, now: float) -> None:
        with self.deciding() as (db, _):
            query = sa.select(servers.c.name).where(condition, servers.c.away_since.is_(None))
            if gone := list(db.execute(query).scalars()):
                db.execute(servers.update().where(servers.c.name.in_(gone)).values(pool="", away_since=now))
                self._what_is_available(db, gone)

    def away(self, since: float) -> list[str]:
        """Servers that have been away since before a time."""
        with self.transaction() as db:
            return [row.name for row in _AWAY.rows(db, since=since)]

    def devices(self) -> list[Device]:
        """Every device; those of servers whose agent is attached are available."""
        counted = (
            sa.select(slices.c.device_id, sa.func.count().label("leases"))
            .where(IN_USE)
            .group_by(slices.c.device_id)
            .subquery()
        )
        query = (
            sa.select(
                *_DEVICES.selected_columns,
                sa.func.coalesce(counted.c.leases, 0).label("leases"),
                servers.c.away_since,
                servers.c.draining,
            )
            .select_from(devices)
            .outerjoin(counted, counted.c.device_id == devices.c.id)
            .outerjoin(servers, servers.c.name == devices.c.server)
            .order_by(devices.c.server, devices.c.index)
        )
        with self.transaction() as db:
            return [_device(row, row.leases, _trouble(row)) for row in db.execute(query)]

    def classes(self, db: sa.Connection | None = None, version: int | None = None) -> list[DeviceClass]:
        """The kinds of available devices; read again only where devices came or went."""
        if db is None:
            with self.transaction() as db:
                return self.classes(db)
        if version is None:
            version = _VERSIONS.first(db).devices_version
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

    def places(self, db: sa.Connection | None = None, version: int | None = None) -> Places:
        """Machines that allow direct mode, and servers; read again only where devices or servers came or went."""
        if db is None:
            with self.transaction() as db:
                return self.places(db)
        if version is None:
            version = _VERSIONS.first(db).devices_version
        if self._places[0] != version:
            kind = (devices.c.server, devices.c.name, devices.c.memory_bytes)
            count = sa.select(*kind, sa.func.count().label("number")).where(devices.c.available)
            servers_kinds: dict[str, list[DeviceClass]] = {}
            for row in db.execute(count.group_by(*kind)):
                servers_kinds.setdefault(row.server, []).append(
                    DeviceClass(row.name, row.memory_bytes, row.number)
                )
            query = (
                sa.select(
                    servers.c.direct_machine,
                    servers.c.name.label("speaks_for"),
                    *_DEVICES.selected_columns,
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
                    offered.setdefault(row.direct_machine, []).append(_device(row))
            found = {
                identity: Machine(tuple(here), tuple(classes(offered.get(identity, ()))))
                for identity, here in names.items()
            }
            by_server = {name: tuple(kinds) for name, kinds in servers_kinds.items()}
            self._places = (version, Places(found, by_server))
        return self._places[1]

    @staticmethod
    def on_machine(db: sa.Connection, machine: Machine, kinds: Iterable[DeviceClass]) -> list[Device]:
        """The available devices of these kinds on one machine, the fullest first."""
        # Only the servers stand in the condition, so that their index is taken and not the one over all devices.
        rows = _ON_SERVERS.rows(db, servers=list(machine.servers))
        wanted = set(kinds)
        found = [_device(row) for row in rows if row.available]
        return sorted(
            (d for d in found if DeviceClass(d.name, d.memory_bytes) in wanted),
            key=lambda d: (d.promised_bytes - d.memory_bytes, d.id),
            reverse=True,
        )

    def most_free(self, kinds: Iterable[DeviceClass], machine: Machine | None = None) -> int:
        """Bytes that are free on the emptiest device of these kinds, of one machine or of the pool."""
        with self.transaction() as db:
            if machine is not None:
                found = self.on_machine(db, machine, kinds)
            else:
                found = [d for kind in kinds for d in self.emptiest(db, kind, 1)]
        return max((d.memory_bytes - d.promised_bytes for d in found), default=0)

    @staticmethod
    def fullest(db: sa.Connection, kind: DeviceClass, size: int, count: int) -> list[Device]:
        """The `count` fullest devices of a kind that still have room for `size` bytes: one step in an index."""
        whole = kind.memory_bytes
        found = _FULLEST.rows(db, name=kind.name, whole=whole, most=whole - size, count=count)
        return [_device(row) for row in found]

    @staticmethod
    def emptiest(db: sa.Connection, kind: DeviceClass, count: int) -> list[Device]:
        """The `count` devices of a kind with most room."""
        found = _EMPTIEST.rows(db, name=kind.name, whole=kind.memory_bytes, count=count)
        return [_device(row) for row in found]

    @staticmethod
    def some(db: sa.Connection, ids: Sequence[str], kinds: Iterable[DeviceClass]) -> list[Device]:
        """Those of these devices that are available and of these kinds."""
        wanted = set(kinds)
        found = [_device(row) for row in _SOME.rows(db, ids=list(ids))]
        return [d for d in found if d.available and DeviceClass(d.name, d.memory_bytes) in wanted]

    @staticmethod
    def ends(db: sa.Connection, device_ids: Sequence[str], most: int) -> dict[str, list[tuple[float, int]]]:
        """When leases on these devices end at the latest, and the bytes that frees; the `most` earliest ones."""
        found: dict[str, list[tuple[float, int]]] = {}
        for row in _ENDS.rows(db, devices=list(device_ids), most=most):
            found.setdefault(row.device_id, []).append((row.until, row.memory_bytes))
        return found

    # --- leases ---

    def grant(
        self,
        db: sa.Connection,
        rules: Rules,
        key: str,
        holder: Holder,
        role: str,
        placed: Sequence[Placement],
        ttl: float,
        longest: float,
        now: float,
        mode: str = "remote",
        user: int = 0,
    ) -> Lease:
        """Promise the memory, charge the quotas and write the lease down, in state ``starting``.

        To be called in a `deciding` transaction.

        Raises
        ------
        Conflict
            Where a device or a quota has no room any more or `key` has a living lease; the transaction must be given up then.
        """
        lease_id, secret = secrets.token_hex(8), secrets.token_hex(32)
        whose = accounts.accounts_of(holder.person, holder.course)
        span = rules.longest(whose, role, longest)
        share = sum(millionths(p.memory_bytes / p.device.memory_bytes) for p in placed)
        memory = sum(p.memory_bytes for p in placed)
        try:
            _PROMISE.each(db, [{"device": p.device.id, "size": p.memory_bytes} for p in placed])
            accounts.charge(db, rules, whose, role, share, memory, now)
            epoch = _NEXT_EPOCH.first(db).epoch
            values = {
                "id": lease_id,
                "key": key,
                "person": holder.person,
                "server": holder.server,
                "course": holder.course,
                "role": role,
                "description": holder.description,
                "secret": secret,
                "state": "starting",
                "epoch": epoch,
                "created": now,
                "expires": now + ttl,
                "ttl_seconds": ttl,
                "until": None if span is None else now + span,
                "idle_limit": rules.idle(whose, role),
                "share": share,
                "memory_bytes": memory,
                "mode": mode,
                "uid": user,
            }
            _NEW_LEASE.run(db, **values)
            rows = [
                {
                    "lease_id": lease_id,
                    "ordinal": ordinal,
                    "device_id": piece.device.id,
                    "memory_bytes": piece.memory_bytes,
                    "limit_bytes": piece.memory_bytes,
                    "weight": piece.memory_bytes / piece.device.memory_bytes,
                    "worker": "starting",
                }
                for ordinal, piece in enumerate(placed)
            ]
            _NEW_SLICE.each(db, rows)
            first_span(db, lease_id, share, memory, now)
        except IntegrityError as error:
            raise Conflict(str(error.orig)) from None
        return Lease(
            id=lease_id,
            key=key,
            holder=holder,
            slices=tuple(
                Slice(
                    p.device.id,
                    p.device.server,
                    p.device.index,
                    p.device.name,
                    p.device.memory_bytes,
                    p.memory_bytes,
                    p.memory_bytes / p.device.memory_bytes,
                )
                for p in placed
            ),
            state="starting",
            created=now,
            expires=now + ttl,
            ttl_seconds=ttl,
            epoch=epoch,
            secret=secret,
            until=values["until"] or 0.0,
            role=role,
            mode=mode,
            user=user,
        )

    def worker_ready(
        self, lease_id: str, device_id: str, endpoints: Iterable[str], now: float
    ) -> Lease | None:
        """A worker listens; when all of a lease's do, it is ``live``, and its time begins.  None where there is no such slice."""
        with self.transaction() as db:
            _READY.run(db, lease=lease_id, device=device_id, where=" ".join(endpoints))
            _ALL_READY.run(db, lease=lease_id, now=now)
            return self._one(lease_id, db)

    def forget_caps(self, server: str) -> None:
        """The agent of a server attaches: what caps its workers have is not known."""
        here = sa.select(devices.c.id).where(devices.c.server == server)
        with self.transaction() as db:
            db.execute(slices.update().where(slices.c.device_id.in_(here), IN_USE).values(limit_bytes=0))

    def end(self, lease_id: str, reason: str, now: float) -> bool:
        """Begin to end a lease: its workers must be stopped now.  False where it was ending already."""
        with self.deciding() as (db, row):
            return self._end(db, row, lease_id, reason, now)

    def worker_gone(self, lease_id: str, device_id: str, reason: str, now: float) -> bool:
        """A worker is known to be dead: its memory is free, its lease ends, and the last one's end completes that.

        Returns whether the lease's other workers must be stopped now, as `end` does.
        """
        with self.deciding() as (db, row):
            if piece := _DEAD.first(db, lease=lease_id, device=device_id):
                _PROMISE.run(db, device=device_id, size=-piece.memory_bytes)
            return self._end(db, row, lease_id, reason, now)

    def _end(self, db: sa.Connection, row: Any, lease_id: str, reason: str, now: float) -> bool:
        """A lease that has no worker left is over at once; what it held is free for its quotas."""
        living = _END.run(db, lease=lease_id, reason=reason, now=now) == 1
        if over := _OVER.first(db, lease=lease_id):
            rules, whose = self.rules(db, row.rules_version), accounts.accounts_of(over.person, over.course)
            accounts.refund(db, rules, whose, over.role, over.share, over.memory_bytes, now)
            close_span(db, lease_id, now)
        return living

    def renew(self, lease_ids: Iterable[str], now: float) -> None:
        """Signs of life of these leases; those that are ending stay so."""
        with self.transaction() as db:
            _RENEW.each(db, [{"lease": lease_id, "now": now} for lease_id in lease_ids])

    def renew_all(self, now: float) -> None:
        """The same for every lease, when a pool starts."""
        with self.transaction() as db:
            db.execute(leases.update().where(LIVING).values(expires=now + leases.c.ttl_seconds))

    def looks(self, lease_ids: Iterable[str]) -> dict[str, Look]:
        """What holders of these leases are told of when it changes."""
        ids = list(lease_ids)
        with self.reader.connect() as db:
            parts = (ids[first : first + MOST_IN_A_LIST] for first in range(0, len(ids), MOST_IN_A_LIST))
            return {row.id: row[1:] for part in parts for row in _LOOKS.rows(db, ids=part)}

    def notify(self, lease_id: str, notice: str, only_over: str = "") -> None:
        """What the holder is to know, with the next renewal; `only_over` leaves notices that begin differently."""
        this = (leases.c.id == lease_id, leases.c.notice != notice, leases.c.notice.startswith(only_over))
        with self.transaction() as db:
            db.execute(leases.update().where(*this).values(notice=notice))

    def say(self, lease_id: str, message: str) -> None:
        """What somebody, an instructor for example, has to say to the holder; it stays beside what `notify` says."""
        with self.transaction() as db:
            db.execute(leases.update().where(leases.c.id == lease_id, LIVING).values(message=message))

    def ending_soon(self, now: float, within: float) -> list[tuple[str, float, float, str]]:
        """Leases whose longest time is over by then: id, end, the whole time, and notice."""
        with self.transaction() as db:
            found = _ENDING_SOON.rows(db, by=now + within)
            return [(row.id, row.until, row.until - row.created, row.notice) for row in found]

    def idle(self) -> list[tuple[str, float, float, str]]:
        """Leases that have been idle for half their limit, or have a notice: id, idle time and limit in seconds, notice."""
        with self.transaction() as db:
            return [(row.id, row.idle, row.idle_limit, row.notice) for row in _IDLE.rows(db)]

    def expired(self, now: float) -> list[str]:
        """Leases whose holder has given no sign of life for their time to live."""
        with self.transaction() as db:
            return [row.id for row in _EXPIRED.rows(db, now=now)]

    def used(self, server: str, usage: dict[tuple[str, int], Usage]) -> None:
        """What the workers of `server` counted, by lease and device index."""
        if not usage:
            return
        with self.transaction() as db:
            ids = {row.number: row.id for row in _ON_SERVERS.rows(db, servers=[server])}
            rows = [
                {
                    "lease": lease_id,
                    "device": ids[index],
                    **dict(zip(_NEW_USAGE, _figures(figures), strict=True)),
                }
                for (lease_id, index), figures in usage.items()
                if index in ids
            ]
            _USED.each(db, rows)

    def lease(self, lease_id: str) -> Lease | None:
        """The lease, with its secret."""
        with self.transaction() as db:
            return self._one(lease_id, db)

    @staticmethod
    def _one(lease_id: str, db: sa.Connection) -> Lease | None:
        row = _ONE_LEASE.first(db, lease=lease_id)
        if row is None:
            return None
        return _lease(row, [_slice(part) for part in _ITS_PARTS.rows(db, lease=lease_id)])

    def living(self, keys: Iterable[str], db: sa.Connection | None = None) -> dict[str, tuple[str, str, str]]:
        """Id, state and person of the leases of `keys` that have not ended."""
        if db is None:
            with self.transaction() as db:
                return self.living(keys, db)
        return {row.key: (row.id, row.state, row.person) for row in _OF_KEYS.rows(db, keys=list(keys))}

    def living_of(self, person: str, server: str) -> list[str]:
        """The leases that a single-user server of a person holds."""
        query = sa.select(leases.c.id).where(LIVING, leases.c.person == person, leases.c.server == server)
        with self.transaction() as db:
            return list(db.execute(query).scalars())

    def leases(self, *, include_ended: bool = False) -> list[Lease]:
        """Leases, oldest first; of those that have ended, the newest hundred."""
        with self.transaction() as db:
            return (_NEWEST_ENDED.read(db) if include_ended else []) + _NOT_OVER.read(db)

    def on_server(self, server: str, *, unsettled: bool = False) -> list[tuple[Lease, Slice]]:
        """Every slice on `server` whose worker is not known to be dead, with its lease; `unsettled`: only of those that start or end."""
        with self.transaction() as db:
            alive = {(row.lease_id, row.device_id) for row in _ALIVE.rows(db, server=server)}
            return [
                (lease, piece)
                for lease in (_UNSETTLED if unsettled else _WITH_PARTS_ON).read(db, server=server)
                for piece in lease.slices
                if (lease.id, piece.device_id) in alive
            ]


def _devices_changed(db: sa.Connection) -> None:
    db.execute(ledger.update().values(devices_version=ledger.c.devices_version + 1))


def _drained(draining: bool) -> str:
    return "drained" if draining else "in use"


def _trouble(row: Any) -> str:
    if row.available:
        return ""
    if row.away_since is not None:
        return "away"
    return str(row.fault) or ("drained" if row.draining else "away")


def _device(row: Any, count: int = 0, trouble: str = "") -> Device:
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
    )


def _slice(part: Any) -> Slice:
    return Slice(
        device_id=part.device_id,
        server=part.server,
        device_index=part.number,
        device_name=part.name,
        device_memory_bytes=part.whole,
        memory_bytes=part.memory_bytes,
        weight=part.weight,
        endpoints=tuple(part.endpoints.split()),
        usage=Usage(**{name: getattr(part, name) for name in _USAGE}),
    )


def _lease(row: Any, pieces: Sequence[Slice]) -> Lease:
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
    )
