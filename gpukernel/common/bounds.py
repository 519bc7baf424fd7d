"""Quota bounds as data: the figures that may be bounded, the subject of a bound, and the account whose usage counts.

Shares are whole millionths of a device where they are summed, so that sums are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import NamedTuple

__all__ = [
    "EVERYBODY",
    "MILLION",
    "MOST_WAITING",
    "OPEN",
    "Account",
    "Bounds",
    "Subject",
    "check_bounds",
    "millionths",
    "plain_number",
]

MILLION = 1_000_000
EVERYBODY = "*"

MOST_WAITING = 20
"""Requests that a person may have waiting where no quota says otherwise."""


def millionths(share: float) -> int:
    """Return a share of a device in whole millionths."""
    return round(share * MILLION)


def plain_number(value: float) -> str:
    """Return `value` to nine places as people write it: every digit and no exponent, so that whoever reads it has the same number."""
    return f"{Decimal(repr(round(float(value), 9))).normalize():f}"


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
    waiting
        Requests that wait at one moment; of a person, `MOST_WAITING` where nothing is set.
    interactive
        Devices' worth of interactive leases at one moment; 0: batch and scavenger only.
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
    waiting: int | None = None
    interactive: float | None = None

    def given(self) -> dict[str, float]:
        """Return the bounds that are set."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


OPEN = Bounds()
"""Bounds that leave every figure open, as most levels have."""


def check_bounds(bounds: Bounds) -> str | None:
    """Return a sentence about the first figure that makes no sense, or None."""
    for name, value in bounds.given().items():
        if not math.isfinite(value) or not 0 <= value <= 1e12:
            return f"{name}: {value!r} is not possible; a bound is a number from 0 to 10¹²."
        if name in ("memory_mib", "leases", "waiting") and value != int(value):
            return f"{name}: {value!r} is not possible; it is a whole number."
        if name == "largest_slice" and not 0 < value <= 1:
            return f"{name}: {value!r} is not possible; a slice lies above 0 and up to 1."
        if name == "longest_seconds" and value < 1:
            return f"{name}: {value!r} is not possible; a lease lasts at least a second."
    return None


class Subject(NamedTuple):
    """The subject of a quota row: its kind is ``pool``, ``course``, ``student``, ``instructor`` or ``person``."""

    kind: str
    course: str = ""
    person: str = ""

    @classmethod
    def parse(cls, text: str) -> Subject:
        """Return the subject of a text: ``pool``, ``without_course``, ``course:ml101``, ``student:ml101``,
        ``instructor:ml101``, ``person:anna`` or ``person:*``.

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
    """The owner of running totals: its kind is ``pool``, ``course``, ``member`` (a person in a course) or ``person``."""

    kind: str
    course: str = ""
    person: str = ""
