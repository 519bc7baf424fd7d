"""Servers of a Hub that Slurm takes the node from: for a job of a better QOS, at once, with a time of grace, or by suspending them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

pytest.importorskip("batchspawner")

from tests import slurm, slurm_accounting
from tests.conftest import eventually
from tests.hub.slurm.site import Site, cluster_with_shards, site_on

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("GPUKERNEL_SLURM") != "1", reason="make slurm runs these, on a quiet machine."
    ),
]

# Partition "gpu" lends no processor twice; so whoever wants the whole node there takes it from somebody.
ENVIRONMENTS = {
    "spot": {"req_partition": "gpu", "req_qos": "spot"},
    "spot again": {"req_partition": "gpu", "req_qos": "requeued", "req_options": "--requeue"},
    "spot slice": {"req_partition": "gpu", "req_qos": "spot", "req_gres": "shard:10"},
    "patient": {"req_partition": "gpu", "req_qos": "patient"},
}
CONF = "PreemptType=preempt/qos\nPreemptMode=CANCEL\n"
WAY = "had to make way for a job of higher priority"


@pytest.fixture(scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if missing := slurm.missing() or slurm_accounting.missing():
        pytest.skip(missing)
    with cluster_with_shards(CONF, accounting=True) as cluster:
        books = cluster.accounting
        assert books is not None
        books.must("sacctmgr", "-i", "add", "account", "teaching", "Description=x", "Organization=y")
        books.must("sacctmgr", "-i", "add", "user", "root", "account=teaching")
        for name, *settings in (
            ("spot", "PreemptMode=cancel"),
            ("requeued", "PreemptMode=requeue"),
            ("patient", "PreemptMode=cancel", "GraceTime=20"),
        ):
            books.must("sacctmgr", "-i", "add", "qos", name, *settings)
        books.must("sacctmgr", "-i", "modify", "qos", "normal", "set", "Preempt=spot,requeued,patient")
        books.must("sacctmgr", "-i", "modify", "user", "root", "set", "qos=normal,spot,requeued,patient")
        with site_on(cluster, tmp_path_factory.mktemp("hub"), ENVIRONMENTS) as running:
            yield running


@pytest.fixture
def site(_site: Site) -> Iterator[Site]:
    yield _site
    _site.tidy()


def urgent(site: Site, *options: str) -> str:
    """Submit the job of a better QOS that takes the node, and return its number."""
    words = ["sbatch", "--parsable", "--partition=gpu", "--qos=normal", "--output=/dev/null", *options]
    return site.cluster.ask(*words, "--wrap=sleep 600").strip()


def state_of(site: Site, job: str) -> str:
    return site.cluster.ask("squeue", "--noheader", f"--jobs={job}", "--format=%T").strip()


def told(site: Site) -> str:
    return site.page().replace("&#39;", "'")


@pytest.mark.parametrize("environment", ["spot", "patient"])
def test_a_preempted_servers_slices_are_given_back_and_its_person_reads_why(
    site: Site, environment: str
) -> None:
    job = site.start(environment)
    lease = site.lease()
    other = urgent(site, "--exclusive")
    why = f"Slurm's job {job}, in which it ran, {WAY}"
    assert site.end_of(lease) in ("the kernel was shut down", f"its server ended: {why}")
    eventually(lambda: site.hub.running() == set(), 60)
    assert f"Your last server ended: {why}." in told(site)
    eventually(lambda: state_of(site, other) == "RUNNING", 60)
    assert site.jobs() == [other]
    # The next start is an ordinary one, once there is room.
    site.cluster.ask("scancel", other)
    eventually(lambda: site.jobs() == [], 60)
    assert site.start(environment) != job
    site.lease()


def test_a_preempted_server_that_slurm_would_start_again_is_ended(site: Site) -> None:
    job = site.start("spot again")
    lease = site.lease()
    other = urgent(site, "--exclusive")
    why = f"Slurm put its job {job} back into the queue, since its node failed or somebody had precedence"
    assert site.end_of(lease) in ("the kernel was shut down", f"its server ended: {why}")
    eventually(lambda: site.hub.running() == set(), 60)
    eventually(lambda: site.jobs() == [other], 60)
    assert why in told(site)


def test_a_preempted_servers_shards_are_the_next_jobs(site: Site) -> None:
    job = site.start("spot slice")
    (lease,) = eventually(site.pool.live, 30)
    assert lease.decided_by == "slurm"
    other = urgent(site, "--gres=shard:100")
    eventually(lambda: site.hub.running() == set(), 60)
    (next_one,) = eventually(lambda: [one for one in site.pool.live() if one.id != lease.id], 60)
    assert next_one.slices[0].memory_bytes > 9 * lease.slices[0].memory_bytes
    assert state_of(site, other) == "RUNNING"
    assert f"Slurm's job {job}, in which it ran, {WAY}" in told(site)


def test_a_server_that_slurm_suspends_is_ended_and_its_slice_released(site: Site) -> None:
    job = site.start("spot")
    lease = site.lease()
    site.cluster.ask("scontrol", "suspend", job)
    why = f"Slurm's job {job}, in which it ran, was suspended, and so ended"
    assert site.end_of(lease) in ("the kernel was shut down", f"its server ended: {why}")
    eventually(lambda: site.hub.running() == set(), 60)
    eventually(lambda: site.jobs() == [], 60)
    assert f"Your last server ended: {why}." in told(site)
