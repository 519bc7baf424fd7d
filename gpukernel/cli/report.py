"""``report``: the GPU time that people and courses held, added up."""

from __future__ import annotations

import datetime
import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from gpukernel.cli.output import Problem, print_json, seconds
from gpukernel.cli.quota import ask_admin
from gpukernel.cli.tables import make_table
from gpukernel.common.csv_text import csv_text
from gpukernel.common.model import LeaseUse

__all__ = ["ReportLine", "add_up", "report", "when"]

_AGO = re.compile(r"\d+(?:\.\d+)? ?(?:s|m|min|h|d)")
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def when(text: str, now: float) -> float:
    """Return the time that `text` names, in seconds since the epoch.

    It may be ``today``, ``monday`` (the last one), ``2026-09-01``, ``2026-09-01T10:00`` or ``7d`` (ago); `now` is the present.

    Raises
    ------
    Problem
        When it is none of these.
    """
    words = text.strip().lower()
    midnight = datetime.datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    if words == "today":
        return midnight.timestamp()
    if words in _DAYS:
        back = (midnight.weekday() - _DAYS.index(words)) % 7
        return (midnight - datetime.timedelta(days=back)).timestamp()
    if _AGO.fullmatch(words):
        return now - seconds(words)
    try:
        return datetime.datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise Problem(
            f"“{text[:40]}” is no time; write today, monday, 2026-09-01, 2026-09-01T10:00 or 7d.", 2
        ) from None


@dataclass
class ReportLine:
    """One line of a report: `what` names the person, course, day or lease that the figures are of."""

    what: str
    leases: int = 0
    hours: float = 0.0
    device_hours: float = 0.0
    memory_gib_hours: float = 0.0


_BY: dict[str, Callable[[LeaseUse], str]] = {
    "person": lambda part: part.person,
    "course": lambda part: part.course or "(none)",
    "day": lambda part: datetime.date.fromtimestamp(part.begins).isoformat(),
    "lease": lambda part: part.lease,
}


def add_up(parts: Iterable[LeaseUse], by: str) -> list[ReportLine]:
    """Return a line for each person, course, day (on which a lease's part began) or lease, the largest first; days in order."""
    lines: dict[str, ReportLine] = {}
    leases: dict[str, set[str]] = {}
    for part in parts:
        name = _BY[by](part)
        line = lines.setdefault(name, ReportLine(name))
        leases.setdefault(name, set()).add(part.lease)
        line.leases = len(leases[name])
        line.hours += part.hours
        line.device_hours += part.device_hours
        line.memory_gib_hours += part.memory_hours
    if by == "day":
        return [lines[name] for name in sorted(lines)]
    return sorted(lines.values(), key=lambda line: (-line.device_hours, line.what))


def report(
    course: str,
    person: str,
    since: str,
    until: str,
    by: str,
    as_csv: bool,
    pool: str | None,
    state: Path | None,
    json: bool,
) -> None:
    """Add up what leases held and print it."""
    if by not in _BY:
        raise Problem(f"A report has a line for each {', '.join(_BY)}; not {by[:40]}.", 2)
    now = time.time()
    begin, end = when(since, now), when(until, now) if until else 0.0
    lines = add_up(ask_admin(pool, state, lambda c: c.report(begin, end, course, person)), by)
    if json:
        print_json(lines)
        return
    rows = [
        {name: round(v, 4) if isinstance(v, float) else v for name, v in asdict(line).items()}
        for line in lines
    ]
    if as_csv:
        names = [by, *(name for name in ReportLine.__dataclass_fields__ if name != "what")]
        print(csv_text(names, (row.values() for row in rows)), end="")
        return
    right = ("Leases", "Hours", "Device-hours", "GiB-hours")
    table = make_table(by.capitalize(), *right, right=right)
    for line in lines:
        figures = (f"{x:.2f}" for x in (line.hours, line.device_hours, line.memory_gib_hours))
        table.add_row(line.what, str(line.leases), *figures)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table if lines else "Nothing was held in that time.")
