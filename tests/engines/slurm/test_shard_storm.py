"""A real Slurm with slurmdbd: 100 shard jobs, of which some are killed at every step; limits hold and the books agree."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpukernel import native
from gpukernel.client.admin import AdminClient
from gpukernel.common.model import LeaseUse
from tests import slurm, slurm_accounting
from tests.engines.slurm.sharing import CONF, SHARDS, Sharing, memory_program, sharing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("GPUKERNEL_SLURM") != "1", reason="make slurm runs these, some minutes."
    ),
]

ANNA, BEN = 5, 1  # accounts that every Debian has: games and daemon
JOBS = 100
HOOK = """#!/bin/sh
case "$SLURM_SCRIPT_CONTEXT ${{SLURM_JOB_RESTART_COUNT:-0}} $SLURM_JOB_WORK_DIR" in
    "prolog_slurmd 0 "*/in-prolog) kill -9 $$ ;;
    "prolog_slurmd "*) exit ;;
    "epilog_slurmd "*/before-epilog) kill -9 $$ ;;
    "epilog_slurmd "*/in-epilog) {hook} {folder} & sleep 0.01; kill -9 $!; kill -9 $$ ;;
esac
exec {hook} {folder}
"""
WAYS = ("in-prolog", "start", "run", "program", "cancel", "before-epilog", "in-epilog")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharing]:
    """Two nodes with two simulated V100 of 100 shards each, and accounts ml101 and lab."""
    if missing := slurm.missing() or slurm_accounting.missing():
        pytest.skip(missing)
    # gpukernel has no prolog; a site's own may fail.
    more = f"{CONF}Prolog={{home}}/hook\nPriorityType=priority/basic\n"
    with slurm.cluster_of(nodes=2, gpus=2, shards=SHARDS, more=more, accounting=True) as cluster:
        books = cluster.accounting
        assert books is not None
        for account in ("ml101", "lab"):
            books.must("sacctmgr", "-i", "add", "account", account, "Description=x", "Organization=y")
            for user in ("root", "games", "daemon"):
                books.must("sacctmgr", "-i", "add", "user", user, f"account={account}")
        books.must("sacctmgr", "-i", "add", "qos", "small", "MaxTRESPerUser=gres/shard=10")
        books.must("sacctmgr", "-i", "modify", "user", "games", "set", "qos+=small")
        books.must("sacctmgr", "-i", "modify", "account", "lab", "set", "GrpTRES=gres/shard=30")
        with sharing(cluster, tmp_path_factory.mktemp("storm")) as world:
            asyncio.run(_courses(world))
            yield world


async def _courses(world: Sharing) -> None:
    async with AdminClient(str(world.admin)) as client:
        await client.import_courses("courses: {ml101: {instructors: [prof]}}")


def waits_for(shards: Sharing, job: str) -> str:
    return shards.cluster.ask("squeue", "--noheader", f"--jobs={job}", "--Format=State:20,Reason:60")


@pytest.mark.parametrize(
    ("options", "first", "second", "reason"),
    [
        (["--qos=small", "--account=ml101"], 8, 3, "QOSMaxGRESPerUser"),
        (["--account=lab"], 20, 15, "AssocGrpGRES"),
    ],
)
def test_who_is_over_a_limit_waits_with_slurms_reason(
    shards: Sharing, options: list[str], first: int, second: int, reason: str
) -> None:
    one = shards.sbatch("exec sleep 600", *options, f"--gres=shard:{first}", "--output=/dev/null", user=ANNA)
    two = shards.sbatch("exec sleep 600", *options, f"--gres=shard:{second}", "--output=/dev/null", user=ANNA)
    shards.until(lambda: reason in waits_for(shards, two))
    shards.until(lambda: [lease.state for lease in shards.leases()] == ["live"])
    (lease,) = shards.leases()
    # An account that is a course of the pool is the lease's course.
    assert lease.holder.course == ("ml101" if "--account=ml101" in options else "")
    shards.cluster.ask("scancel", one)
    shards.until(lambda: "RUNNING" in waits_for(shards, two))
    shards.until(lambda: [lease.state for lease in shards.leases() if f":{two}/" in lease.key] == ["live"])
    shards.cluster.ask("scancel", two)
    shards.until(lambda: shards.leases() == [])


class Watch:
    """A thread that looks all the time whether more is promised than there is, and takes nodes into service again."""

    def __init__(self, world: Sharing) -> None:
        self._world, self._stop = world, threading.Event()
        self.over: list[str] = []
        self.most = self.looks = 0
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.2):
            sums: dict[str, int] = {}
            leases = self._world.leases()
            for piece in (piece for lease in leases for piece in lease.slices):
                sums[piece.uuid] = sums.get(piece.uuid, 0) + piece.memory_bytes
            sizes = {device.uuid: device.memory_bytes for device in self._world.devices()}
            self.over += [f"{uuid}: {size}" for uuid, size in sums.items() if size > sizes[uuid]]
            self.most, self.looks = max(self.most, len(leases)), self.looks + 1
            if any("drain" in state for state in self._world.cluster.node_states()):
                for node in self._world.cluster.nodes:
                    self._world.cluster.ask("scontrol", "update", f"nodename={node}", "state=resume")


def step_daemons(job: str) -> list[int]:
    """Return the processes of Slurm that look after the steps of a job."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(f"slurmstepd: [{job}.".encode()):
                found.append(int(path.parent.name))
    return found


def kill_steps(world: Sharing, job: str, seconds: float) -> None:
    """Kill a job's step daemons with ``kill -9``, `seconds` after the job has begun."""
    world.until(lambda: bool(step_daemons(job)) or "RUNNING" not in waits_for(world, job), 120)
    time.sleep(seconds)
    for pid in step_daemons(job):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_hundred_jobs_some_killed_at_every_step_leave_nothing_and_the_books_agree(shards: Sharing) -> None:
    hook = shards.cluster.home / "hook"
    hook.write_text(HOOK.format(hook=native.slurm_hook(), folder=shards.folder))
    program, place = memory_program(shards.cluster.home), shards.cluster.home / "work"
    begin = time.time()
    ways: dict[str, str] = {}
    for number in range(JOBS):
        # Every fourth job is killed, each way in turn.
        way = WAYS[number // 4 % len(WAYS)] if number % 4 == 0 else "whole"
        (place / way).mkdir(parents=True, exist_ok=True)
        end = "kill -9 $$" if way == "program" else "exit"
        job = shards.sbatch(
            f"{program}; sleep {20 + number % 11}; {end}", f"--gres=shard:{1 + number * 7 % 40}", "--account=ml101",
            f"--chdir={place / way}", "--output=/dev/null", "--requeue", user=(0, ANNA, BEN)[number % 3],
        )  # fmt: skip
        ways[job] = way
    with Watch(shards) as watch:
        killers = [
            threading.Thread(target=kill_steps, args=(shards, job, 0.0 if way == "start" else 3.0))
            for job, way in ways.items()
            if way in ("start", "run")
        ]
        for killer in killers:
            killer.start()
        shards.until(lambda: watch.most >= 8, 120)
        shards.kill("daemon-n1")
        shards.start_daemon("n1")
        for job in (job for job, way in ways.items() if way == "cancel"):
            shards.cluster.ask("scancel", job)
        for killer in killers:
            killer.join()
        # A job whose prolog failed is held; a job whose step daemon is gone is noticed minutes later.
        unseen = [job for job, way in ways.items() if way in ("start", "run", "in-prolog")]
        shards.until(lambda: set(states(shards)) <= set(unseen), 300)
        shards.cluster.ask("scancel", *unseen)
        shards.until(lambda: not states(shards), 120)
        shards.until(lambda: shards.leases() == [])
    assert watch.over == []
    print(f"at most {watch.most} leases at once, in {watch.looks} looks")
    for node in shards.cluster.nodes:
        shards.until(lambda node=node: not any(shards.jobs_folder(node).iterdir()))  # type: ignore[misc]
    assert {device.promised_bytes for device in shards.devices()} == {0}
    for way, line in by_way(shards, begin, ways).items():
        print(way, line)
    ours, slurms = pools_seconds(shards, begin), slurms_seconds(shards, begin)
    print(f"shard-seconds: {ours:.0f} in the pool, {slurms:.0f} in sreport, {ours / slurms:.4f}")
    assert ours == pytest.approx(slurms, rel=0.02)


def states(world: Sharing) -> list[str]:
    return world.cluster.ask("squeue", "--noheader", "--format=%A").split()


def uses(world: Sharing, begin: float) -> list[LeaseUse]:
    async def ask() -> list[LeaseUse]:
        async with AdminClient(str(world.admin)) as client:
            return await client.report(begin, 0.0, "", "")

    return asyncio.run(ask())


def pools_seconds(world: Sharing, begin: float) -> float:
    """Return the shard-seconds of the pool's report."""
    return sum(use.device_hours for use in uses(world, begin)) * 3600 * SHARDS


def by_way(world: Sharing, begin: float, ways: dict[str, str]) -> dict[str, str]:
    """Return for each way how many jobs it had, and their seconds in the pool and in Slurm."""
    books = world.cluster.accounting
    assert books is not None
    found: dict[str, list[float]] = {}
    for line in books.must("sacct", "-a", "-X", "-n", "-P", "-D", "-o", "JobIDRaw,ElapsedRaw").splitlines():
        job, elapsed = line.split("|")
        if job in ways:
            found.setdefault(ways[job], [0, 0, 0])[2] += int(elapsed)
    for job in ways:
        found[ways[job]][0] += 1
    for use in uses(world, begin):
        found[ways[use.description.rpartition(" ")[2]]][1] += use.hours * 3600
    return {
        way: "{:.0f} jobs: {:.1f} s in the pool, {:.0f} s in Slurm".format(*line)
        for way, line in found.items()
    }


def slurms_seconds(world: Sharing, begin: float) -> float:
    """Return the shard-seconds of ``sreport``, less those of before."""
    books = world.cluster.accounting
    assert books is not None
    before = 0
    for line in books.must("sacct", "-a", "-X", "-n", "-P", "-o", "ElapsedRaw,AllocTRES,Start").splitlines():
        elapsed, tres, start = line.split("|")
        if "gres/shard=" in tres and datetime.datetime.fromisoformat(start).timestamp() < int(begin):
            before += int(elapsed) * int(tres.partition("gres/shard=")[2].partition(",")[0])
    books.roll_up()
    first = datetime.datetime.fromtimestamp(begin).replace(minute=0, second=0, microsecond=0)
    last = datetime.datetime.now().replace(minute=0, second=0, microsecond=0) + datetime.timedelta(hours=1)
    words = [
        "faketime", "-f", "+65m", "sreport", "-P", "-n", "-T", "gres/shard", "-t", "Seconds", "cluster", "AccountUtilizationByUser",
        f"start={first.isoformat()}", f"end={last.isoformat()}",
    ]  # fmt: skip
    world.until(lambda: bool(books.must(*words).strip()))
    total = next(line for line in books.must(*words).splitlines() if line.split("|")[1:3] == ["root", ""])
    return int(total.split("|")[-1]) - before
