from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Pool
from tests.engines.kubernetes.cluster import Cluster, running_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster with a namespace for the test."""
    with running_cluster(tmp_path) as cluster:
        yield cluster


def lent(pool: Pool, devices: int = 1) -> Pool:
    """Let Kubernetes decide over the first devices of a pool."""
    for number in range(devices):
        label = next(one.label for one in pool.devices() if one.index == number)
        given = pool.gpukernel("server", "delegate", label, "--to", "kubernetes")
        assert given.returncode == 0, given.stderr
    return pool


@pytest.fixture
def pool(own_pool: Pool) -> Pool:
    """A pool with one V100 that Kubernetes decides over."""
    return lent(own_pool)
