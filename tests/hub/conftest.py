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


@pytest.fixture
def hub(own_pool: Pool, home: Path) -> Iterator[Hub]:
    """A Hub of a test's own, on a pool of its own with one V100 and the courses above."""
    home.mkdir()
    (home / "courses.yaml").write_text(COURSES)
    environment = environment_of(own_pool.state, home)
    imported = own_pool.gpukernel("quota", "import", str(home / "courses.yaml"))
    assert imported.returncode == 0, imported.stderr
    options = {"pool": own_pool.address, "courses": str(home / "courses.yaml")}
    with Hub(home, environment, options, groups={"ml101": ["carl"]}) as running:
        yield running
