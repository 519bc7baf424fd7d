"""Leases as stored: grants, ends, renewals and what their workers counted.

Guarantees
----------
* A lease's memory is promised before its worker is started and free only after its worker is known to be dead, by its agent's word,
  by the end of its fence (`gpukernel.pool.domain.fencing`), or because an administrator says so.
* What a lease uses of quotas is free when it ends, whatever becomes of its workers.
* What is held under a quota stays within it, whatever this code does: the database checks it.
* A lease that is ``starting`` or ``ending`` names the workers that have to be started or stopped, so that a pool that is started
  again continues from there.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from gpukernel.common.bounds import millionths
from gpukernel.common.model import Holder, Lease, Slice, Usage
from gpukernel.common.policy import Policy
from gpukernel.pool.domain.placement import Placement
from gpukernel.pool.store import ceilings, quota_usage
from gpukernel.pool.store import lease_queries as queries
from gpukernel.pool.store.connection.compiled_sql import rows_of, send_queued
from gpukernel.pool.store.database import Conflict, Database
from gpukernel.pool.store.policy import StoredPolicy
from gpukernel.pool.store.schema import (
    ENDING,
    IN_USE,
    LIVING,
    PLACED_BY_POOL,
    devices,
    leases,
    slices,
    usage_log,
)
from gpukernel.pool.store.usage_log import close_span, first_span

__all__ = ["HolderView", "Leases"]

MOST_IN_A_LIST = 1000


class HolderView(NamedTuple):
    """The part of a lease whose changes its holder is told of; `size` is the bytes of its slices."""

    state: str
    notice: str
    message: str
    until: float | None
    size: int


def _claimed(placed: Sequence[Placement]) -> tuple[int, int]:
    """Return what slices claim of quotas: millionths of devices, and bytes."""
    share = sum(millionths(p.memory_bytes / p.device.memory_bytes) for p in placed)
    return share, sum(p.memory_bytes for p in placed)


class Leases:
    """The leases of one database."""

    def __init__(self, database: Database, policy: StoredPolicy) -> None:
        self._database = database
        self._policy = policy

    def grant(
        self,
        db: sa.Connection,
        policy: Policy,
        key: str,
        holder: Holder,
        role: str,
        placed: Sequence[Placement],
        ttl: float,
        longest: float,
        now: float,
        steady: float,
        mode: str = "remote",
        user: int = 0,
        decided_by: str = "pool",
        caller: str = "",
        ceiling: bool = False,
        within: str = "",
        priority: str = "interactive",
        at_once: bool = True,
    ) -> Lease:
        """Promise the memory, charge the quotas and write the lease down, in state ``starting``.

        Call it in a `Database.deciding` transaction; `now` is wall time.  What an engine has placed counts in the quotas and stays within
        none: who may have how much there is the engine's to say, as are its times, of which only `longest` is the pool's to keep.  A `ceiling`
        keeps all of its memory but a MiB for leases inside; one `within` has its memory from there, and counts in no quota.  Unless `at_once`
        the next statement or the commit sends the last of it, and raises an `IntegrityError` for a conflict.

        Raises
        ------
        Conflict
            Where a device or a quota has no room any more or `key` has a living lease; roll back then, to a savepoint or everything.
        """
        lease_id, secret = secrets.token_hex(8), secrets.token_hex(32)
        whose = quota_usage.accounts_of(holder.person, holder.course)
        by_engine = decided_by != "pool"
        span = (longest or None) if by_engine else policy.longest(whose, role, longest)
        share, memory = _claimed([] if within else placed)
        made = [ceilings.new_slice(piece, ceiling=ceiling) for piece in placed]
        try:
            ceilings.promise(db, placed, within)
            held = share, memory, now, 0 if within else 1
            quota_usage.charge(db, policy, whose, *held, priority=priority, bounded=not by_engine)
            epoch = self._database.next_epoch(db)
            values: dict[str, Any] = {
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
                "expires": steady + ttl,
                "ttl_seconds": ttl,
                "until": None if span is None else steady + span,
                "span": span,
                "idle_limit": 0.0 if by_engine else policy.idle(whose, role),
                "share": share,
                "memory_bytes": memory,
                "mode": mode,
                "uid": user,
                "decided_by": decided_by,
                "caller": caller,
                "ceiling": ceiling,
                "within": within,
                "priority": priority,
            }
            queries.NEW_LEASE.soon(db, values)
            queries.NEW_SLICE.soon(db, *ceilings.slice_rows(lease_id, made, within, decided_by))
            first_span(db, lease_id, share, memory, now)
            self._database.changes.lease("granted", lease_id, key, [p.device.server for p in placed])
            if at_once:
                send_queued(db)
        except IntegrityError as error:
            raise Conflict(error) from None
        return Lease(
            id=lease_id,
            key=key,
            holder=holder,
            slices=tuple(made),
            state="starting",
            created=now,
            expires=steady + ttl,
            ttl_seconds=ttl,
            epoch=epoch,
            secret=secret,
            until=values["until"] or 0.0,
            role=role,
            mode=mode,
            user=user,
            decided_by=decided_by,
            ceiling=ceiling,
            within=within,
            priority=priority,
        )

    def worker_ready(
        self, server: str, lease_id: str, device_id: str, endpoints: Iterable[str], steady: float
    ) -> Lease | None:
        """Record that a worker on a server listens; when all of a lease's do, it is ``live`` and its time begins.

        Returns the lease, or None where it has no slice on that server.
        """
        which = {"lease": lease_id}
        with self._database.deciding(awaited=False) as (db, _):
            ready = {"device": device_id, "server": server, "where": " ".join(endpoints)}
            queries.WORKER_READY.soon(db, which | ready)
            all_ready, found, parts = rows_of(
                db,
                (queries.ALL_WORKERS_READY, which | {"now": steady}),
                (queries.LEASE, which),
                (queries.SLICES_OF_LEASE, which),
            )
            if all_ready:
                self._database.changes.lease("live", lease_id)
            there = any(part.server == server for part in parts)
            return self._lease_of(found, parts) if there else None

    def forget_caps(self, server: str) -> None:
        """Forget which caps the workers of a server have, since its agent attaches anew; one that starts has the cap of its order."""
        here = sa.select(devices.c.id).where(devices.c.server == server)
        with self._database.transaction(awaited=False) as db:
            ran = sa.or_(slices.c.worker != "starting", slices.c.confirmed)
            db.execute(slices.update().where(slices.c.device_id.in_(here), IN_USE, ran).values(limit_bytes=0))

    def end(self, lease_id: str, reason: str, now: float, caller: str = "", to: str = "") -> bool:
        """Begin to end a lease, whose workers must be stopped now; return whether it did.

        `caller`: only one that this pool was asked for last.  `to`: only one that gives way to the request of this key.
        """
        with self._database.deciding(awaited=False) as (db, row):
            return self._end(db, row, lease_id, reason, now, caller, to)

    def worker_gone(
        self, lease_id: str, device_id: str, reason: str, now: float, *, fenced: bool = False
    ) -> bool:
        """Free the memory of a worker that is known to be dead and end its lease; the last worker completes the end.

        `fenced`: also where it is out of reach of its server's agent.  Returns whether the lease's other workers must be stopped now, as
        `end` does.
        """
        dead = queries.FENCE_OVER if fenced else queries.WORKER_DEAD
        with self._database.deciding(awaited=False) as (db, row):
            if piece := dead.first(db, lease=lease_id, device=device_id):
                ceilings.free(db, lease_id, device_id, piece)
            return self._end(db, row, lease_id, reason, now)

    def _end(
        self, db: sa.Connection, row: Any, lease_id: str, why: str, now: float, us: str = "", to: str = ""
    ) -> bool:
        """End a lease and refund its quotas; one that has no worker left is over at once."""
        if ends := queries.END.first(db, lease=lease_id, reason=why, now=now, us=us, to=to):
            self._database.changes.lease("ends", lease_id)
            self._refund(db, row, lease_id, ends, now)
            for inside in ceilings.LIVING_INSIDE.rows(db, ceiling=lease_id):
                self._end(db, row, inside.id, why, now)
        if over := queries.LEASE_OVER.first(db, lease=lease_id):
            self._database.changes.lease("told", lease_id)  # to who waits for its memory
            # Of a pool of version 0.2, which waited for the workers.
            self._refund(db, row, lease_id, over, now)
        return ends is not None

    def _refund(self, db: sa.Connection, row: Any, lease_id: str, lease: Any, now: float) -> None:
        """Refund what a lease uses of quotas, once: as long as the usage log says that it does."""
        if close_span(db, lease_id, now):
            policy = self._policy.current(db, row.policy_version)
            whose = quota_usage.accounts_of(lease.person, lease.course)
            held = lease.share, lease.memory_bytes, now, 0 if lease.within else 1
            quota_usage.refund(db, policy, whose, *held, priority=lease.priority)

    def inside(self, lease_id: str) -> list[str]:
        """Return the ids of leases inside of a ceiling that are not over."""
        with self._database.reading() as db:
            return [row.id for row in ceilings.INSIDE.rows(db, ceiling=lease_id)]

    def refund_ending(self, now: float) -> None:
        """Refund the quotas of leases that a pool of version 0.2 began to end."""
        holds = sa.exists().where(usage_log.c.lease_id == leases.c.id, usage_log.c.ends.is_(None))
        with self._database.deciding() as (db, row):
            for lease in db.execute(sa.select(leases).where(ENDING, holds)).all():
                self._refund(db, row, lease.id, lease, now)

    def living_on(self, server: str) -> list[str]:
        """Return the ids of leases that have slices on a server and do not end already."""
        with self._database.reading() as db:
            return [row.id for row in queries.LIVING_ON_SERVER.rows(db, server=server)]

    def workers_on(self, server: str) -> set[tuple[str, str]]:
        """Return the workers on a server that are not known to be dead, by lease and device."""
        with self._database.reading() as db:
            return {(row.lease_id, row.device_id) for row in queries.SLICES_ON_SERVER.rows(db, server=server)}

    # --- starts and fences ---

    def confirm(self, lease_id: str, device_id: str) -> None:
        """Record that a server has the order to start a worker."""
        with self._database.transaction(awaited=False) as db:
            queries.CONFIRM.soon(db, {"lease": lease_id, "device": device_id})

    def unconfirmed(self, lease_ids: Iterable[str]) -> dict[str, list[str]]:
        """Return the servers that have not confirmed that they start a lease's workers, as their agents would, of those that have some."""
        ids, found = list(lease_ids), dict[str, list[str]]()
        if not ids:
            return found
        with self._database.reading() as db:
            for first in range(0, len(ids), MOST_IN_A_LIST):
                for row in queries.UNCONFIRMED.rows(db, ids=ids[first : first + MOST_IN_A_LIST]):
                    found.setdefault(row.lease_id, []).append(row.server)
        return found

    def fence(self, lease_id: str, device_id: str, until: float | None) -> None:
        """Keep a worker's memory from everybody until a steady time, since its server's agent does not know it; None: it does again."""
        with self._database.transaction() as db:
            queries.FENCE.soon(db, {"lease": lease_id, "device": device_id, "until": until})

    def fenced_on(self, server: str) -> set[tuple[str, str]]:
        """Return the slices on a server, by lease and device, whose workers its agent does not know."""
        query = (
            sa.select(slices.c.lease_id, slices.c.device_id)
            .join(devices, devices.c.id == slices.c.device_id)
            .where(devices.c.server == server, IN_USE, slices.c.fenced_until.is_not(None))
        )
        with self._database.reader.connect() as db:
            return {(row.lease_id, row.device_id) for row in db.execute(query)}

    def fences_over(self, steady: float) -> list[tuple[str, str, str]]:
        """Return lease, device and server of the workers that cannot live any more, since their fences are over."""
        when = {"steady": steady}
        with self._database.reading() as db:
            found, away = rows_of(db, (queries.FENCES_OVER, when), (queries.SERVERS_OVER, when))
            for first in range(0, len(away), MOST_IN_A_LIST):
                names = [row.name for row in away[first : first + MOST_IN_A_LIST]]
                found += queries.WITHOUT_FENCE.rows(db, names=names, steady=steady)
            return [(row.lease_id, row.device_id, row.server) for row in found]

    def renew(self, lease_ids: Iterable[str], steady: float) -> None:
        """Renew these leases; those that are ending stay so."""
        with self._database.transaction(awaited=False) as db:
            queries.RENEW.soon(db, *({"lease": lease_id, "now": steady} for lease_id in lease_ids))

    def renew_due(self, lease_ids: Iterable[str], steady: float) -> None:
        """Renew those of these leases whose time to live is half over."""
        with self._database.transaction(awaited=False) as db:
            queries.RENEW_DUE.soon(
                db, *({"lease": lease_id, "now": steady} for lease_id in sorted(lease_ids))
            )

    def renew_all(self, steady: float) -> None:
        """Renew every lease, when a pool starts."""
        with self._database.transaction() as db:
            db.execute(leases.update().where(LIVING).values(expires=steady + leases.c.ttl_seconds))

    def views(self, lease_ids: Iterable[str]) -> dict[str, HolderView]:
        """Return what holders of these leases are told of when it changes."""
        ids = list(lease_ids)
        with self._database.reader.connect() as db:
            parts = (ids[first : first + MOST_IN_A_LIST] for first in range(0, len(ids), MOST_IN_A_LIST))
            return {
                row.id: HolderView(*row[1:])
                for part in parts
                for row in queries.HOLDER_VIEWS.rows(db, ids=part)
            }

    def notify(self, lease_id: str, notice: str, only_over: str = "") -> None:
        """Set the notice that the holder reads with the next renewal; `only_over` keeps notices that begin differently."""
        this = (leases.c.id == lease_id, leases.c.notice != notice, leases.c.notice.startswith(only_over))
        with self._database.deciding() as (db, _):
            if db.execute(leases.update().where(*this).values(notice=notice)).rowcount:
                self._database.changes.lease("told", lease_id)

    def say(self, lease_id: str, message: str) -> None:
        """Set the message of somebody, an instructor for example, to the holder; it is separate from the notice."""
        this = leases.c.id == lease_id, LIVING, leases.c.message != message
        with self._database.deciding() as (db, _):
            if db.execute(leases.update().where(*this).values(message=message)).rowcount:
                self._database.changes.lease("told", lease_id)

    def ending_soon(self, steady: float, within: float) -> list[tuple[str, float, float, str]]:
        """Return the leases whose longest time is over in `within` seconds: id, end, the whole time, and notice."""
        with self._database.reading() as db:
            found = queries.ENDING_SOON.rows(db, by=steady + within)
            return [(row.id, row.until, row.span, row.notice) for row in found]

    def idle(self, steady: float) -> list[tuple[str, float, float, str]]:
        """Return the leases that have been idle for half their limit or have a notice: id, idle time and limit in seconds, notice.

        Those on servers that are away are left out: nobody knows what their programs do.
        """
        with self._database.reading() as db:
            return [
                (row.id, row.idle, row.idle_limit, row.notice) for row in queries.IDLE.rows(db, now=steady)
            ]

    def expired(self, steady: float) -> list[str]:
        """Return the leases that were not renewed within their time to live."""
        with self._database.reading() as db:
            return [row.id for row in queries.EXPIRED.rows(db, now=steady)]

    def record_usage(self, usage: Mapping[tuple[str, str], tuple[Usage, float | None]]) -> None:
        """Record what workers counted and the steady time since which they are idle, by lease and device."""
        if not usage:
            return
        with self._database.transaction(awaited=False) as db:
            rows = [
                {
                    "lease": lease_id,
                    "device": device_id,
                    "since": since,
                    **dict(zip(queries.NEW_USAGE, queries.usage_figures(figures), strict=True)),
                }
                for (lease_id, device_id), (figures, since) in usage.items()
            ]
            queries.RECORD_USAGE.soon(db, *rows)

    def get(self, lease_id: str) -> Lease | None:
        """Return the lease, with its secret, or None where it is not known."""
        with self._database.reading() as db:
            return self._one(lease_id, db)

    def _one(self, lease_id: str, db: sa.Connection) -> Lease | None:
        which = {"lease": lease_id}
        return self._lease_of(*rows_of(db, (queries.LEASE, which), (queries.SLICES_OF_LEASE, which)))

    def _lease_of(self, found: Sequence[Any], parts: Iterable[Any]) -> Lease | None:
        if not found:
            return None
        steady = self._database.clock.steady()
        return queries.lease_of(found[0], [queries.slice_of(part, steady) for part in parts])

    def living(self, keys: Iterable[str], db: sa.Connection | None = None) -> dict[str, tuple[str, str, str]]:
        """Return the id, state and person of the pool's own leases of `keys` that have not ended."""
        if db is None:
            with self._database.reading() as db:
                return self.living(keys, db)
        return {
            row.key: (row.id, row.state, row.person)
            for row in queries.LEASES_OF_KEYS.rows(db, keys=list(keys))
        }

    def living_of(self, person: str, server: str) -> list[str]:
        """Return the ids of the leases that a single-user server of a person holds; what an engine placed is none of them."""
        whose = leases.c.person == person, leases.c.server == server
        query = sa.select(leases.c.id).where(LIVING, PLACED_BY_POOL, *whose)
        with self._database.reading() as db:
            return list(db.execute(query).scalars())

    def all(self, *, include_ended: bool = False, db: sa.Connection | None = None) -> list[Lease]:
        """Return leases, oldest first; of those that have ended, the newest hundred."""
        with contextlib.nullcontext(db) if db is not None else self._database.reading() as db:
            steady = self._database.clock.steady()
            # In this order: a lease that ends in between is in both, and in the other order it would be in none.
            living = queries.NOT_OVER.read(db, steady)
            ended = queries.NEWEST_ENDED.read(db, steady) if include_ended else []
            over = {one.id for one in ended}
            return ended + [one for one in living if one.id not in over]

    def on_server(self, server: str) -> list[tuple[Lease, Slice]]:
        """Return every slice on `server` whose worker is not known to be dead, with its lease."""
        with self._database.reading() as db:
            alive = {
                (row.lease_id, row.device_id) for row in queries.SLICES_ON_SERVER.rows(db, server=server)
            }
            return [
                (lease, piece)
                for lease in queries.LEASES_ON_SERVER.read(db, self._database.clock.steady(), server=server)
                for piece in lease.slices
                if (lease.id, piece.device_id) in alive
            ]

    def is_on_server(self, lease_id: str, server: str) -> bool:
        """Return whether a lease has, or had, a slice on `server`."""
        with self._database.reading() as db:
            return bool(queries.SLICE_THERE.rows(db, lease=lease_id, server=server))

    def unsettled_on(self, names: Iterable[str]) -> list[tuple[Lease, Slice]]:
        """Return the slices on these servers, as `pieces_on` does, of all leases that start or end."""
        with self._database.reading() as db:
            ids = [row.id for row in queries.UNSETTLED.rows(db)]
        return self.pieces_on(ids, names)

    def pieces_on(self, lease_ids: Iterable[str], names: Iterable[str]) -> list[tuple[Lease, Slice]]:
        """Return the slices of these leases on these servers whose workers are not known to be dead, with their leases."""
        here, ids = set(names), list(lease_ids)
        living: list[tuple[Lease, Slice]] = []
        with self._database.reading() as db:
            steady = self._database.clock.steady()
            for first in range(0, len(ids), MOST_IN_A_LIST):
                part = ids[first : first + MOST_IN_A_LIST]
                found, (gone,) = queries.LEASES_BY_ID.read_beside(db, steady, queries.DEAD_WORKERS, ids=part)
                dead = {(row.lease_id, row.device_id) for row in gone}
                living += (
                    (lease, piece)
                    for lease in found
                    for piece in lease.slices
                    if piece.server in here and (lease.id, piece.device_id) not in dead
                )
        return living

    def ends_on(
        self, db: sa.Connection, device_ids: Sequence[str], most: int
    ) -> dict[str, list[tuple[float, int]]]:
        """Return the latest ends of leases on these devices, in wall time, and the bytes that each frees; the `most` earliest ones."""
        return queries.ends_on(
            db, device_ids, most, self._database.clock.now(), self._database.clock.steady()
        )
