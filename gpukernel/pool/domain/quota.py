"""Quotas: whether a request stays within its bounds, as pure functions of the bounds and of what is held.

Four levels bound a request at once: the pool, its course, the person's role in that course, and the person.  Each may
bound every figure of `Bounds` or leave it open.  The role's bounds are for *each* person in it: “a student of ml101 holds at
most 0.05”.  All of them are upper bounds, so the smallest one decides, with one exception: the time after which an idle
slice is released is a rule rather than a bound, and the nearest level that sets it decides (person, role, course, pool).

Shares are whole millionths of a device here, so that sums are exact.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpukernel.common.bounds import MILLION, OPEN, Account, Bounds, millionths, plain_number
from gpukernel.common.i18n import day_words, say
from gpukernel.common.model import Device, SliceRequest
from gpukernel.pool.domain.placement import DeviceClass, slice_bytes

__all__ = [
    "PERIODS",
    "Claim",
    "Refusal",
    "Standing",
    "claim_on",
    "never",
    "period_end",
    "period_start",
    "refusal",
    "too_many_waiting",
]

MIB = 2**20
HOUR = 3600.0
PERIODS = ("day", "week", "term")
_ITS, _THEIR, _DEVICES = say("its"), say("their"), say("devices")
_PERIOD_WORDS = {"day": say("day"), "week": say("week"), "term": say("term")}


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
    interactive: int = 0  # of the share


@dataclass(frozen=True)
class Claim:
    """The demand of a request: `share` of all its slices in millionths, `slice` of the largest one, `memory` in bytes."""

    share: int
    memory: int
    slice: int
    longest_seconds: float = 0.0  # that was asked for; 0: nothing
    interactive: bool = True


@dataclass(frozen=True)
class Refusal:
    """The reason why a request does not fit.

    Attributes
    ----------
    account
        Whose quota it is.
    until
        When time alone may help, in seconds since the epoch; 0 where that is not known.
    ahead
        The sentence for requests further behind, which wait for the same quota: `sentence` without the refused request's own figure.
    """

    sentence: str
    account: Account
    until: float = 0.0
    interactive: bool = False  # it is the one of interactive slices, which holds back no other class
    ahead: str = ""


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
    """Return a share for people: two decimals, a third where two would make it another one, and two digits of a small one.

    Slices are whole MiB, so that 50 of 0.02 are a little less than 1: that is no third decimal.
    """
    value = share / MILLION
    if 0 < value < 0.005:
        return f"{value:.2g}"
    return f"{value:.2f}" if abs(value - round(value, 2)) < 0.0015 else f"{value:.3f}"


def never(claim: Claim, standings: Iterable[Standing]) -> Refusal | None:
    """Return the quota that `claim` could not meet even if nobody held anything, or None."""
    for standing in standings:
        if standing.bounds == OPEN:
            continue
        bounds, who = standing.bounds, _who(standing)

        def no(sentence: str, standing: Standing = standing) -> Refusal:
            return Refusal(sentence, standing.account)

        if bounds.largest_slice is not None and claim.slice > millionths(bounds.largest_slice):
            return no(
                say(
                    "%(who)s may have slices of up to %(most)s of a device; %(asked)s is larger.",
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
                    "%(who)s may hold at most %(most)s devices at one moment; %(asked)s can never fit.",
                    who=who,
                    most=_figure(millionths(bounds.devices)),
                    asked=_figure(claim.share),
                )
            )
        most = bounds.interactive
        if most is not None and claim.interactive and claim.share > millionths(most):
            if not most:
                return no(say("%(who)s may hold no interactive slices; ask for the class batch.", who=who))
            return no(
                say(
                    "%(who)s may hold at most %(most)s interactive devices at one moment; your %(asked)s can never fit. Ask for the class batch.",
                    who=who,
                    most=_figure(millionths(most)),
                    asked=_figure(claim.share),
                )
            )
        if bounds.memory_mib is not None and claim.memory > bounds.memory_mib * MIB:
            return no(
                say(
                    "%(who)s may hold at most %(most)s MiB at one moment; %(asked)s MiB can never fit.",
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
    """Return the first quota, from the pool down, that `claim` does not fit into now, or None."""
    unit = model or _DEVICES
    for standing in standings:
        if standing.bounds == OPEN:
            continue
        bounds, who = standing.bounds, _who(standing)
        its = _ITS if standing.account.kind in ("pool", "course") else _THEIR
        use: dict[str, object]
        if bounds.devices is not None and standing.share + claim.share > millionths(bounds.devices):
            use = {
                "who": who,
                "held": _figure(standing.share),
                "its": its,
                "most": _figure(millionths(bounds.devices)),
                "unit": unit,
            }
            return Refusal(
                say(
                    "%(who)s holds %(held)s of %(its)s %(most)s %(unit)s; %(asked)s more does not fit.",
                    **use,
                    asked=_figure(claim.share),
                ),
                standing.account,
                ahead=say(
                    "%(who)s holds %(held)s of %(its)s %(most)s %(unit)s; a request ahead of this one waits for more.",
                    **use,
                ),
            )
        if bounds.memory_mib is not None and standing.memory + claim.memory > bounds.memory_mib * MIB:
            use = {"who": who, "held": standing.memory // MIB, "its": its, "most": bounds.memory_mib}
            return Refusal(
                say(
                    "%(who)s holds %(held)s of %(its)s %(most)s MiB; %(asked)s MiB more do not fit.",
                    **use,
                    asked=claim.memory // MIB,
                ),
                standing.account,
                ahead=say(
                    "%(who)s holds %(held)s of %(its)s %(most)s MiB; a request ahead of this one waits for more.",
                    **use,
                ),
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
        most = bounds.interactive
        if most is not None and claim.interactive and standing.interactive + claim.share > millionths(most):
            return Refusal(
                say(
                    "%(who)s holds %(held)s of %(its)s %(most)s interactive %(unit)s; your %(asked)s does not fit. Batch may.",
                    who=who,
                    held=_figure(standing.interactive),
                    its=its,
                    most=_figure(millionths(most)),
                    unit=unit,
                    asked=_figure(claim.share),
                ),
                standing.account,
                interactive=True,
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
                    most=plain_number(hours),
                    period=_PERIOD_WORDS[period],
                )
                if not end:
                    return Refusal(used, standing.account)
                again = say("%(used)s They begin again %(when)s.", used=used, when=_moment(end))
                return Refusal(again, standing.account, end)
    return None


def too_many_waiting(account: Account, role: str, count: int, most: int) -> str:
    """Return the sentence of a request that may not wait, since its account has `count` waiting and may have `most`."""
    return say(
        "%(who)s has %(n)s requests waiting, of at most %(most)s; give one up, or wait until one has its slice.",
        who=_named(account, role),
        n=count,
        most=most,
    )


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{round(seconds / HOUR, 1):g} h"


def _moment(when: float) -> str:
    there = datetime.datetime.fromtimestamp(when)
    return say("on %(day)s at %(time)s", day=day_words(there), time=f"{there:%H:%M}")


def period_start(period: str, now: float, term_begins: float = 0.0) -> float:
    """Return the begin of the ``day``, ``week`` or ``term`` that `now` lies in, by the pool's local calendar."""
    if period == "term":
        return term_begins if term_begins <= now else 0.0
    midnight = datetime.datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "week":
        midnight -= datetime.timedelta(days=midnight.weekday())
    return midnight.timestamp()


def period_end(period: str, now: float, term_begins: float = 0.0) -> float:
    """Return the begin of the next period; 0 where that is not known."""
    if period == "term":
        return term_begins if term_begins > now else 0.0
    start = datetime.datetime.fromtimestamp(period_start(period, now))
    return (start + datetime.timedelta(days=7 if period == "week" else 1)).timestamp()


def claim_on(request: SliceRequest, kind: DeviceClass | Device, longest: float = 0.0) -> Claim:
    """Return what a request takes if all its slices lie on devices of one kind."""
    size = slice_bytes(request, kind)
    share = millionths(size / kind.memory_bytes)
    return Claim(
        share * request.devices, size * request.devices, share, longest, request.priority == "interactive"
    )
