"""``report``: the GPU time that people and courses held, added up."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from gpukernel.cli.quota import ask_admin
from gpukernel.cli.terminal.charset import write_data
from gpukernel.cli.terminal.formats import Format, present
from gpukernel.cli.terminal.listing import Column, Listing
from gpukernel.cli.terminal.output import USAGE, Problem, hours
from gpukernel.cli.terminal.times import when
from gpukernel.common.csv_text import csv_text
from gpukernel.common.model import DECIDERS, LeaseUse

__all__ = ["ReportLine", "add_up", "report"]


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
    "decider": lambda part: part.decided_by or "pool",  # a pool of version 0.2 does not say
}


def add_up(parts: Iterable[LeaseUse], by: str) -> list[ReportLine]:
    """Return a line for each person, course, day (on which a lease's part began), lease or decider, the largest first; days in order."""
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
    form: Format,
    decided_by: str = "",
) -> None:
    """Add up what leases held and print it."""
    if by not in _BY:
        raise Problem(f"A report has a line for each {', '.join(_BY)}; not {by[:40]}.", USAGE)
    if as_csv and form is not Format.TABLE:
        raise Problem(f"Choose one of --csv and -o {form}.", USAGE)
    if decided_by not in ("", *DECIDERS):
        raise Problem(f"“{decided_by[:20]}” decides over nothing; it is one of {', '.join(DECIDERS)}.", USAGE)
    now = time.time()
    begin, end = when(since, now), when(until, now) if until else 0.0
    parts = ask_admin(pool, state, lambda c: c.report(begin, end, course, person))
    lines = add_up((part for part in parts if decided_by in ("", part.decided_by or "pool")), by)
    if as_csv:
        names = [by, *(name for name in ReportLine.__dataclass_fields__ if name != "what")]
        rows = [[round(v, 4) if isinstance(v, float) else v for v in asdict(line).values()] for line in lines]
        write_data(csv_text(names, rows))
        return
    listing = Listing(
        [
            Column(by.capitalize(), lambda line: line.what, least=8),
            Column("Leases", lambda line: str(line.leases), drop=1, right=True),
            Column("Hours", lambda line: hours(line.hours), drop=2, right=True),
            Column("Device-hours", lambda line: hours(line.device_hours), right=True),
            Column("GiB-hours", lambda line: hours(line.memory_gib_hours), drop=3, right=True),
        ],
        lines,
        lambda line: line.what,
    )
    present(lines, listing, form, "Nothing was held in that time.")
