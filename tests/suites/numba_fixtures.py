"""The fixtures that numba-cuda's tests expect from the conftest in its repository, which is not in its wheel."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    # nvJitLink has to be absent where PTX is wanted, and a test counts every warning.
    config.addinivalue_line(
        "filterwarnings", "ignore:cuda.bindings.nvjitlink is not available:RuntimeWarning"
    )


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request: pytest.FixtureRequest) -> None:
    request.cls._dump_failed_filechecks = False
