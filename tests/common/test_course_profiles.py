"""courses.yaml: what a JupyterHub needs of a course, and what is said about what is wrong in it."""

from __future__ import annotations

import pytest

from gpukernel.common.course import Offered, Profile
from gpukernel.common.course_file import read_courses, write_courses
from gpukernel.common.errors import Refused

COURSES = """
courses:
  ml101:
    title: Machine learning
    term: autumn 2026
    groups: [ml101]
    instructor_groups: [ml101-staff]
    instructors: [prof]
    offers: [V100 x 0.25, "0.5", V100 x 1 batch, 0.5 scavenger]
    environments: [PyTorch]
    start: on_first_use
    notebooks: [/srv/ml101]
    priority: batch
    quota: {devices: 1.0}
    each_student: {largest_slice: 0.5, leases: 1}
  phys:
    students: "*"
"""


def test_a_course_file_with_everything_that_jupyterhub_needs_is_read_and_written_back() -> None:
    policy = read_courses(COURSES)
    assert policy.courses["ml101"].profile == Profile(
        "autumn 2026",
        ("ml101",),
        ("ml101-staff",),
        (Offered(0.25, "V100"), Offered(0.5), Offered(1.0, "V100", "batch"), Offered(0.5, "", "scavenger")),
        ("PyTorch",),
        "on_first_use",
        ("/srv/ml101",),
        "batch",
    )
    assert read_courses(write_courses(policy)) == policy


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("offers: [V100 x 2]", "line 4: courses.a.offers.0: write an offer as V100 x 0.02"),
        ("offers: [huge]", "write an offer as V100 x 0.02"),
        ("offers: [V100 x 1 urgent]", "and a class behind it, as in V100 x 1 batch"),
        ("priority: urgent", "a class is one of interactive, batch, scavenger"),
        ("start: later", "a slice is asked for at_start or on_first_use"),
        ("notebooks: [../x]", "write the whole path"),
        ("groups: ['']", "a name has 1 to 256 printable characters"),
    ],
)
def test_what_is_wrong_in_a_profile_is_said_with_its_line(line: str, sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        read_courses(f"\ncourses:\n  a:\n    {line}\n")
    assert sentence in str(refused.value)
    assert "line 4" in str(refused.value)
