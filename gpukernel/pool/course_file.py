"""``courses.yaml``: courses, who is in them, and every quota, as an administrator writes them.

Everything that is wrong is said at once, each with its line.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
import yaml

from gpukernel.pool.course import STARTS, Course, Offered, Profile
from gpukernel.pool.errors import Refused
from gpukernel.pool.quota import EVERYBODY, Bounds, Subject, check_bounds
from gpukernel.pool.reservation_entry import ReservationEntry, plain
from gpukernel.pool.reservations import MOST_OF_A_COURSE, Reservation, known_zone
from gpukernel.pool.rules import Rules

__all__ = ["BOUNDS", "courses_schema", "parse_bound", "read_courses", "write_courses"]

LARGEST_FILE = 4 * 2**20
_DEEPEST = 12

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
}
"""What the file calls each figure of `gpukernel.pool.quota.Bounds`."""

_TIME = re.compile(r"(\d+(?:\.\d+)?) ?(s|sec|min|m|h|d)?")
_SECONDS = {None: 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?(MiB|GiB|TiB)?")
_MIB = {None: 1, "MiB": 1, "GiB": 1024, "TiB": 1024**2}


def _duration(value: Any) -> Any:
    if isinstance(value, str):
        match = _TIME.fullmatch(value.strip())
        if match is None:
            raise ValueError("write a time as 90s, 30min or 2h")
        return float(match[1]) * _SECONDS[match[2]]
    return value


def _mebibytes(value: Any) -> Any:
    if isinstance(value, str):
        match = _MEMORY.fullmatch(value.strip())
        if match is None:
            raise ValueError("write memory as 2048 (MiB) or 32GiB")
        return int(float(match[1]) * _MIB[match[2]])
    return value


def _everybody(value: Any) -> Any:
    return [EVERYBODY] if value == EVERYBODY else value


def _name(value: str) -> str:
    if not value or len(value) > 256 or not value.isprintable() or value != value.strip():
        raise ValueError("a name has 1 to 256 printable characters")
    return value


def _course_name(value: str) -> str:
    if not re.fullmatch(r"[\w.+-]{1,64}", value):
        raise ValueError("a course's name has 1 to 64 letters, digits, dots, dashes, pluses or underscores")
    return value


def _offered(value: Any) -> Any:
    return value if isinstance(value, Offered) else Offered.parse(f"{value}")


_Number = Annotated[float, pydantic.Field(ge=0, le=1e12, allow_inf_nan=False)]
_WORD_OR_NUMBER = {"anyOf": [{"type": "number"}, {"type": "string"}]}
_Seconds = Annotated[_Number, pydantic.BeforeValidator(_duration), pydantic.WithJsonSchema(_WORD_OR_NUMBER)]
_Offers = list[Annotated[Any, pydantic.BeforeValidator(_offered), pydantic.WithJsonSchema(_WORD_OR_NUMBER)]]
_Person = Annotated[str, pydantic.AfterValidator(_name)]
_CourseName = Annotated[str, pydantic.AfterValidator(_course_name)]


class _Strict(pydantic.BaseModel):
    # Field's own docstrings are what the schema and the settings page say of them.
    model_config = pydantic.ConfigDict(extra="forbid", strict=False, use_attribute_docstrings=True)


class Limits(_Strict):
    """Upper bounds; what is left out is not bounded here."""

    devices: _Number | None = None
    """Devices' worth at one moment: the sum of the shares of all slices."""
    memory: (
        Annotated[int, pydantic.Field(ge=0, le=10**12), pydantic.WithJsonSchema(_WORD_OR_NUMBER)] | None
    ) = None
    """Memory of all slices at one moment: 2048 (MiB) or 32GiB."""
    leases: Annotated[int, pydantic.Field(ge=0, le=10**9)] | None = None
    """Slices at one moment."""
    gpu_hours_per_day: _Number | None = None
    """Share × hours in a calendar day."""
    gpu_hours_per_week: _Number | None = None
    """Share × hours in a week from Monday."""
    gpu_hours_per_term: _Number | None = None
    """Share × hours since the file's `term_begins`."""
    longest_lease: Annotated[_Seconds, pydantic.Field(ge=1)] | None = None
    """A slice ends after this time: 90s, 30min or 2h."""
    largest_slice: Annotated[float, pydantic.Field(gt=0, le=1)] | None = None
    """Share of one device that a slice may have."""
    idle: _Seconds | None = None
    """A slice without CUDA calls and GPU time is released after this time; 0: never. The nearest level that sets it decides."""

    @pydantic.field_validator("memory", mode="before")
    @classmethod
    def _memory(cls, value: Any) -> Any:
        return _mebibytes(value)

    def bounds(self) -> Bounds:
        return Bounds(**{ours: getattr(self, name) for name, ours in BOUNDS.items()})


def _start(value: str) -> str:
    if value not in STARTS:
        raise ValueError("a slice is asked for at_start or on_first_use")
    return value


def _path(value: str) -> str:
    if not value.startswith("/") or not value.isprintable() or len(value) > 1024:
        raise ValueError("write the whole path of a file or folder, from /")
    return value


_Few = pydantic.Field(max_length=100)


class ProfileEntry(_Strict):
    """What a course offers; see `gpukernel.pool.course`."""

    term: str = pydantic.Field("", max_length=64)
    """For people: “autumn 2026”."""
    groups: Annotated[list[_Person], _Few] = []
    """Groups of JupyterHub whose members are students of the course."""
    instructor_groups: Annotated[list[_Person], _Few] = []
    """Groups of JupyterHub whose members are its instructors."""
    offers: Annotated[_Offers, _Few] = []
    """Sizes to choose from: V100 x 0.02, or 0.02 of any model. Empty: the usual sizes of every model."""
    environments: Annotated[list[_Person], _Few] = []
    """Environments to choose from, by their names in `hub_spawner.configure`; the first is the usual one. Empty: all of them."""
    start: Annotated[str, pydantic.AfterValidator(_start)] = ""
    """When a kernel asks for its slice: at_start, or on_first_use of CUDA."""
    notebooks: Annotated[list[Annotated[str, pydantic.AfterValidator(_path)]], _Few] = []
    """Files and folders, as single-user servers see them, to copy into the home directory at a server's first start."""

    def profile(self) -> Profile:
        values: dict[str, Any] = {name: getattr(self, name) for name in ProfileEntry.model_fields}
        values |= {name: tuple(v) for name, v in values.items() if isinstance(v, list)}
        return Profile(**values)


def _time_zone(value: str) -> str:
    if not known_zone(value):
        raise ValueError("there is no such time zone; write one as Europe/Berlin")
    return value


class CourseEntry(ProfileEntry):
    title: str = pydantic.Field("", max_length=256)
    """What people call the course."""
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
    """What the whole course may hold."""
    each_student: Limits | None = None
    """What each student may hold in this course."""
    each_instructor: Limits | None = None
    """What each instructor may hold in this course."""
    reservations: Annotated[list[ReservationEntry], pydantic.Field(max_length=MOST_OF_A_COURSE)] = []
    """Room that is kept for the course at certain times."""


class CoursesFile(_Strict):
    timezone: Annotated[str, pydantic.AfterValidator(_time_zone)] = ""
    """Of the reservations' times: Europe/Berlin. Empty: the pool's own."""
    term_begins: datetime.date | None = None
    """From when GPU-hours per term count."""
    pool: Limits | None = None
    """What everybody together may hold."""
    people: dict[_Person, Limits] = {}
    """What a person may hold in all courses together, by name; "*": each who is not named."""
    courses: dict[_CourseName, CourseEntry] = {}
    """By their short names."""


class _Loader(yaml.SafeLoader):
    """Plain YAML: no references (a few lines could mean billions), no key twice."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.MarkedYAMLError(
                problem="references are not used in this file", problem_mark=event.start_mark
            )
        self.depth = getattr(self, "depth", 0) + 1
        if self.depth > _DEEPEST:
            raise yaml.MarkedYAMLError(problem="this is nested too deeply", problem_mark=event.start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _load(text: str) -> tuple[Any, dict[tuple[Any, ...], int], list[str]]:
    """The content, the line of every key and item, and what is wrong."""
    try:
        loader = _Loader(text)  # it reads at once
    except yaml.YAMLError as error:
        return None, {}, [_no_yaml(error)]
    try:
        node = loader.get_single_node()
        lines: dict[tuple[Any, ...], int] = {}
        problems: list[str] = []
        if node is not None:
            _note_lines(node, (), lines, problems, loader)
        return (loader.construct_document(node) if node is not None else {}), lines, problems
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return None, {}, [f"line {line}: {error.problem}"]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return None, {}, [_no_yaml(error)]
    finally:
        loader.dispose()


def _no_yaml(error: Exception) -> str:
    return f"this is no YAML: {' '.join(str(error).split())[:200]}"


def _shown(part: Any) -> str:
    """A key as sentences name it: somebody may have pasted a whole file there."""
    text = str(part)
    return text if len(text) <= 64 else f"{text[:60]}…"


def _note_lines(
    node: Any, at: tuple[Any, ...], lines: dict[Any, int], problems: list[str], loader: _Loader
) -> None:
    lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: set[Any] = set()
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            if name in seen:
                problems.append(f"line {key.start_mark.line + 1}: {_shown(name)} stands here a second time")
            seen.add(name)
            lines[(*at, name)] = key.start_mark.line + 1
            _note_lines(value, (*at, name), lines, problems, loader)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _note_lines(value, (*at, index), lines, problems, loader)


def read_courses(text: str) -> Rules:
    """The rules that a file states.

    Raises
    ------
    Refused
        ``invalid``: everything that is wrong, a line each, with the line in the file.
    """
    if len(text) > LARGEST_FILE:
        raise Refused("invalid", f"The file has {len(text)} characters; at most {LARGEST_FILE} are read.")
    content, lines, problems = _load(text)
    file = None
    if not problems:
        try:
            file = CoursesFile.model_validate(content if content is not None else {})
        except pydantic.ValidationError as error:
            problems = [_problem(entry, lines) for entry in error.errors()]
    if file is not None:
        problems = _twice(file, lines)
    if problems or file is None:
        raise Refused("invalid", "\n".join(dict.fromkeys(problems)))
    return _rules(file)


def _problem(entry: Mapping[str, Any], lines: Mapping[tuple[Any, ...], int]) -> str:
    # Pydantic's location has parts that are not in the file, such as "[key]".
    at: tuple[Any, ...] = ()
    for part in entry["loc"]:
        if (*at, part) in lines:
            at = (*at, part)
    name = ".".join(_shown(part) for part in at) or "the file"
    words = {
        "extra_forbidden": "is not known here",
        "model_type": "has entries of its own, each on a line",
        "model_attributes_type": "has entries of its own, each on a line",
    }
    message = words.get(entry["type"]) or entry["msg"].removeprefix("Value error, ")
    given = entry.get("input")
    shown = f", not {given!r}" if isinstance(given, str | int | float) and entry["type"] not in words else ""
    return f"line {lines.get(at, 1)}: {name}: {message[:1].lower()}{message[1:]}{shown[:80]}"


def _twice(file: CoursesFile, lines: Mapping[tuple[Any, ...], int]) -> list[str]:
    problems = []
    for name, course in file.courses.items():
        seen = set(course.instructors)
        for index, person in enumerate(course.students):
            if person in seen:
                line = lines.get(("courses", name, "students", index), 1)
                problems.append(f"line {line}: {person} is in course {name} already")
            seen.add(person)
        found: set[Reservation] = set()
        for index, entry in enumerate(course.reservations):
            if (reservation := entry.reservation(name)) in found:
                line = lines.get(("courses", name, "reservations", index), 1)
                problems.append(f"line {line}: course {name} has this reservation already")
            found.add(reservation)
    return problems


def _rules(file: CoursesFile) -> Rules:
    quotas: dict[Subject, Bounds] = {}

    def add(subject: Subject, limits: Limits | None) -> None:
        if limits is not None and (bounds := limits.bounds()).given():
            quotas[subject] = bounds

    add(Subject("pool"), file.pool)
    for person, limits in file.people.items():
        add(Subject("person", person=person), limits)
    courses = {}
    reservations: list[Reservation] = []
    for name, entry in file.courses.items():
        members = dict.fromkeys(entry.students, "student") | dict.fromkeys(entry.instructors, "instructor")
        courses[name] = Course(name, entry.title, entry.weight, members, entry.profile())
        add(Subject("course", course=name), entry.quota)
        add(Subject("student", course=name), entry.each_student)
        add(Subject("instructor", course=name), entry.each_instructor)
        reservations += [one.reservation(name) for one in entry.reservations]
    begins = file.term_begins
    when = datetime.datetime.combine(begins, datetime.time()).timestamp() if begins else 0.0
    return Rules(courses, quotas, when, reservations=tuple(sorted(reservations)), timezone=file.timezone)


def write_courses(rules: Rules) -> str:
    """The file that states these rules; reading it gives them back."""

    def limits(subject: Subject) -> dict[str, Any] | None:
        bounds = rules.quotas.get(subject)
        if bounds is None:
            return None
        return {
            name: _plain(value)
            for name, ours in BOUNDS.items()
            if (value := getattr(bounds, ours)) is not None
        }

    content: dict[str, Any] = {}
    if rules.term_begins:
        content["term_begins"] = datetime.date.fromtimestamp(rules.term_begins)
    if rules.timezone:
        content["timezone"] = rules.timezone
    if pool := limits(Subject("pool")):
        content["pool"] = pool
    people = {s.person: limits(s) for s in rules.quotas if s.kind == "person"}
    if people:
        content["people"] = dict(sorted(people.items()))
    for name, course in sorted(rules.courses.items()):
        entry: dict[str, Any] = {"title": course.title} if course.title else {}
        entry["weight"] = _plain(course.weight)
        entry |= course.profile.plain()
        entry["instructors"] = sorted(p for p, role in course.members.items() if role == "instructor")
        students = sorted(p for p, role in course.members.items() if role == "student")
        entry["students"] = EVERYBODY if students == [EVERYBODY] else students
        for key, kind in (
            ("quota", "course"),
            ("each_student", "student"),
            ("each_instructor", "instructor"),
        ):
            if found := limits(Subject(kind, course=name)):
                entry[key] = found
        if reserved := [plain(one) for one in rules.reservations if one.course == name]:
            entry["reservations"] = reserved
        content.setdefault("courses", {})[name] = entry
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True) if content else "{}\n"


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) else value


def parse_bound(name: str, text: str) -> tuple[str, float | int | None]:
    """One bound of a command line, as the name and value in `Bounds`; ``none`` takes it away.

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
    except pydantic.ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise Refused("invalid", f"{name}: {message[:1].lower()}{message[1:]}, not {text[:40]!r}.") from None
    if sentence := check_bounds(bounds):
        raise Refused("invalid", sentence)
    value = getattr(bounds, ours)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise Refused("invalid", f"{name}: {text[:40]!r} is no number.")
    return ours, value


def courses_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the file, for editors."""
    schema = CoursesFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "courses.yaml"} | schema
