"""What a quota says to a request: pure functions of bounds and of what is held.

Four levels bound a request at once: the pool, its course, the person's role in that course, and the person.  Each may
bound every figure of `Bounds` or leave it open.  The role's bounds are for *each* person in it: “a student of ml101 holds at
most 0.05”.  All of them are upper bounds, so the smallest one decides, with one exception: the time after which an idle
slice is released is a rule rather than a bound, and the nearest level that sets it decides (person, role, course, pool).

Shares are whole millionths of a device here, so that sums are exact.
"""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from gpukernel.pool.sentences import day_words, say

__all__ = [
    "EVERYBODY",
    "MILLION",
    "OPEN",
    "PERIODS",
    "Account",
    "Bounds",
    "Claim",
    "Refusal",
    "Standing",
    "Subject",
    "check_bounds",
    "millionths",
    "never",
    "period_end",
    "period_start",
    "refusal",
]

MILLION = 1_000_000
MIB = 2**20
HOUR = 3600.0
EVERYBODY = "*"
PERIODS = ("day", "week", "term")
_ITS, _THEIR, _DEVICES = say("its"), say("their"), say("devices")
_PERIOD_WORDS = {"day": say("day"), "week": say("week"), "term": say("term")}


def millionths(share: float) -> int:
    """A share of a device in whole millionths."""
    return round(share * MILLION)


@dataclass(frozen=True)
class Bounds:
    """Upper bounds; None leaves a figure open.

    Attributes
    ----------
    devices
        Devices' worth at one moment: the sum of the shares of all slices.
    memory_mib
        MiB at one moment.
    leases
        Leases at one moment.
    hours_day, hours_week, hours_term
        GPU-hours: share × hours, in a calendar day, a week from Monday, or the term.
    longest_seconds
        A lease ends after this time.
    largest_slice
        Share of one device that a slice may have.
    idle_seconds
        A slice without CUDA calls and GPU time is released after this time; 0 never.
    """

    devices: float | None = None
    memory_mib: int | None = None
    leases: int | None = None
    hours_day: float | None = None
    hours_week: float | None = None
    hours_term: float | None = None
    longest_seconds: float | None = None
    largest_slice: float | None = None
    idle_seconds: float | None = None

    def given(self) -> dict[str, float]:
        """What is bounded at all."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


OPEN = Bounds()
"""What bounds nothing, as most levels."""


def check_bounds(bounds: Bounds) -> str | None:
    """A sentence about the first figure that makes no sense, or None."""
    for name, value in bounds.given().items():
        if not math.isfinite(value) or not 0 <= value <= 1e12:
            return f"{name}: {value!r} is not possible; a bound is a number from 0 to 10¹²."
        if name in ("memory_mib", "leases") and value != int(value):
            return f"{name}: {value!r} is not possible; it is a whole number."
        if name == "largest_slice" and not 0 < value <= 1:
            return f"{name}: {value!r} is not possible; a slice lies above 0 and up to 1."
        if name == "longest_seconds" and value < 1:
            return f"{name}: {value!r} is not possible; a lease lasts at least a second."
    return None


class Subject(NamedTuple):
    """Whom a quota row bounds: kind ``pool``, ``course``, ``student``, ``instructor`` or ``person``."""

    kind: str
    course: str = ""
    person: str = ""

    @classmethod
    def parse(cls, text: str) -> Subject:
        """``pool``, ``without_course``, ``course:ml101``, ``student:ml101``, ``instructor:ml101``, ``person:anna`` or ``person:*``.

        Raises
        ------
        ValueError
            With a sentence.
        """
        kind, colon, name = text.partition(":")
        if text == "pool":
            return cls("pool")
        if text == "without_course":
            return cls("course")
        if colon and name and kind in ("course", "student", "instructor"):
            return cls(kind, course=name)
        if colon and name and kind == "person":
            return cls(kind, person=name)
        raise ValueError(
            f"“{text[:60]}” has no quota; write pool, without_course, course:NAME, student:COURSE, instructor:COURSE or person:NAME."
        )

    def __str__(self) -> str:
        if self.kind == "course" and not self.course:
            return "without_course"
        return self.kind if self.kind == "pool" else f"{self.kind}:{self.course or self.person}"


class Account(NamedTuple):
    """Whose running totals: kind ``pool``, ``course``, ``member`` (a person in a course) or ``person``."""

    kind: str
    course: str = ""
    person: str = ""


@dataclass(frozen=True)
class Standing:
    """One level that bounds a request: its bounds, and what is held under it (shares in millionths, memory in bytes)."""

    account: Account
    bounds: Bounds
    share: int = 0
    memory: int = 0
    leases: int = 0
    spent: tuple[float, float, float] = (0.0, 0.0, 0.0)  # device-seconds in this day, week, term
    role: str = ""


@dataclass(frozen=True)
class Claim:
    """What a request would take: `share` of all its slices in millionths, `slice` of the largest one, `memory` in bytes."""

    share: int
    memory: int
    slice: int
    longest_seconds: float = 0.0  # that was asked for; 0: nothing


@dataclass(frozen=True)
class Refusal:
    """Why a request does not fit; `account` is whose quota, `until` when time alone may help (0: not known)."""

    sentence: str
    account: Account
    until: float = 0.0


@functools.lru_cache(4096)  # most of those who are refused are refused again at the next decision
def _named(account: Account, role: str) -> str:
    if account.kind == "pool":
        return say("The pool")
    if account.kind == "course":
        return (
            say("Course %(course)s", course=account.course) if account.course else say("What names no course")
        )
    if account.kind == "member":
        names = {"person": account.person, "course": account.course}
        if role == "instructor":
            return say("%(person)s, as an instructor of %(course)s,", **names)
        if role == "student":
            return say("%(person)s, as a student of %(course)s,", **names)
        return say("%(person)s, as a member of %(course)s,", **names)
    return say("%(person)s", person=account.person)


def _who(standing: Standing) -> str:
    return _named(standing.account, standing.role)


def _figure(share: int) -> str:
    """A share for people: two digits, more where two would show nothing."""
    value = share / MILLION
    return f"{value:.2f}" if value >= 0.005 or value == 0 else f"{value:.2g}"


def never(claim: Claim, standings: Iterable[Standing]) -> Refusal | None:
    """The quota that `claim` could not meet even if nobody held anything, or None."""
    for standing in standings:
        if standing.bounds == OPEN:
            continue
        bounds, who = standing.bounds, _who(standing)

        def no(sentence: str, standing: Standing = standing) -> Refusal:
            return Refusal(sentence, standing.account)

        if bounds.largest_slice is not None and claim.slice > millionths(bounds.largest_slice):
            return no(
                say(
                    "%(who)s may have slices of up to %(most)s of a device; yours of %(asked)s is larger.",
                    who=who,
                    most=_figure(millionths(bounds.largest_slice)),
                    asked=_figure(claim.slice),
                )
            )
        if bounds.longest_seconds is not None and claim.longest_seconds > bounds.longest_seconds:
            return no(
                say(
                    "%(who)s may hold a slice for at most %(most)s; you ask for %(asked)s.",
                    who=who,
                    most=_span(bounds.longest_seconds),
                    asked=_span(claim.longest_seconds),
                )
            )
        if bounds.devices is not None and claim.share > millionths(bounds.devices):
            return no(
                say(
                    "%(who)s may hold at most %(most)s devices at one moment; your %(asked)s can never fit.",
                    who=who,
                    most=_figure(millionths(bounds.devices)),
                    asked=_figure(claim.share),
                )
            )
        if bounds.memory_mib is not None and claim.memory > bounds.memory_mib * MIB:
            return no(
                say(
                    "%(who)s may hold at most %(most)s MiB at one moment; your %(asked)s MiB can never fit.",
                    who=who,
                    most=bounds.memory_mib,
                    asked=claim.memory // MIB,
                )
            )
        if bounds.leases is not None and bounds.leases < 1:
            return no(say("%(who)s may hold no slices: the quota is 0 leases.", who=who))
        for period in PERIODS:
            if getattr(bounds, f"hours_{period}") == 0:
                return no(
                    say(
                        "%(who)s may use no GPU time: the quota is 0 GPU-hours a %(period)s.",
                        who=who,
                        period=_PERIOD_WORDS[period],
                    )
                )
    return None


def refusal(
    claim: Claim, standings: Sequence[Standing], now: float, term_begins: float = 0.0, model: str = ""
) -> Refusal | None:
    """The first quota, from the pool down, that `claim` does not fit into now, or None."""
    unit = model or _DEVICES
    for standing in standings:
        if standing.bounds == OPEN:
            continue
        bounds, who = standing.bounds, _who(standing)
        its = _ITS if standing.account.kind in ("pool", "course") else _THEIR
        if bounds.devices is not None and standing.share + claim.share > millionths(bounds.devices):
            limit = _figure(millionths(bounds.devices))
            return Refusal(
                say(
                    "%(who)s holds %(held)s of %(its)s %(most)s %(unit)s; your %(asked)s does not fit.",
                    who=who,
                    held=_figure(standing.share),
                    its=its,
                    most=limit,
                    unit=unit,
                    asked=_figure(claim.share),
                ),
                standing.account,
            )
        if bounds.memory_mib is not None and standing.memory + claim.memory > bounds.memory_mib * MIB:
            return Refusal(
                say(
                    "%(who)s holds %(held)s of %(its)s %(most)s MiB; your %(asked)s MiB do not fit.",
                    who=who,
                    held=standing.memory // MIB,
                    its=its,
                    most=bounds.memory_mib,
                    asked=claim.memory // MIB,
                ),
                standing.account,
            )
        if bounds.leases is not None and standing.leases + 1 > bounds.leases:
            return Refusal(
                say(
                    "%(who)s holds %(held)s of %(its)s %(most)s leases; one more does not fit.",
                    who=who,
                    held=standing.leases,
                    its=its,
                    most=bounds.leases,
                ),
                standing.account,
            )
        for period, spent in zip(PERIODS, standing.spent, strict=True):
            hours = getattr(bounds, f"hours_{period}")
            if hours is not None and spent >= hours * HOUR:
                end = period_end(period, now, term_begins)
                used = say(
                    "%(who)s has used %(used)s of %(its)s %(most)s GPU-hours of this %(period)s.",
                    who=who,
                    used=f"{spent / HOUR:.1f}",
                    its=its,
                    most=f"{hours:g}",
                    period=_PERIOD_WORDS[period],
                )
                if not end:
                    return Refusal(used, standing.account)
                again = say("%(used)s They begin again %(when)s.", used=used, when=_moment(end))
                return Refusal(again, standing.account, end)
    return None


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / HOUR:.1f} h"


def _moment(when: float) -> str:
    there = datetime.datetime.fromtimestamp(when)
    return say("on %(day)s at %(time)s", day=day_words(there), time=f"{there:%H:%M}")


def period_start(period: str, now: float, term_begins: float = 0.0) -> float:
    """When the ``day``, ``week`` or ``term`` that `now` lies in began, by the pool's local calendar."""
    if period == "term":
        return term_begins if term_begins <= now else 0.0
    midnight = datetime.datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "week":
        midnight -= datetime.timedelta(days=midnight.weekday())
    return midnight.timestamp()


def period_end(period: str, now: float, term_begins: float = 0.0) -> float:
    """When the next period begins; 0 where that is not known."""
    if period == "term":
        return term_begins if term_begins > now else 0.0
    start = datetime.datetime.fromtimestamp(period_start(period, now))
    return (start + datetime.timedelta(days=7 if period == "week" else 1)).timestamp()
