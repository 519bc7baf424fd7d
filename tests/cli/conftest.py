from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Pool


@pytest.fixture(scope="package")
def gpu1_pool() -> Iterator[Pool]:
    """A pool whose GPU server is called gpu1."""
    with Pool("v100:2", options=("--name", "gpu1")) as pool:
        yield pool
