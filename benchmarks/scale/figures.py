"""Figures of a simulated day: utilisation, waits by course, fairness, and what the simulation itself took."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.scale.pool_day import DayRecord, RequestRecord, Sample
from benchmarks.scale.teaching_day import VARIANTS
from benchmarks.scale.teaching_day import CoursePlan as Plan

__all__ = ["PoolRecord", "jain", "load_records", "served", "summary", "waits_by_course"]


@dataclass
class PoolRecord:
    """The day of one pool in one variant."""

    pool: int
    gpus: int
    students: int
    courses: dict[str, Plan]
    record: DayRecord


def load_records(results: Path) -> dict[str, list[PoolRecord]]:
    """Return the days in a folder by variant; only pools whose day was run in every variant."""
    found: dict[str, dict[int, PoolRecord]] = {variant: {} for variant in VARIANTS}
    for path in sorted(results.glob("*-*.json")):
        told: dict[str, Any] = json.loads(path.read_text())
        kept = told["record"]
        record = DayRecord(
            **kept
            | {
                "requests": [RequestRecord(**one) for one in kept["requests"]],
                "samples": [Sample(**one) for one in kept["samples"]],
                "decisions": [(int(w), int(n), float(s)) for w, n, s in kept["decisions"]],
            }
        )
        courses = {one["name"]: Plan(**one) for one in told["courses"]}
        found[told["variant"]][told["pool"]] = PoolRecord(
            told["pool"], told["gpus"], told["students"], courses, record
        )
    everywhere = set.intersection(*(set(pools) for pools in found.values()))
    return {variant: [pools[i] for i in sorted(everywhere)] for variant, pools in found.items()}


def waits_by_course(day: PoolRecord) -> dict[str, list[float]]:
    """Return the seconds that requests waited, by course; who left without a slice has waited until then."""
    waits: dict[str, list[float]] = defaultdict(list)
    for one in day.record.requests:
        waits[one.course].append((one.leaves if one.granted is None else one.granted) - one.asked)
    return dict(waits)


def served(day: PoolRecord) -> dict[str, float]:
    """Return the part of the time that a course's students were there in which they had a slice."""
    had: dict[str, float] = defaultdict(float)
    wanted: dict[str, float] = defaultdict(float)
    for one in day.record.requests:
        # A request that replaces a lost one is the rest of the same stay.
        wanted[one.course] += (one.over if one.lost else one.leaves) - one.asked
        had[one.course] += one.over - one.granted if one.granted is not None else 0.0
    return {course: had[course] / wanted[course] for course in wanted}


def jain(values: Iterable[float]) -> float:
    """Return Jain's fairness index: 1 where all are equal, 1/n where one has everything."""
    values = list(values)
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(int(part * len(values)), len(values) - 1)]


def _in_class(samples: Iterable[Sample]) -> list[Sample]:
    return [one for one in samples if 8 * 3600 <= one.at < 17 * 3600]


def _row(days: list[PoolRecord]) -> list[str]:
    requests = [one for day in days for one in day.record.requests]
    granted = [one for one in requests if one.granted is not None]
    waits = [wait for day in days for waits in waits_by_course(day).values() for wait in waits]
    by_course = [statistics.median(w) for day in days for w in waits_by_course(day).values()]
    samples = [one for day in days for one in _in_class(day.record.samples)]
    room = sum(one.devices for one in samples)
    parts = [part for day in days for part in served(day).values()]
    return [
        f"{len(requests)}",
        f"{100 * (1 - len(granted) / len(requests)):.1f} %",
        f"{100 * sum(one.promised for one in samples) / room:.0f} %",
        f"{100 * sum(one.useful for one in samples) / room:.0f} %",
        f"{statistics.median(waits):.0f} s",
        f"{_percentile(waits, 0.95) / 60:.1f} min",
        f"{max(by_course) / 60:.1f} min",
        f"{100 * min(parts):.0f} %",
        f"{jain(parts):.3f}",
    ]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def summary(records: dict[str, list[PoolRecord]]) -> str:
    """Return the tables of all variants as Markdown."""
    some = next(iter(records.values()))
    if not some:
        return "No pool has its day in every variant yet."
    gpus, students = sum(day.gpus for day in some), sum(day.students for day in some)
    courses = sum(len(day.courses) for day in some)
    text = f"{len(some)} pools, {gpus} GPUs, {students} students in {courses} courses.\n\n"
    head = ("", "requests", "left without a slice", "promised", "in use", "median wait", "95 % waited up to")
    head += ("worst course's median", "worst course's part", "Jain's index")
    text += _table(head, ([VARIANTS[variant], *_row(days)] for variant, days in records.items())) + "\n"
    head = ("", "events", "wall time", "processor", "events/s of the processor", "checks of the books")
    rows = []
    for variant, days in records.items():
        events = sum(day.record.events for day in days)
        processor = sum(day.record.processor for day in days)
        rows.append(
            [
                VARIANTS[variant],
                str(events),
                f"{sum(day.record.wall for day in days):.0f} s",
                f"{processor:.0f} s",
                f"{events / processor:.0f}",
                str(sum(day.record.checks for day in days)),
            ]
        )
    text += _table(head, rows) + "\n"
    return text + _decisions(records)


def _decisions(records: dict[str, list[PoolRecord]]) -> str:
    """Return what a scheduling cycle took, by how many waited."""
    times: dict[int, dict[str, list[float]]] = defaultdict(dict)
    for variant, days in records.items():
        for day in days:
            for waiting, count, seconds in day.record.decisions:
                known = times[waiting].setdefault(variant, [0.0, 0.0])
                known[0] += count
                known[1] += seconds
    rows = [
        [f"{waiting}", *(_mean(times[waiting].get(variant)) for variant in records)]
        for waiting in sorted(times)
    ]
    return _table(("waiting, from", *(VARIANTS[variant] for variant in records)), rows)


def _mean(known: list[float] | None) -> str:
    return f"{1000 * known[1] / known[0]:.1f} ms ({known[0]:.0f})" if known else "–"
