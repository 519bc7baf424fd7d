"""Podman, the files of an image, and pools whose CDI file is there."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Pool
from tests.engines.containers.podman import RUNTIME_FOLDER, Podman, root_filesystem, running_podman


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    yield from running_podman()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return root_filesystem(tmp_path / "image")


@contextlib.contextmanager
def cdi_file(pool: Pool, *options: str) -> Iterator[Pool]:
    file = RUNTIME_FOLDER / f"gpukernel-{uuid.uuid4().hex}.json"
    made = pool.gpukernel("cdi", "--output", str(file), *options)
    assert made.returncode == 0, made.stderr
    try:
        yield pool
    finally:
        file.unlink()


@pytest.fixture
def pool(own_pool: Pool) -> Iterator[Pool]:
    """A pool whose CDI file is there: a container starts with its slice or not at all."""
    with cdi_file(own_pool, "--at-start", "--wait", "2") as pool:
        yield pool


@pytest.fixture
def asked_pool(own_pool: Pool) -> Iterator[Pool]:
    """The same, and containers ask for their slice when they first use CUDA."""
    with cdi_file(own_pool) as pool:
        yield pool
