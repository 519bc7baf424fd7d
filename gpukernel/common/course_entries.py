"""The entries of ``courses.yaml``, field by field; `gpukernel.common.course_file` reads and writes the file.

The fields' own docstrings are what the schema and the settings page say of them.
"""

from __future__ import annotations

import datetime
import math
import re
from typing import Annotated, Any

import pydantic

from gpukernel.common.bounds import EVERYBODY, Bounds, check_bounds
from gpukernel.common.course import STARTS, Offered, Profile
from gpukernel.common.errors import Refused
from gpukernel.common.i18n import say
from gpukernel.common.model import PRIORITIES
from gpukernel.common.reservation_entry import ReservationEntry
from gpukernel.common.reservations import MOST_OF_A_COURSE, known_zone

__all__ = [
    "BOUNDS",
    "LONGEST_MESSAGE",
    "NO_TITLE",
    "CourseEntry",
    "CourseFile",
    "Limits",
    "courses_schema",
    "expected_bound",
    "message_text",
    "parse_bound",
]

LONGEST_MESSAGE = 300

BOUNDS = {
    "devices": "devices",
    "memory": "memory_mib",
    "leases": "leases",
    "gpu_hours_per_day": "hours_day",
    "gpu_hours_per_week": "hours_week",
    "gpu_hours_per_term": "hours_term",
    "longest_lease": "longest_seconds",
    "largest_slice": "largest_slice",
    "idle": "idle_seconds",
    "waiting": "waiting",
    "interactive": "interactive",
}
"""The file's name for each figure of `gpukernel.common.bounds.Bounds`."""

_TIME = re.compile(r"(\d+(?:\.\d+)?) ?(s|sec|min|m|h|d)?")
_SECONDS = {None: 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?(MiB|GiB|TiB)?")
_MIB = {None: 1, "MiB": 1, "GiB": 1024, "TiB": 1024**2}


def _duration(value: Any) -> Any:
    if isinstance(value, str):
        match = _TIME.fullmatch(value.strip())
        if match is None:
            raise ValueError(say("write a time as 90s, 30min or 2h"))
        return float(match[1]) * _SECONDS[match[2]]
    return value


def _mebibytes(value: Any) -> Any:
    if isinstance(value, str):
        match = _MEMORY.fullmatch(value.strip())
        if match is None:
            raise ValueError(say("write memory as 2048 (MiB) or 32GiB"))
        exact = float(match[1]) * _MIB[match[2]]
        if 0 < exact < 1:
            raise ValueError(say("less than a MiB would be no memory"))
        return int(exact) if math.isfinite(exact) else exact
    return value


def _idle(value: float) -> float:
    if 0 < value < 1:
        raise ValueError(say("the shortest time is 1s; 0 is never"))
    return value


def _everybody(value: Any) -> Any:
    return [EVERYBODY] if value == EVERYBODY else value


def _name(value: str) -> str:
    if not value or len(value) > 256 or not value.isprintable() or value != value.strip():
        raise ValueError(say("a name has 1 to 256 printable characters"))
    return value


def _course_name(value: str) -> str:
    if not re.fullmatch(r"[\w.+-]{1,64}", value):
        raise ValueError(
            say("a course's name has 1 to 64 letters, digits, dots, dashes, pluses or underscores")
        )
    return value


def _offered(value: Any) -> Any:
    return value if isinstance(value, Offered) else Offered.parse(f"{value}")


NO_TITLE = say("A course needs a title: it is what people choose from.")

MOST_DEVICES, MOST_HOURS, MOST_MIB, MOST_THINGS, MOST_DAYS = 100_000, 10**8, 10**9, 10**6, 3650
"""Largest sensible amounts: a quota of 10¹² devices is a slip of the pen, and bounds nothing."""

_Number = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
_Hours = Annotated[_Number, pydantic.Field(le=MOST_HOURS)]
_Count = Annotated[int, pydantic.Field(ge=0, le=MOST_THINGS)]
_WORD_OR_NUMBER = {"anyOf": [{"type": "number"}, {"type": "string"}]}
_Seconds = Annotated[
    Annotated[_Number, pydantic.Field(le=MOST_DAYS * 86400)],
    pydantic.BeforeValidator(_duration),
    pydantic.WithJsonSchema(_WORD_OR_NUMBER),
]
_Offers = list[Annotated[Any, pydantic.BeforeValidator(_offered), pydantic.WithJsonSchema(_WORD_OR_NUMBER)]]
_Person = Annotated[str, pydantic.AfterValidator(_name)]
_CourseName = Annotated[str, pydantic.AfterValidator(_course_name)]


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=False, use_attribute_docstrings=True)


class Limits(_Strict):
    """Upper bounds; a figure that is left out is not bounded here."""

    devices: Annotated[_Number, pydantic.Field(le=MOST_DEVICES)] | None = None
    """Devices' worth at one moment: the sum of the shares of all slices."""
    memory: (
        Annotated[int, pydantic.Field(ge=0, le=MOST_MIB), pydantic.WithJsonSchema(_WORD_OR_NUMBER)] | None
    ) = None
    """Memory of all slices at one moment: 2048 (MiB) or 32GiB."""
    leases: _Count | None = None
    """Slices at one moment."""
    gpu_hours_per_day: _Hours | None = None
    """Share × hours in a calendar day."""
    gpu_hours_per_week: _Hours | None = None
    """Share × hours in a week from Monday."""
    gpu_hours_per_term: _Hours | None = None
    """Share × hours since the file's `term_begins`."""
    longest_lease: Annotated[_Seconds, pydantic.Field(ge=1)] | None = None
    """A slice ends after this time: 90s, 30min or 2h."""
    largest_slice: Annotated[float, pydantic.Field(gt=0, le=1)] | None = None
    """Share of one device that a slice may have."""
    idle: Annotated[_Seconds, pydantic.AfterValidator(_idle)] | None = None
    """A slice without CUDA calls and GPU time is released after this time; 0: never. The nearest level that sets it decides."""
    waiting: _Count | None = None
    """Requests that wait at one moment; a person has at most 20 where no level for people sets it."""
    interactive: Annotated[_Number, pydantic.Field(le=MOST_DEVICES)] | None = None
    """Devices' worth of interactive slices at one moment; 0: batch and scavenger only."""

    @pydantic.field_validator("memory", mode="before")
    @classmethod
    def _memory(cls, value: Any) -> Any:
        return _mebibytes(value)

    def bounds(self) -> Bounds:
        """Return the limits as `Bounds`."""
        return Bounds(**{ours: getattr(self, name) for name, ours in BOUNDS.items()})


def _start(value: str) -> str:
    if value not in STARTS:
        raise ValueError(say("a slice is asked for at_start or on_first_use"))
    return value


def _path(value: str) -> str:
    if not value.startswith("/") or not value.isprintable() or len(value) > 1024:
        raise ValueError(say("write the whole path of a file or folder, from /"))
    return value


_Few = pydantic.Field(max_length=100)


def _class(value: str) -> str:
    if value not in ("", *PRIORITIES):
        raise ValueError(say("a class is one of %(classes)s", classes=", ".join(PRIORITIES)))
    return value


class ProfileEntry(_Strict):
    """The offers and groups of a course; see `gpukernel.common.course`."""

    term: str = pydantic.Field("", max_length=64)
    """For people: “autumn 2026”."""
    groups: Annotated[list[_Person], _Few] = []
    """Groups of JupyterHub whose members are students of the course."""
    instructor_groups: Annotated[list[_Person], _Few] = []
    """Groups of JupyterHub whose members are its instructors."""
    offers: Annotated[_Offers, _Few] = []
    """Sizes to choose from: V100 x 0.02, or 0.02 of any model; V100 x 1 batch in a later class. Empty: the usual sizes of every model."""
    environments: Annotated[list[_Person], _Few] = []
    """Environments to choose from, by their names in `hub_spawner.configure`; the first is the usual one. Empty: all of them."""
    start: Annotated[str, pydantic.AfterValidator(_start)] = ""
    """The moment at which a kernel asks for its slice: at_start, or on_first_use of CUDA."""
    notebooks: Annotated[list[Annotated[str, pydantic.AfterValidator(_path)]], _Few] = []
    """Files and folders, as single-user servers see them, to copy into the home directory at a server's first start."""
    priority: Annotated[str, pydantic.AfterValidator(_class)] = ""
    """The class in which kernels ask where an offer names none: batch or scavenger; interactive where nothing is said."""

    def profile(self) -> Profile:
        """Return the entry as `Profile`."""
        values: dict[str, Any] = {name: getattr(self, name) for name in ProfileEntry.model_fields}
        values |= {name: tuple(v) for name, v in values.items() if isinstance(v, list)}
        return Profile(**values)


def _time_zone(value: str) -> str:
    if not known_zone(value):
        raise ValueError(say("there is no such time zone; write one as Europe/Berlin"))
    return value


class CourseEntry(ProfileEntry):
    """A course: its people, its quotas, its offers and its reservations."""

    title: str = pydantic.Field("", max_length=256)
    """The course's name for people."""
    weight: float = pydantic.Field(1.0, gt=0, le=1e6, allow_inf_nan=False)
    """Its part of the pool where several courses wait."""
    instructors: list[_Person] = []
    """Their names, as JupyterHub or the operating system has them."""
    students: Annotated[
        list[_Person],
        pydantic.BeforeValidator(_everybody),
        pydantic.WithJsonSchema(
            {"anyOf": [{"const": EVERYBODY}, {"type": "array", "items": {"type": "string"}}]}
        ),
    ] = []
    """Their names, or "*" for everybody."""
    quota: Limits | None = None
    """The quota of the whole course."""
    each_student: Limits | None = None
    """The quota of each student in this course."""
    each_instructor: Limits | None = None
    """The quota of each instructor in this course."""
    reservations: Annotated[list[ReservationEntry], pydantic.Field(max_length=MOST_OF_A_COURSE)] = []
    """Room that is kept for the course at certain times."""


class CourseFile(_Strict):
    """The whole file."""

    timezone: Annotated[str, pydantic.AfterValidator(_time_zone)] = ""
    """Of the reservations' times: Europe/Berlin. Empty: the pool's own."""
    term_begins: datetime.date | None = None
    """From when GPU-hours per term count."""
    half_life: _Seconds | None = None
    """The time after which what a course held counts half in the order of the queue; 0: only what it holds now counts. Else 7d."""
    notice: _Seconds | None = None
    """The time before its end at which a lease is told that it gives way to an interactive request; 60s where nothing is said."""
    least_run: _Seconds | None = None
    """For so long from its grant no lease has to give way; 10min where nothing is said."""
    pool: Limits | None = None
    """The quota of everybody together."""
    without_course: Limits | None = None
    """The quota of requests that name no course, together; leases: 0 refuses them."""
    people: dict[_Person, Limits] = {}
    """The quota of a person in all courses together, by name; "*": each who is not named."""
    courses: dict[_CourseName, CourseEntry] = {}
    """By their short names."""


def expected_bound(name: str) -> str:
    """Return in words what may be written for one bound."""
    if name in ("devices", "interactive"):
        return say("a number from 0 to %(most)s, such as 2.5", most=f"{MOST_DEVICES:,}")
    if name.startswith("gpu_hours"):
        return say("a number of hours from 0 to %(most)s, such as 12.5", most=f"{MOST_HOURS:,}")
    if name == "memory":
        return say("memory as 2048 (MiB) or 32GiB, up to %(most)s MiB", most=f"{MOST_MIB:,}")
    if name == "largest_slice":
        return say("a share of one device, above 0 and up to 1, such as 0.25")
    if name in ("longest_lease", "idle"):
        return say("a time as 90s, 30min or 2h, from 1 s up to %(most)s days", most=f"{MOST_DAYS:,}")
    return say("a whole number from 0 to %(most)s", most=f"{MOST_THINGS:,}")


def parse_bound(name: str, text: str) -> tuple[str, float | int | None]:
    """Return one bound of a command line, as the name and value in `Bounds`; ``none`` takes it away.

    Raises
    ------
    Refused
        ``invalid``.
    """
    ours = BOUNDS.get(name)
    if ours is None:
        raise Refused("invalid", f"There is no bound “{name[:40]}”; it is one of {', '.join(BOUNDS)}.")
    if text == "none":
        return ours, None
    try:
        bounds = Limits.model_validate({name: text}).bounds()
    except pydantic.ValidationError:
        bounds = None
    value = getattr(bounds, ours) if bounds is not None and check_bounds(bounds) is None else None
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        sentence = say(
            "%(field)s: write %(what)s, not “%(text)s”.",
            field=name,
            what=expected_bound(name),
            text=text[:40],
        )
        raise Refused("invalid", sentence)
    return ours, value


def message_text(written: str) -> str:
    """Return an instructor's message to the holder of a slice on one line.

    Raises
    ------
    Refused
        ``invalid``: it has more than `LONGEST_MESSAGE` characters, or some that cannot be printed.
    """
    text = " ".join(written.split())
    if len(text) > LONGEST_MESSAGE:
        sentence = say(
            "A message has at most %(most)s characters; this one has %(n)s.",
            most=LONGEST_MESSAGE,
            n=len(text),
        )
        raise Refused("invalid", sentence)
    if not text.isprintable():
        raise Refused("invalid", say("Write the message in printable characters."))
    return text


def courses_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the file, for editors."""
    schema = CourseFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "courses.yaml"} | schema
