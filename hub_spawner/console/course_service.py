"""The course service: what the pages and the JSON API ask the pool, for one visitor, without HTTP.

For everybody's requests the service asks on that person's behalf, and the pool allows what it allows that person; where a role of the Hub
makes them an instructor, the service says so of the course that the call is about.  Only what the Hub's
administrators ask for courses that they do not teach themselves goes out with the service's own rights, with their name for the audit table.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpukernel.client.admin import AdminClient
from gpukernel.client.audit import plain_bound
from gpukernel.client.hub import KnownCourse
from gpukernel.client.reservations import KnownReservation
from gpukernel.common.connection import read_connection_file
from gpukernel.common.errors import NotAllowed
from gpukernel.common.i18n import say
from gpukernel.common.model import Lease, Waiting

__all__ = [
    "BOUNDS",
    "Bound",
    "CourseInfo",
    "CourseLease",
    "CourseRequest",
    "CourseService",
    "CourseUsage",
    "Live",
    "Quotas",
    "Reserved",
    "course_lease",
]

MIB = 2**20
BUSY_SECONDS = 10.0
"""A slice without CUDA calls and GPU time for longer than this is idle."""

MOST_VOUCHED = 30
"""Courses that one call says somebody teaches: they have to fit into its headers."""

BOUNDS = (
    "devices",
    "memory",
    "leases",
    "gpu_hours_per_day",
    "gpu_hours_per_week",
    "gpu_hours_per_term",
    "longest_lease",
    "largest_slice",
    "idle",
    "waiting",
    "interactive",
)
"""In the order in which forms show them."""


@dataclass(frozen=True)
class CourseInfo:
    """A course as its instructors see it; `role` is the visitor's: ``instructor``, or empty for an administrator."""

    name: str
    title: str
    role: str
    weight: float
    term: str
    offers: tuple[str, ...]
    environments: tuple[str, ...]
    start: str
    notebooks: tuple[str, ...]
    groups: tuple[str, ...]
    instructor_groups: tuple[str, ...]
    instructors: tuple[str, ...]
    students: tuple[str, ...]


@dataclass(frozen=True)
class CourseLease:
    """One lease of the course; memory in MiB, times in seconds since the epoch."""

    id: str
    person: str
    role: str
    description: str
    model: str
    devices: tuple[str, ...]
    share: float
    memory_mib: int
    used_mib: int
    busy: bool
    idle_seconds: float
    gpu_seconds: float
    state: str
    mode: str
    since: float
    until: float
    notice: str


@dataclass(frozen=True)
class CourseRequest:
    """One request of the course that waits; `place` is that within the course, `estimate_seconds` negative where not known."""

    key: str
    person: str
    description: str
    size: str
    place: int
    since: float
    estimate_seconds: float
    reason: str
    before: str  # the key of the request before it


@dataclass(frozen=True)
class Live:
    """The course now."""

    held: tuple[CourseLease, ...]
    waits: tuple[CourseRequest, ...]
    devices: float
    busy: int
    idle: int
    memory_mib: int
    used_mib: int


@dataclass(frozen=True)
class Bound:
    """One bound of a subject as forms write it; `used` in the same unit, empty where it is not counted."""

    bound: str
    value: str
    used: str = ""


@dataclass(frozen=True)
class Quotas:
    """The course's own bounds, those of each student and each instructor, and what people have used of theirs."""

    course: tuple[Bound, ...]
    student: tuple[Bound, ...]
    instructor: tuple[Bound, ...]
    people: Mapping[str, tuple[Bound, ...]]


@dataclass(frozen=True)
class CourseUsage:
    """GPU-hours of a course: by day (all days of the span, ISO), by person, and each person's days."""

    days: tuple[str, ...]
    by_day: tuple[float, ...]
    people: Mapping[str, float]
    by_person: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """GPU-hours of all days."""
        return sum(self.by_day)


@dataclass(frozen=True)
class Reserved:
    """A course's reservations, and the time zone of their hours; empty for the pool's own."""

    reservations: tuple[KnownReservation, ...]
    timezone: str


def size_of(waiting: Waiting) -> str:
    """Return the size that a request asks for, in a few characters."""
    asked = waiting.slice
    size = f"{asked.share:g}" if asked.share else f"{(asked.memory_bytes or 0) // MIB} MiB"
    count = f"{asked.devices} × " if asked.devices > 1 else ""
    return f"{count}{asked.model or 'GPU'} × {size}"


def course_lease(lease: Lease) -> CourseLease:
    """Return a lease of the pool as the console shows it."""
    usage = [piece.usage for piece in lease.slices]
    idle = min((u.idle_seconds for u in usage), default=0.0)
    names = {piece.device_name for piece in lease.slices}
    return CourseLease(
        id=lease.id,
        person=lease.holder.person,
        role=lease.role,
        description=lease.holder.description,
        model=", ".join(sorted(names)),
        devices=tuple(piece.device_id for piece in lease.slices),
        share=round(sum(piece.memory_bytes / piece.device_memory_bytes for piece in lease.slices), 6),
        memory_mib=sum(piece.memory_bytes for piece in lease.slices) // MIB,
        used_mib=sum(u.memory_used_bytes for u in usage) // MIB,
        busy=lease.state == "live" and idle < BUSY_SECONDS and any(u.connections for u in usage),
        idle_seconds=idle,
        gpu_seconds=sum(u.gpu_seconds for u in usage),
        state=lease.state,
        mode=lease.mode,
        since=lease.created,
        until=lease.until,
        notice=lease.notice,
    )


def live(course: str, leases: Iterable[Lease], queue: Iterable[Waiting]) -> Live:
    """Return the part of the pool's leases and queue that belongs to one course."""
    mine = [course_lease(lease) for lease in leases if lease.holder.course == course]
    waits: list[CourseRequest] = []
    for place, one in enumerate((w for w in queue if w.holder.course == course), 1):
        waits.append(
            CourseRequest(
                one.key,
                one.holder.person,
                one.holder.description,
                size_of(one),
                place,
                one.since,
                one.estimate_seconds,
                one.reason,
                waits[-1].key if waits else "",
            )
        )
    return Live(
        tuple(sorted(mine, key=lambda h: (h.person, h.since, h.id))),
        tuple(waits),
        round(sum(h.share for h in mine), 6),
        sum(h.busy for h in mine),
        sum(not h.busy for h in mine),
        sum(h.memory_mib for h in mine),
        sum(h.used_mib for h in mine),
    )


def _parts(names: list[str]) -> list[list[str]]:
    return [names[first : first + MOST_VOUCHED] for first in range(0, len(names), MOST_VOUCHED)]


class CourseService:
    """The pool's courses for one visitor; a Hub administrator's name may come with `administers`.

    `teaches` are the courses that they instruct by the Hub's word, besides those of which the pool knows.
    """

    def __init__(
        self, address: str, token_file: str, name: str, administers: bool, teaches: Iterable[str] = ()
    ) -> None:
        self.address, self.token_file = address, token_file
        self.name, self.administers = name, administers
        self.teaches = frozenset(teaches)

    @property
    def _token(self) -> str | None:
        # For a network address the client finds token and authority in that file itself; it is read again each time, since an
        # administrator may have put another one there.
        if self.token_file and self.address.startswith("unix:"):
            return read_connection_file(Path(self.token_file)).token
        return None

    def as_person(self, *courses: str) -> AdminClient:
        """Return a client on behalf of the visitor, as an instructor of those of `courses` that the Hub says they teach."""
        teaches = self.teaches.intersection(courses)
        return AdminClient(self.address, self._token, on_behalf=self.name, teaches=sorted(teaches))

    def as_administrator(self) -> AdminClient:
        """Return a client with the rights of this service's own token; for administrators only."""
        if not self.administers:
            raise NotAllowed(say("Only an administrator may do that, not %(person)s.", person=self.name))
        return AdminClient(self.address, self._token, made_by=self.name)

    async def tell_groups(self, groups: Iterable[str]) -> None:
        """Tell the pool which groups of the Hub the visitor is in."""
        async with AdminClient(self.address, self._token) as pool:
            await pool.set_groups(self.name, groups)

    def as_teacher(self, course: CourseInfo) -> AdminClient:
        """Return a client on behalf of a visitor who teaches the course, else one with the administrator's rights."""
        return self.as_person(course.name) if course.role == "instructor" else self.as_administrator()

    async def courses(self) -> list[CourseInfo]:
        """Return the courses that the visitor teaches, and for an administrator all others."""
        known: dict[str, KnownCourse] = {}
        for vouched in _parts(sorted(self.teaches)) or [[]]:
            async with self.as_person(*vouched) as pool:
                known |= {k.course.name: k for k in await pool.courses() if k.role == "instructor"}
        if self.administers:
            async with self.as_administrator() as pool:
                for other in await pool.courses():
                    known.setdefault(other.course.name, other)
        found = []
        for name in sorted(known):
            course, role = known[name].course, known[name].role
            profile = course.profile
            found.append(
                CourseInfo(
                    name,
                    course.title,
                    role,
                    course.weight,
                    profile.term,
                    tuple(str(offer) for offer in profile.offers),
                    profile.environments,
                    profile.start,
                    profile.notebooks,
                    profile.groups,
                    profile.instructor_groups,
                    tuple(sorted(p for p, r in course.members.items() if r == "instructor")),
                    tuple(sorted(p for p, r in course.members.items() if r == "student")),
                )
            )
        return found

    async def course(self, name: str) -> CourseInfo:
        """Return one of `courses`; nobody learns whether others exist.

        Raises
        ------
        NotAllowed
            With a sentence.
        """
        for course in await self.courses():
            if course.name == name:
                return course
        raise NotAllowed(say("There is no course %(course)s of yours.", course=name[:64]))

    async def live_of(self, courses: Iterable[CourseInfo]) -> dict[str, Live]:
        """Return each of these courses now, by name."""
        taught: list[str] = []
        others: list[str] = []
        for course in courses:
            (taught if course.role == "instructor" else others).append(course.name)
        asked = [(self.as_person(*names), names) for names in _parts(taught)]
        if others:
            asked.append((self.as_administrator(), others))
        found: dict[str, Live] = {}
        for client, names in asked:
            async with client as pool:
                leases, queue = await pool.leases()
            found |= {name: live(name, leases, queue) for name in names}
        return found

    async def live(self, course: CourseInfo) -> Live:
        """Return who holds what in a course, and who waits."""
        async with self.as_teacher(course) as pool:
            return live(course.name, *await pool.leases())

    async def quotas(self, course: CourseInfo) -> Quotas:
        """Return a course's bounds and what is used of them."""
        async with self.as_teacher(course) as pool:
            lines = await pool.quotas()
        subjects: dict[str, list[Bound]] = {}
        for line in lines:
            bound = Bound(line.bound, plain_bound(line.bound, line.value), line.used)
            subjects.setdefault(line.subject, []).append(bound)

        def of(subject: str) -> tuple[Bound, ...]:
            return tuple(subjects.get(subject, ()))

        people = {
            subject.partition(" ")[2]: tuple(bounds)
            for subject, bounds in subjects.items()
            if subject.startswith((f"student:{course.name} ", f"instructor:{course.name} "))
        }
        return Quotas(
            of(f"course:{course.name}"), of(f"student:{course.name}"), of(f"instructor:{course.name}"), people
        )

    async def reserved(self, course: CourseInfo) -> Reserved:
        """Return a course's reservations."""
        async with self.as_teacher(course) as pool:
            known, timezone = await pool.reservations(course.name)
        return Reserved(tuple(known), timezone)

    async def lease(self, course: CourseInfo, lease_id: str) -> CourseLease | None:
        """Return a lease of the course that has not ended; None where there is no such lease."""
        return next((h for h in (await self.live(course)).held if h.id == lease_id), None)

    async def use(self, course: CourseInfo, days: int) -> CourseUsage:
        """Return the GPU-hours of the last `days` days, today included."""
        today = datetime.date.today()
        first = today - datetime.timedelta(days=days - 1)
        begin = datetime.datetime.combine(first, datetime.time()).timestamp()
        async with self.as_teacher(course) as pool:
            found = await pool.course_use(course.name, min(begin, time.time() - 1))
        named = [(first + datetime.timedelta(days=n)) for n in range(days)]
        # The pool's calendar may be a day ahead or behind this machine's.
        named = sorted({*named, *(use.day for use in found)})
        place = {day: number for number, day in enumerate(named)}
        by_person: dict[str, list[float]] = {}
        for use in found:
            by_person.setdefault(use.person, [0.0] * len(named))[place[use.day]] += use.device_hours
        totals = [sum(hours) for hours in zip(*by_person.values(), strict=True)] or [0.0] * len(named)
        return CourseUsage(
            tuple(day.isoformat() for day in named),
            tuple(totals),
            {person: sum(hours) for person, hours in sorted(by_person.items())},
            {person: tuple(hours) for person, hours in sorted(by_person.items())},
        )
