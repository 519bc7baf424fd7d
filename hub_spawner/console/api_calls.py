"""The calls of the JSON API: the type of each one's body and answer, and the function that does it.

They ask the pool as the pages do (`hub_spawner.console.course_service`), so the answers are the same.  `hub_spawner.console.api` serves
them, `hub_spawner.console.openapi` describes them; both read the table `CALLS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic

from gpukernel.client.admin import AuditEntry, TokenLine
from gpukernel.client.reservations import KnownReservation
from gpukernel.client.teaching import QuotaEffect
from gpukernel.common.errors import LeaseEnded
from gpukernel.common.model import Device, SliceRequest
from gpukernel.common.reservations import Reservation
from hub_spawner.console.course_service import (
    CourseInfo,
    CourseLease,
    CourseService,
    CourseUsage,
    Live,
    Quotas,
    Reserved,
    course_lease,
)
from hub_spawner.console.leases import ending_reason

__all__ = ["CALLS", "ApiCall", "Body"]

_Text = Annotated[str, pydantic.StringConstraints(max_length=300)]
_Key = Annotated[str, pydantic.StringConstraints(max_length=1000)]


# JSON has one kind of number: 10.0 is an integer, as JSON Schema has it.
_WHOLE = pydantic.BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)


class Body(pydantic.BaseModel):
    """The JSON object that a call takes; unknown fields and other types are refused."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


class QuotaBody(Body):
    """Bounds as courses.yaml writes them; “none” removes one.  With `check` nothing changes; with `held` new times count for slices
    that are held now, too."""

    whom: Annotated[str, pydantic.StringConstraints(pattern="^(student|course|instructor)$")] = "student"
    bounds: Annotated[dict[str, _Text], pydantic.Field(min_length=1, max_length=20)]
    check: bool = True
    held: bool = False


class CourseBody(Body):
    """The fields that an instructor may change of a course; those left out stay."""

    title: Annotated[str, pydantic.StringConstraints(max_length=256)] | None = None
    term: Annotated[str, pydantic.StringConstraints(max_length=64)] | None = None
    offers: Annotated[list[_Text], pydantic.Field(max_length=100)] | None = None
    start: Annotated[str, pydantic.StringConstraints(pattern="^(|at_start|on_first_use)$")] | None = None
    priority: (
        Annotated[str, pydantic.StringConstraints(pattern="^(|interactive|batch|scavenger)$")] | None
    ) = None
    check: bool = False


class MoveBody(Body):
    """A waiting request, and the one of the same course before which it is to be served; empty: before all."""

    key: _Key
    before: _Key = ""


class ReservationBody(Body):
    """Weekdays (0 is Monday), or one day as 2026-12-01; minutes after midnight.  With `check` nothing changes."""

    days: Annotated[
        list[Annotated[int, pydantic.Field(ge=0, le=6), _WHOLE]], pydantic.Field(max_length=7)
    ] = []
    on: Annotated[str, pydantic.StringConstraints(max_length=10)] = ""
    begins: Annotated[int, pydantic.Field(ge=0, le=1440), _WHOLE]
    ends: Annotated[int, pydantic.Field(ge=0, le=1440), _WHOLE]
    devices: Annotated[float, pydantic.Field(gt=0, le=1e6, allow_inf_nan=False)]
    model: Annotated[str, pydantic.StringConstraints(max_length=256)] = ""
    preempt: bool = False
    check: bool = True


class EndBody(Body):
    """The reason that the holder of the ended slice reads; it may be empty."""

    reason: Annotated[str, pydantic.StringConstraints(max_length=150)] = ""


class ResizeBody(Body):
    """The new share of each device, above 0 and up to 1."""

    share: Annotated[float, pydantic.Field(gt=0, le=1, allow_inf_nan=False)]


class MessageBody(Body):
    """Plain text; an empty one takes the last message back."""

    text: _Text


class DrainBody(Body):
    """The wanted state of a server, and for how many seconds its slices may go on; 0: until they end."""

    drained: bool
    deadline_seconds: Annotated[float, pydantic.Field(ge=0, lt=1e9, allow_inf_nan=False)] = 0


class TokenBody(Body):
    """A new token; `valid_seconds` of 0 means without an end, without it the pool's setting counts."""

    name: Annotated[str, pydantic.StringConstraints(min_length=1, max_length=256)]
    scope: Annotated[str, pydantic.StringConstraints(pattern="^(person|service|agent|admin)$")] = "person"
    person: Annotated[str, pydantic.StringConstraints(max_length=256)] = ""
    valid_seconds: Annotated[float, pydantic.Field(ge=0, lt=1e10, allow_inf_nan=False)] | None = None


class FileBody(Body):
    """The text of a courses.yaml.  With `check` nothing changes."""

    yaml: Annotated[str, pydantic.StringConstraints(max_length=4 * 2**20)]
    check: bool = True


@dataclass(frozen=True)
class Changes:
    """The changes that were made, or would be, one line each."""

    lines: list[str]


@dataclass(frozen=True)
class Effects:
    """The changes that were made, or would be, one line each, and whom the new bounds touch."""

    lines: list[str]
    effects: list[QuotaEffect]


@dataclass(frozen=True)
class Said:
    """The message that the holder of a slice sees now."""

    notice: str


@dataclass(frozen=True)
class Moved:
    """The answer whether the order of the queue is different now."""

    moved: bool


@dataclass(frozen=True)
class Drained:
    """The number of leases that a drained server holds still."""

    leases: int


@dataclass(frozen=True)
class CreatedToken:
    """A new token, and its secret, which is shown once."""

    token: TokenLine
    secret: str


@dataclass(frozen=True)
class ExportedCourses:
    """The courses and quotas as a courses.yaml."""

    yaml: str


@dataclass(frozen=True)
class ApiCall:
    """One call: `parameters` are those of its path, in order; `admin`: for the Hub's administrators alone."""

    method: str
    path: str
    summary: str
    do: Callable[..., Awaitable[Any]]
    answer: Any
    body: type[Body] | None = None
    query: str = ""
    admin: bool = False

    @property
    def parameters(self) -> list[str]:
        """The names in the path, in their order."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


async def courses(service: CourseService) -> list[CourseInfo]:
    """Return the courses of the visitor."""
    return await service.courses()


async def course(service: CourseService, course: str) -> CourseInfo:
    """Return one course."""
    return await service.course(course)


async def change_course(service: CourseService, course: str, body: CourseBody) -> Changes:
    """Change what an instructor may change of a course."""
    info = await service.course(course)
    fields = body.model_dump(exclude={"check"}, exclude_none=True)
    async with service.as_teacher(info) as pool:
        return Changes(await pool.set_course(info.name, fields, check=body.check))


async def course_live(service: CourseService, course: str) -> Live:
    """Return who holds what in a course, and who waits."""
    return await service.live(await service.course(course))


async def course_quotas(service: CourseService, course: str) -> Quotas:
    """Return a course's bounds and what is used of them."""
    return await service.quotas(await service.course(course))


async def set_quota(service: CourseService, course: str, body: QuotaBody) -> Effects:
    """Set bounds of a course, or return their effect alone."""
    info = await service.course(course)
    async with service.as_teacher(info) as pool:
        subject = f"{body.whom}:{info.name}"
        return Effects(*await pool.quota_effects(subject, body.bounds, check=body.check, held=body.held))


async def course_use(service: CourseService, course: str, days: int) -> CourseUsage:
    """Return the GPU-hours of the last `days` days."""
    return await service.use(await service.course(course), days)


async def move(service: CourseService, course: str, body: MoveBody) -> Moved:
    """Have a waiting request served before another one of the course."""
    info = await service.course(course)
    async with service.as_teacher(info) as pool:
        return Moved(await pool.move_request(body.key, body.before))


async def reserved(service: CourseService, course: str) -> Reserved:
    """Return a course's reservations."""
    return await service.reserved(await service.course(course))


async def reserve(service: CourseService, course: str, body: ReservationBody) -> KnownReservation:
    """Reserve hours for a course, or look whether that could be."""
    info = await service.course(course)
    fields = body.model_dump(exclude={"check", "days"})
    new = Reservation(course=info.name, days=tuple(sorted(set(body.days))), **fields)
    async with service.as_teacher(info) as pool:
        return await pool.reserve(new, check=body.check)


async def unreserve(service: CourseService, course: str, reservation: str) -> KnownReservation:
    """Take a reservation away."""
    info = await service.course(course)
    if reservation not in {known.reservation.id for known in (await service.reserved(info)).reservations}:
        raise LeaseEnded("This course has no such reservation.")
    async with service.as_teacher(info) as pool:
        return await pool.unreserve(reservation)


async def _lease(service: CourseService, course: str, lease: str) -> tuple[CourseInfo, CourseLease]:
    info = await service.course(course)
    found = await service.lease(info, lease)
    if found is None:
        raise LeaseEnded("No such slice is held in this course.")
    return info, found


async def end(service: CourseService, course: str, lease: str, body: EndBody) -> CourseLease:
    """End a slice."""
    info, found = await _lease(service, course, lease)
    async with service.as_teacher(info) as pool:
        return course_lease(await pool.release(found.id, ending_reason(service, body.reason)))


async def resize(service: CourseService, course: str, lease: str, body: ResizeBody) -> CourseLease:
    """Give a slice another size."""
    info, found = await _lease(service, course, lease)
    async with service.as_teacher(info) as pool:
        return course_lease(await pool.resize(found.id, SliceRequest(share=body.share)))


async def message(service: CourseService, course: str, lease: str, body: MessageBody) -> Said:
    """Write to the holder of a slice."""
    info, found = await _lease(service, course, lease)
    async with service.as_teacher(info) as pool:
        return Said(await pool.send_message(found.id, body.text))


async def devices(service: CourseService) -> list[Device]:
    """Return every device of the pool."""
    async with service.as_administrator() as pool:
        return await pool.devices()


async def all_leases(service: CourseService) -> list[CourseLease]:
    """Return every lease of the pool."""
    async with service.as_administrator() as pool:
        leases, _ = await pool.leases()
    return [course_lease(lease) for lease in leases]


async def drain(service: CourseService, server: str, body: DrainBody) -> Drained:
    """Drain a GPU server, or use it again."""
    async with service.as_administrator() as pool:
        if body.drained:
            return Drained(await pool.drain(server, body.deadline_seconds))
        await pool.undrain(server)
        return Drained(0)


async def tokens(service: CourseService) -> list[TokenLine]:
    """Return every token, without its secret."""
    async with service.as_administrator() as pool:
        return await pool.tokens()


async def new_token(service: CourseService, body: TokenBody) -> CreatedToken:
    """Make a token."""
    async with service.as_administrator() as pool:
        return CreatedToken(*await pool.create_token(body.name, body.person, body.scope, body.valid_seconds))


async def revoke(service: CourseService, token: str) -> TokenLine:
    """Revoke a token."""
    async with service.as_administrator() as pool:
        return (await pool.revoke_token(token)).token


async def audit(service: CourseService) -> list[AuditEntry]:
    """Return the newest thousand changes."""
    async with service.as_administrator() as pool:
        return await pool.audit(1000)


async def file(service: CourseService) -> ExportedCourses:
    """Return the courses and quotas as a file."""
    async with service.as_administrator() as pool:
        return ExportedCourses(await pool.export_courses())


async def import_file(service: CourseService, body: FileBody) -> Changes:
    """Import a courses.yaml, or return its changes alone."""
    async with service.as_administrator() as pool:
        return Changes(await pool.import_courses(body.yaml, check=body.check))


_COURSE, _LEASE = "courses/{course}", "courses/{course}/leases/{lease}"
CALLS = (
    ApiCall(
        "GET", "courses", "The courses that you teach; all, for administrators", courses, list[CourseInfo]
    ),
    ApiCall("GET", _COURSE, "One course", course, CourseInfo),
    ApiCall(
        "PATCH", _COURSE, "Change title, term, offers or start policy", change_course, Changes, CourseBody
    ),
    ApiCall("GET", f"{_COURSE}/live", "Who holds what, and who waits", course_live, Live),
    ApiCall("GET", f"{_COURSE}/quotas", "Bounds, and what is used of them", course_quotas, Quotas),
    ApiCall(
        "POST", f"{_COURSE}/quotas", "Set bounds, or look at their effect", set_quota, Effects, QuotaBody
    ),
    ApiCall("GET", f"{_COURSE}/use", "GPU-hours by day and person", course_use, CourseUsage, query="days"),
    ApiCall(
        "POST", f"{_COURSE}/queue", "Serve a request before another of the course", move, Moved, MoveBody
    ),
    ApiCall("GET", f"{_COURSE}/reservations", "Hours that are reserved for the course", reserved, Reserved),
    ApiCall(
        "POST",
        f"{_COURSE}/reservations",
        "Reserve hours, or look whether that could be",
        reserve,
        KnownReservation,
        ReservationBody,
    ),
    ApiCall(
        "DELETE",
        f"{_COURSE}/reservations/{{reservation}}",
        "Take a reservation away",
        unreserve,
        KnownReservation,
    ),
    ApiCall("POST", f"{_LEASE}/end", "End a slice", end, CourseLease, EndBody),
    ApiCall("POST", f"{_LEASE}/resize", "Resize a slice", resize, CourseLease, ResizeBody),
    ApiCall("POST", f"{_LEASE}/message", "Write to the holder of a slice", message, Said, MessageBody),
    ApiCall("GET", "devices", "Every device of the pool", devices, list[Device], admin=True),
    ApiCall("GET", "leases", "Every lease of the pool", all_leases, list[CourseLease], admin=True),
    ApiCall(
        "PUT",
        "servers/{server}/drain",
        "Drain a GPU server, or use it again",
        drain,
        Drained,
        DrainBody,
        admin=True,
    ),
    ApiCall(
        "GET", "tokens", "Every token that was made, without its secret", tokens, list[TokenLine], admin=True
    ),
    ApiCall(
        "POST",
        "tokens",
        "Make a token; its secret is shown once",
        new_token,
        CreatedToken,
        TokenBody,
        admin=True,
    ),
    ApiCall("DELETE", "tokens/{token}", "Revoke a token", revoke, TokenLine, admin=True),
    ApiCall("GET", "audit", "The newest thousand changes", audit, list[AuditEntry], admin=True),
    ApiCall("GET", "courses.yaml", "Courses and quotas as a file", file, ExportedCourses, admin=True),
    ApiCall(
        "PUT",
        "courses.yaml",
        "Import the file, or look at the changes",
        import_file,
        Changes,
        FileBody,
        admin=True,
    ),
)
