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


@pytest.fixture(scope="package")
def pool() -> Iterator[Pool]:
    """A pool with two V100, over one of which Kubernetes decides.  Leases of the test before are released by the next controller."""
    with Pool("v100:2", tcp_host="127.0.0.1") as pool:
        yield lent(pool)
