"""GPU servers as stored: who speaks for them, their devices when an agent attaches, heartbeats, drains, faults, and servers that are away.

Guarantees
----------
* One agent speaks for a server: an attachment is one transaction, and each heartbeat counts only while that agent is the last one.
* A heartbeat is answered after the fence that it needs is written down (`gpukernel.pool.domain.fencing`); most find it written, and change no
  row (`gpukernel.pool.store.signs_of_life`).

All times are steady ones (`gpukernel.pool.store.clock`), but those of the audit table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from gpukernel.common.errors import Refused
from gpukernel.common.model import Device, GpuServer, Rung
from gpukernel.pool.domain import fencing
from gpukernel.pool.domain.fencing import KnownServer, Registration
from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from gpukernel.pool.store.database import Database
from gpukernel.pool.store.device_reports import (
    GONE,
    GoneDevice,
    by_agent,
    end_own_drain,
    found_by_pool,
    free_to_offer,
    note_drain,
    record_devices,
)
from gpukernel.pool.store.devices import update_availability
from gpukernel.pool.store.policy import note
from gpukernel.pool.store.schema import IN_USE, devices, pools, servers, slices
from gpukernel.pool.store.signs_of_life import HeardAgents, HeardOf, mark_pool_seen

__all__ = ["Attachment", "Servers"]

MOST_RUNGS = 32
LONGEST_DETAIL = 500
_AWAY = CompiledSql(sa.select(servers.c.name).where(servers.c.away_since < sa.bindparam("since")))
_DRAINED = CompiledSql(
    sa.select(servers.c.name).where(servers.c.draining, servers.c.drain_until <= sa.bindparam("now"))
)
_SPEAKER = (
    servers.c.name == sa.bindparam("server"),
    servers.c.pool == sa.bindparam("us"),
    servers.c.instance == sa.bindparam("who"),
    servers.c.epoch == sa.bindparam("since"),
)
_HEARD = CompiledSql(
    servers.update()
    .where(*_SPEAKER, servers.c.away_since.is_(None))
    .values(
        heard=sa.bindparam("now"),
        quiet=False,
        fenced_until=sa.case(
            (servers.c.fenced_until > sa.bindparam("fence"), servers.c.fenced_until),
            else_=sa.bindparam("fence"),
        ),
    )
    .returning(servers.c.fenced_until)
)
_OURS = CompiledSql(
    sa.select(servers.c.name).where(servers.c.pool == sa.bindparam("us"), servers.c.away_since.is_(None))
)
_POOL_SEEN = sa.func.coalesce(
    sa.select(pools.c.seen).where(pools.c.id == servers.c.pool).scalar_subquery(), sa.literal_column("0.0")
)
_QUIET = CompiledSql(
    sa.select(servers.c.name).where(
        servers.c.away_since.is_(None), sa.or_(servers.c.quiet, sa.bindparam("since") > _POOL_SEEN)
    )
)
_NOW_QUIET = CompiledSql(servers.update().where(*_SPEAKER).values(quiet=True, heard=sa.bindparam("last")))
_UNSEEN = CompiledSql(
    sa.select(servers.c.name).where(
        servers.c.away_since.is_(None), sa.bindparam("since", type_=sa.Float) > _POOL_SEEN
    )
)


@dataclass(frozen=True)
class Attachment:
    """An agent that attached: the `epoch` of its orders, the process `before` it, and whether workers that it does not list are dead.

    `devices` are the ids of its devices by the numbers that it gives them, `gone` those that leases hold and it has no more.
    """

    server: str
    instance: str
    epoch: int
    before: KnownServer | None
    missing_are_dead: bool
    devices: Mapping[int, str] = field(default_factory=dict)
    gone: tuple[GoneDevice, ...] = ()

    def device(self, uuid: str, number: int) -> str:
        """Return the id of a device that the agent names by its UUID, or by its number where it tells none."""
        if uuid:
            return self.named(self.server, uuid)
        return self.devices.get(number, f"{self.server}/{number}")

    @staticmethod
    def named(server: str, uuid: str) -> str:
        """Return the id of the device of `server` with a UUID."""
        return f"{server}/" if "/" in uuid else f"{server}/{uuid}"  # which could name another server's device


class Servers:
    """The GPU servers of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.agents = HeardAgents()

    # --- who speaks for them ---

    def register(
        self,
        server: str,
        found: Iterable[Device],
        pool: str,
        steady: float,
        direct_machine: str = "",
        new: Registration = fencing.NOBODY,
        valid_seconds: float = fencing.VALID_SECONDS,
        *,
        settling: bool = False,
    ) -> Attachment:
        """Record the agent that speaks for a server with `pool`, its devices, and its machine where it allows direct mode.

        Devices that it no longer has are deleted, unless leases still hold parts of them.  `settling`: it gets no leases yet.

        Raises
        ------
        Refused, LateRegistration
            ``bound`` where the agent may not speak for this server, ``rival`` where it has to wait for another's end; `fencing.refuse_late`.
        """
        with self._database.deciding() as (db, _):
            row = self._found(db, servers.c.name == server)
            before = None if row is None else _known(row, self._heard(row))
            token = new.credential if new.credential.startswith("token ") else ""
            other = sa.select(servers.c.name).where(servers.c.credential == token)
            bound = str(db.execute(other).scalar() or "") if token else ""
            if why := fencing.binding_refusal(before, new, bound, server):
                raise Refused("bound", why)
            fencing.refuse_late(before, new)
            if why := fencing.rival_refusal(before, new, steady):
                raise Refused("rival", why)
            ids, gone = record_devices(db, server, new, found, self._database.clock.now())
            attachment = Attachment(
                server,
                new.instance,
                fencing.epoch_of(before, new),
                before,
                fencing.missing_are_dead(before, new),
                ids,
                gone,
            )
            fence = _written_fence(new.instance, steady, valid_seconds)
            if before is not None and attachment.missing_are_dead and before.fenced_until < fencing.NEVER:
                fence = max(fence, before.fenced_until)
            values = {
                "pool": pool,
                "heard": steady,
                "quiet": False,
                "away_since": None,
                "direct_machine": direct_machine,
                "credential": new.credential,
                "machine": new.machine,
                "place": new.place,
                "instance": new.instance,
                "epoch": attachment.epoch,
                "fenced_until": fence,
                "settling": settling,
                "forgotten": False,
            }
            if before is None:
                db.execute(servers.insert().values(name=server, **values))
            else:
                db.execute(servers.update().where(servers.c.name == server).values(**values))
                if before.instance != new.instance:
                    end_own_drain(db, server, self._database.clock.now())
            update_availability(db, [server])
            self._database.changes.server(server)
        self.agents.remember(server, HeardOf(new.instance, attachment.epoch, steady, fence))
        return attachment

    def settling(self, server: str, settling: bool) -> None:
        """Keep a server from new leases while workers live there that the books do not have, or admit it again."""
        with self._database.deciding() as (db, _):
            db.execute(servers.update().where(servers.c.name == server).values(settling=settling))
            update_availability(db, [server])

    def heard(self, who: Attachment, pool: str, steady: float, valid_seconds: float) -> bool:
        """Record a heartbeat with the fence that its answer needs; return False where somebody else speaks for the server by now.

        A server that was silent for long is no longer away.
        """
        needed = steady + fencing.fence_seconds(valid_seconds) if who.instance else fencing.NEVER
        if self.agents.answer(who.server, who.instance, who.epoch, steady, needed):
            return True
        fence = _written_fence(who.instance, steady, valid_seconds)
        speaker = {"server": who.server, "us": pool, "who": who.instance, "since": who.epoch}
        with self._database.transaction() as db:
            row = _HEARD.first(db, **speaker, now=steady, fence=fence)
        if row is None:
            with self._database.deciding() as (db, _):
                back = sa.update(servers).where(
                    servers.c.name == who.server,
                    servers.c.pool == pool,
                    servers.c.instance == who.instance,
                    servers.c.epoch == who.epoch,
                    servers.c.forgotten.is_(False),
                )
                if not db.execute(back.values(away_since=None)).rowcount:
                    self._expect_no_more(who)
                    return False
                row = _HEARD.first(db, **speaker, now=steady, fence=fence)
                update_availability(db, [who.server])
        self.agents.remember(who.server, HeardOf(who.instance, who.epoch, steady, row.fenced_until))
        return True

    def _expect_no_more(self, who: Attachment) -> None:
        """Forget an agent, unless it is another one by now that speaks with this process for the server."""
        if self.agents.is_known(who.server, who.instance, who.epoch):
            self.agents.forget(who.server)

    def displaced(self, who: Attachment) -> bool:
        """Return whether another process speaks for a server, or it was forgotten: its agent need not try again to."""
        query = sa.select(servers.c.instance, servers.c.epoch).where(servers.c.name == who.server)
        with self._database.reader.connect() as db:
            row = db.execute(query).first()
        return row is None or (row.instance, row.epoch) != (who.instance, who.epoch)

    def hear_again(self, steady: float) -> None:
        """Give every server that was attached when the last pool died its time to come back before another may speak for it."""
        with self._database.transaction() as db:
            db.execute(servers.update().where(servers.c.away_since.is_(None)).values(heard=steady))

    def silent(self, pool: str, since: float) -> list[str]:
        """Return the servers of `pool`, this process, of which nothing was heard since a time, although they are not away yet."""
        unheard = self.agents.since(since)
        if not unheard:
            return []
        with self._database.reading() as db:
            return [row.name for row in _OURS.rows(db, us=pool) if row.name in unheard]

    def note_quiet(self, pool: str, since: float) -> None:
        """Record of which servers of `pool`, this process, nothing was heard since a time, where that is new."""
        news = {server: agent for server, agent in self.agents.since(since).items() if not agent.quiet}
        if news:
            with self._database.transaction() as db:
                for server, agent in sorted(news.items()):
                    speaker = {"server": server, "us": pool, "who": agent.instance, "since": agent.epoch}
                    _NOW_QUIET.run(db, **speaker, last=agent.heard)
            for agent in news.values():
                agent.quiet = True

    def quiet(self, since: float) -> list[str]:
        """Return the servers of which their pools have heard nothing for seconds, and those whose pools were not seen since a time."""
        with self._database.reading() as db:
            return [row.name for row in _QUIET.rows(db, since=since)]

    def all(self, steady: float) -> list[GpuServer]:
        """Return all servers that were not forgotten, by name."""
        held = (
            sa.select(sa.func.count(slices.c.lease_id.distinct()))
            .join(devices, devices.c.id == slices.c.device_id)
            .where(devices.c.server == servers.c.name, IN_USE)
            .scalar_subquery()
        )
        query = (
            sa.select(servers, _POOL_SEEN.label("pool_seen"), held.label("leases"))
            .where(servers.c.forgotten.is_(False))
            .order_by(servers.c.name)
        )
        with self._database.reader.connect() as db:
            return [_shown(row, self._heard(row), steady) for row in db.execute(query)]

    def forget(self, server: str, who: str, now: float, steady: float) -> list[tuple[str, str]]:
        """Count a server that does not answer as gone for good; return its slices in use, whose memory is to be freed.

        Raises
        ------
        Refused
            ``no_such_server``, or ``alive`` where it answers.
        """
        with self._database.deciding() as (db, _):
            row = self._row(db, server)
            silent = steady - self._heard(row)
            if row.away_since is None and silent < fencing.SILENT_SECONDS:
                raise Refused(
                    "alive",
                    f"GPU server {server} was heard of {silent:.0f} s ago and is not forgotten while it answers; "
                    f"take it out with “gpukernel drain {server}”, or stop its agent first.",
                )
            gone = {
                "pool": "",
                "instance": "",
                "place": "",
                "credential": "",
                "machine": "",
                "epoch": row.epoch + 1,
                "away_since": steady if row.away_since is None else row.away_since,
                "fenced_until": 0.0,
                "settling": False,
                "forgotten": True,
            }
            db.execute(servers.update().where(servers.c.name == server).values(**gone))
            self.agents.forget(server)
            self._database.changes.server(server)
            note(db, now, who, "forget", server, row.credential, "forgotten")
            update_availability(db, [server])
            query = (
                sa.select(slices.c.lease_id, slices.c.device_id)
                .join(devices, devices.c.id == slices.c.device_id)
                .where(devices.c.server == server, IN_USE)
            )
            return [(found.lease_id, found.device_id) for found in db.execute(query)]

    def reset(self, server: str, who: str, now: float) -> None:
        """Let the next agent of this name enrol its credential and machine; raises `Refused` where there is no such server."""
        with self._database.deciding() as (db, _):
            row = self._row(db, server)
            db.execute(servers.update().where(servers.c.name == server).values(credential="", machine=""))
            note(db, now, who, "reset", server, f"{row.credential} {row.machine}".strip(), "")

    @staticmethod
    def _found(db: sa.Connection, *wanted: sa.ColumnElement[bool]) -> Any:
        """Return the row of a server with the time when its pool was seen, or None."""
        return db.execute(sa.select(servers, _POOL_SEEN.label("pool_seen")).where(*wanted)).first()

    def _heard(self, row: Any) -> float:
        """Return when a server was heard of: by this process, or at the latest by its pool's word."""
        here = self.agents.heard(row.name) if row.pool == self._database.changes.pool else None
        if here is not None:
            return max(here, float(row.heard))
        return float(row.heard if row.away_since is not None else max(row.heard, row.pool_seen))

    @classmethod
    def _row(cls, db: sa.Connection, server: str) -> Any:
        row = cls._found(db, servers.c.name == server, servers.c.forgotten.is_(False))
        if row is None:
            raise Refused("no_such_server", f"The pool has no GPU server {server[:60]}.")
        return row

    # --- faults and drains ---

    def note_confinement(self, server: str, rungs: Iterable[Rung]) -> None:
        """Record what confines the workers of a server."""
        text = json.dumps(
            [[rung.name, rung.used, rung.detail[:LONGEST_DETAIL]] for rung in rungs][:MOST_RUNGS]
        )
        with self._database.transaction() as db:
            db.execute(servers.update().where(servers.c.name == server).values(confinement=text))

    def confinement(self) -> dict[str, tuple[Rung, ...]]:
        """Return what confines the workers of each server, from outside in; nothing where its agent does not say."""
        query = sa.select(servers.c.name, servers.c.confinement).order_by(servers.c.name)
        with self._database.reading() as db:
            return {
                row.name: tuple(Rung(*each) for each in json.loads(row.confinement))
                for row in db.execute(query)
            }

    def note_faults(self, server: str, found: Mapping[str, str]) -> dict[str, str]:
        """Record which devices of a server do not work now, by id; return those that did until now, with their labels."""
        query = sa.select(devices.c.id, devices.c.uuid, devices.c.index.label("number"), devices.c.fault)
        with self._database.reader.connect() as db:
            known = {row.id: row for row in db.execute(query.where(devices.c.server == server))}
            twice = {row.uuid for row in known.values() if found_by_pool(row.fault) and row.fault != GONE}
            free = free_to_offer(db, server, twice) if twice else set()
        changed = {
            device_id: found.get(device_id, "")
            for device_id, row in known.items()
            if found.get(device_id, "") != row.fault and (not found_by_pool(row.fault) or row.uuid in free)
        }
        if not changed:
            return {}
        now = self._database.clock.now()
        with self._database.deciding() as (db, _):
            for device_id, sentence in changed.items():
                row = known[device_id]
                db.execute(devices.update().where(devices.c.id == device_id).values(fault=sentence))
                note(db, now, by_agent(server), "device", f"{server}/{row.number}", row.fault, sentence)
            update_availability(db, [server])
        broken = (device_id for device_id, sentence in changed.items() if sentence)
        return {one: f"{server}/{known[one].number}" for one in broken if not known[one].fault}

    def drain(self, server: str, draining: bool, until: float | None, who: str, now: float) -> bool:
        """Exclude a server from new leases until a steady time, or admit it again; return False where there is no such server."""
        with self._database.deciding() as (db, _):
            before = db.execute(sa.select(servers).where(servers.c.name == server)).first()
            if before is None or before.forgotten:
                return False
            values = {"draining": draining, "drain_until": until}
            db.execute(servers.update().where(servers.c.name == server).values(**values))
            note_drain(db, now, who, server, before.draining, draining)
            update_availability(db, [server])
        return True

    def drained_by(self, steady: float) -> list[str]:
        """Return the servers whose drain deadline has passed."""
        with self._database.reading() as db:
            return [row.name for row in _DRAINED.rows(db, now=steady)]

    # --- servers that are away ---

    def mark_seen(self, pool: str, steady: float, address: str = "") -> None:
        """Record that a pool process is alive, for the agents and the calls that it speaks for, and where it is reached."""
        with self._database.transaction(awaited=False) as db:
            mark_pool_seen(db, pool, steady, address)

    def mark_away(self, server: str, pool: str, steady: float) -> None:
        """Record that the agent no longer speaks with `pool`; change nothing where it speaks with another one by now."""
        self._mark_away(sa.and_(servers.c.name == server, servers.c.pool == pool), steady, pool="")
        self.agents.forget(server)

    def mark_silent(self, server: str, pool: str, steady: float) -> None:
        """Record that nothing was heard of a server for `SILENT_SECONDS`, since when it is away; the next heartbeat counts."""
        condition = sa.and_(servers.c.name == server, servers.c.pool == pool)
        self._mark_away(condition, steady - fencing.SILENT_SECONDS)

    def mark_unseen_away(self, unseen_since: float, steady: float) -> None:
        """Mark all servers away whose pool was not seen since a time: that pool is dead."""
        with self._database.reading() as db:
            if not _UNSEEN.rows(db, since=unseen_since):
                return
        self._mark_away(unseen_since > _POOL_SEEN, steady, pool="")

    def _mark_away(self, condition: Any, since: float, **values: Any) -> None:
        with self._database.deciding() as (db, _):
            query = sa.select(servers, _POOL_SEEN.label("pool_seen"))
            found = list(db.execute(query.where(condition, servers.c.away_since.is_(None))))
            gone = [row.name for row in found]
            heard = {row.name: self._heard(row) for row in found}
            if values:  # also of those that are away for their silence
                db.execute(servers.update().where(condition).values(**values))
            for name in gone:
                away = {"away_since": since, "heard": heard[name], "quiet": False}
                db.execute(servers.update().where(servers.c.name == name).values(**away))
                self.agents.forget(name)
                self._database.changes.server(name)
            if gone:
                update_availability(db, gone)

    def away_since(self, since: float) -> list[str]:
        """Return the servers that have been away since before a time."""
        with self._database.reading() as db:
            return [row.name for row in _AWAY.rows(db, since=since)]


def _written_fence(instance: str, steady: float, valid_seconds: float) -> float:
    """Return the fence that is written for an agent: as long as one answer needs, and those of the next heartbeats."""
    if not instance:
        return fencing.NEVER  # agents of before 0.3 stop no worker by themselves
    return steady + fencing.fence_seconds(valid_seconds) + fencing.ahead_seconds(valid_seconds)


def _known(row: Any, heard: float) -> KnownServer:
    return KnownServer(
        row.name,
        row.credential,
        row.machine,
        row.place,
        row.instance,
        row.epoch,
        heard,
        row.fenced_until,
        # One that was attached and keeps fences has its time to come back, whatever became of its connection.
        attached=not row.forgotten and (bool(row.place) or bool(row.pool and row.away_since is None)),
    )


def _shown(row: Any, heard: float, steady: float) -> GpuServer:
    states = {
        "away": row.away_since is not None,
        "settling": row.settling,
        "drained": row.draining,
        "attached": True,
    }
    fenced = row.fenced_until < fencing.NEVER
    return GpuServer(
        row.name,
        next(state for state, holds in states.items() if holds),
        row.credential,
        row.machine,
        row.epoch,
        max(steady - heard, 0.0),
        max(row.fenced_until - steady, 0.0) if fenced else -1.0,
        row.leases,
    )
