"""A person's own page: the slices that they hold or wait for, GPU-hours of this week, and what they held lately.

Everything is asked on the person's own behalf, so the pool answers with what is theirs; what a teacher may see besides is left out.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from dataclasses import dataclass

from gpukernel.common.model import LeaseUse, Waiting
from hub_spawner.console.base import Page
from hub_spawner.console.course_service import CourseLease, CourseService, course_lease, size_of

__all__ = ["MyGpu", "OwnHours", "OwnPage", "own_page"]

HISTORY_DAYS = 14
MOST_ROWS = 100
WEEKLY = "gpu_hours_per_week"


@dataclass(frozen=True)
class OwnHours:
    """GPU-hours since Monday of a person in a course, or in all (`course` empty); `allowed` 0 where nothing bounds them."""

    course: str
    used: float
    allowed: float


@dataclass(frozen=True)
class OwnRequest:
    """A request that waits; `place` is that in the queue of all courses, `estimate_seconds` negative where not known."""

    description: str
    course: str
    place: int
    size: str
    since: float
    estimate_seconds: float
    reason: str


@dataclass(frozen=True)
class OwnPage:
    """The content of the page; `courses` by lease."""

    held: tuple[CourseLease, ...]
    courses: dict[str, str]
    waits: tuple[OwnRequest, ...]
    hours: tuple[OwnHours, ...]
    history: tuple[LeaseUse, ...]


def _midnight(days_ago: int) -> float:
    day = datetime.date.today() - datetime.timedelta(days=days_ago)
    return datetime.datetime.combine(day, datetime.time()).timestamp()


def _request(one: Waiting) -> OwnRequest:
    holder = one.holder
    return OwnRequest(
        holder.description,
        holder.course,
        one.position,
        size_of(one),
        one.since,
        one.estimate_seconds,
        one.reason,
    )


def _hours(
    week: list[LeaseUse], bounds: dict[str, float], roles: dict[str, str], name: str
) -> list[OwnHours]:
    """Return the hours of each course in which there are some, or which bounds them, and those of all courses."""
    used: dict[str, float] = {}
    for use in week:
        used[use.course] = used.get(use.course, 0.0) + use.device_hours
    rows = []
    for course in sorted({*used, *roles}):
        allowed = bounds.get(f"{roles.get(course, '')}:{course}", 0.0)
        if course and (allowed or used.get(course)):
            rows.append(OwnHours(course, used.get(course, 0.0), allowed))
    own = bounds.get(f"person:{name}", bounds.get("person:*", 0.0))
    return [*rows, OwnHours("", sum(used.values()), own)]


async def own_page(service: CourseService) -> OwnPage:
    """Return what the pool knows of the visitor's own use."""
    name = service.name
    monday = _midnight(datetime.date.today().weekday())
    async with service.as_person() as pool:
        (leases, queue), lines, courses, week, lately = await asyncio.gather(
            pool.leases(),
            pool.quotas(),
            pool.courses(),
            pool.report(min(monday, time.time() - 1), person=name),
            pool.report(_midnight(HISTORY_DAYS - 1), person=name),
        )
    mine = [lease for lease in leases if lease.holder.person == name]
    return OwnPage(
        tuple(course_lease(lease) for lease in mine),
        {lease.id: lease.holder.course for lease in mine},
        tuple(_request(one) for one in queue if one.holder.person == name),
        tuple(
            _hours(
                week,
                {line.subject: float(line.value) for line in lines if line.bound == WEEKLY},
                {known.course.name: known.role for known in courses},
                name,
            )
        ),
        tuple(sorted(lately, key=lambda use: -use.begins)[:MOST_ROWS]),
    )


class MyGpu(Page):
    """The page; who teaches no course comes here from the service's own address."""

    async def get(self) -> None:
        """Show it."""
        self.page("own.html", own=await own_page(self.service), days=HISTORY_DAYS)
