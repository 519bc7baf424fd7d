"""The JSON API below the pages, for scripts with a JupyterHub token and for whatever else asks: the same questions, the same answers.

Each call is one function with the type of its body and of its answer; `hub_spawner.console.openapi` describes them from that.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic
from tornado.web import HTTPError

from gpukernel.pool.admin_client import AuditEntry, TokenLine
from gpukernel.pool.errors import LeaseEnded
from gpukernel.pool.model import Device, SliceRequest
from gpukernel.pool.reservations import Reservation
from gpukernel.pool.reservations_client import KnownReservation
from gpukernel.pool.teaching_client import QuotaEffect
from hub_spawner.console.base import TOO_OLD, Visit
from hub_spawner.console.desk import CourseInfo, Desk, Held, Live, Quotas, Reserved, Use, held
from hub_spawner.console.history import MOST_DAYS
from hub_spawner.console.leases import ending_reason

__all__ = ["CALLS", "Call", "api_handlers"]

_Text = Annotated[str, pydantic.StringConstraints(max_length=300)]
_Key = Annotated[str, pydantic.StringConstraints(max_length=1000)]


# JSON has one kind of number: 10.0 is an integer, as JSON Schema has it.
_WHOLE = pydantic.BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)


class _Body(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)


class QuotaBody(_Body):
    """Bounds as courses.yaml writes them; “none” removes one.  With `check` nothing changes."""

    whom: Annotated[str, pydantic.StringConstraints(pattern="^(student|course|instructor)$")] = "student"
    bounds: Annotated[dict[str, _Text], pydantic.Field(min_length=1, max_length=20)]
    check: bool = True


class CourseBody(_Body):
    """What an instructor may say about a course; what is left out stays."""

    title: Annotated[str, pydantic.StringConstraints(max_length=256)] | None = None
    term: Annotated[str, pydantic.StringConstraints(max_length=64)] | None = None
    offers: Annotated[list[_Text], pydantic.Field(max_length=100)] | None = None
    start: Annotated[str, pydantic.StringConstraints(pattern="^(|at_start|on_first_use)$")] | None = None
    check: bool = False


class MoveBody(_Body):
    """A waiting request, and the one of the same course before which it is to be served; empty: before all."""

    key: _Key
    before: _Key = ""


class ReservationBody(_Body):
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


class EndBody(_Body):
    reason: Annotated[str, pydantic.StringConstraints(max_length=150)] = ""


class ResizeBody(_Body):
    share: Annotated[float, pydantic.Field(gt=0, le=1, allow_inf_nan=False)]


class MessageBody(_Body):
    """Plain text; an empty one takes the last message back."""

    text: _Text


class DrainBody(_Body):
    drained: bool
    deadline_seconds: Annotated[float, pydantic.Field(ge=0, lt=1e9, allow_inf_nan=False)] = 0


class TokenBody(_Body):
    name: Annotated[str, pydantic.StringConstraints(min_length=1, max_length=256)]
    scope: Annotated[str, pydantic.StringConstraints(pattern="^(person|service|agent|admin)$")] = "person"
    person: Annotated[str, pydantic.StringConstraints(max_length=256)] = ""
    valid_seconds: Annotated[float, pydantic.Field(ge=0, lt=1e10, allow_inf_nan=False)] = 0


class FileBody(_Body):
    yaml: Annotated[str, pydantic.StringConstraints(max_length=4 * 2**20)]
    check: bool = True


@dataclass(frozen=True)
class Changes:
    lines: list[str]


@dataclass(frozen=True)
class Effects:
    lines: list[str]
    effects: list[QuotaEffect]


@dataclass(frozen=True)
class Said:
    notice: str


@dataclass(frozen=True)
class Moved:
    moved: bool


@dataclass(frozen=True)
class Drained:
    leases: int


@dataclass(frozen=True)
class NewToken:
    token: TokenLine
    secret: str


@dataclass(frozen=True)
class CoursesFile:
    yaml: str


@dataclass(frozen=True)
class Call:
    """One call: `parameters` are those of its path, in order; `admin`: for the Hub's administrators alone."""

    method: str
    path: str
    summary: str
    do: Callable[..., Awaitable[Any]]
    answer: Any
    body: type[_Body] | None = None
    query: str = ""
    admin: bool = False

    @property
    def parameters(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


async def courses(desk: Desk) -> list[CourseInfo]:
    return await desk.courses()


async def course(desk: Desk, course: str) -> CourseInfo:
    return await desk.course(course)


async def change_course(desk: Desk, course: str, body: CourseBody) -> Changes:
    info = await desk.course(course)
    fields = body.model_dump(exclude={"check"}, exclude_none=True)
    async with desk.as_teacher(info) as pool:
        return Changes(await pool.set_course(info.name, fields, check=body.check))


async def course_live(desk: Desk, course: str) -> Live:
    return await desk.live(await desk.course(course))


async def course_quotas(desk: Desk, course: str) -> Quotas:
    return await desk.quotas(await desk.course(course))


async def set_quota(desk: Desk, course: str, body: QuotaBody) -> Effects:
    info = await desk.course(course)
    async with desk.as_teacher(info) as pool:
        return Effects(*await pool.quota_effects(f"{body.whom}:{info.name}", body.bounds, check=body.check))


async def course_use(desk: Desk, course: str, days: int) -> Use:
    return await desk.use(await desk.course(course), days)


async def move(desk: Desk, course: str, body: MoveBody) -> Moved:
    info = await desk.course(course)
    async with desk.as_teacher(info) as pool:
        return Moved(await pool.move_request(body.key, body.before))


async def reserved(desk: Desk, course: str) -> Reserved:
    return await desk.reserved(await desk.course(course))


async def reserve(desk: Desk, course: str, body: ReservationBody) -> KnownReservation:
    info = await desk.course(course)
    fields = body.model_dump(exclude={"check", "days"})
    new = Reservation(course=info.name, days=tuple(sorted(set(body.days))), **fields)
    async with desk.as_teacher(info) as pool:
        return await pool.reserve(new, check=body.check)


async def unreserve(desk: Desk, course: str, reservation: str) -> KnownReservation:
    info = await desk.course(course)
    if reservation not in {known.reservation.id for known in (await desk.reserved(info)).reservations}:
        raise LeaseEnded("This course has no such reservation.")
    async with desk.as_teacher(info) as pool:
        return await pool.unreserve(reservation)


async def _lease(desk: Desk, course: str, lease: str) -> tuple[CourseInfo, Held]:
    info = await desk.course(course)
    found = await desk.lease(info, lease)
    if found is None:
        raise LeaseEnded("No such slice is held in this course.")
    return info, found


async def end(desk: Desk, course: str, lease: str, body: EndBody) -> Held:
    info, found = await _lease(desk, course, lease)
    async with desk.as_teacher(info) as pool:
        return held(await pool.release(found.id, ending_reason(desk, body.reason)))


async def resize(desk: Desk, course: str, lease: str, body: ResizeBody) -> Held:
    info, found = await _lease(desk, course, lease)
    async with desk.as_teacher(info) as pool:
        return held(await pool.resize(found.id, SliceRequest(share=body.share)))


async def message(desk: Desk, course: str, lease: str, body: MessageBody) -> Said:
    info, found = await _lease(desk, course, lease)
    async with desk.as_teacher(info) as pool:
        return Said(await pool.send_message(found.id, body.text))


async def devices(desk: Desk) -> list[Device]:
    async with desk.as_service() as pool:
        return await pool.devices()


async def all_leases(desk: Desk) -> list[Held]:
    async with desk.as_service() as pool:
        leases, _ = await pool.leases()
    return [held(lease) for lease in leases]


async def drain(desk: Desk, server: str, body: DrainBody) -> Drained:
    async with desk.as_service() as pool:
        if body.drained:
            return Drained(await pool.drain(server, body.deadline_seconds))
        await pool.undrain(server)
        return Drained(0)


async def tokens(desk: Desk) -> list[TokenLine]:
    async with desk.as_service() as pool:
        return await pool.tokens()


async def new_token(desk: Desk, body: TokenBody) -> NewToken:
    async with desk.as_service() as pool:
        return NewToken(*await pool.create_token(body.name, body.person, body.scope, body.valid_seconds))


async def revoke(desk: Desk, token: str) -> TokenLine:
    async with desk.as_service() as pool:
        return await pool.revoke_token(token)


async def audit(desk: Desk) -> list[AuditEntry]:
    async with desk.as_service() as pool:
        return await pool.audit(1000)


async def file(desk: Desk) -> CoursesFile:
    async with desk.as_service() as pool:
        return CoursesFile(await pool.export_courses())


async def import_file(desk: Desk, body: FileBody) -> Changes:
    async with desk.as_service() as pool:
        return Changes(await pool.import_courses(body.yaml, check=body.check))


_COURSE, _LEASE = "courses/{course}", "courses/{course}/leases/{lease}"
CALLS = (
    Call("GET", "courses", "The courses that you teach; all, for administrators", courses, list[CourseInfo]),
    Call("GET", _COURSE, "One course", course, CourseInfo),
    Call("PATCH", _COURSE, "Change title, term, offers or start policy", change_course, Changes, CourseBody),
    Call("GET", f"{_COURSE}/live", "Who holds what, and who waits", course_live, Live),
    Call("GET", f"{_COURSE}/quotas", "Bounds, and what is used of them", course_quotas, Quotas),
    Call("POST", f"{_COURSE}/quotas", "Set bounds, or look at their effect", set_quota, Effects, QuotaBody),
    Call("GET", f"{_COURSE}/use", "GPU-hours by day and person", course_use, Use, query="days"),
    Call("POST", f"{_COURSE}/queue", "Serve a request before another of the course", move, Moved, MoveBody),
    Call("GET", f"{_COURSE}/reservations", "Hours that are reserved for the course", reserved, Reserved),
    Call(
        "POST",
        f"{_COURSE}/reservations",
        "Reserve hours, or look whether that could be",
        reserve,
        KnownReservation,
        ReservationBody,
    ),
    Call(
        "DELETE",
        f"{_COURSE}/reservations/{{reservation}}",
        "Take a reservation away",
        unreserve,
        KnownReservation,
    ),
    Call("POST", f"{_LEASE}/end", "End a slice", end, Held, EndBody),
    Call("POST", f"{_LEASE}/resize", "Resize a slice", resize, Held, ResizeBody),
    Call("POST", f"{_LEASE}/message", "Write to the holder of a slice", message, Said, MessageBody),
    Call("GET", "devices", "Every device of the pool", devices, list[Device], admin=True),
    Call("GET", "leases", "Every lease of the pool", all_leases, list[Held], admin=True),
    Call(
        "PUT",
        "servers/{server}/drain",
        "Drain a GPU server, or use it again",
        drain,
        Drained,
        DrainBody,
        admin=True,
    ),
    Call(
        "GET", "tokens", "Every token that was made, without its secret", tokens, list[TokenLine], admin=True
    ),
    Call(
        "POST", "tokens", "Make a token; its secret is shown once", new_token, NewToken, TokenBody, admin=True
    ),
    Call("DELETE", "tokens/{token}", "Revoke a token", revoke, TokenLine, admin=True),
    Call("GET", "audit", "The newest thousand changes", audit, list[AuditEntry], admin=True),
    Call("GET", "courses.yaml", "Courses and quotas as a file", file, CoursesFile, admin=True),
    Call(
        "PUT",
        "courses.yaml",
        "Import the file, or look at the changes",
        import_file,
        Changes,
        FileBody,
        admin=True,
    ),
)


class Json(Visit):
    """An answer in JSON; errors too: ``{"message": sentence}``."""

    calls: dict[str, Call]

    def initialize(self, calls: dict[str, Call]) -> None:
        self.calls = calls

    def nobody(self) -> None:
        if "Authorization" not in self.request.headers and self.get_cookie(self.hub_auth.cookie_name):
            raise HTTPError(403, TOO_OLD)  # a browser that asks without a token of our pages
        self.set_header("WWW-Authenticate", "Bearer")
        raise HTTPError(401, "Send a token of this JupyterHub.")

    async def _call(self, *values: str) -> None:
        call = self.calls.get("GET" if self.request.method == "HEAD" else str(self.request.method))
        if call is None:
            raise HTTPError(405, f"{self.request.method} is not possible here.")
        if call.admin and not self.desk.administers:
            raise HTTPError(403, f"Only an administrator may do that, not {self.desk.name}.")
        arguments: dict[str, Any] = {
            name: self.path_name(value) for name, value in zip(call.parameters, values, strict=True)
        }
        if call.query:
            arguments[call.query] = self._number(call.query)
        if call.body:
            arguments["body"] = self._body(call.body)
        answer = await call.do(self.desk, **arguments)
        plain = pydantic.TypeAdapter(call.answer).dump_python(answer, mode="json")
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(plain))

    get = head = post = put = patch = delete = _call  # type: ignore[assignment]

    def _number(self, name: str) -> int:
        given = self.get_query_arguments(name)
        text = given[0] if given else "14"
        if len(given) > 1 or not (text.isascii() and text.isdecimal()) or not 1 <= int(text[:6]) <= MOST_DAYS:
            raise HTTPError(400, f"{name}: a number from 1 to {MOST_DAYS}.")
        return int(text)

    def _body(self, model: type[_Body]) -> _Body:
        kind = self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise HTTPError(415, "Send JSON, with the content type application/json.")
        try:
            return model.model_validate_json(self.request.body)
        except pydantic.ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(part)[:40] for part in first["loc"]) or "the body"
            raise HTTPError(400, f"{where}: {first['msg'][:300]}.") from None

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if status_code == 405:
            self.set_header("Allow", ", ".join(sorted(self.calls)))
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps({"message": self._sentence(status_code, error)}))


class NoCall(Json):
    async def prepare(self) -> None:
        await super().prepare()
        raise HTTPError(404, "There is no such call.")


class Description(Json):
    """What there is to call; `hub_spawner.console.openapi` writes it."""

    async def get(self) -> None:  # type: ignore[override]
        from hub_spawner.console.openapi import description

        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(description(self.settings["prefix"] + "api")))


def api_handlers(prefix: str) -> list[Any]:
    """The addresses of the API."""
    by_path: dict[str, dict[str, Call]] = {}
    for call in CALLS:
        by_path.setdefault(call.path, {})[call.method] = call
    handlers: list[Any] = [(rf"{prefix}api/openapi\.json", Description, {"calls": {}})]
    for path, calls in by_path.items():
        pattern = "/".join(
            r"([^/]+)" if p.startswith("{") else p.replace(".", r"\.") for p in path.split("/")
        )
        handlers.append((f"{prefix}api/{pattern}", Json, {"calls": calls}))
    return [*handlers, (f"{prefix}api/.*", NoCall, {"calls": {}})]
