"""Leases and jobs after a death: a node, Slurm's controller, the pool, the supply at its worst moments."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import time
from collections.abc import Sequence

import pytest

from gpukernel.client.admin import AdminClient, TokenLine
from gpukernel.engines.slurm.autoscaler import Settings
from gpukernel.engines.slurm.commands import Slurm, SlurmAway
from gpukernel.engines.slurm.offer import JobOffer
from gpukernel.engines.slurm.records import Records, connection_file
from gpukernel.engines.slurm.supply import Supply
from tests.conftest import eventually
from tests.engines.slurm.lending import Lending

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("GPUKERNEL_SLURM") != "1",
        reason="make slurm runs these, a quarter of an hour: on two busy processors Slurm misses its own time limits.",
    ),
]


def test_the_leases_of_a_dead_node_end_with_the_reason_and_its_job_is_requeued(world: Lending) -> None:
    world.start("--min", "1")
    (server,) = eventually(world.offered, 90)
    job = server.partition("-")[2]
    program = world.hold("-p", "0.5")
    _, node, restarts = world.jobs()[job]
    assert restarts == 0
    world.cluster.kill_node(node)
    try:
        ended = eventually(lambda: next((one for one in world.ask()[2] if one.ended), None), 60)
        assert ended is not None
        assert ended.end_reason == f"its GPU server {server} was lost"
        program.communicate("", timeout=60)
        # Slurm notices after its SlurmdTimeout, and starts the same job anew on the other node: as another GPU server.
        eventually(lambda: set(world.offered()) == {f"{server}-1"}, 240)
        state, elsewhere, restarts = world.jobs()[job]
        assert (state, restarts, elsewhere != node) == ("RUNNING", 1, True)
        assert f"Job {job} was put back into the queue by Slurm, for the first time." in world.log()
        assert world.log().count("was asked for") == 1
        again = world.hold("-p", "0.5")
        again.communicate("", timeout=60)
    finally:
        world.cluster.start_node(node)
        eventually(lambda: "idle" in world.cluster.node_states(), 90)


def notice_and_end(world: Lending) -> tuple[str, str, str]:
    """The one holder's place, the notice that they get, and the reason for the end that follows."""
    lease = eventually(lambda: next((one for one in world.ask()[2] if one.notice), None), 90)
    assert lease is not None
    ended = eventually(
        lambda: next((one for one in world.ask()[2] if one.id == lease.id and one.ended), None), 90
    )
    assert ended is not None
    return lease.slices[0].server, lease.notice, ended.end_reason


def test_a_preempted_job_tells_who_holds_its_slices(world: Lending) -> None:
    world.start("--min", "1")
    eventually(world.offered, 90)
    program = world.hold("-p", "0.5")
    take = ["sbatch", "--parsable", "--partition=urgent", "--gres=gpu:2", "--nodes=2", "--output=/dev/null"]
    urgent = world.cluster.ask(*take, "--job-name=urgent", "--wrap=sleep 600").strip()
    server, notice, reason = notice_and_end(world)
    assert notice.startswith("This slice ends at ")
    assert reason == f"its GPU server {server} was drained"
    program.communicate("", timeout=60)
    eventually(lambda: world.jobs()[urgent][0] == "RUNNING", 60)
    world.cluster.ask("scancel", urgent)
    eventually(lambda: set(world.offered()) - {server}, 90)  # the job or its successor comes back


def test_the_end_of_a_jobs_time_is_announced_and_the_next_job_is_there(world: Lending) -> None:
    world.start("--min", "1", "--notice", "20s", "--sbatch=--time=1")
    eventually(world.offered, 90)
    program = world.hold("-p", "0.5")
    server, notice, reason = notice_and_end(world)
    assert notice.startswith("This slice ends at ")
    assert reason == f"its GPU server {server} was drained"
    assert set(world.offered()) - {server}
    program.communicate("", timeout=60)
    eventually(lambda: f"Job {server.partition('-')[2]} is over (COMPLETED)." in world.log(), 60)


def test_leases_go_on_while_the_controller_is_down_and_nothing_is_lost(world: Lending) -> None:
    world.start("--min", "1")
    servers = eventually(world.offered, 90)
    jobs = world.jobs()
    program = world.hold("-p", "0.5")
    world.cluster.kill_controller()
    try:
        eventually(lambda: "Slurm does not answer" in world.log(), 120)
        assert "Slurm does not answer" in world.status()["trouble"]
        assert [lease.state for lease in world.ask()[2]] == ["live"]
        another = world.hold("-p", "0.25")  # new leases, too
        another.communicate("", timeout=60)
    finally:
        world.cluster.start_controller()
    eventually(lambda: "Slurm answers again." in world.log(), 120)
    world.let_it_look(3)
    assert (world.offered(), world.status()["trouble"]) == (servers, "")
    assert world.jobs().keys() == jobs.keys()
    assert "live" in [lease.state for lease in world.ask()[2]]
    program.communicate("", timeout=60)


def test_nothing_is_asked_for_while_the_pool_is_away(world: Lending) -> None:
    world.start("--min", "1")
    servers = eventually(world.offered, 90)
    world.kill_pool()
    eventually(lambda: "No job is asked for or ended." in world.log(), 60)
    jobs = world.jobs()
    world.start_pool()
    eventually(lambda: "The pool answers again." in world.log(), 60)
    eventually(lambda: world.offered() == servers, 60)
    assert world.jobs() == jobs


def test_a_supply_that_is_killed_at_any_moment_has_its_jobs_once(world: Lending) -> None:
    moments = random.Random(26)
    for _ in range(5):
        world.start("--min", "2")
        time.sleep(moments.uniform(0.4, 2.5))  # the moment is what is tried
        world.kill()
    world.start("--min", "2")
    eventually(lambda: sum(world.offered().values()) == 4, 120)
    world.let_it_look(3)
    assert len(world.jobs()) == 2
    assert len(re.findall("was asked for|is adopted", world.log())) <= 2


class Killed(BaseException):
    """The end of a supply in the middle of something."""


class DyingSlurm(Slurm):
    """Slurm's commands for a supply that dies just before or just after it asks for a job, or does not hear the answer."""

    moment = ""

    async def submit(self, script: str, options: Sequence[str]) -> str:
        if self.moment == "before":
            raise Killed
        job = await super().submit(script, options)
        if self.moment == "after":
            raise Killed
        if self.moment == "unheard":
            raise SlurmAway("sbatch had no answer for 30 s")
        return job


def supply(world: Lending, slurm: Slurm, records: Records, now: list[float]) -> Supply:
    """A supply in this process, by the clock `now`."""
    offer = JobOffer("gpu", "gpu", ("/bin/sleep",))  # nobody runs long enough to need one
    settings = Settings(gpus=2)
    return Supply(slurm, records, settings, offer, lambda: AdminClient(str(world.way)), clock=lambda: now[0])


@pytest.mark.parametrize("moment", ["before", "after", "unheard"])
def test_a_job_that_was_just_asked_for_is_not_asked_for_again(world: Lending, moment: str) -> None:
    now = [time.time()]

    hold(world)  # both nodes are taken: jobs wait
    dying = DyingSlurm(world.environment)
    dying.moment = moment
    records = Records(world.folder)
    first = supply(world, dying, records, now)
    with contextlib.suppress(Killed):
        asyncio.run(first.look())
    tags = list(records.all())
    assert len(tags) == 1
    records.release()
    records = Records(world.folder)
    second = supply(world, Slurm(world.environment), records, now)
    for _ in range(3):
        now[0] += 5
        asyncio.run(second.look())
    assert list(records.all()) == tags
    assert len(listed(world)) == (0 if moment == "before" else 1)
    now[0] += 120
    asyncio.run(second.look())
    asyncio.run(second.look())
    assert len(listed(world)) == 1
    assert (list(records.all()) == tags) == (moment != "before")
    records.release()


def test_a_way_into_the_pool_is_made_once_and_anew_before_it_ends(world: Lending) -> None:
    now = [time.time()]
    hold(world)
    records = Records(world.folder)
    first = supply(world, Slurm(world.environment), records, now)
    asyncio.run(first.look())
    asyncio.run(first.look())
    (record,) = records.all().values()
    way = connection_file(world.folder, record.tag, 0)
    text = way.read_text()
    assert record.starts == 1
    # Killed after it was written and before that was noted: the job may have read it.
    records.save(record, starts=0, expires=0.0)
    asyncio.run(supply(world, Slurm(world.environment), records, now).look())
    assert (way.read_text(), records.all()[record.tag].starts) == (text, 1)
    # In Slurm's queue for two weeks, it would end before its job.
    now[0] += 15 * 86_400 + 60
    asyncio.run(first.look())
    assert way.read_text() != text
    tokens = asyncio.run(made(world))
    assert sorted(bool(token.revoked) for token in tokens) == [False, True]
    records.release()


async def made(world: Lending) -> list[TokenLine]:
    async with AdminClient(str(world.admin)) as client:
        return [token for token in await client.tokens() if token.name.startswith("supply: Slurm job gpu ")]


def listed(world: Lending) -> list[str]:
    said = world.cluster.ask("squeue", "--noheader", "--format=%j")
    return [name for name in said.split() if name.startswith("gpukernel.gpu.")]


def hold(world: Lending) -> None:
    """Fill the cluster with other people's jobs, and return when they run."""
    for _ in range(2):
        world.cluster.ask(
            "sbatch",
            "--partition=gpu",
            "--gres=gpu:2",
            "--output=/dev/null",
            "--job-name=others",
            "--wrap=sleep 600",
        )
    eventually(lambda: [state for state, _, _ in world.jobs().values()] == ["RUNNING"] * 2, 60)
