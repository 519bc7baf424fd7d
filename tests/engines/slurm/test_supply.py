"""A supply that lends simulated GPUs of a real Slurm to a real pool."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from gpukernel.client.admin import AdminClient
from gpukernel.common.model import Holder, Lease, Rung, SliceRequest
from tests.conftest import eventually
from tests.engines.slurm.lending import Lending, command

pytestmark = pytest.mark.slow


def both_nodes(world: Lending) -> dict[str, int]:
    world.start("--min", "2")
    return eventually(lambda: (found := world.offered()) and sum(found.values()) == 4 and found, 90) or {}


async def take(client: AdminClient, person: str, share: float) -> Lease:
    return await client.on_behalf_of(person).acquire_now(
        f"key of {person}", SliceRequest(share=share), Holder(person), wait_seconds=60
    )


@pytest.mark.skipif(
    os.environ.get("GPUKERNEL_SLURM") != "1", reason="make slurm runs it, on a quiet machine."
)
def test_a_class_of_fifty_takes_what_two_nodes_lend(world: Lending) -> None:
    assert list(both_nodes(world).values()) == [2, 2]

    async def lesson() -> list[Lease]:
        async with AdminClient(str(world.admin)) as client:
            return await asyncio.gather(*(take(client, f"student{n:02}", 0.07) for n in range(50)))

    leases = asyncio.run(lesson())
    servers = {piece.server for lease in leases for piece in lease.slices}
    assert servers == set(world.offered())
    assert len({piece.uuid for lease in leases for piece in lease.slices}) == 4
    rungs = {rung.name: rung for server in asyncio.run(confinement(world)).values() for rung in server}
    assert (rungs["cgroup"].used, rungs["cgroup"].detail) == (False, "workers stay in the group of the job")
    assert rungs["no-new-privileges"].used
    computing = world.hold("-p", "0.02")
    eventually(lambda: sum(one["leases"] for one in world.status()["jobs"]) == 51)
    shown = [(one["state"], one["node"]) for one in world.status()["jobs"]]
    assert shown == [("serving", "n1"), ("serving", "n2")]
    # Secrets: neither the supply's nor the jobs' are in a command line, a script, or a file that others may read.
    secrets = [path.read_text().partition("token: ")[2].split()[0] for path in world.home.rglob("*.pool")]
    assert len(secrets) == 4
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    scripts = [path.read_bytes() for path in world.cluster.home.rglob("script")]
    scripts = [
        script for script in scripts if str(world.folder).encode() in script
    ]  # Slurm keeps others' for a while
    assert len(scripts) == 2
    logs = [world.log().encode(), *(path.read_bytes() for path in world.folder.glob("*.log"))]
    for secret in secrets:
        assert not any(secret.encode() in text for text in (*commands, *scripts, *logs))
    assert {path.stat().st_mode & 0o077 for path in (world.folder, *world.folder.glob("*.pool"))} == {0}
    computing.communicate("", timeout=60)


async def confinement(world: Lending) -> dict[str, tuple[Rung, ...]]:
    async with AdminClient(str(world.admin)) as client:
        return await client.confinement()


@pytest.mark.thorough
def test_with_no_least_the_first_who_waits_starts_a_job_and_an_idle_one_ends(world: Lending) -> None:
    world.start("--min", "0", "--down-after", "3s")
    nobody = "No job while nobody waits: whoever asks for a Tesla V100-SXM2-32GB (simulated) starts one."
    eventually(lambda: nobody in world.log(), 60)
    world.let_it_look(3)
    assert (world.log().count("No job while nobody waits"), world.jobs()) == (1, {})
    program = world.hold("--filter", "model=V100", "-p", "0.5", "--wait", "5m")
    (server,) = world.offered()
    job = server.partition("-")[2]
    said = world.log()
    assert "1 job for the first who wait: there was none, and 0.5 GPUs' worth is asked for." in said
    assert said.count("was asked for, for") == 1
    program.communicate("", timeout=60)
    eventually(lambda: f"Job {job} is given up: it has had no lease for" in world.log(), 60)
    eventually(lambda: world.jobs() == {}, 120)
    # Another supply knows what the jobs have; the pool does not wait for what it does not know.
    again = world.hold("--filter", "model=V100", "-p", "1", "--wait", "5m")
    again.communicate("", timeout=60)
    refused = subprocess.run(
        command("run", "--pool", str(world.admin), "--filter", "model=A100", "-p", "1", "--wait", "5m", "--", "true"),
        env=world.environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "The pool has no A100" in refused.stderr


def test_a_supply_that_does_not_know_its_gpus_says_how_to_tell_it(world: Lending) -> None:
    words = [word for word in world.words("--min", "0") if word not in ("--simulate", "v100")]
    with (world.home / "supply.log").open("a") as log:
        supply = subprocess.Popen(words, env=world.environment, stdout=log, stderr=log)
    try:
        eventually(lambda: "since it does not know what its jobs' GPUs are: say --gpu" in world.log(), 60)
        world.let_it_look(2)
        assert (world.log().count("does not know"), world.jobs()) == (1, {})
    finally:
        supply.terminate()
        supply.wait(60)


def test_a_job_that_cannot_start_is_named(world: Lending) -> None:
    world.start("--min", "1", "--sbatch=--hold")
    eventually(lambda: "stays in Slurm's queue: JobHeldUser." in world.log(), 60)
    world.let_it_look(3)
    assert (world.log().count("stays in"), world.log().count("was asked for")) == (1, 1)


@pytest.mark.thorough
def test_told_to_end_a_job_tells_who_holds_its_slices_and_the_next_one_is_asked_for(world: Lending) -> None:
    world.start("--min", "1", "--notice", "10m")
    (server,) = eventually(world.offered, 90)
    program = world.hold("-p", "0.5")
    world.cluster.ask("scancel", "--signal=TERM", server.partition("-")[2])
    lease = eventually(lambda: next((one for one in world.ask()[2] if one.notice), None), 60)
    assert lease is not None
    assert lease.notice.startswith("This slice ends at ")
    assert lease.notice.endswith("its GPU server is being drained.")
    # The next one serves while the holder is still there.
    (following,) = eventually(lambda: set(world.offered()) - {server}, 90)
    assert [one.state for one in world.ask()[2]] == ["live"]
    _, told = program.communicate("", timeout=60)
    assert told.count(f"gpukernel: {lease.notice}\n") == 1
    # Nobody is left, so the job does not wait for the time that was said.
    eventually(lambda: set(world.jobs()) == {following.partition("-")[2]}, 60)
    eventually(lambda: f"Job {server.partition('-')[2]} is over (COMPLETED)." in world.log(), 60)
    eventually(lambda: [one.name for one in world.ask()[1]] == [following], 60)  # the pool's list is tidy


@pytest.mark.thorough
def test_a_job_that_comes_and_goes_between_two_looks_has_served(world: Lending) -> None:
    world.start("--min", "1", "--every", "15s")
    (server,) = eventually(world.offered, 90)
    world.cluster.ask("scancel", "--signal=TERM", server.partition("-")[2])
    eventually(lambda: f"Job {server.partition('-')[2]} is over (COMPLETED)" in world.log(), 90)
    assert "before its GPUs were in the pool" not in world.log()


def test_who_stays_loses_the_slice_at_the_time_that_was_said(world: Lending) -> None:
    world.start("--min", "1", "--notice", "5s")
    (server,) = eventually(world.offered, 90)
    program = world.hold("-p", "0.5")
    world.cluster.ask("scancel", "--signal=TERM", server.partition("-")[2])
    ended = eventually(lambda: next((one for one in world.ask()[2] if one.ended), None), 60)
    assert ended is not None
    assert ended.notice.startswith("This slice ends at ")
    assert ended.end_reason == f"its GPU server {server} was drained"
    program.communicate("", timeout=60)


@pytest.mark.thorough
def test_a_cancelled_job_leaves_within_the_time_that_slurm_gives_it(world: Lending) -> None:
    world.start("--min", "1")
    (server,) = eventually(world.offered, 90)
    program = world.hold("-p", "0.5")
    world.cluster.ask("scancel", server.partition("-")[2])
    ended = eventually(lambda: next((one for one in world.ask()[2] if one.ended), None), 60)
    assert ended is not None
    assert ended.end_reason == f"its GPU server {server} was drained"
    eventually(lambda: set(world.offered()) - {server}, 60)
    program.communicate("", timeout=60)


@pytest.mark.thorough
def test_jobs_come_when_people_wait_and_go_when_they_are_idle(world: Lending) -> None:
    world.start("--min", "1", "--max", "2", "--up-after", "1s", "--down-after", "3s")
    eventually(world.offered, 90)
    first, second = (world.hold("-n", "2", "-p", "1", "--wait", "5m") for _ in range(2))
    assert sorted(world.offered().values()) == [2, 2]
    first.communicate("", timeout=60)
    eventually(lambda: len(world.jobs()) == 1, 60)
    second.communicate("", timeout=60)
    said = world.log()
    assert "1 job more, 2 in all: people have waited for 2 GPUs' worth through" in said
    assert "is given up: it has had no lease for" in said
    world.let_it_look(5)
    assert len(world.jobs()) == 1  # the least


def test_a_drained_server_gives_its_gpus_back_to_slurm(world: Lending) -> None:
    world.start("--min", "1")
    (server,) = eventually(world.offered, 90)
    asyncio.run(drain(world, server))
    eventually(
        lambda: (
            f"Job {server.partition('-')[2]} is given up: its GPU server is drained and empty." in world.log()
        )
    )
    eventually(lambda: set(world.offered()) - {server}, 60)


async def drain(world: Lending, server: str) -> None:
    async with AdminClient(str(world.admin)) as client:
        await client.drain(server)


def test_a_refusal_is_one_sentence_and_is_not_repeated_at_once(world: Lending) -> None:
    world.start("--min", "1", "--partition", "nowhere", "--name", "gpu")
    sentence = "sbatch refused: Invalid partition name specified. Slurm is asked again in 30 s."
    eventually(lambda: sentence in world.log())
    world.let_it_look(3)
    assert world.log().count("sbatch refused") == 1


def test_a_job_that_comes_to_nothing_is_explained_and_not_repeated_at_once(world: Lending) -> None:
    world.start("--min", "1", "--program", "/bin/sh -c 'echo the module is missing; exit 3' -")
    eventually(lambda: "before its GPUs were in the pool" in world.log(), 60)
    world.let_it_look(3)
    log = world.log()
    assert (
        "is over (FAILED) before its GPUs were in the pool: the module is missing. Slurm is asked again in 30 s."
        in log
    )
    assert log.count("was asked for") == 1


def test_a_rehearsal_and_a_second_supply_change_nothing(world: Lending) -> None:
    rehearsal = subprocess.run(
        world.words("--dry-run"), env=world.environment, capture_output=True, text=True, check=True
    )
    assert rehearsal.stdout.startswith("There are 0 jobs, and people wait for 0 GPUs' worth.\n")
    assert "1 × sbatch --job-name=gpukernel.gpu.TAG --partition=gpu --gres=gpu:2" in rehearsal.stdout
    assert (world.jobs(), world.folder.exists()) == ({}, False)
    world.start("--min", "1")
    eventually(lambda: len(world.jobs()) == 1)
    second = subprocess.run(world.words(), env=world.environment, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert "A supply runs already on" in second.stderr
    world.kill()
    world.start("--min", "1")
    with contextlib.suppress(subprocess.TimeoutExpired):
        assert world._supply is not None
        world._supply.wait(3)
    assert len(world.jobs()) == 1


@pytest.mark.thorough
def test_stopping_ends_the_jobs(world: Lending) -> None:
    both_nodes(world)
    refused = subprocess.run(
        world.stop_words(), env=world.environment, capture_output=True, text=True, check=False
    )
    assert "A supply runs already on" in refused.stderr
    world.kill()
    stopped = subprocess.run(
        world.stop_words(), env=world.environment, capture_output=True, text=True, check=True
    )
    assert stopped.stdout == "2 jobs were told to end.\n"
    eventually(lambda: world.jobs() == {}, 60)
