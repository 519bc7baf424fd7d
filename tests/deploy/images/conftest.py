"""A builder of images and a pool with TLS for each module: a builder's storage goes with the module's last test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.test_tls import Secured, done
from tests.deploy.images.builder import Builder, running_builder
from tests.hub.conftest import COURSES


@pytest.fixture(scope="module")
def builder() -> Iterator[Builder]:
    with running_builder() as builder:
        yield builder


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A pool with a simulated V100 and H100, and the courses of the Hub's tests."""
    folder = tmp_path_factory.mktemp("images")
    pool = Secured(folder)
    agents = []
    try:
        for name, model in (("gpu1", "v100"), ("gpu2", "h100")):
            file = str(pool.file(name, "--scope", "agent"))
            agents.append(pool.agent("--pool", file, name=name, simulate=model))
        (folder / "courses.yaml").write_text(COURSES)
        admin = str(pool.file("rector", "--scope", "admin"))
        done("quota", "import", str(folder / "courses.yaml"), "--pool", admin)
        yield pool
    finally:
        for agent in agents:
            agent.stop()
        pool.pool.stop()
