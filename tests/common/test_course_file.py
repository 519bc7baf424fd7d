"""courses.yaml: what it says, and what is said about what is wrong in it."""

from __future__ import annotations

import datetime

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpukernel.common.bounds import Bounds, Subject
from gpukernel.common.course import Course
from gpukernel.common.course_entries import BOUNDS, courses_schema, parse_bound
from gpukernel.common.course_file import read_courses, write_courses
from gpukernel.common.errors import Refused
from gpukernel.common.policy import HALF_LIFE, Policy

WHOLE = """\
term_begins: 2026-09-01
half_life: 3d
notice: 5min
least_run: 1h
pool:
  gpu_hours_per_day: 100
people:
  "*": {leases: 4}
  anna: {memory: 32GiB}
courses:
  ml101:
    title: Machine learning
    weight: 2
    instructors: [prof]
    students: [anna, ben]
    quota: {devices: 1.0, longest_lease: 2h, idle: 20min}
    each_student: {largest_slice: 0.05}
  open:
    students: "*"
"""


def test_a_file_says_courses_members_and_all_four_levels() -> None:
    policy = read_courses(WHOLE)
    assert policy.courses == {
        "ml101": Course(
            "ml101",
            "Machine learning",
            2.0,
            {"anna": "student", "ben": "student", "prof": "instructor"},
        ),
        "open": Course("open", members={"*": "student"}),
    }
    assert policy.quotas == {
        Subject("pool"): Bounds(hours_day=100),
        Subject("person", person="*"): Bounds(leases=4),
        Subject("person", person="anna"): Bounds(memory_mib=32768),
        Subject("course", "ml101"): Bounds(devices=1.0, longest_seconds=7200, idle_seconds=1200),
        Subject("student", "ml101"): Bounds(largest_slice=0.05),
    }
    assert datetime.date.fromtimestamp(policy.term_begins) == datetime.date(2026, 9, 1)
    assert (policy.half_life, policy.notice, policy.least_run) == (3 * 86400, 300, 3600)
    assert read_courses("").half_life == HALF_LIFE
    assert read_courses("half_life: 0").half_life == 0
    assert read_courses(write_courses(policy)) == policy


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("courses:\n  a:\n    wieght: 2\n", "line 3: courses.a.wieght: is not known here"),
        (
            "pool:\n  devices: -1\n",
            "line 2: pool.devices: input should be greater than or equal to 0, not -1",
        ),
        ("pool:\n  devices: .nan\n", "line 2: pool.devices"),
        ("pool:\n  largest_slice: 1.0000001\n", "line 2: pool.largest_slice"),
        ("pool:\n  longest_lease: soon\n", "line 2: pool.longest_lease: write a time as 90s, 30min or 2h"),
        ("pool:\n  memory: 3 apples\n", "line 2: pool.memory: write memory as 2048 (MiB) or 32GiB"),
        ("pool:\n  leases: 1.5\n", "line 2: pool.leases"),
        ("pool: 7\n", "line 1: pool: has entries of its own"),
        ("courses:\n  a:\n    weight: 0\n", "line 3: courses.a.weight"),
        ("courses:\n  a b: {}\n", "line 2: courses.a b: a course's name has 1 to 64"),
        (f"courses:\n  {'x' * 65536}: {{}}\n", "line 2: mapping values are not allowed here"),
        (f"courses:\n  ? {'x' * 65536}\n  : {{}}\n", "line 2: courses.xxx"),
        (f"? {'x' * 65536}\n: 1\n? {'x' * 65536}\n: 1\n", "line 3: xxx"),
        ("courses:\n  a:\n    students: anna\n", "line 3: courses.a.students: input should be a valid list"),
        ("courses:\n  a:\n    students: [anna, 7]\n", "line 3: courses.a.students.1"),
        (
            "courses:\n  a:\n    instructors: [p]\n    students:\n    - p\n",
            "line 5: p is in course a already",
        ),
        ("pool: {}\npool: {}\n", "line 2: pool stands here a second time"),
        ("pool: &a {}\npeople: {x: *a}\n", "line 1: references are not used"),
        ("[" * 5000, "nested too deeply"),
        ("pool: [\n", "line 2"),
        ("- 1\n", "line 1: the file: has entries of its own"),
        ("pool: {}\n#\0", "line 2: the character U+0000 cannot stand in a file"),
        (f"pool: {{memory: {'9' * 400}GiB}}", "line 1: pool.memory: input should be a finite number"),
        ("pool: {leases: !!bool maybe}", "line 1: there is no such date, time or number"),
        ("term_begins: 2026-02-30", "line 1: there is no such date, time or number"),
        ("!!python/object/apply:os.system ['true']\n", "line 1"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, words: str) -> None:
    with pytest.raises(Refused) as refusal:
        read_courses(text)
    assert words in str(refusal.value)
    assert len(str(refusal.value)) < 2000


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(Refused) as refusal:
        read_courses("pool: {devices: -1, x: 1}\ncourses:\n  a: {weight: -1}\n")
    assert [line.split(":")[0] for line in str(refusal.value).splitlines()] == ["line 1", "line 1", "line 3"]


def test_an_empty_file_means_no_courses_and_no_quotas() -> None:
    assert read_courses("") == read_courses(write_courses(Policy())) == Policy()


_names = st.text("abcdefgh.-_", min_size=1, max_size=8)
_bounds = st.builds(
    Bounds,
    devices=st.none() | st.floats(0, 100),
    memory_mib=st.none() | st.integers(0, 10**6),
    leases=st.none() | st.integers(0, 1000),
    hours_week=st.none() | st.floats(0, 1e4),
    longest_seconds=st.none() | st.floats(1, 1e6),
    largest_slice=st.none() | st.floats(0.001, 1),
    idle_seconds=st.none() | st.integers(0, 10**5).map(float),
)


@given(
    st.dictionaries(
        _names,
        st.tuples(
            st.floats(0.1, 10),
            st.dictionaries(_names, st.sampled_from(["student", "instructor"]), max_size=4),
            _bounds,
        ),
        max_size=4,
    ),
    st.dictionaries(_names, _bounds, max_size=3),
)
def test_what_is_written_reads_back_the_same(
    courses: dict[str, tuple[float, dict[str, str], Bounds]], people: dict[str, Bounds]
) -> None:
    quotas = {Subject("course", name): bounds for name, (_, _, bounds) in courses.items()}
    quotas |= {Subject("person", person=name): bounds for name, bounds in people.items()}
    policy = Policy(
        {name: Course(name, "", weight, members) for name, (weight, members, _) in courses.items()},
        {subject: bounds for subject, bounds in quotas.items() if bounds.given()},
    )
    assert read_courses(write_courses(policy)) == policy


def test_bounds_of_a_command_line() -> None:
    assert parse_bound("longest_lease", "2h") == ("longest_seconds", 7200)
    assert parse_bound("memory", "1GiB") == ("memory_mib", 1024)
    assert parse_bound("devices", "none") == ("devices", None)
    assert parse_bound("idle", "0") == ("idle_seconds", 0)  # never
    wrong = [("devices", "-1"), ("devices", "nan"), ("device", "1"), ("leases", "x"), ("idle", "")]
    # What would come to nothing by rounding, or take every slice at once.
    for name, text in (*wrong, ("idle", "0.00000001"), ("idle", "0.5s"), ("memory", "0.00000001")):
        with pytest.raises(Refused):
            parse_bound(name, text)
    assert set(BOUNDS.values()) == set(Bounds.__dataclass_fields__)


def test_the_schema_accepts_what_is_read_and_refuses_what_is_not() -> None:
    import jsonschema

    check = jsonschema.Draft202012Validator(courses_schema())
    good = yaml.safe_load(
        """
        timezone: Europe/Berlin
        pool: {memory: 64GiB, idle: 2h}
        people: {"*": {leases: 4}}
        courses:
          ml101:
            students: "*"
            offers: [V100 x 0.02, 0.5]
            reservations: [{days: [tue, thu], from: "10:00", to: "12:00", devices: 1.5}]
            each_student: {longest_lease: 30min, largest_slice: 0.1}
        """
    )
    assert list(check.iter_errors(good)) == []
    for bad in (
        {"curses": {}},
        {"courses": {"a": {"quota": {"leases": "many"}}}},
        {"pool": {"largest_slice": 2}},
    ):
        assert list(check.iter_errors(bad)), bad
