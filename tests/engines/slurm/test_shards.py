"""Jobs of a real Slurm with ``--gres=shard:N`` have their slice, and nothing is left when they are over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import slurm
from tests.engines.slurm.sharing import CONF, MEMORY, SHARDS, Sharing, sharing

GIB = 2**30


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharing]:
    """One node with two simulated V100 of 100 shards each."""
    if missing := slurm.missing():
        pytest.skip(missing)
    with (
        slurm.cluster_of(nodes=1, gpus=2, shards=SHARDS, more=CONF) as cluster,
        sharing(cluster, tmp_path_factory.mktemp("shards")) as world,
    ):
        yield world


def test_a_job_sees_its_slice_as_the_whole_device(shards: Sharing) -> None:
    done = shards.python(MEMORY, "--gres=shard:2")
    whole = shards.devices()[0].memory_bytes
    assert done.stdout.split() == ["1", str(whole * 2 // 100 // 2**20 * 2**20)], done.stderr + shards.logs()
    shards.until(lambda: shards.leases() == [])
    lease = shards.leases(ended=True)[-1]
    assert (lease.decided_by, lease.holder.person, lease.end_reason) == ("slurm", "root", "its job is over")
