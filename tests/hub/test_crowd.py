"""Twenty students at once, through a real Hub: what two hundred do in ``python -m benchmarks hub``."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Pool, eventually
from tests.hub.crowd import LIGHT, Crowd, Student, courses_yaml
from tests.hub.hub import Hub, environment_of
from tests.hub.test_servers import opened

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STUDENTS = 20


def class_of(number: int) -> list[Student]:
    """Two of three are in the big course."""
    return [Student(f"s{i:03}", "small" if i % 3 == 2 else "big", "light") for i in range(number)]


@pytest.fixture
def students() -> list[Student]:
    return class_of(STUDENTS)


@pytest.fixture
def crowded(own_pool: Pool, home: Path, students: list[Student]) -> Iterator[Hub]:
    home.mkdir()
    courses = {course: [one.name for one in students if one.course == course] for course in ("big", "small")}
    (home / "courses.yaml").write_text(courses_yaml(courses))
    imported = own_pool.gpukernel("quota", "import", str(home / "courses.yaml"))
    assert imported.returncode == 0, imported.stderr
    options = {"pool": own_pool.address, "environments": {"light": LIGHT}}
    with Hub(home, environment_of(own_pool.state, home), options) as running:
        yield running


def test_twenty_students_of_two_courses_share_few_slices_fairly_and_without_an_error(
    crowded: Hub, own_pool: Pool, students: list[Student]
) -> None:
    crowd = Crowd(crowded, own_pool.address, students, "gpu-v100-0.2", within=5, hold=3)
    crowd.run()
    assert [student.error for student in students if student.error] == []
    assert len(crowd.leases) == STUDENTS  # nobody had two
    assert crowd.lost() == []
    assert crowd.most_waiting > 0
    leads = crowd.leads()
    assert leads
    assert max(leads) <= 0
    assert {one.person for one in opened(own_pool)} == {student.name for student in students}


@pytest.mark.thorough
def test_a_hub_that_is_killed_while_twenty_servers_run_has_lost_and_doubled_nothing(
    crowded: Hub, own_pool: Pool, students: list[Student]
) -> None:
    Crowd(crowded, own_pool.address, students, "gpu-v100-0.02", within=5, hold=0).run()
    assert [student.error for student in students if student.error] == []
    before = {lease.id: lease.holder.person for lease in own_pool.live()}
    assert len(before) == STUDENTS
    servers = {student.name: crowded.pid(student.name) for student in students}
    tokens = opened(own_pool)
    crowded.kill()
    os.kill(int((crowded.home / "proxy.pid").read_text()), signal.SIGTERM)
    crowded.start()
    assert eventually(lambda: crowded.running() == {(student.name, "") for student in students})
    assert {student.name: crowded.pid(student.name) for student in students} == servers
    assert {lease.id: lease.holder.person for lease in own_pool.live()} == before
    assert opened(own_pool) == tokens
    # And each is reached through the new proxy, and knows its kernel.
    for student in students:
        (kernel,) = crowded.server(student.name).ask("GET", "api/kernels").json()
        assert kernel["state"] == "live"
        assert before[kernel["lease_id"]] == student.name
    # Every server that stops takes its own slice with it, and no other.
    crowded.stop_server("s000")
    assert sorted(lease.holder.person for lease in own_pool.live()) == sorted({*before.values()} - {"s000"})
