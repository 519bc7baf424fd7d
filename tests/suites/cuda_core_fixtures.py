"""The marks of cuda.core's tests, which pytest's settings in its repository name."""

from __future__ import annotations

import pytest

_MARKS = ("agent_authored", "cython", "flaky", "human_authored", "human_reviewed", "smoke", "thread_unsafe")


def pytest_configure(config: pytest.Config) -> None:
    for mark in _MARKS:
        config.addinivalue_line("markers", f"{mark}: of cuda.core's own")
