"""A Hub whose servers are jobs of a real Slurm, and the pool from which their kernels lease."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpukernel import native
from gpukernel.common.model import Device
from gpukernel.engines.shards.recipe import cli_filter
from tests import slurm
from tests.conftest import Pool, eventually
from tests.engines.slurm.sharing import CONF
from tests.hub.hub import ADMIN, Hub, environment_of

COURSES = "courses: {hpc: {students: [root], offers: [V100 x 0.1]}}\n"
ENVIRONMENTS = {
    "wide": {"req_nprocs": "2"},
    "narrow": {"req_nprocs": "1"},
    "again": {"req_options": "--requeue"},
    "nowhere": {"req_partition": "nowhere"},
    "later": {"req_options": "--begin=now+1hour"},
    "slice": {"req_gres": "shard:10"},
}
# Jobs run as the account of their person; here everything is root's, so no sudo is needed.
EXTRA = """
import batchspawner
c.Spawner.env_keep = ["PATH", "LANG", "SLURM_CONF", "GPUKERNEL_NATIVE_DIR"]
c.BatchSpawnerBase.exec_prefix = ""
c.BatchSpawnerBase.batchspawner_singleuser_cmd = "{programs}/batchspawner-singleuser"
c.SlurmSpawner.req_prologue = "export HOME={home}"
c.Spawner.ip = "127.0.0.1"
c.Spawner.start_timeout = 60
c.GPUSlurmSpawner.accounts = {{"hpc": "teaching"}}
c.Authenticator.blocked_users = set()
c.Authenticator.admin_users = {{"{admin}"}}
"""


@dataclass
class Site:
    """A Hub whose servers are jobs, their cluster, and the pool of their slices."""

    hub: Hub
    cluster: slurm.Cluster
    pool: Pool

    def start(self, environment: str) -> str:
        """Start root's server and return the number of its job."""
        self.hub.start_server("root", {"course": "hpc", "environment": environment})
        (job,) = self.jobs()
        return job

    def jobs(self) -> list[str]:
        return self.cluster.ask("squeue", "--noheader", "--format=%i").split()

    def lease(self) -> str:
        """Start a kernel on a slice and return its lease."""
        started = self.hub.server("root").start_kernel("gpu-v100-0.1")
        assert started.status_code == 201, started.text
        (lease,) = self.pool.live()
        assert (lease.holder.person, lease.holder.course) == ("root", "hpc")
        return lease.id

    def end_of(self, lease: str) -> str:
        """Return why a lease ended, once it has."""
        eventually(lambda: self.pool.live() == [], 90)
        leases, _ = self.pool.leases(ended=True)
        return next(one.end_reason for one in leases if one.id == lease)

    def tidy(self) -> None:
        """End what a test has left."""
        self.hub.stop_all_servers()
        self.cluster.ask("scancel", "--user=root")
        eventually(lambda: self.jobs() == [], 60)

    def page(self) -> str:
        """Return the page that somebody sees whose server is not there."""
        session = self.hub.browse("root")
        answer = session.get(f"{self.hub.url}/user/root/lab", headers={"Accept": "text/html"}, timeout=60)
        assert answer.status_code == 424
        return answer.text


@contextlib.contextmanager
def cluster_with_shards(more: str = "", *, accounting: bool = False) -> Iterator[slurm.Cluster]:
    """Run a node with one GPU of 100 shards; `more` is for slurm.conf."""
    with slurm.cluster_of(gpus=1, shards=100, more=f"{CONF}{more}", accounting=accounting) as running:
        hook = running.home / "hook"
        hook.write_text(f"#!{native.slurm_hook()} {running.home}/jobs\n")
        hook.chmod(0o755)
        filter_ = cli_filter(running.home / "jobs", simulated=True)
        (running.home / "cli_filter.lua").write_text(filter_)
        yield running


@contextlib.contextmanager
def node_daemon(cluster: slurm.Cluster, pool: Pool, device: Device) -> Iterator[None]:
    """Run what gives jobs with shards their slices, of one device."""
    words = ["slurm", "node", "--folder", f"{cluster.home}/jobs", "--sweep", "1s", "--pool", pool.address]
    daemon = subprocess.Popen(
        [sys.executable, "-m", "gpukernel.cli", *words, "--server", device.server, "--device", device.uuid],
        env=pool.environment | cluster.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert daemon.stdout is not None
    assert "get their slices" in daemon.stdout.readline()
    try:
        yield
    finally:
        daemon.terminate()
        daemon.communicate(timeout=60)


@contextlib.contextmanager
def site_on(cluster: slurm.Cluster, home: Path, more: Mapping[str, Mapping[str, str]] = {}) -> Iterator[Site]:
    """Run a pool, the node's daemon and a Hub; `more` are environments besides `ENVIRONMENTS`."""
    (home / "courses.yaml").write_text(COURSES)
    with Pool("v100:2", home / "pool", tcp_host="127.0.0.1") as pool:
        device = pool.devices()[1]
        delegated = pool.gpukernel("server", "delegate", device.uuid, "--to", "slurm")
        assert delegated.returncode == 0, delegated.stderr
        assert pool.gpukernel("quota", "import", str(home / "courses.yaml")).returncode == 0
        environment = environment_of(pool.state, home)
        environment |= {"SLURM_CONF": cluster.environment["SLURM_CONF"]}
        environment["PATH"] += f"{os.pathsep}/usr/sbin"
        extra = EXTRA.format(home=home, programs=Path(sys.executable).parent, admin=ADMIN)
        known = {**ENVIRONMENTS, **more}
        environments = {name: {**changes, "req_homedir": str(home)} for name, changes in known.items()}
        options = {"pool": pool.address, "environments": environments}
        with (
            node_daemon(cluster, pool, device),
            Hub(home, environment, options, extra=extra, spawner="batchspawner.SlurmSpawner") as hub,
        ):
            yield Site(hub, cluster, pool)
