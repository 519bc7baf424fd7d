"""Servers as jobs of a real Slurm, with slices of a pool that they reach over TCP."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("batchspawner")

from tests import slurm
from tests.conftest import Pool, eventually
from tests.hub.hub import Hub, environment_of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing() or "-")]
COURSES = "courses: {hpc: {students: [root], offers: [V100 x 0.1], environments: [wide, narrow]}}\n"


@pytest.fixture
def cluster() -> Iterator[slurm.Cluster]:
    with slurm.cluster_of() as running:
        yield running


def token_of_the_job() -> str:
    """The pool's token in the environment of the process that Slurm started."""
    for process in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = dict(line.split("=", 1) for line in process.read_text().split("\0") if "=" in line)
        except OSError:
            continue
        if "SLURM_JOB_ID" in environment and "GPUKERNEL_POOL_TOKEN" in environment:
            return environment["GPUKERNEL_POOL_TOKEN"]
    return ""


def test_a_server_is_a_job_and_its_slices_end_with_it(
    cluster: slurm.Cluster, own_pool: Pool, home: Path
) -> None:
    home.mkdir()
    (home / "courses.yaml").write_text(COURSES)
    assert own_pool.gpukernel("quota", "import", str(home / "courses.yaml")).returncode == 0
    environment = environment_of(own_pool.state, home)
    environment |= {"SLURM_CONF": cluster.environment["SLURM_CONF"]}
    environment["PATH"] += f"{os.pathsep}/usr/sbin"
    # Jobs run as the account of their person; here everything is root's, so no sudo is needed.
    extra = f"""
import batchspawner
c.Spawner.env_keep = ["PATH", "LANG", "SLURM_CONF", "GPUKERNEL_NATIVE_DIR"]
c.BatchSpawnerBase.exec_prefix = ""
c.BatchSpawnerBase.req_homedir = "{home}"
c.BatchSpawnerBase.batchspawner_singleuser_cmd = "{Path(sys.executable).parent}/batchspawner-singleuser"
c.SlurmSpawner.req_prologue = "export HOME={home}"
c.Spawner.ip = "127.0.0.1"
c.Authenticator.blocked_users = set()
"""
    options = {
        "pool": own_pool.address,
        "environments": {"wide": {"req_nprocs": "2"}, "narrow": {"req_nprocs": "1"}},
    }
    with Hub(home, environment, options, extra=extra, spawner="batchspawner.SlurmSpawner") as hub:
        hub.start_server("root", {"course": "hpc", "environment": "narrow"})
        assert cluster.jobs() == ["RUNNING"]
        shown = cluster.ask("scontrol", "show", "job")
        assert "NumCPUs=1" in shown
        single = hub.server("root")
        started = single.start_kernel("gpu-v100-0.1")
        assert started.status_code == 201, started.text
        (lease,) = own_pool.live()
        assert (lease.holder.person, lease.holder.course) == ("root", "hpc")
        # Neither the job's script nor what Slurm shows of it has the token.
        token = token_of_the_job()
        assert token.startswith("gpk")
        assert token not in shown
        assert all(token not in path.read_text(errors="replace") for path in cluster.home.rglob("script"))
        # The job is cancelled behind the Hub's back.
        cluster.ask("scancel", "--user=root")
        eventually(lambda: own_pool.live() == [], 90)
