"""Slurm's commands, against a real Slurm with two nodes of two GPUs each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpukernel.engines.slurm.commands import Slurm, SlurmAway, SlurmRefused
from tests import slurm
from tests.conftest import eventually

pytestmark = pytest.mark.slow
SLEEP = """#!/bin/sh
trap 'echo told; exit 0' TERM
echo "token ${GPUKERNEL_POOL_TOKEN:-none}, on ${SLURMD_NODENAME}, $SLURM_GPUS_ON_NODE GPUs"
sleep 300 & wait
"""


@pytest.fixture
def commands(cluster: slurm.Cluster) -> Slurm:
    return Slurm({**cluster.environment, "GPUKERNEL_POOL_TOKEN": "secret", "HOME": "/"})


def options(name: str, out: Path, *more: str) -> list[str]:
    wanted = ["--partition=gpu", "--gres=gpu:2", "--time=5", f"--output={out}", f"--job-name={name}"]
    return [*wanted, "--chdir=/", *more]


def test_jobs_are_asked_for_listed_told_and_cancelled(
    cluster: slurm.Cluster, commands: Slurm, tmp_path: Path
) -> None:
    async def ask(name: str) -> str:
        return await commands.submit(SLEEP, options(name, tmp_path / name))

    first, second, third = (asyncio.run(ask(f"test.{number}")) for number in range(3))
    asyncio.run(ask("other.0"))

    def jobs() -> dict[str, str]:
        return {job.id: job.state for job in asyncio.run(commands.jobs("test."))}

    eventually(lambda: jobs() == {first: "RUNNING", second: "RUNNING", third: "PENDING"}, 60)
    running, waiting = (asyncio.run(commands.job(one)) for one in (first, third))
    assert running is not None
    assert waiting is not None
    assert (running.ends - running.starts, running.restarts, running.is_queued) == (300, 0, False)
    assert first in asyncio.run(commands.jobs_on(running.nodes))
    assert third not in asyncio.run(commands.jobs_on(running.nodes))
    assert asyncio.run(commands.setting("ClusterName")) == "gpukernel"
    assert (waiting.is_queued, waiting.is_over, waiting.nodes) == (True, False, "")
    assert waiting.reason in ("Resources", "Priority")
    out = tmp_path / "test.0"
    eventually(lambda: out.exists() and "GPUs" in out.read_text())
    assert out.read_text() == f"token none, on {running.nodes}, 2 GPUs\n"
    asyncio.run(commands.terminate(first))
    eventually(lambda: jobs()[first] == "COMPLETED")
    assert out.read_text().endswith("told\n")
    for one in (first, second, third):  # the first one is over
        asyncio.run(commands.terminate(one) if one == first else commands.cancel(one))
    eventually(lambda: all(job.is_over for job in asyncio.run(commands.jobs("test."))))
    assert asyncio.run(commands.kill_wait()) == 15
    cluster.ask("scancel", "--user=root")


def test_a_refusal_is_a_sentence_and_no_shell_reads_a_name(commands: Slurm, tmp_path: Path) -> None:
    with pytest.raises(SlurmRefused) as refused:
        asyncio.run(commands.submit(SLEEP, options("test", tmp_path / "out", "--partition=$(touch x)")))
    assert str(refused.value) == "Invalid partition name specified"
    with pytest.raises(SlurmRefused, match="Requested node configuration is not available"):
        asyncio.run(commands.submit(SLEEP, options("test", tmp_path / "out", "--gres=gpu:9")))


def test_a_controller_that_is_down_is_no_refusal(
    cluster: slurm.Cluster, commands: Slurm, tmp_path: Path
) -> None:
    cluster.kill_controller()
    try:
        with pytest.raises(SlurmAway):
            asyncio.run(commands.jobs(""))
        with pytest.raises(SlurmAway):
            asyncio.run(commands.submit(SLEEP, options("test", tmp_path / "out")))
    finally:
        cluster.start_controller()
    eventually(lambda: cluster.ask("sinfo", "--noheader") != "", 60)
    with pytest.raises(SlurmRefused, match="sbatch cannot be run here"):
        asyncio.run(Slurm({"PATH": "/nowhere"}).submit(SLEEP, []))
