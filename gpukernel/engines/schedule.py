"""The weekly hours in which GPUs are lent to the pool: ``Mo-Fr 8-18``, several with a semicolon between.

Slurm's supply has jobs within them, Kubernetes' agents have pods.
"""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass

__all__ = ["ALWAYS", "Schedule", "parse_schedule"]

DAYS = ("Mo", "Tu", "We", "Th", "Fr", "Sa", "Su")
DAY_MINUTES = 24 * 60
WEEK_SECONDS = 7 * 86_400.0
_RIGHT = "write days and hours, such as 'Mo-Fr 8-18' or 'Mo,We 8:30-12; Sa 22-6'"
_CLOCK = re.compile(r"(\d{1,2})(?::([0-5]\d))?")


@dataclass(frozen=True)
class Schedule:
    """Weekly hours; `hours` are weekday (Monday is 0), first and last minute after midnight.

    Attributes
    ----------
    text
        The hours as somebody wrote them.
    zone
        The time zone of the hours; None is this machine's.
    """

    hours: tuple[tuple[int, int, int], ...]
    text: str
    zone: datetime.tzinfo | None = None

    def closes(self, now: float) -> float | None:
        """Return when the hours that `now` lies in are over, in seconds since the epoch.

        Returns
        -------
        float or None
            None where `now` lies in none, infinity where they never end.
        """
        end = now
        while (until := self._end(end)) is not None:
            end = until
            if end - now > WEEK_SECONDS:
                return math.inf
        return end if end > now else None

    def opens(self, now: float) -> float:
        """Return when the next hours begin; `now` where it lies in some, infinity where none do."""
        if self._end(now) is not None:
            return now
        begins = (
            self._at(now, day, first)
            for day in range(8)
            for weekday, first, _ in self.hours
            if (self._local(now) + datetime.timedelta(day)).weekday() == weekday
        )
        return min((begin for begin in begins if begin > now), default=math.inf)

    def why_closed(self, now: float, ahead: float) -> str:
        """Return why whoever needs `ahead` seconds to leave has to be leaving, as part of a sentence; empty where that is not so."""
        closes = self.closes(now)
        if closes is None:
            return f"the schedule {self.text} is over"
        return (
            f"the schedule {self.text} ends at {self._local(closes):%H:%M}" if closes - now <= ahead else ""
        )

    def opens_again(self, now: float) -> str:
        """Return when the hours after those of `now` begin, as the end of a sentence; empty where there are none."""
        opens = self.opens(self.closes(now) or now)
        return f"; it opens again on {self._local(opens):%a at %H:%M}" if math.isfinite(opens) else ""

    def _local(self, when: float) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(when, self.zone)

    def _at(self, now: float, day: int, minutes: int) -> float:
        """Return the time that local clocks show `minutes` after the midnight before `now`, and `day` days later."""
        midnight = self._local(now).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        return (midnight + datetime.timedelta(days=day, minutes=minutes)).timestamp()

    def _end(self, when: float) -> float | None:
        """Return when the entry ends that a time lies in."""
        weekday = self._local(when).weekday()
        ends = (
            end
            for day, first, last in self.hours
            if day == weekday and self._at(when, 0, first) <= when < (end := self._at(when, 0, last))
        )
        return max(ends, default=None)


ALWAYS = Schedule(tuple((day, 0, DAY_MINUTES) for day in range(7)), "always")


def parse_schedule(text: str, zone: datetime.tzinfo | None = None) -> Schedule:
    """Return the schedule of ``Mo-Fr 8-18``; empty text is `ALWAYS`.

    Raises
    ------
    ValueError
        With a sentence that says what is wrong and what would be right.
    """
    if not text.strip():
        return ALWAYS
    hours: list[tuple[int, int, int]] = []
    for entry in text.split(";"):
        words = entry.split()
        if len(words) != 2:
            raise ValueError(f"“{entry.strip()[:40]}” is no entry of a schedule; {_RIGHT}.")
        days, (first, last) = _days(words[0]), _span(words[1])
        if first < last:
            hours += [(day, first, last) for day in days]
        else:  # over midnight
            hours += [(day, first, DAY_MINUTES) for day in days]
            hours += [((day + 1) % 7, 0, last) for day in days if last]
    return Schedule(tuple(sorted(set(hours))), " ".join(text.split()), zone)


def _days(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        begin = _day(first)
        end = _day(last) if dash else begin
        found += [(begin + step) % 7 for step in range((end - begin) % 7 + 1)]
    return found


def _day(text: str) -> int:
    short = text[:2].capitalize()
    if short not in DAYS or len(text) < 2:
        raise ValueError(f"“{text[:20]}” is no day of a schedule; they are {', '.join(DAYS)}.")
    return DAYS.index(short)


def _span(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    begin, end = _minutes(first), _minutes(last)
    if not dash or begin is None or end is None or begin in (end, DAY_MINUTES):
        raise ValueError(f"“{text[:20]}” are no hours of a schedule; {_RIGHT}.")
    return begin, end


def _minutes(text: str) -> int | None:
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    minutes = int(match[1]) * 60 + int(match[2] or 0)
    return minutes if minutes <= DAY_MINUTES else None
