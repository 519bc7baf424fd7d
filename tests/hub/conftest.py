"""Hubs for tests: one for all that change nothing lasting, and one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Pool
from tests.hub.hub import Hub, environment_of

COURSES = """
courses:
  ml101:
    title: Machine learning
    term: autumn 2026
    instructors: [prof]
    groups: [ml101]
    students: [anna, both]
    offers: [V100 x 0.02, V100 x 0.1]
    each_student: {largest_slice: 0.5}
  phys:
    title: "Physics <script>alert(1)</script>"
    students: [ben, both]
    offers: [V100 x 0.05]
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "hub"


@pytest.fixture(scope="session")
def _one_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, Pool]]:
    home = tmp_path_factory.mktemp("hub")
    (home / "courses.yaml").write_text(COURSES)
    with Pool("v100:1", home / "pool", tcp_host="127.0.0.1") as pool:
        imported = pool.gpukernel("quota", "import", str(home / "courses.yaml"))
        assert imported.returncode == 0, imported.stderr
        options = {"pool": pool.address, "courses": str(home / "courses.yaml")}
        with Hub(home, environment_of(pool.state, home), options, groups={"ml101": ["carl"]}) as running:
            yield running, pool


@pytest.fixture
def hub(_one_for_all: tuple[Hub, Pool]) -> Iterator[Hub]:
    """A Hub on a pool with one V100 and the courses above.  It may be killed and started again: afterwards it is as it was."""
    running, pool = _one_for_all
    yield running
    running.stop_all_servers()
    people = {"users": ["carl"]}
    running.ask("POST", "/groups/ml101/users", people)
    imported = pool.gpukernel("quota", "import", str(running.home / "courses.yaml"))
    assert imported.returncode == 0, imported.stderr


@pytest.fixture
def hub_pool(_one_for_all: tuple[Hub, Pool]) -> Pool:
    """The pool of `hub`."""
    return _one_for_all[1]
