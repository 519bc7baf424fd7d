"""Quota usage: the running totals that quotas are compared with, charged with a grant and refunded with its end.

GPU time is metered without looking at leases: what an account holds is constant between two changes of it, so share × time up
to now follows from the last change.  So does the mean of what it held of late, in which the past decays.  Every read and every charge costs the same, however many leases there are.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from gpukernel.common.bounds import MILLION, OPEN, Account
from gpukernel.common.policy import Policy
from gpukernel.pool.domain.quota import PERIODS, Standing, period_start
from gpukernel.pool.store.connection.compiled_sql import CompiledSql
from gpukernel.pool.store.policy import ceilings
from gpukernel.pool.store.schema import leases, total, usage_log
from gpukernel.pool.store.schema import quota_usage as table

__all__ = [
    "WrongTotals",
    "accounts_of",
    "add_time",
    "all_standings",
    "charge",
    "claimed_by_courses",
    "heal",
    "refund",
    "standings",
    "wrong_totals",
]


def _is(number: int | str = "") -> sa.ColumnElement[bool]:
    k, c, p = [sa.bindparam(f"{letter}{number}", type_=sa.String) for letter in "kcp"]
    return sa.and_(table.c.kind == k, table.c.course == c, table.c.person == p)


@functools.cache
def _these(count: int) -> CompiledSql:
    """Select so many rows.  For a list of keys SQLite would read all rows there are."""
    return CompiledSql(sa.select(table).where(sa.or_(sa.false(), *map(_is, range(count)))))


_CHANGE = (
    table.update()
    .where(_is())
    .values(
        share_held=table.c.share_held + sa.bindparam("share"),
        memory_held=table.c.memory_held + sa.bindparam("memory"),
        leases_held=table.c.leases_held + sa.bindparam("count"),
        interactive_held=table.c.interactive_held + sa.bindparam("first"),
        settled=sa.bindparam("now"),
        spent_day=sa.bindparam("day"),
        spent_week=sa.bindparam("week"),
        spent_term=sa.bindparam("term"),
        recent=sa.bindparam("mean"),
    )
)
_CHARGE = CompiledSql(_CHANGE)
_OF_COURSES = CompiledSql(
    sa.select(table.c.course, table.c.share_held, table.c.settled, table.c.recent).where(
        table.c.kind == "course",
        table.c.person == "",
        table.c.course.in_(sa.bindparam("courses", expanding=True)),
    )
)
_ADD_TIME = CompiledSql(
    table.update()
    .where(_is())
    .values(
        {f"spent_{period}": table.c[f"spent_{period}"] + sa.bindparam(f"{period}_more") for period in PERIODS}
        | {"recent": table.c.recent + sa.bindparam("mean_more")}
    )
)
# What was held above a lowered quota comes down with every refund, and the ceiling with it.  What an engine placed raises both.
_CEILINGS = ("share_ceiling", "memory_ceiling", "leases_ceiling", "interactive_ceiling")
_WITH_CEILINGS = CompiledSql(_CHANGE.values({name: sa.bindparam(f"new_{name}") for name in _CEILINGS}))
_OPEN = (None, None, None, None)
_HELD = ("share_held", "memory_held", "leases_held", "interactive_held")
_FIRST = CompiledSql(table.insert())
_STEP = MILLION // 100


@functools.lru_cache(maxsize=4096)
def accounts_of(person: str, course: str) -> tuple[Account, ...]:
    """Return the accounts in which a lease of `person` for `course` counts, from the pool down."""
    member = (Account("member", course, person),) if course else ()
    return (
        Account("pool"),
        Account("course", course),
        *member,
        Account("person", person=person),
    )


def _key(account: Account, number: int | str = "") -> dict[str, str]:
    return {f"k{number}": account.kind, f"c{number}": account.course, f"p{number}": account.person}


def _rows(db: sa.Connection, wanted: Sequence[Account]) -> dict[Account, Any]:
    keys: dict[str, str] = {}
    for number, account in enumerate(wanted):
        keys |= _key(account, number)
    return {Account(row.kind, row.course, row.person): row for row in _these(len(wanted)).rows(db, **keys)}


def _begins(now: float, policy: Policy) -> list[float]:
    return [period_start(period, now, policy.term_begins) for period in PERIODS]


def _spent(row: Any, now: float, begins: Iterable[float]) -> tuple[float, float, float]:
    """Return the device-seconds in the day, week and term of `now`, which begin then."""
    share, settled, spent = row.share_held / MILLION, row.settled, []
    for begin, before in zip(begins, (row.spent_day, row.spent_week, row.spent_term), strict=True):
        kept = before if settled >= begin else 0.0
        spent.append(kept + share * max(now - max(settled, begin), 0.0))
    return spent[0], spent[1], spent[2]


def _recent(row: Any, now: float, half_life: float) -> float:
    """Return the mean share that was held before `now`, in millionths; what was held a half-life earlier counts half in it."""
    kept = 2.0 ** (-max(now - row.settled, 0.0) / half_life) if half_life else 0.0
    return float(row.recent * kept + row.share_held * (1.0 - kept))


def standings(
    db: sa.Connection, policy: Policy, wanted: Sequence[Account], roles: Mapping[Account, str], now: float
) -> dict[Account, Standing]:
    """Return how each of `wanted` stands at `now`."""
    rows, begins = _rows(db, wanted), _begins(now, policy)
    result = {}
    for account in wanted:
        role = roles.get(account, "")
        bounds = policy.bounds(account, role)
        row = rows.get(account)
        if row is None:
            result[account] = Standing(account, bounds, role=role)
        else:
            spent = _spent(row, now, begins)
            result[account] = Standing(
                account,
                bounds,
                row.share_held,
                row.memory_held,
                row.leases_held,
                spent,
                role,
                row.interactive_held,
            )
    return result


def all_standings(db: sa.Connection, policy: Policy, now: float) -> list[Standing]:
    """Return how everyone stands who ever held something."""
    result, begins = [], _begins(now, policy)
    for row in db.execute(sa.select(table).order_by(table.c.kind, table.c.course, table.c.person)):
        account = Account(row.kind, row.course, row.person)
        spent = _spent(row, now, begins)
        result.append(
            Standing(
                account,
                policy.account_bounds(account),
                row.share_held,
                row.memory_held,
                row.leases_held,
                spent,
                interactive=row.interactive_held,
            )
        )
    return result


def claimed_by_courses(
    db: sa.Connection, courses: Sequence[str], now: float, half_life: float
) -> dict[str, int]:
    """Return the millionths of a device that each course holds, and with a half-life also the mean of what it held of late.

    The mean is in whole hundredths of a device: what is less leaves the order to those who wait longer.
    """
    rows = _OF_COURSES.rows(db, courses=list(courses))
    past = {row.course: _recent(row, now, half_life) if half_life else 0.0 for row in rows}
    return {row.course: row.share_held + round(past[row.course] / _STEP) * _STEP for row in rows}


def _settled(row: Any, policy: Policy, begins: Sequence[float], now: float) -> dict[str, float]:
    """Return what an account has spent up to now, and the mean of what it held, as an update sets them; for a row that is missing, nothing."""
    spent = _spent(row, now, begins) if row else (0.0, 0.0, 0.0)
    later = max(now, row.settled) if row else now
    mean = _recent(row, later, policy.half_life) if row else 0.0
    return {"now": later, "mean": mean, **dict(zip(PERIODS, spent, strict=True))}


def _change(
    db: sa.Connection,
    policy: Policy,
    whose: Sequence[Account],
    amounts: tuple[int, int, int],
    priority: str,
    now: float,
    *,
    bounded: bool,
) -> None:
    rows, begins = _rows(db, whose), _begins(now, policy)
    interactive = amounts[0] if priority == "interactive" else 0
    new, changes = [], []
    for account in whose:
        row = rows.get(account)
        bounds = policy.account_bounds(account)  # of the role now, not of the one at the grant
        if row is None:
            first = {"kind": account.kind, "course": account.course, "person": account.person}
            new.append(first | ceilings(bounds, 0, 0, 0, 0))
        change = {
            **_key(account),
            "share": amounts[0],
            "memory": amounts[1],
            "count": amounts[2],
            "first": interactive,
            **_settled(row, policy, begins, now),
        }
        if not bounded:
            now_held = (0, 0, 0, 0)
            if row:
                now_held = (row.share_held, row.memory_held, row.leases_held, row.interactive_held)
            then = (held + amount for held, amount in zip(now_held, (*amounts, interactive), strict=True))
            change |= {f"new_{name}": most for name, most in ceilings(bounds, *then).items()}
        changes.append(change)
    _FIRST.soon(db, *new)
    (_CHARGE if bounded else _WITH_CEILINGS).soon(db, *changes)


def charge(
    db: sa.Connection,
    policy: Policy,
    whose: Sequence[Account],
    share: int,
    memory: int,
    now: float,
    leases: int = 1,
    *,
    priority: str = "interactive",
    bounded: bool = True,
) -> None:
    """Add a grant of a class to the totals; the next statement raises `sqlalchemy.exc.IntegrityError` where that is above a quota.

    Without `bounded` no quota refuses it: it counts, and nothing more is granted within a quota that it has filled.
    """
    _change(db, policy, whose, (share, memory, leases), priority, now, bounded=bounded)


def add_time(
    db: sa.Connection, policy: Policy, whose: Sequence[Account], share: int, since: float, now: float
) -> None:
    """Add the time before `now` for which a grant counts that was charged at `now`: that of each period, no more."""
    spans = zip(PERIODS, _begins(now, policy), strict=True)
    more = {f"{name}_more": share / MILLION * (now - max(since, min(begin, now))) for name, begin in spans}
    half_life = policy.half_life
    more["mean_more"] = share * (1.0 - 2.0 ** (-max(now - since, 0.0) / half_life)) if half_life else 0.0
    _ADD_TIME.each(db, [_key(account) | more for account in whose])


def refund(
    db: sa.Connection,
    policy: Policy,
    whose: Sequence[Account],
    share: int,
    memory: int,
    now: float,
    leases: int = 1,
    *,
    priority: str = "interactive",
) -> None:
    """Take what has become free out of the totals."""
    _change(db, policy, whose, (-share, -memory, -leases), priority, now, bounded=False)


# --- the totals compared with the leases ---


class WrongTotals(NamedTuple):
    """An account whose totals are not those of its leases, or whose ceilings are not those of its quota: the columns as they are and as they should be."""

    account: Account
    are: dict[str, int | None]
    should: dict[str, int | None]

    def __str__(self) -> str:
        name = " ".join(part for part in self.account if part)
        figures = (f"{n} was {self.are[n]} and is {v}" for n, v in self.should.items() if v != self.are[n])
        return f"{name}: {', '.join(figures)}"


def wrong_totals(db: sa.Connection, policy: Policy) -> list[WrongTotals]:
    """Return the accounts that are wrong; without the ledger's lock it may be that another pool changes them meanwhile."""
    count = sa.func.count(sa.case((leases.c.within == "", 1)))  # those inside of a ceiling are none
    share, memory = total(usage_log.c.share), total(usage_log.c.memory_bytes)
    query = (
        sa.select(leases.c.person, leases.c.course, leases.c.priority, share, memory, count)
        .join(usage_log, usage_log.c.lease_id == leases.c.id)
        .where(usage_log.c.ends.is_(None))
        .group_by(leases.c.person, leases.c.course, leases.c.priority)
    )
    held: dict[Account, list[int]] = {}
    for person, course, priority, *amounts in db.execute(query):
        for account in accounts_of(person, course):
            sums = held.setdefault(account, [0, 0, 0, 0])
            more = (*amounts, amounts[0] if priority == "interactive" else 0)
            sums[:] = (old + new for old, new in zip(sums, more, strict=True))
    found, nothing, columns = list[WrongTotals](), (0, 0, 0, 0), (*_HELD, *_CEILINGS)

    def compare(account: Account, are: Sequence[int | None]) -> None:
        amounts, bounds = held.pop(account, nothing), policy.account_bounds(account)
        most = _OPEN if bounds is OPEN else ceilings(bounds, *amounts).values()
        if are != (should := (*amounts, *most)):
            named = (dict(zip(columns, figures, strict=True)) for figures in (are, should))
            found.append(WrongTotals(account, *named))

    keys = table.c.kind, table.c.course, table.c.person
    for kind, course, person, *are in db.execute(sa.select(*keys, *(table.c[name] for name in columns))):
        compare(Account(kind, course, person), tuple(are))
    for account in list(held):  # without a row
        compare(account, (*nothing, *ceilings(policy.account_bounds(account), *nothing).values()))
    return sorted(found)


def heal(db: sa.Connection, policy: Policy, now: float) -> list[WrongTotals]:
    """Put the accounts right that are wrong, and return them; the caller holds the ledger's lock.

    The hours that they have counted up to now stay.
    """
    found = wrong_totals(db, policy)
    begins = _begins(now, policy)
    for account, are, should in found:
        row = _rows(db, [account]).get(account)
        if row is None:
            first = {"kind": account.kind, "course": account.course, "person": account.person}
            _FIRST.each(db, [first | ceilings(policy.account_bounds(account), 0, 0, 0, 0)])
        by = [(should[name] or 0) - (are[name] or 0) for name in _HELD]
        change = dict(zip(("share", "memory", "count", "first"), by, strict=True))
        most = {f"new_{name}": should[name] for name in _CEILINGS}
        _WITH_CEILINGS.each(db, [{**_key(account), **change, **_settled(row, policy, begins, now), **most}])
    return found
