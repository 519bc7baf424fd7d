from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpukernel.client.engines import EngineClient
from tests.conftest import Pool
from tests.engines.kubernetes.cluster import REAL, Cluster, running_cluster
from tests.engines.kubernetes.control_plane import NEEDED, PROGRAMS, ControlPlane, running_control_plane


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
def lent_pool() -> Iterator[Pool]:
    """A pool with two V100 of 32 GiB, over one of which Kubernetes decides."""
    with Pool("v100:2", tcp_host="127.0.0.1") as pool:
        yield lent(pool)


@pytest.fixture
def pool(lent_pool: Pool) -> Iterator[Pool]:
    """The same, without leases; what a test leaves is released."""
    yield lent_pool

    async def release() -> None:
        async with EngineClient(lent_pool.address) as client:
            client.engine = "kubernetes"
            await asyncio.gather(*(client.release_placed(one.key) for one in await client.placed()))

    asyncio.run(release())


@pytest.fixture(scope="package", autouse=True)
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane | None]:
    """The control plane of the programs of ``GPUKERNEL_TEST_KUBERNETES``, which every test of the package sees then; else None."""
    if not os.environ.get(PROGRAMS):
        yield None
        return
    with running_control_plane(tmp_path_factory.mktemp("control-plane")) as plane:
        os.environ[REAL] = str(plane.kubeconfig)
        yield plane
        del os.environ[REAL]


@pytest.fixture
def plane(control_plane: ControlPlane | None) -> ControlPlane:
    """The same, for tests of what only Kubernetes itself can show."""
    if control_plane is None:
        pytest.skip(f"needs {PROGRAMS}=FOLDER with {', '.join(NEEDED)} of Kubernetes 1.36 or newer")
    return control_plane
