"""``courses.yaml``: courses, their members, and every quota, as an administrator writes them.

Everything that is wrong is said at once, each with its line.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import pydantic
import yaml

from gpukernel.common.bounds import EVERYBODY, Bounds, Subject
from gpukernel.common.course import Course
from gpukernel.common.course_entries import BOUNDS, CourseFile, Limits
from gpukernel.common.errors import Refused
from gpukernel.common.file_words.entry_words import entry_words
from gpukernel.common.file_words.yaml_words import yaml_words
from gpukernel.common.i18n import Sentence, lines_of, say
from gpukernel.common.policy import HALF_LIFE, LEAST_RUN, NOTICE, Policy
from gpukernel.common.reservation_entry import plain
from gpukernel.common.reservations import Reservation

__all__ = ["course_problems", "read_courses", "write_courses"]

LARGEST_FILE = 4 * 2**20
_DEEPEST = 12


class _Loader(yaml.SafeLoader):
    """Plain YAML: no references (a few lines could mean billions), no key twice, nothing binary."""

    yaml_constructors = {  # noqa: RUF012
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag != "tag:yaml.org,2002:binary"
    }

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

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, ValueError):
            # 2026-02-30, a number of 5,000 digits, “!!timestamp soon”, “!!bool perhaps”
            problem = "there is no such date, time or number"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


def _load(text: str) -> tuple[Any, dict[tuple[Any, ...], int], list[Sentence]]:
    """Return the content, the line of every key and item, and what is wrong."""
    try:
        loader = _Loader(text)  # it reads at once
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        return (
            None,
            {},
            [_at(line, yaml_words(f"the character U+{int(error.character):04X} cannot stand in a file"))],
        )
    try:
        node = loader.get_single_node()
        lines: dict[tuple[Any, ...], int] = {}
        problems: list[Sentence] = []
        if node is not None:
            _note_lines(node, (), lines, problems, loader)
        return (loader.construct_document(node) if node is not None else {}), lines, problems
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        return None, {}, [_at(line, yaml_words(error.problem or ""))]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return None, {}, [yaml_words(str(error))]
    finally:
        loader.dispose()


def _at(line: int, what: Sentence) -> Sentence:
    return say("line %(line)s: %(what)s", line=line, what=what)


def _shown(part: Any) -> str:
    """Return a key as sentences name it: somebody may have pasted a whole file there."""
    text = str(part)
    return text if len(text) <= 64 else f"{text[:60]}…"


def _note_lines(
    node: Any, at: tuple[Any, ...], lines: dict[Any, int], problems: list[Sentence], loader: _Loader
) -> None:
    lines.setdefault(at, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: set[Any] = set()
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "?"
            if name in seen:
                again = say("%(name)s stands here a second time", name=_shown(name))
                problems.append(_at(key.start_mark.line + 1, again))
            seen.add(name)
            lines[(*at, name)] = key.start_mark.line + 1
            _note_lines(value, (*at, name), lines, problems, loader)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _note_lines(value, (*at, index), lines, problems, loader)


def read_courses(text: str) -> Policy:
    """Return the policy that a course file states.

    Raises
    ------
    Refused
        ``invalid``: everything that is wrong, a line each, with the line in the file.
    """
    file, problems = _read(text)
    if file is None:
        raise Refused("invalid", lines_of(problems))
    return _policy(file)


def course_problems(text: str) -> list[Sentence]:
    """Return everything that is wrong in a course file, each with its line, as sentences that can be translated."""
    return _read(text)[1]


def _read(text: str) -> tuple[CourseFile | None, list[Sentence]]:
    """Return the file's content, or None and what is wrong."""
    if len(text) > LARGEST_FILE:
        return None, [
            say("The file has %(n)s characters; at most %(most)s are read.", n=len(text), most=LARGEST_FILE)
        ]
    content, lines, problems = _load(text)
    file = None
    if not problems:
        try:
            file = CourseFile.model_validate(content if content is not None else {})
        except pydantic.ValidationError as error:
            problems = [_problem(entry, lines) for entry in error.errors()]
    if file is not None:
        problems = _twice(file, lines)
    return (None if problems else file), list(dict.fromkeys(problems))


def _problem(entry: Mapping[str, Any], lines: Mapping[tuple[Any, ...], int]) -> Sentence:
    # Pydantic's location has parts that are not in the file, such as "[key]".
    at: tuple[Any, ...] = ()
    for part in entry["loc"]:
        if (*at, part) in lines:
            at = (*at, part)
    name = ".".join(_shown(part) for part in at) or say("the file")
    what, given = entry_words(entry)
    if given:
        what = say("%(what)s, not %(given)s", what=what, given=given)
    return _at(lines.get(at, 1), say("%(name)s: %(what)s", name=name, what=what))


def _twice(file: CourseFile, lines: Mapping[tuple[Any, ...], int]) -> list[Sentence]:
    problems = []
    for name, course in file.courses.items():
        seen = set(course.instructors)
        for index, person in enumerate(course.students):
            if person in seen:
                line = lines.get(("courses", name, "students", index), 1)
                already = say("%(person)s is in course %(course)s already", person=person, course=name)
                problems.append(_at(line, already))
            seen.add(person)
        found: set[Reservation] = set()
        for index, entry in enumerate(course.reservations):
            if (reservation := entry.reservation(name)) in found:
                line = lines.get(("courses", name, "reservations", index), 1)
                again = say("course %(course)s has this reservation already", course=name)
                problems.append(_at(line, again))
            found.add(reservation)
    return problems


def _policy(file: CourseFile) -> Policy:
    quotas: dict[Subject, Bounds] = {}

    def add(subject: Subject, limits: Limits | None) -> None:
        if limits is not None and (bounds := limits.bounds()).given():
            quotas[subject] = bounds

    add(Subject("pool"), file.pool)
    add(Subject("course"), file.without_course)
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
    return Policy(
        courses,
        quotas,
        when,
        reservations=tuple(sorted(reservations)),
        timezone=file.timezone,
        half_life=HALF_LIFE if file.half_life is None else file.half_life,
        notice=NOTICE if file.notice is None else file.notice,
        least_run=LEAST_RUN if file.least_run is None else file.least_run,
    )


def write_courses(policy: Policy) -> str:
    """Return the course file that states this policy; reading it gives the same policy back."""

    def limits(subject: Subject) -> dict[str, Any] | None:
        bounds = policy.quotas.get(subject)
        if bounds is None:
            return None
        return {
            name: _plain(value)
            for name, ours in BOUNDS.items()
            if (value := getattr(bounds, ours)) is not None
        }

    content: dict[str, Any] = {}
    if policy.term_begins:
        content["term_begins"] = datetime.date.fromtimestamp(policy.term_begins)
    if policy.timezone:
        content["timezone"] = policy.timezone
    for name, usual in (("half_life", HALF_LIFE), ("notice", NOTICE), ("least_run", LEAST_RUN)):
        if (seconds := getattr(policy, name)) != usual:
            content[name] = _plain(seconds)
    if pool := limits(Subject("pool")):
        content["pool"] = pool
    if outside := limits(Subject("course")):
        content["without_course"] = outside
    people = {s.person: limits(s) for s in policy.quotas if s.kind == "person"}
    if people:
        content["people"] = dict(sorted(people.items()))
    for name, course in sorted(policy.courses.items()):
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
        if reserved := [plain(one) for one in policy.reservations if one.course == name]:
            entry["reservations"] = reserved
        content.setdefault("courses", {})[name] = entry
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True) if content else "{}\n"


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) else value
