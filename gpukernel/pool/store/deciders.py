"""Deciders as stored: who chooses each device for leases, the pool or an engine, and what engines have placed.

Guarantees
----------
* A device has one decider, and every slice there whose worker may live is that decider's: a foreign key says so, whatever this code does.
* A device goes to another decider only when no worker lives there.  Until then it may wait for that, and nobody gets anything new there.
* A key of an engine has one living lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from gpukernel.common.errors import Refused
from gpukernel.common.model import Lease
from gpukernel.common.policy import Policy
from gpukernel.pool.domain.direct_mode import is_named
from gpukernel.pool.domain.engine_placement import (
    BEFORE_SECONDS,
    EngineDevice,
    check_decider,
    check_key,
    counts_from,
)
from gpukernel.pool.store import lease_queries as queries
from gpukernel.pool.store import quota_usage
from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from gpukernel.pool.store.database import Database
from gpukernel.pool.store.device_reports import GONE
from gpukernel.pool.store.devices import ROWS, device_of, trouble_of, update_availability
from gpukernel.pool.store.policy import note
from gpukernel.pool.store.schema import (
    ENDING,
    IN_USE,
    NOT_ENDING,
    audit,
    devices,
    leases,
    servers,
    slices,
    total,
    usage_log,
)
from gpukernel.pool.store.usage_log import begin_earlier

__all__ = ["Deciders", "Delegation"]

_AS_ENGINES_SEE = (
    sa.select(*ROWS.selected_columns, servers.c.away_since, servers.c.draining, servers.c.settling)
    .join(servers, servers.c.name == devices.c.server)
    .where(servers.c.forgotten.is_(False))
)
_OF_UUIDS = CompiledSql(
    _AS_ENGINES_SEE.where(devices.c.uuid.in_(sa.bindparam("uuids", expanding=True))).order_by(devices.c.id)
)
_ENDING_ON = CompiledSql(
    sa.select(slices.c.device_id, total(slices.c.memory_bytes).label("size"))
    .join(leases, leases.c.id == slices.c.lease_id)
    .where(slices.c.device_id.in_(sa.bindparam("ids", expanding=True)), IN_USE, ENDING)
    .group_by(slices.c.device_id)
)
_OF_KEY = CompiledSql(
    sa.select(leases.c.id).where(
        leases.c.decided_by == sa.bindparam("engine"), leases.c.key == sa.bindparam("key"), NOT_ENDING
    )
)
# Of one key: the lease that lives, else the one that ends.
_LAST_OF_KEY = CompiledSql(
    sa.select(leases.c.id)
    .where(leases.c.decided_by == sa.bindparam("engine"), leases.c.key == sa.bindparam("key"))
    .where(leases.c.state != "ended")
    .order_by(leases.c.epoch.desc())
    .limit(1)
)
# Both look only at what happened in the last seconds, by an index.
_HELD_BEFORE = CompiledSql(
    sa.select(sa.func.max(usage_log.c.ends).label("at"))
    .join(leases, leases.c.id == usage_log.c.lease_id)
    .where(usage_log.c.ends > sa.bindparam("first"))
    .where(leases.c.decided_by == sa.bindparam("engine"), leases.c.key == sa.bindparam("key"))
    .where(leases.c.within == "")  # the keys inside of a ceiling are its holder's
)
_GIVEN = CompiledSql(
    sa.select(sa.func.max(audit.c.time).label("at"))
    .where(audit.c.time > sa.bindparam("first"), audit.c.action == "delegate")
    .where(audit.c.subject.in_(sa.bindparam("labels", expanding=True)))
)
_TO_HAND_OVER = CompiledSql(sa.select(devices.c.id).where(devices.c.next_decider != sa.literal_column("''")))
_LEASES_ON = (
    sa.select(sa.func.count(slices.c.lease_id.distinct()))
    .where(slices.c.device_id == devices.c.id, IN_USE)
    .scalar_subquery()
)


@dataclass(frozen=True)
class Delegation:
    """A device's deciders after it was given: `next_decider` decides once its `leases` are over, where it is not empty."""

    device: str
    uuid: str
    decided_by: str
    next_decider: str
    leases: int


class Deciders:
    """The deciders of one database's devices, and the leases that engines have placed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # --- devices ---

    def delegate(self, name: str, to: str, who: str, now: float, *, when_free: bool = False) -> Delegation:
        """Have another decide over a device: the pool or an engine; giving it to whom it belongs takes back what waits.

        Parameters
        ----------
        name
            ``gpu1/0``, or the beginning of its UUID.
        when_free
            Where leases hold parts of it: let it get no more, and give it away when they are over.

        Raises
        ------
        Refused
            ``invalid``, ``no_such_device``, ``ambiguous``, or ``in_use`` where leases hold parts of it.
        """
        check_decider(to)
        with self._database.deciding() as (db, _):
            row = self._named(db, name)
            label = f"{row.server}/{row.number}"
            if to != "pool" and not row.uuid:
                raise Refused(
                    "invalid", f"{label} has no UUID, by which engines name devices; its agent is too old."
                )
            held = int(db.execute(sa.select(_LEASES_ON).where(devices.c.id == row.id)).scalar() or 0)
            waits = bool(held) and to != row.decided_by
            if waits and not when_free:
                by = "the pool" if row.decided_by == "pool" else row.decided_by
                raise Refused(
                    "in_use",
                    f"{held} {'lease' if held == 1 else 'leases'} that {by} placed {'is' if held == 1 else 'are'} on {label}; "
                    "end them, or say --when-free: then it gets no more, and is given when they are over.",
                )
            decider, after = (row.decided_by, to) if waits else (to, "")
            if (decider, after) != (row.decided_by, row.next_decider):
                self._write(db, row, decider, after)
                before = _said(row.decided_by, row.next_decider)
                note(db, now, who, "delegate", label, f"{before} {row.uuid}".strip(), _said(decider, after))
        return Delegation(label, row.uuid, decider, after, held)

    @staticmethod
    def _write(db: sa.Connection, row: Any, decider: str, after: str) -> None:
        # In two steps: what an engine decides over is never available, not even for a moment.
        this = devices.c.id == row.id
        db.execute(devices.update().where(this).values(available=False))
        db.execute(devices.update().where(this).values(decided_by=decider, next_decider=after))
        update_availability(db, [row.server])

    @staticmethod
    def _named(db: sa.Connection, name: str) -> Any:
        """Return the row of a device; one that is there comes before one of the same name that is gone."""
        found = [
            row
            for row in db.execute(_AS_ENGINES_SEE)
            if name and is_named(name, f"{row.server}/{row.number}", row.uuid)
        ]
        found = [row for row in found if row.fault != GONE] or found
        if not found:
            raise Refused(
                "no_such_device",
                f"The pool has no device “{name[:60]}”; “gpukernel list-gpus” shows those that it has.",
            )
        if len(found) > 1:
            names = ", ".join(f"{row.server}/{row.number}" for row in found[:4])
            raise Refused("ambiguous", f"“{name[:60]}” means several devices ({names}); name one of them.")
        return found[0]

    def hand_over(self, who: str, now: float) -> list[str]:
        """Give devices that waited for that to their next deciders where no worker lives there any more; return their labels."""
        with self._database.reading() as db:
            if _TO_HAND_OVER.first(db) is None:
                return []
        given = []
        with self._database.deciding() as (db, _):
            for row in db.execute(ROWS.where(devices.c.next_decider != "", _LEASES_ON == 0)).all():
                self._write(db, row, row.next_decider, "")
                label = f"{row.server}/{row.number}"
                before = _said(row.decided_by, row.next_decider)
                note(db, now, who, "delegate", label, f"{before} {row.uuid}".strip(), row.next_decider)
                given.append(label)
        return given

    # --- what engines place ---

    @staticmethod
    def of_uuids(db: sa.Connection, uuids: Sequence[str]) -> list[EngineDevice]:
        """Return the devices with these UUIDs as an engine sees them, whoever decides over them."""
        rows = _OF_UUIDS.rows(db, uuids=list(uuids))
        ids = [row.id for row in rows]
        ending = {row.device_id: row.size for row in _ENDING_ON.rows(db, ids=ids)} if ids else {}
        return [EngineDevice(device_of(row), trouble_of(row), ending.get(row.id, 0)) for row in rows]

    @staticmethod
    def living(db: sa.Connection, engine: str, key: str) -> str:
        """Return the id of the lease of an engine's key that lives; empty where there is none."""
        row = _OF_KEY.first(db, engine=engine, key=key)
        return "" if row is None else str(row.id)

    @staticmethod
    def count_from(db: sa.Connection, policy: Policy, lease: Lease, began: float, now: float) -> str:
        """Count the hours of a lease that was granted `now` from when its engine says that it began; return why not, as `counts_from`.

        Call it in the transaction of the grant, with the same `now`.
        """
        taken = 0.0
        if 0 < began < now:
            first = now - BEFORE_SECONDS
            held = _HELD_BEFORE.first(db, first=first, engine=lease.decided_by, key=lease.key)
            given = _GIVEN.first(db, first=first, labels=[piece.label for piece in lease.slices])
            taken = max(held.at or 0.0, given.at or 0.0)
        since, why = counts_from(began, now, taken)
        if since < now:
            share = begin_earlier(db, lease.id, since)
            whose = quota_usage.accounts_of(lease.holder.person, lease.holder.course)
            quota_usage.add_time(db, policy, whose, share, since, now)
        return why

    def last(self, engine: str, key: str) -> str:
        """Return the id of the lease of an engine's key that lives or ends; empty where there is none."""
        with self._database.reading() as db:
            row = _LAST_OF_KEY.first(db, engine=engine, key=key)
        return "" if row is None else str(row.id)

    def leases(self, engine: str, key: str = "", db: sa.Connection | None = None) -> list[Lease]:
        """Return the leases that an engine has placed and that are not over, oldest first; of one key, or all."""
        if db is None:
            with self._database.reading() as db:
                return self.leases(engine, key, db)
        if key:
            check_key(key)
        found = queries.NOT_OVER.read(db, self._database.clock.steady())
        # What is inside of a ceiling was placed by nobody, and goes with it.
        placed = [lease for lease in found if lease.decided_by == engine and not lease.within]
        return [lease for lease in placed if key in ("", lease.key)]


def _said(decider: str, after: str) -> str:
    return f"{decider}, then {after}" if after else decider
