"""Servers as jobs of a real Slurm, whose kernels lease from a pool that they reach over TCP."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import websocket

pytest.importorskip("batchspawner")

from gpukernel import native
from gpukernel.common.model import Device
from gpukernel.engines.shards.recipe import cli_filter
from tests import slurm
from tests.conftest import Pool, eventually
from tests.engines.slurm.sharing import CONF
from tests.hub.hub import ADMIN, Hub, ServerRefused, Single, environment_of
from tests.jupyter.server import KernelSocket

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing() or "-")]
long = pytest.mark.skipif(
    os.environ.get("GPUKERNEL_SLURM") != "1", reason="make slurm runs these, on a quiet machine."
)
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

    def page(self) -> str:
        """Return the page that somebody sees whose server is not there."""
        session = self.hub.browse("root")
        answer = session.get(f"{self.hub.url}/user/root/lab", headers={"Accept": "text/html"}, timeout=60)
        assert answer.status_code == 424
        return answer.text


@pytest.fixture(scope="module")
def cluster() -> Iterator[slurm.Cluster]:
    with slurm.cluster_of(gpus=1, shards=100, more=CONF) as running:
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


@pytest.fixture(scope="module")
def _site(cluster: slurm.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("hub")
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
        environments = {name: {**changes, "req_homedir": str(home)} for name, changes in ENVIRONMENTS.items()}
        options = {"pool": pool.address, "environments": environments}
        with (
            node_daemon(cluster, pool, device),
            Hub(home, environment, options, extra=extra, spawner="batchspawner.SlurmSpawner") as hub,
        ):
            yield Site(hub, cluster, pool)


@pytest.fixture
def site(_site: Site) -> Iterator[Site]:
    yield _site
    _site.hub.stop_all_servers()
    _site.cluster.ask("scancel", "--user=root")
    eventually(lambda: _site.jobs() == [], 60)


def test_a_server_is_a_job_whose_kernels_lease_and_a_cancelled_job_gives_all_back(site: Site) -> None:
    job = site.start("narrow")
    shown = site.cluster.ask("scontrol", "show", "job")
    assert "NumCPUs=1" in shown
    assert "Requeue=0" in shown
    assert "Account=teaching" in shown
    lease = site.lease()
    # Neither the job's script nor what Slurm shows of it has the token.
    token = environment_of_the_job()["GPUKERNEL_POOL_TOKEN"]
    assert token.startswith("gpk")
    assert token not in shown
    assert all(token not in path.read_text(errors="replace") for path in site.cluster.home.rglob("script"))
    # The job is cancelled behind the Hub's back.
    site.cluster.ask("scancel", job)
    why = f"Slurm's job {job}, in which it ran, was cancelled"
    assert site.end_of(lease) in ("the kernel was shut down", f"its server ended: {why}")
    eventually(lambda: site.hub.running() == set())
    assert f"Your last server ended: {why}." in site.page().replace("&#39;", "'")


def environment_of_the_job() -> dict[str, str]:
    """The environment of a server's process."""
    for process in Path("/proc").glob("[0-9]*/environ"):
        try:
            environment = dict(line.split("=", 1) for line in process.read_text().split("\0") if "=" in line)
        except OSError:
            continue
        if "SLURM_JOB_ID" in environment and "JUPYTERHUB_API_TOKEN" in environment:
            return environment
    raise AssertionError("no process of a server")


@long
def test_a_servers_token_changes_nothing_of_its_spawner_but_the_port(site: Site) -> None:
    site.start("narrow")
    token = environment_of_the_job()["JUPYTERHUB_API_TOKEN"]
    mark = site.hub.home / "mark"
    refused: list[Any] = [
        {"batch_cancel_cmd": f"touch {mark}; scancel {{job_id}}"},  # which the Hub's account would run
        {"port": 1, "batch_query_cmd": f"touch {mark}"},
        {"accounts": {}},
        *({"port": port} for port in ("8888", 0, 65536, True, None)),
        [],
    ]
    for told in refused:
        answer = site.hub.ask("POST", "/batchspawner", told, token=token)
        assert (answer.status_code, "tells its port" in answer.text) == (400, True), told
    site.hub.stop_server("root")
    assert not mark.exists()


SEEN = """
import os
from cuda.bindings import driver as d
d.cuInit(0)
print("GPUKERNEL_POOL" in os.environ, "GPUKERNEL_POOL_TOKEN" in os.environ, d.cuDeviceTotalMem(d.cuDeviceGet(0)[1])[1] >> 20)
"""


def run(single: Single, code: str) -> str:
    """Run code in an ordinary kernel of a server, and return what it shows."""
    made = single.start_kernel("python3")
    assert made.status_code == 201, made.text
    address = f"{single.url.replace('http', 'ws', 1)}api/kernels/{made.json()['kernel']['id']}/channels"
    header = {"Authorization": f"token {single.token}"}
    link = websocket.create_connection(address, timeout=60, suppress_origin=True, header=header)
    try:
        return KernelSocket(link).run(code)
    finally:
        link.close()


@long
def test_a_job_with_shards_is_a_server_whose_ordinary_kernels_have_the_jobs_slice(site: Site) -> None:
    job = site.start("slice")
    assert run(site.hub.server("root"), SEEN) == "False False 3276\n"  # a tenth of a V100
    (lease,) = site.pool.live()  # and nothing was leased besides
    assert (lease.holder.person, lease.decided_by) == ("root", "slurm")
    site.cluster.ask("scancel", job)
    site.end_of(lease.id)
    eventually(lambda: site.hub.running() == set(), 60)
    assert f"Slurm's job {job}, in which it ran, was cancelled" in site.page().replace("&#39;", "'")


@long
def test_a_server_that_is_stopped_or_culled_ends_its_job_and_its_slices(site: Site) -> None:
    site.start("narrow")
    lease = site.lease()
    site.hub.stop_server("root")
    assert site.end_of(lease) in ("the kernel was shut down", "its server was stopped")
    eventually(lambda: site.jobs() == [], 60)
    assert "Your last server ended" not in site.page()


@long
def test_a_job_that_slurm_puts_back_into_its_queue_is_ended(site: Site) -> None:
    job = site.start("again")  # whatever an administrator's options say
    lease = site.lease()
    site.cluster.ask("scontrol", "requeue", job)
    why = f"Slurm put its job {job} back into the queue, since its node failed or somebody had precedence"
    assert site.end_of(lease) in ("the kernel was shut down", f"its server ended: {why}")
    eventually(lambda: site.jobs() == [], 60)
    eventually(lambda: site.hub.running() == set())
    assert why in site.page().replace("&#39;", "'")
    # Its next start is an ordinary one.
    assert site.start("narrow") != job
    site.lease()


@long
def test_what_slurm_says_no_with_is_what_the_person_reads(site: Site) -> None:
    with pytest.raises(ServerRefused, match="Slurm refused your server: Invalid partition name specified"):
        site.start("nowhere")
    assert site.jobs() == []


@long
def test_whoever_waits_in_slurms_queue_reads_why_and_nothing_is_left_when_it_takes_too_long(
    site: Site,
) -> None:
    with pytest.raises(ServerRefused) as refused:
        site.start("later")
    assert re.search(
        r"Your server waits in Slurm's queue \(job \d+\): it is to start later \(BeginTime\)\. That took more than \d+ s\.",
        str(refused.value),
    )
    eventually(lambda: site.jobs() == [], 60)
