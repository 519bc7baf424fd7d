"""The courses, their members and every quota, as one pool process keeps them in memory.

They change seldom and are asked for with every decision, so they are read again only when the ledger's `rules_version` has grown.
Whoever changes them does it here: in one transaction with the ceilings of all accounts and the entry in the audit table.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from gpukernel.pool import schema
from gpukernel.pool.course import Course, Profile
from gpukernel.pool.errors import Refused
from gpukernel.pool.quota import EVERYBODY, OPEN, Account, Bounds, Subject, millionths
from gpukernel.pool.reservations import Reservation
from gpukernel.pool.sentences import say
from gpukernel.pool.statement import Statement

__all__ = ["Course", "Rules", "load_rules", "note", "write_groups", "write_rules"]

MIB = 2**20
_BOUNDS = tuple(Bounds.__dataclass_fields__)
_NOTE = Statement(schema.audit.insert())


@dataclass(frozen=True)
class Rules:
    """Everything that bounds requests."""

    courses: Mapping[str, Course] = field(default_factory=dict)
    quotas: Mapping[Subject, Bounds] = field(default_factory=dict)
    term_begins: float = 0.0
    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    timezone: str = ""

    def role_in(self, course: str, person: str) -> str:
        """The person's role in a course, by name, by group, or as everybody; empty for those who are not in it."""
        known = self.courses.get(course)
        if known is None:
            return ""
        if own := known.members.get(person):
            return own
        groups = self.groups.get(person, frozenset())
        if groups.intersection(known.profile.instructor_groups):
            return "instructor"
        if groups.intersection(known.profile.groups):
            return "student"
        return known.members.get(EVERYBODY, "")

    def role(self, course: str, person: str) -> str:
        """The person's role in a course; empty without a course, or where there are no courses at all.

        Raises
        ------
        Refused
            ``no_such_course`` or ``not_a_member``.
        """
        if not course or not self.courses:
            return ""
        known = self.courses.get(course)
        if known is None:
            raise Refused("no_such_course", say("There is no course %(course)s.", course=course[:60]))
        role = self.role_in(course, person)
        if not role:
            raise Refused(
                "not_a_member",
                say(
                    "%(person)s is not in course %(course)s; ask its instructor.",
                    person=person,
                    course=course,
                ),
            )
        return role

    def instructs(self, person: str, course: str) -> bool:
        """Whether the person is an instructor of the course."""
        return self.role_in(course, person) == "instructor"

    def weight(self, course: str) -> float:
        """The course's weight; 1 for those that nobody has written down."""
        known = self.courses.get(course)
        return known.weight if known else 1.0

    def bounds(self, account: Account, role: str = "") -> Bounds:
        """The bounds of one level; for a member, those of `role`."""
        if account.kind == "member":
            return self.quotas.get(Subject(role, course=account.course), OPEN) if role else OPEN
        if account.kind == "person":
            own = self.quotas.get(Subject("person", person=account.person))
            return own or self.quotas.get(Subject("person", person=EVERYBODY), OPEN)
        return self.quotas.get(Subject(account.kind, course=account.course), OPEN)

    def account_bounds(self, account: Account) -> Bounds:
        """As `bounds`, with the role that the member has now."""
        role = self.role_in(account.course, account.person) if account.kind == "member" else ""
        return self.bounds(account, role)

    def longest(self, accounts: Iterable[Account], role: str, asked: float = 0.0) -> float | None:
        """The time after which a lease of these accounts ends; None: never."""
        bounds = [self.bounds(account, role).longest_seconds for account in accounts]
        times = [time for time in [*bounds, asked or None] if time is not None]
        return min(times) if times else None

    def idle(self, accounts: Iterable[Account], role: str) -> float:
        """The time after which an idle slice is released; 0: never."""
        levels = {account.kind: self.bounds(account, role).idle_seconds for account in accounts}
        for kind in ("person", "member", "course", "pool"):
            if (seconds := levels.get(kind)) is not None:
                return seconds
        return 0.0


def load_rules(db: sa.Connection) -> Rules:
    """All of them."""
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
    term = db.execute(sa.select(schema.ledger.c.term_begins, schema.ledger.c.timezone)).one()
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
    return Rules(courses, quotas, term.term_begins, in_groups, tuple(sorted(reservations)), term.timezone)


def write_groups(db: sa.Connection, before: Rules, person: str, names: Iterable[str]) -> bool:
    """The person is in these groups, and in no others; returns whether that is new.  The caller holds the ledger's lock."""
    now = frozenset(names)
    if before.groups.get(person, frozenset()) == now:
        return False
    db.execute(schema.groups.delete().where(schema.groups.c.person == person))
    if now:
        db.execute(schema.groups.insert(), [{"person": person, "name": name} for name in sorted(now)])
    db.execute(schema.ledger.update().values(rules_version=schema.ledger.c.rules_version + 1))
    after = replace(before, groups={**before.groups, person: now})
    _new_ceilings(db, after, schema.accounts.c.person == person)
    return True


def write_rules(db: sa.Connection, before: Rules, after: Rules, who: str, now: float) -> list[str]:
    """Make the database say `after`; returns what changed, a line each, as the audit table keeps it.

    The caller holds the ledger's lock.  Leases that are above a lowered quota stay; nothing more is granted until they end.
    """
    changes: list[str] = []
    after = replace(after, groups=before.groups)  # those are JupyterHub's to say

    def changed(action: str, subject: str, old: object, new: object) -> None:
        note(db, now, who, action, subject, _text(old), _text(new))
        changes.append(f"{subject}: {_text(old) or 'nothing'} → {_text(new) or 'nothing'}")

    # Before their courses go; new ones after those came.
    for gone in sorted(set(before.reservations) - set(after.reservations)):
        db.execute(schema.pins.delete().where(schema.pins.c.reservation == gone.id))
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
    if changes:
        db.execute(schema.ledger.update().values(rules_version=schema.ledger.c.rules_version + 1))
        _new_ceilings(db, after)
    return changes


def _new_ceilings(db: sa.Connection, rules: Rules, *whose: sa.ColumnElement[bool]) -> None:
    table = schema.accounts
    updates = []
    for row in db.execute(sa.select(table).where(*whose)):
        bounds = rules.account_bounds(Account(row.kind, row.course, row.person))
        updates.append(
            {"k": row.kind, "c": row.course, "p": row.person}
            | ceilings(bounds, row.share_held, row.memory_held, row.leases_held)
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


def ceilings(bounds: Bounds, share: int, memory: int, leases: int) -> dict[str, int | None]:
    """What the database lets an account hold that holds this much."""
    return {
        "share_ceiling": None if bounds.devices is None else max(millionths(bounds.devices), share),
        "memory_ceiling": None if bounds.memory_mib is None else max(bounds.memory_mib * MIB, memory),
        "leases_ceiling": None if bounds.leases is None else max(bounds.leases, leases),
    }


def note(
    db: sa.Connection, now: float, who: str, action: str, subject: str, before: str = "", after: str = ""
) -> None:
    """An entry in the audit table."""
    _NOTE.run(db, time=now, who=who, action=action, subject=subject, before=before, after=after)


def _text(value: object) -> str:
    if isinstance(value, Bounds):
        return json.dumps(value.given())
    if isinstance(value, Course):
        plain = {"title": value.title, "weight": value.weight, "members": dict(value.members)}
        return json.dumps(plain | value.profile.plain(), ensure_ascii=False)
    return "" if value is None else str(value)
