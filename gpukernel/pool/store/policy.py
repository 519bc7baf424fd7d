"""The policy as stored: courses, their members and every quota, cached by each pool process.

They change seldom and are asked for with every decision, so they are read again only when the ledger's `policy_version` has grown.
Whoever changes them does it here: in one transaction with the ceilings of all accounts and the entry in the audit table.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import replace

import sqlalchemy as sa

from gpukernel.common.bounds import Account, Bounds, Subject, millionths
from gpukernel.common.course import Course, Profile
from gpukernel.common.policy import Policy
from gpukernel.common.reservations import Reservation
from gpukernel.pool.store import schema
from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from gpukernel.pool.store.database import Database

__all__ = ["StoredPolicy", "load_policy", "note", "write_groups", "write_policy"]

MIB = 2**20
_BOUNDS = tuple(Bounds.__dataclass_fields__)
_NOTE = CompiledSql(schema.audit.insert())


class StoredPolicy:
    """The policy of one database, cached."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._cached: tuple[int, Policy] = (-1, Policy())

    def forget(self) -> None:
        """Read everything anew at the next use."""
        self._cached = (-1, Policy())

    def current(self, db: sa.Connection | None = None, version: int | None = None) -> Policy:
        """Return the courses and quotas, from memory unless their version has grown.

        Parameters
        ----------
        db
            The transaction to read in; one of its own by default.
        version
            The ledger's ``policy_version``, where the caller has read it.
        """
        if db is None:
            with self._database.reading() as db:
                return self.current(db)
        if version is None:
            version = self._database.versions(db).policy_version
        if self._cached[0] != version:
            self._cached = (version, load_policy(db))
        return self._cached[1]


def load_policy(db: sa.Connection) -> Policy:
    """Read the whole policy."""
    members: dict[str, dict[str, str]] = {}
    for row in db.execute(sa.select(schema.members)):
        members.setdefault(row.course, {})[row.person] = row.role
    courses = {
        row.name: Course(
            row.name, row.title, row.weight, members.get(row.name, {}), Profile.load(row.profile)
        )
        for row in db.execute(sa.select(schema.courses).order_by(schema.courses.c.name))
    }
    quotas = {
        Subject(row.kind, row.course, row.person): Bounds(**{name: getattr(row, name) for name in _BOUNDS})
        for row in db.execute(sa.select(schema.quotas))
    }
    term = db.execute(sa.select(schema.ledger)).one()
    groups: dict[str, set[str]] = {}
    for row in db.execute(sa.select(schema.groups)):
        groups.setdefault(row.person, set()).add(row.name)
    reservations = [
        Reservation(
            row.course,
            tuple(int(day) for day in row.days),
            row.on_day,
            row.begins,
            row.ends,
            row.devices,
            row.model,
            row.preempt,
            row.id,
        )
        for row in db.execute(sa.select(schema.reservations))
    ]
    in_groups = {person: frozenset(names) for person, names in groups.items()}
    return Policy(
        courses,
        quotas,
        term.term_begins,
        in_groups,
        tuple(sorted(reservations)),
        term.timezone,
        term.half_life,
        term.notice,
        term.least_run,
    )


def write_groups(db: sa.Connection, before: Policy, person: str, names: Iterable[str]) -> bool:
    """Put the person into these groups and no others; return whether that is new.  The caller holds the ledger's lock."""
    now = frozenset(names)
    if before.groups.get(person, frozenset()) == now:
        return False
    db.execute(schema.groups.delete().where(schema.groups.c.person == person))
    if now:
        db.execute(schema.groups.insert(), [{"person": person, "name": name} for name in sorted(now)])
    db.execute(schema.ledger.update().values(policy_version=schema.ledger.c.policy_version + 1))
    after = replace(before, groups={**before.groups, person: now})
    _new_ceilings(db, after, schema.quota_usage.c.person == person)
    return True


def write_policy(db: sa.Connection, before: Policy, after: Policy, who: str, now: float) -> list[str]:
    """Store the policy `after`; return what changed, a line each, as the audit table keeps it.

    The caller holds the ledger's lock.  Leases that are above a lowered quota stay; nothing more is granted until they end.
    """
    changes: list[str] = []
    after = replace(after, groups=before.groups)  # those are JupyterHub's to say

    def changed(action: str, subject: str, old: object, new: object) -> None:
        note(db, now, who, action, subject, _text(old), _text(new))
        changes.append(f"{subject}: {_text(old) or 'nothing'} → {_text(new) or 'nothing'}")

    # Before their courses go; new ones after those came.
    for gone in sorted(set(before.reservations) - set(after.reservations)):
        db.execute(
            schema.reservation_placements.delete().where(
                schema.reservation_placements.c.reservation == gone.id
            )
        )
        db.execute(schema.reservations.delete().where(schema.reservations.c.id == gone.id))
        changed("reservation", f"reservation of {gone.course}", gone, None)
    for name in sorted(set(before.courses) | set(after.courses)):
        old, new = before.courses.get(name), after.courses.get(name)
        if old == new:
            continue
        if new is None:
            db.execute(schema.members.delete().where(schema.members.c.course == name))
            db.execute(schema.courses.delete().where(schema.courses.c.name == name))
        else:
            values = {"title": new.title, "weight": new.weight, "profile": new.profile.dump()}
            if old is None:
                db.execute(schema.courses.insert().values(name=name, **values))
            else:
                db.execute(schema.courses.update().where(schema.courses.c.name == name).values(**values))
                db.execute(schema.members.delete().where(schema.members.c.course == name))
            if new.members:
                rows = [{"course": name, "person": p, "role": r} for p, r in new.members.items()]
                db.execute(schema.members.insert(), rows)
        changed("course", f"course {name}", old, new)
    for made in sorted(set(after.reservations) - set(before.reservations)):
        values = {n: getattr(made, n) for n in ("course", "begins", "ends", "devices", "model", "preempt")}
        values |= {"id": "r" + secrets.token_hex(3), "days": "".join(map(str, made.days)), "on_day": made.on}
        db.execute(schema.reservations.insert().values(values))
        changed("reservation", f"reservation of {made.course}", None, made)
    if before.timezone != after.timezone:
        db.execute(schema.ledger.update().values(timezone=after.timezone))
        changed("timezone", "timezone", before.timezone, after.timezone)
    for subject in sorted(set(before.quotas) | set(after.quotas), key=str):
        bounds = after.quotas.get(subject)
        if before.quotas.get(subject) == bounds:
            continue
        key = {"kind": subject.kind, "course": subject.course, "person": subject.person}
        db.execute(
            schema.quotas.delete().where(*(schema.quotas.c[name] == value for name, value in key.items()))
        )
        if bounds is not None and bounds.given():
            db.execute(schema.quotas.insert().values(**key, **{n: getattr(bounds, n) for n in _BOUNDS}))
        changed("quota", str(subject), before.quotas.get(subject), bounds)
    if before.term_begins != after.term_begins:
        db.execute(schema.ledger.update().values(term_begins=after.term_begins))
        changed("term", "term", before.term_begins, after.term_begins)
    for name in ("half_life", "notice", "least_run"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            db.execute(schema.ledger.update().values({name: new}))
            changed(name.replace("_", "-"), name.replace("_", "-"), old, new)
    if changes:
        db.execute(schema.ledger.update().values(policy_version=schema.ledger.c.policy_version + 1))
        _new_ceilings(db, after)
    return changes


def _new_ceilings(db: sa.Connection, policy: Policy, *whose: sa.ColumnElement[bool]) -> None:
    table = schema.quota_usage
    updates = []
    for row in db.execute(sa.select(table).where(*whose)):
        bounds = policy.account_bounds(Account(row.kind, row.course, row.person))
        updates.append(
            {"k": row.kind, "c": row.course, "p": row.person}
            | ceilings(bounds, row.share_held, row.memory_held, row.leases_held, row.interactive_held)
        )
    if updates:
        db.execute(
            table.update().where(
                table.c.kind == sa.bindparam("k"),
                table.c.course == sa.bindparam("c"),
                table.c.person == sa.bindparam("p"),
            ),
            updates,
        )


def ceilings(bounds: Bounds, share: int, memory: int, leases: int, interactive: int) -> dict[str, int | None]:
    """Return the most that the database lets an account hold that holds this much."""
    return {
        "share_ceiling": None if bounds.devices is None else max(millionths(bounds.devices), share),
        "memory_ceiling": None if bounds.memory_mib is None else max(bounds.memory_mib * MIB, memory),
        "leases_ceiling": None if bounds.leases is None else max(bounds.leases, leases),
        "interactive_ceiling": None
        if bounds.interactive is None
        else max(millionths(bounds.interactive), interactive),
    }


def note(
    db: sa.Connection, now: float, who: str, action: str, subject: str, before: str = "", after: str = ""
) -> None:
    """Add an entry to the audit table."""
    _NOTE.run(db, time=now, who=who, action=action, subject=subject, before=before, after=after)


def _text(value: object) -> str:
    if isinstance(value, Bounds):
        return json.dumps(value.given())
    if isinstance(value, Course):
        plain = {"title": value.title, "weight": value.weight, "members": dict(value.members)}
        return json.dumps(plain | value.profile.plain(), ensure_ascii=False)
    return "" if value is None else str(value)
