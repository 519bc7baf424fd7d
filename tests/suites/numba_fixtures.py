"""What numba-cuda's tests expect of the conftest that stands in its repository and not in its wheel."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request: pytest.FixtureRequest) -> None:
    request.cls._dump_failed_filechecks = False
