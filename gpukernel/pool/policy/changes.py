"""Policy changes: the one way in which courses and quotas change while the pool runs, and the effects of a new quota."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pydantic
import sqlalchemy as sa

from gpukernel.common.bounds import EVERYBODY, MILLION, Account, Bounds, Subject, millionths, plain_number
from gpukernel.common.course_entries import BOUNDS, NO_TITLE, CourseEntry, parse_bound
from gpukernel.common.errors import Refused
from gpukernel.common.file_words.entry_words import entry_words
from gpukernel.common.i18n import lines_of, say
from gpukernel.common.model import Lease, Waiting
from gpukernel.common.policy import Policy
from gpukernel.pool.domain.direct_mode import matching_in_mode
from gpukernel.pool.domain.quota import PERIODS, Standing, claim_on, never
from gpukernel.pool.leases.manager import LeaseManager
from gpukernel.pool.store import quota_usage
from gpukernel.pool.store.policy import write_policy
from gpukernel.pool.store.store import Store

__all__ = [
    "TAUGHT",
    "Effect",
    "bounds_holder",
    "change_policy",
    "course_change",
    "effects_of",
    "quota_change",
]

MIB = 2**20
HOUR = 3600.0


class _Undone(Exception):
    pass


def change_policy(
    manager: LeaseManager,
    store: Store,
    who: str,
    change: Callable[[Policy], Policy],
    *,
    check: bool = False,
    look: Callable[[sa.Connection], None] | None = None,
) -> tuple[list[str], Policy, Policy]:
    """Change the policy with `change`; the new one counts at once, for those who wait too.

    Parameters
    ----------
    check
        Change nothing.
    look
        Sees in the same transaction what `check` changes nothing of; it may write, which is undone as well.

    Returns
    -------
    tuple
        What changed (or would), a line each; the policy before; the policy after.
    """
    changes: list[str] = []
    try:
        with store.deciding() as (db, row):
            before = store.policy.current(db, row.policy_version)
            after = change(before)
            changes += write_policy(db, before, after, who, time.time())
            if check:
                if look is not None:
                    look(db)
                raise _Undone
    except _Undone:
        return changes, before, after
    manager.policy_changed()
    return changes, before, after


def quota_change(subject_text: str, bounds: Mapping[str, str]) -> tuple[Subject, Callable[[Policy], Policy]]:
    """Return the change that sets some bounds of one subject, as a command line or a form names them.

    Raises
    ------
    Refused
        ``invalid``, with a sentence; the change itself also ``no_such_course``.
    """
    try:
        subject = Subject.parse(subject_text)
    except ValueError as error:
        raise Refused("invalid", str(error)) from None
    given = dict(parse_bound(name, text) for name, text in bounds.items())
    if not given:
        raise Refused("invalid", f"Say what to bound: one or more of {', '.join(BOUNDS)}, as NAME=VALUE.")

    def change(before: Policy) -> Policy:
        if subject.course and subject.course not in before.courses:
            raise Refused("no_such_course", say("There is no course %(course)s.", course=subject.course[:60]))
        wanted = replace(before.quotas.get(subject, Bounds()), **given)  # type: ignore[arg-type]
        quotas = {s: b for s, b in before.quotas.items() if s != subject}
        return replace(before, quotas={**quotas, subject: wanted} if wanted.given() else quotas)

    return subject, change


TIMES = ("longest_lease", "idle")
"""The bounds that a slice keeps as they were when it was granted."""

TAUGHT = ("title", "term", "offers", "start", "priority")
"""The fields that an instructor may set for a course, as ``courses.yaml`` names them."""


def course_change(name: str, fields: Mapping[str, Any]) -> Callable[[Policy], Policy]:
    """Return the change that sets some of `TAUGHT` of a course, checked as ``courses.yaml`` is.

    Raises
    ------
    Refused
        ``invalid``, with a sentence a line; the change itself ``no_such_course``.
    """
    if not fields or set(fields) - set(TAUGHT):
        raise Refused("invalid", f"Say what to change: one or more of {', '.join(TAUGHT)}.")
    try:
        entry = CourseEntry.model_validate(dict(fields))
    except pydantic.ValidationError as error:
        raise Refused("invalid", lines_of([_sentence(one) for one in error.errors()])) from None
    if "title" in fields and not entry.title.strip():
        raise Refused("invalid", NO_TITLE)
    for field in ("title", "term"):
        if not getattr(entry, field).isprintable():
            raise Refused(
                "invalid", say("%(field)s: write it in printable characters, on one line.", field=field)
            )
    profile = entry.profile()

    def change(before: Policy) -> Policy:
        known = before.courses.get(name)
        if known is None:
            raise Refused("no_such_course", say("There is no course %(course)s.", course=name[:60]))
        taught = {field: getattr(profile, field) for field in fields if field != "title"}
        after = replace(known, profile=replace(known.profile, **taught))
        if "title" in fields:
            after = replace(after, title=entry.title)
        return replace(before, courses={**before.courses, name: after})

    return change


def _sentence(error: Mapping[str, Any]) -> str:
    where = ".".join(str(part)[:40] for part in error["loc"] if part != "[key]")
    what, given = entry_words(error)
    if given:
        what = say("%(what)s, not %(given)s", what=what, given=given)
    return say("%(name)s: %(what)s.", name=where, what=what)


# --- what it would mean ---


@dataclass(frozen=True)
class Effect:
    """One effect that a new bound has for somebody.

    `kind` is ``over`` (they hold or have used more than `limit`; nothing is taken from them, and nothing more is granted),
    ``running`` (slices that are held keep the time they were given) or ``waiting`` (requests that could never start).
    `people` is empty where the bound is on a course or the pool as a whole.
    """

    kind: str
    bound: str
    limit: str
    people: tuple[str, ...]
    count: int
    sentence: str


def effects_of(
    manager: LeaseManager, store: Store, before: Policy, after: Policy, subject: Subject
) -> list[Effect]:
    """Return the effects on what is held and who waits now, when the bounds of `subject` become those of `after`."""
    old, new = before.quotas.get(subject, Bounds()), after.quotas.get(subject, Bounds())
    lowered = {
        name: getattr(new, ours)
        for name, ours in BOUNDS.items()
        if (limit := getattr(new, ours)) is not None and ((was := getattr(old, ours)) is None or limit < was)
    }
    times = {name for name in TIMES if getattr(old, BOUNDS[name]) != getattr(new, BOUNDS[name])}
    if not (lowered or times):
        return []
    with store.reader.connect() as db:
        standings = quota_usage.all_standings(db, after, manager.now())
    bounded = [s for s in standings if _bounds_account(after, subject, s.account)]
    held = [lease for lease in manager.leases(False) if bounds_holder(after, subject, lease)]
    found = []
    for name in BOUNDS:
        if name in times:  # longer ones, too: who holds a slice may want what others get from now on
            found += _running(name, getattr(new, BOUNDS[name]), held)
        elif (limit := lowered.get(name)) is None or name == "waiting":
            continue  # who has more waiting keeps that; one more is refused
        elif name == "largest_slice":
            found += _larger(name, limit, held)
        else:
            found += _over(name, limit, bounded, subject)
    if hopeless := _hopeless(manager, store, after, subject, lowered):
        names = tuple(sorted({w.holder.person for w in hopeless}))
        count = len(hopeless)
        asks = f"{count} waiting {'request asks' if count == 1 else 'requests ask'}"
        sentence = f"{asks} for more than that and would never start."
        found.append(Effect("waiting", "", "", names, count, sentence))
    return found


def _bounds_account(policy: Policy, subject: Subject, account: Account) -> bool:
    if subject.kind in ("student", "instructor"):
        return (
            account.kind == "member"
            and account.course == subject.course
            and policy.role_in(account.course, account.person) == subject.kind
        )
    if subject.kind == "person":
        if account.kind != "person":
            return False
        own = Subject("person", person=account.person) in policy.quotas
        return account.person == subject.person or (subject.person == EVERYBODY and not own)
    return account.kind == subject.kind and account.course == subject.course


def bounds_holder(policy: Policy, subject: Subject, one: Lease | Waiting) -> bool:
    """Return whether the bounds of `subject` are among those of whoever holds or waits for this."""
    whose = quota_usage.accounts_of(one.holder.person, one.holder.course)
    return any(_bounds_account(policy, subject, account) for account in whose)


def _people(count: int, subject: Subject) -> str:
    word = {"student": "student", "instructor": "instructor"}.get(subject.kind, "person")
    many = "people" if word == "person" else f"{word}s"
    return f"{count} {word if count == 1 else many}"


_KEEP = "keep what they have until it ends"


def _over(name: str, limit: float, standings: Iterable[Standing], subject: Subject) -> list[Effect]:
    over = [
        s
        for s in standings
        if _used(name, s) > limit + (0.5 / MILLION if name in ("devices", "interactive") else 0)
    ]
    if not over:
        return []
    text = plain_number(limit)
    if subject.kind in ("pool", "course"):
        what = "The pool" if subject.kind == "pool" else f"Course {subject.course}"
        sentence = (
            f"{what} is above the new limit of {text} ({name}: {_used(name, over[0]):.4g}); "
            "what is held stays until it ends, and nothing more is granted until then."
        )
        return [Effect("over", name, text, (), 1, sentence)]
    names = tuple(sorted(s.account.person for s in over))
    be = "is" if len(names) == 1 else "are"
    return [
        Effect(
            "over",
            name,
            text,
            names,
            len(names),
            f"{_people(len(names), subject)} {be} above the new limit of {text} ({name}); they {_KEEP}.",
        )
    ]


def _used(name: str, standing: Standing) -> float:
    if name == "devices":
        return standing.share / MILLION
    if name == "interactive":
        return standing.interactive / MILLION
    if name == "memory":
        return standing.memory / MIB
    if name == "leases":
        return standing.leases
    period = PERIODS.index(name.removeprefix("gpu_hours_per_"))
    return standing.spent[period] / HOUR


def _larger(name: str, limit: float, held: Iterable[Lease]) -> list[Effect]:
    larger = [
        lease for lease in held if any(millionths(piece.weight) > millionths(limit) for piece in lease.slices)
    ]
    if not larger:
        return []
    names = tuple(sorted({lease.holder.person for lease in larger}))
    count = len(larger)
    slices = "1 slice is" if count == 1 else f"{count} slices are"
    sentence = f"{slices} larger than the new limit of {plain_number(limit)}; they stay until they end."
    return [Effect("over", name, plain_number(limit), names, count, sentence)]


def _running(name: str, limit: float | None, held: list[Lease]) -> list[Effect]:
    if not held:
        return []
    names = tuple(sorted({lease.holder.person for lease in held}))
    count = len(held)
    slices = "1 slice held now keeps its" if count == 1 else f"{count} slices held now keep their"
    sentence = f"{slices} old limit ({name}); the new one is for slices from now on."
    return [Effect("running", name, "" if limit is None else plain_number(limit), names, count, sentence)]


def _hopeless(
    manager: LeaseManager, store: Store, after: Policy, subject: Subject, lowered: Mapping[str, float]
) -> list[Waiting]:
    only = Bounds(**{BOUNDS[name]: limit for name, limit in lowered.items()})  # type: ignore[arg-type]
    level = Standing(Account(subject.kind, subject.course, subject.person), only)
    kinds, places = store.devices.classes(), store.devices.places()
    found = []
    for waiting in manager.waiting():
        if not bounds_holder(after, subject, waiting):
            continue
        try:
            fitting = matching_in_mode(waiting.slice, kinds, places)
        except Refused:
            continue  # its server is away: nobody can say
        if fitting and all(never(claim_on(waiting.slice, kind), [level]) for kind in fitting):
            found.append(waiting)
    return found
