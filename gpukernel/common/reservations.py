"""Reservations: capacity that a course owns in a time window: “Tuesday and Thursday, 10:00 to 12:00, 1.5 V100”.

**What it does.**  In its window, room for the reservation's devices' worth is kept for the course: what its leases do not hold
of it yet is given to nobody else, whoever waits and however long.  Before the window others may borrow the room with leases that end
before it opens; a lease without an end reaches into every window to come.  Leases that were granted before the reservation was
made, or in other ways run into the window, stay, unless the reservation says ``preempt``: then everybody may borrow, and who is in the way
when the window opens is told before and has to leave.  Quotas count as always: a reservation is room, not permission.

**How it is modelled.**  Two ways were possible.

* *An account*, as quotas are: others may together hold no more than the pool's devices less what is reserved.  That is one sum, but a
  sum over devices: 1.5 devices' worth that lie as thirty holes of 0.05 are of no use to a slice of 0.1.
* *A phantom claim* on certain devices, as promises to those who wait are (`gpukernel.pool.domain.fairness`): from when, until when, bytes.
  That is what is done.  Each reservation has a *placement* on devices (`gpukernel.pool.scheduling.reservation_placement`), and the
  check whether a slice disturbs anybody is the same as before, with what the course has not taken yet as one more claim.

Placements are kept in the database, since they cannot be found again: a device that short leases fill looks full, but will be empty
when the window opens.  They are made where there is most room at that time, whole devices first, and stay until the
window has closed, a device fails, or there is more room to be had than was found.  Nothing that is granted later
can take a placement's room, so a reservation whose room was there when it was placed has it in the window.  A decision looks at the
devices of placements and at what lies on them, never at all leases; without reservations it costs nothing.

Times are local, of the time zone that the course file names: a window at 10:00 stays at 10:00 when clocks change.  One that falls
into the hour that a spring night leaves out is not there that day, one in the hour that comes twice in autumn lasts through both.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import math
import zoneinfo
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpukernel.common.bounds import plain_number
from gpukernel.common.errors import Refused
from gpukernel.common.i18n import day_words, say

__all__ = [
    "DAYS",
    "HORIZON",
    "MOST_OF_A_COURSE",
    "Reservation",
    "Window",
    "check_reservation",
    "conflict",
    "known_zone",
    "moment",
    "windows",
]

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60
HORIZON = 15 * 86400.0
"""The time ahead in which windows are looked at, in seconds: two weeks have every meeting of weekly ones; the next one counts however far it is."""

MOST_DEVICES = 1e5
MOST_OF_A_COURSE = 100

Window = tuple[float, float]
"""From when until when, in seconds since the epoch."""


@dataclass(frozen=True, order=True)
class Reservation:
    """One reservation of a course.

    Attributes
    ----------
    days
        Numbers of weekdays, Monday is 0; empty where `on` says the one day, as ``2026-12-01``.
    begins, ends
        Minutes after midnight; 1440 is the end of the day.
    devices
        Devices' worth, such as 1.5.
    model
        Part of the devices' name; empty for any.
    preempt
        Who is in the way when the window opens has to leave.
    id
        Of its row; empty where it has none.
    """

    course: str
    days: tuple[int, ...]
    on: str
    begins: int
    ends: int
    devices: float
    model: str = ""
    preempt: bool = False
    id: str = field(default="", compare=False)

    def when(self) -> str:
        """Return the hours for people: ``tue, thu 10:00–12:00``."""
        days = self.on or ", ".join(DAYS[day] for day in self.days)
        return f"{days} {clock(self.begins)}–{clock(self.ends)}"

    def __str__(self) -> str:
        return f"{self.when()} {plain_number(self.devices)} {self.model or 'devices'}{', preempts' if self.preempt else ''}"


def clock(minutes: int) -> str:
    """Return minutes after midnight as ``10:00``."""
    return f"{minutes // 60:02}:{minutes % 60:02}"


def moment(when: float, now: float, zone: str = "") -> str:
    """Return a time for people: ``12:00`` where it is near, else with its day."""
    there = datetime.datetime.fromtimestamp(when, _zone(zone))
    if abs(when - now) < 12 * 3600:
        return f"{there:%H:%M}"
    return say("%(day)s %(time)s", day=day_words(there), time=f"{there:%H:%M}")


def check_reservation(reservation: Reservation) -> None:
    """Raise `Refused` with code ``invalid`` where a reservation makes no sense; the course file checks the same with its lines."""
    r = reservation
    sentence: str = ""
    if bool(r.days) == bool(r.on):
        sentence = say("Say on which weekdays, or on which one day.")
    elif not set(r.days) <= set(range(7)) or len(set(r.days)) != len(r.days):
        sentence = f"Days are {', '.join(DAYS)}, each once."
    elif not (0 <= r.begins < r.ends <= DAY_MINUTES):
        sentence = say(
            "A reservation ends after it begins, on the same day; one that goes over midnight is two, the first until 24:00."
        )
    elif not (math.isfinite(r.devices) and 0 < r.devices <= MOST_DEVICES):
        sentence = say("%(n)s devices cannot be reserved; it is a number above 0.", n=repr(r.devices))
    elif len(r.model) > 256 or not r.model.isprintable():
        sentence = "A model's name has at most 256 printable characters."
    elif r.on:
        try:
            datetime.date.fromisoformat(r.on)
        except ValueError:
            sentence = say("“%(day)s” is no day; write it as 2026-12-01.", day=r.on[:40])
    if sentence:
        raise Refused("invalid", sentence)


def known_zone(name: str) -> bool:
    """Return whether there is a time zone of that name, such as ``Europe/Berlin``; the empty one is the pool's own."""
    try:
        _zone(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _zone(name: str) -> zoneinfo.ZoneInfo | None:
    return zoneinfo.ZoneInfo(name) if name else None


def windows(reservation: Reservation, now: float, zone: str = "", horizon: float = HORIZON) -> list[Window]:
    """Return the window that is open, and those that open within `horizon` seconds, the next one in any case, in their order."""
    if horizon != HORIZON:
        return _windows(reservation, now, zone, horizon)
    hour = now // 3600 * 3600
    return [w for w in _of_hour(reservation, hour, zone) if w[1] > now] or _windows(
        reservation, now, zone, horizon
    )


@functools.lru_cache(4096)  # every scheduling decision calls it
def _of_hour(reservation: Reservation, hour: float, zone: str) -> tuple[Window, ...]:
    return tuple(_windows(reservation, hour, zone, HORIZON))


def _windows(reservation: Reservation, now: float, zone: str, horizon: float) -> list[Window]:
    if reservation.on:
        days: Iterable[datetime.date] = [datetime.date.fromisoformat(reservation.on)]
    else:
        today = datetime.datetime.fromtimestamp(now, _zone(zone)).date()
        # From yesterday, where it is still yesterday: clocks that change may put a window there.
        days = (today + datetime.timedelta(days=number) for number in itertools.count(-1))
        days = (day for day in days if day.weekday() in reservation.days)
    found: list[Window] = []
    for day in days:
        try:
            begin, end = _at(day, reservation.begins, zone, 0), _at(day, reservation.ends, zone, 1)
        except (OverflowError, ValueError, OSError):
            break  # the calendar ends here
        if found and begin > now + horizon:
            break
        if now < end and begin < end:
            found.append((begin, end))
    return found


def _at(day: datetime.date, minutes: int, zone: str, fold: int) -> float:
    """Return the time of a clock on that day; of two hours of the same name the first where `fold` is 0, else the second."""
    if minutes == DAY_MINUTES:
        day, minutes = day + datetime.timedelta(days=1), 0
    time = datetime.time(minutes // 60, minutes % 60, fold=fold)
    local = datetime.datetime.combine(day, time, _zone(zone))
    return local.timestamp()


def conflict(
    new: Reservation,
    others: Iterable[Reservation],
    capacity: Mapping[str, float],
    quota: float | None,
    now: float,
    zone: str = "",
) -> str:
    """Return why there is no room for `new` beside the others, as a sentence that says what is taken by whom; empty where there
    is.

    Parameters
    ----------
    capacity
        Devices by model.
    quota
        The most that the course may hold, in devices' worth.
    """
    mine = windows(new, now, zone)
    near = [(other, windows(other, now, zone)) for other in others]
    for begin, end in mine:
        overlapping = [
            (other, found)
            for other, all_ in near
            if (found := [w for w in all_ if w[0] < end and begin < w[1]])
        ]
        # More may be reserved at once only where a window opens than just before.
        for at in sorted({begin, *(max(b, begin) for _, found in overlapping for b, _ in found)}):
            there = [other for other, found in overlapping if any(b <= at < e for b, e in found)]
            same = [other for other in there if other.course == new.course]
            own = sum(other.devices for other in same)
            if quota is not None and own + new.devices > quota + 1e-9:
                figures = {
                    "when": moment(at, now - 86400, zone),
                    "course": new.course,
                    "most": plain_number(quota),
                    "own": plain_number(own),
                    "more": plain_number(new.devices),
                }
                if own:
                    return say(
                        "%(when)s: course %(course)s may hold %(most)s devices at one moment and has %(own)s reserved then; "
                        "%(more)s more do not fit.",
                        **figures,
                    )
                return say(
                    "%(when)s: course %(course)s may hold %(most)s devices at one moment; %(more)s more do not fit.",
                    **figures,
                )
            if sentence := _too_much(new, there, capacity):
                return say("%(when)s: %(why)s", when=moment(at, now - 86400, zone), why=sentence)
    return ""


def _too_much(new: Reservation, others: Sequence[Reservation], capacity: Mapping[str, float]) -> str:
    """Return what is too much at one moment, as a sentence; empty where all fits.

    By Hall's theorem it is enough to look at sets of models and at those who can use nothing else.
    """

    def usable(one: Reservation) -> frozenset[str]:
        return frozenset(model for model in capacity if one.model.lower() in model.lower())

    ours = usable(new)
    if not ours:
        models = ", ".join(sorted(capacity))
        if not models:
            return say("the pool has no device.")
        return say(
            "the pool has no %(model)s; it has %(models)s.", model=new.model or "device", models=models
        )
    choices = {usable(other) for other in others} - {frozenset()}
    unions = {ours}
    for choice in choices:
        unions |= {union | choice for union in unions}
        if len(unions) > 1024:
            break
    for union in sorted(unions, key=lambda one: (len(one), sorted(one))):
        there = [other for other in others if usable(other) and usable(other) <= union]
        taken = sum(other.devices for other in there)
        whole = sum(capacity[model] for model in union)
        if taken + new.devices > whole + 1e-9:
            by: dict[str, float] = {}
            for other in there:
                by[other.course] = by.get(other.course, 0.0) + other.devices
            whose = ", ".join(f"{course} {plain_number(devices)}" for course, devices in sorted(by.items()))
            names = (
                new.model
                if union == ours and new.model
                else ", ".join(sorted(union))
                if len(union) < 4
                else say("devices")
            )
            figures = {"whole": plain_number(whole), "names": names, "more": plain_number(new.devices)}
            if not there:
                return say("the pool has %(whole)s %(names)s; %(more)s do not fit.", **figures)
            return say(
                "%(taken)s of %(whole)s %(names)s are reserved already (%(whose)s); %(more)s do not fit.",
                taken=plain_number(taken),
                whose=whose,
                **figures,
            )
    return ""
