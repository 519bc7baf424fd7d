"""Servers as jobs of a real Slurm, whose kernels lease from a pool that they reach over TCP."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import websocket

pytest.importorskip("batchspawner")

from tests import slurm
from tests.conftest import eventually
from tests.hub.hub import ServerRefused, Single
from tests.hub.slurm.site import Site, cluster_with_shards, site_on
from tests.jupyter.server import KernelSocket

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing() or "-")]
long = pytest.mark.skipif(
    os.environ.get("GPUKERNEL_SLURM") != "1", reason="make slurm runs these, on a quiet machine."
)


@pytest.fixture(scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with cluster_with_shards() as cluster, site_on(cluster, tmp_path_factory.mktemp("hub")) as running:
        yield running


@pytest.fixture
def site(_site: Site) -> Iterator[Site]:
    yield _site
    _site.tidy()


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
