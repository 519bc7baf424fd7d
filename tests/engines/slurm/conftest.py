from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import slurm
from tests.engines.slurm.lending import Lending, lending


@pytest.fixture(scope="package")
def cluster() -> Iterator[slurm.Cluster]:
    """A real Slurm: nodes ``n1`` and ``n2`` with two GPUs each."""
    if missing := slurm.missing():
        pytest.skip(missing)
    with slurm.cluster_of(nodes=2, gpus=2) as running:
        yield running


@pytest.fixture
def world(cluster: slurm.Cluster, tmp_path: Path) -> Iterator[Lending]:
    """A pool that borrows from it."""
    with lending(cluster, tmp_path) as world:
        yield world
