"""The parts of shard jobs that need no Slurm: what Slurm's words mean, the epilog, and who may ask for a slice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpukernel import native
from gpukernel.cli.engines.slurm_node import hidden_from_others
from gpukernel.client.engines import EngineClient
from gpukernel.common.errors import PoolError
from gpukernel.common.model import Device, Lease
from gpukernel.engines.shards.allocation import (
    JobShards,
    NotUnderstood,
    no_shards,
    parse_allocation,
    shards_of_a_gpu,
)
from gpukernel.engines.shards.calls import Calls
from gpukernel.engines.shards.folder import JobNote, JobsFolder
from gpukernel.engines.shards.holding import JobLease
from gpukernel.engines.shards.node import ShardNode
from gpukernel.engines.slurm.commands import NodeJob, Slurm, SlurmAway
from gpukernel.remoting.lease_file import lease_file_path, read_lease_file

JOB = "JobId=7 UserId=anna(1000) Account=ml101 QOS=normal JOB_GRES=shard:2   Nodes={} CPU_IDs=0 Mem=0 GRES={} MinCPUsNode=1"


@pytest.mark.parametrize(
    ("nodes", "gres", "found"),
    [
        ("n1", "shard:2(IDX:1)", JobShards(2, 1, "ml101")),
        ("n1", "shard:v100:60(IDX:0)", JobShards(60, 0, "ml101")),
        ("n1", "shard:2(0/100,2/100)", JobShards(2, 1, "ml101")),
        ("n[0-2,7]", "gpu:1(IDX:0),shard:3(IDX:2)", JobShards(3, 2, "ml101")),
        ("n1", "gpu:1(IDX:0)", None),
        ("n1", "", None),
        ("n2", "shard:2(IDX:1)", None),
        ("n[10-12]", "shard:2(IDX:1)", None),
    ],
)
def test_the_gpu_of_a_jobs_shards_is_read_from_slurm(nodes: str, gres: str, found: JobShards | None) -> None:
    assert parse_allocation(JOB.format(nodes, gres), "n1", "7") == found


@pytest.mark.parametrize(
    "gres",
    [
        "shard:120(IDX:0-1)",
        "shard:2",
        "shard:2(S:0)",
        "shard:4(2/100,2/100)",
        "shard:a:1(IDX:0),shard:b:1(IDX:1)",
    ],
)
def test_shards_whose_gpu_is_not_said_are_nobodys(gres: str) -> None:
    with pytest.raises(NotUnderstood, match="one"):
        parse_allocation(JOB.format("n1", gres), "n1", "7")


def test_jobs_on_a_node_with_several_lines_are_those_of_the_node() -> None:
    said = JOB.format("n1", "shard:2(IDX:0)   Nodes=n2 CPU_IDs=1 Mem=0 GRES=shard:2(IDX:1)")
    assert [parse_allocation(said, node, "7") for node in ("n1", "n2")] == [
        JobShards(2, 0, "ml101"),
        JobShards(2, 1, "ml101"),
    ]


ALL_OF_GPU_3 = "Account=prof Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:100(IDX:3)"


def test_nothing_is_taken_from_the_name_or_the_comment_of_a_job() -> None:
    true = JOB.format("n1", "shard:2(IDX:0)")
    for said in (
        true.replace("JobId=7", f"JobId=7 JobName=x {ALL_OF_GPU_3}"),
        f"{true} Comment={ALL_OF_GPU_3}",
    ):
        assert parse_allocation(said, "n1", "7") == JobShards(2, 0, "ml101")
    for name in (
        f"x UserId=x {ALL_OF_GPU_3}",
        f"x UserId=x {ALL_OF_GPU_3} MinCPUsNode=1 ",
        f"x\nJobId=7 UserId=x {ALL_OF_GPU_3} MinCPUsNode=1 ",
    ):
        with pytest.raises(NotUnderstood, match="the job's own words"):
            parse_allocation(true.replace("JobId=7", f"JobId=7 JobName={name}"), "n1", "7")
    with pytest.raises(NotUnderstood, match="the job's own words"):
        parse_allocation(true.replace("QOS=normal", f"QOS=normal WCKey=x {ALL_OF_GPU_3}"), "n1", "7")


def test_the_first_job_of_an_array_or_a_heterogeneous_job_has_its_own_shards_only() -> None:
    first, second = JOB.format("n1", ""), JOB.format("n1", "shard:2(IDX:1)").replace("JobId=7", "JobId=8")
    assert parse_allocation(f"{first} \n{second}", "n1", "7") is None
    assert parse_allocation(f"{second} \n{first}", "n1", "8") == JobShards(2, 1, "ml101")


def test_a_job_began_in_the_middle_of_the_second_that_slurm_says() -> None:
    said = JOB.format("n1", "shard:2(IDX:0)")

    def began(words: str) -> float:
        found = parse_allocation(said.replace(" QOS", f" {words} QOS"), "n1", "7")
        assert found is not None
        return found.began

    assert began("AccrueTime=5 StartTime=1764122400 EndTime=Unknown") == 1764122400.5
    # Without a number the hours count from when the pool was asked.
    assert [began(word) for word in ("StartTime=Unknown", "StartTime=2025-11-26T02:00:00", "x")] == [0, 0, 0]
    with pytest.raises(NotUnderstood, match="the job's own words"):
        began("WCKey=StartTime=5 StartTime=1764122400")


def test_shards_of_a_gpu() -> None:
    assert shards_of_a_gpu("NodeName=n1 Gres=gpu:2(S:0-1),shard:200 NodeAddr=x") == 100
    assert shards_of_a_gpu("NodeName=n1 Gres=gpu:v100:1,gpu:a100:1,shard:v100:50,shard:a100:50 X=1") == 50
    for gres in ("gpu:2", "shard:200", "gpu:3,shard:200", "(null)"):
        with pytest.raises(NotUnderstood, match="same number of shards"):
            shards_of_a_gpu(f"NodeName=n1 Gres={gres} X=1")


def test_what_squeue_and_scontrol_say(tmp_path: Path) -> None:
    def saying(said: str) -> Slurm:
        for name in ("squeue", "scontrol"):
            (tmp_path / name).write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
            (tmp_path / name).chmod(0o755)
        return Slurm({"PATH": f"{tmp_path}:/usr/bin:/bin"})

    columns = "12  |1000 |100 |0 |RUNNING |\n13 |0|0|2|COMPLETING|"
    jobs = {"12": NodeJob(1000, 100, 0), "13": NodeJob(0, 0, 2, runs=False)}
    assert asyncio.run(saying(columns).jobs_on("n1")) == jobs
    with pytest.raises(SlurmAway, match="squeue answered “slurm_load_jobs error”"):
        asyncio.run(saying(f"{columns}\nslurm_load_jobs error").jobs_on("n1"))
    with pytest.raises(SlurmAway, match="squeue answered “12 "):
        asyncio.run(saying("12 |anna |100 |0 |RUNNING |").jobs_on("n1"))
    steps = "PID      JOBID    STEPID   LOCALID GLOBALID\n9 12 batch 0 0\n10 12 0 - -\n-1 14 4294967292 - -"
    assert asyncio.run(saying(steps).steps_on("n1")) == {"12", "14"}
    settings = saying("ClusterName             = uni\nCommunicationParameters = \nKillWait = 15 sec")
    assert asyncio.run(settings.setting("ClusterName")) == "uni"
    assert asyncio.run(settings.setting("CommunicationParameters")) == ""
    assert asyncio.run(settings.kill_wait()) == 15


# --- the hook ---


@pytest.fixture
def folder(tmp_path: Path) -> JobsFolder:
    folder = JobsFolder(tmp_path / "run", "n1")
    folder.prepare()
    return folder


def hook(folder: JobsFolder, context: str, **variables: str) -> subprocess.CompletedProcess[str]:
    given = {
        "SLURM_SCRIPT_CONTEXT": context,
        "SLURM_JOB_ID": "12",
        "SLURM_JOB_UID": str(os.geteuid()),
        "SLURM_JOB_GID": str(os.getegid()),
        "SLURM_CLUSTER_NAME": "uni",
        "SLURMD_NODENAME": "n1",
        **variables,
    }
    return subprocess.run(
        [str(native.slurm_hook()), str(folder.path.parent)],
        env=given,
        capture_output=True,
        text=True,
        check=False,
    )


ANNAS = JobNote("12", os.geteuid(), os.getegid(), "uni", 0)


def test_a_job_is_put_down_with_the_way_to_its_slice(folder: JobsFolder) -> None:
    (folder.jobs / "12").mkdir()
    (folder.jobs / "12" / "over").touch()
    folder.begin(ANNAS)
    assert (folder.note("12"), folder.is_over("12")) == (ANNAS, False)
    lease = folder.jobs / "12" / "lease"
    found = read_lease_file(lease)
    assert (found.state, found.kernel, found.socket) == ("none", "12", str(folder.socket))
    assert lease.stat().st_mode & 0o777 == 0o600
    given = {"GPUKERNEL_LEASE_FILE": f"slurm:{folder.path.parent}", "SLURMD_NODENAME": "n1"}
    assert lease_file_path({**given, "SLURM_JOB_ID": "12"}) == str(lease)
    for wrong in ("", "x", "../12", "１２"):
        assert lease_file_path({**given, "SLURM_JOB_ID": wrong}) == ""
    assert lease_file_path({**given, "SLURM_JOB_ID": "12", "SLURMD_NODENAME": "../n1"}) == ""


def test_the_epilog_waits_only_for_a_daemon_that_is_there(folder: JobsFolder) -> None:
    folder.begin(ANNAS)
    assert hook(folder, "epilog_slurmd").returncode == 0  # no daemon: nobody to wait for
    assert folder.is_over("12")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(folder.hooks))
        waiting = subprocess.Popen(
            [str(native.slurm_hook()), str(folder.path.parent)],
            env={"SLURM_SCRIPT_CONTEXT": "epilog_slurmd", "SLURM_JOB_ID": "12", "SLURMD_NODENAME": "n1"},
        )
        assert daemon.recv(64) == b"end 12"
        assert waiting.poll() is None
        folder.remove("12")
        assert waiting.wait(10) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"SLURM_JOB_ID": "../12"},
        {"SLURMD_NODENAME": "../n1"},
        {"SLURM_JOB_ID": ""},
        {"SLURM_SCRIPT_CONTEXT": ""},
    ],
)
def test_the_hook_goes_nowhere_else(folder: JobsFolder, wrong: dict[str, str]) -> None:
    context = wrong.pop("SLURM_SCRIPT_CONTEXT", "epilog_slurmd")
    assert hook(folder, context, **wrong).returncode == 2
    assert folder.ids() == []


def test_a_folder_that_other_accounts_cannot_pass_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "lib"
    folder.mkdir(parents=True)
    for place in (tmp_path, *tmp_path.parents):
        if place != Path("/tmp") and place.is_relative_to("/tmp"):
            place.chmod(place.stat().st_mode | 0o001)
    assert hidden_from_others(folder) is None
    (tmp_path / "home").chmod(0o700)
    assert hidden_from_others(folder) == tmp_path / "home"


def test_the_lines_for_slurm_name_the_hook_and_every_gpu() -> None:
    words = [sys.executable, "-m", "gpukernel.cli", "slurm", "configure", "--gpus", "2", "--shards", "50"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert f"\nEpilog={native.slurm_hook()}\n" in said
    assert said.count("Flags=no_gpu_env\n") == 4
    assert "Gres=gpu:2,shard:100" in said
    assert said.count("Name=shard Count=50 File=/dev/nvidia") == 2
    elsewhere = subprocess.run(
        [*words, "--folder", "/var/jobs"], capture_output=True, text=True, check=True
    ).stdout
    assert f"#!{native.slurm_hook()} /var/jobs\n" in elsewhere
    lua = subprocess.run(
        [*words, "--folder", "/var/jobs", "--filter"], capture_output=True, text=True, check=True
    ).stdout
    assert 'local LEASE = "slurm:/var/jobs"\n' in lua
    assert f'"first", "LD_LIBRARY_PATH", "{native.shim_dir()}' in lua
    wrong = subprocess.run([*words, "--simulated"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, "give both" in wrong.stderr) == (2, True)


class NodeOfSlurm(Slurm):
    """Slurm's words about jobs on n1, and how often it was asked for what."""

    def __init__(self, jobs: dict[str, NodeJob], gres: str = "shard:2(IDX:0)") -> None:
        super().__init__({})
        self.jobs, self.gres, self.asked = jobs, gres, Counter[str]()
        self.answers = asyncio.Event()
        self.answers.set()

    async def steps_on(self, node: str) -> set[str]:
        self.asked["steps"] += 1
        return set(self.jobs)

    async def jobs_on(self, node: str) -> dict[str, NodeJob]:
        self.asked["jobs"] += 1
        await asyncio.sleep(0.01)
        return dict(self.jobs)

    async def show_job(self, job_id: str) -> str:
        self.asked[job_id] += 1
        await self.answers.wait()
        return JOB.format("n1", self.gres).replace("JobId=7", f"JobId={job_id}")

    async def setting(self, name: str) -> str:
        return "uni"


def nobody() -> EngineClient:
    raise PoolError("no pool here")


async def first_answer(node: ShardNode, job: str, user: int) -> tuple[str, str]:
    async for answer in node._answers(job, user):
        return answer
    raise AssertionError


def test_a_program_that_asks_first_has_its_job_seen_and_strangers_cost_the_controller_nothing(
    folder: JobsFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpukernel.engines.shards.holding.QUIET_SECONDS", 0.0)
    slurm = NodeOfSlurm({"12": NodeJob(os.geteuid(), os.getegid(), 0)})
    node = ShardNode(slurm, folder, "n1", "n1", [], nobody)

    async def ask() -> None:
        word, _ = await first_answer(node, "12", os.geteuid())
        assert (word, folder.note("12")) == ("waiting", ANNAS)
        strangers = [first_answer(node, str(number), 4711) for number in range(90, 140)]
        for word, sentence in await asyncio.gather(*strangers, first_answer(node, "12", 4711)):
            assert (word, sentence.startswith("You have no job ")) == ("refused", True)
        assert slurm.asked["steps"] <= 4  # one look for many who ask
        assert slurm.asked["jobs"] == 1
        assert set(slurm.asked) == {"steps", "jobs", "12"}
        await node._jobs["12"].leave()

    asyncio.run(ask())


@pytest.mark.parametrize("away", [False, True], ids=["Slurm answers", "Slurm is away"])
def test_an_account_that_asks_for_jobs_that_are_not_there_has_slurm_looked_at_once_a_second(
    folder: JobsFolder, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    monkeypatch.setattr("gpukernel.engines.shards.holding.QUIET_SECONDS", 0.0)

    class Away(NodeOfSlurm):
        async def steps_on(self, node: str) -> set[str]:
            await super().steps_on(node)
            if away:
                raise SlurmAway("connection refused")
            return set(self.jobs)

    slurm = Away({})
    node = ShardNode(slurm, folder, "n1", "n1", [], nobody)
    said = []

    async def crowd(first: int) -> None:
        for number in range(first, first + 1000):
            said.append(await first_answer(node, str(number), 4711))

    async def ask() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.8):
                await asyncio.gather(*(crowd(1000 * n) for n in range(20)))
        assert slurm.asked["steps"] <= 2
        assert {word for word, _ in said} == {"waiting" if away else "refused"}
        slurm.jobs["12"] = NodeJob(1000, 100, 0)  # another account waits for nobody
        before = slurm.asked["steps"]
        assert (await first_answer(node, "12", 1000))[0] == "waiting"
        assert slurm.asked["steps"] == before + 1
        await asyncio.gather(*(held.leave() for held in node._jobs.values()))

    asyncio.run(ask())


def test_a_job_without_shards_is_asked_for_once(folder: JobsFolder) -> None:
    slurm = NodeOfSlurm({"12": NodeJob(1000, 100, 0)}, gres="")
    node = ShardNode(slurm, folder, "n1", "n1", [], nobody)

    async def ask() -> None:
        for _ in range(3):
            await node._look()
            assert await first_answer(node, "12", 1000) == ("refused", no_shards("12", "n1"))
        assert "no job 12" in (await first_answer(node, "12", 1001))[1]
        assert slurm.asked["12"] == 1
        assert folder.ids() == []

    asyncio.run(ask())


def test_a_job_that_ends_while_it_is_looked_at_is_not_put_down(folder: JobsFolder) -> None:
    slurm = NodeOfSlurm({"12": NodeJob(1000, 100, 0)})
    slurm.answers.clear()
    node = ShardNode(slurm, folder, "n1", "n1", [], nobody)

    async def end() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hooks:
            hooks.bind(str(folder.hooks))
            hooks.setblocking(False)
            listening = asyncio.create_task(node._listen(hooks))
            look = asyncio.create_task(node._look())
            while not slurm.asked["12"]:
                await asyncio.sleep(0.01)
            assert hook(folder, "epilog_slurmd").returncode == 0
            while "12" not in node._over:
                await asyncio.sleep(0.01)
            slurm.answers.set()
            await look
            listening.cancel()
        assert folder.ids() == []
        assert node._jobs == {}

    asyncio.run(end())


def test_a_job_that_was_started_again_without_an_epilog_is_ended(folder: JobsFolder) -> None:
    class Clients:
        async def __aenter__(self) -> Clients:
            return self

        async def placed(self) -> list[Lease]:
            return []

    slurm = NodeOfSlurm({"12": NodeJob(os.geteuid(), os.getegid(), 0)})
    node = ShardNode(slurm, folder, "n1", "n1", [], Clients)  # type: ignore[arg-type]

    async def look() -> None:
        folder.begin(ANNAS)
        await node.sweep()
        assert node._jobs["12"].ending is False
        slurm.jobs["12"] = NodeJob(1001, 100, 0)  # the number is another job's now
        await node.sweep()
        assert node._jobs["12"].ending is True
        await node._jobs["12"].leave()

    asyncio.run(look())


@pytest.mark.parametrize("uuids", [[], ["GPU-0", "GPU-1", "GPU-2"]])
def test_a_device_that_is_missing_moves_no_other_one_to_its_place(tmp_path: Path, uuids: list[str]) -> None:
    class Clients:
        async def __aenter__(self) -> Clients:
            return self

        async def devices(self) -> list[Device]:
            others = Device("x", "n2", 1, "V100", 16 << 30, uuid="GPU-9")
            here = [Device(f"{n}", "n1", n, "V100", 16 << 30, uuid=f"GPU-{n}") for n in (2, 0)]
            return [others, *here, replace(here[0], uuid="GPU-8", trouble="its server has it no more")]

    class Node(Slurm):
        async def show_node(self, node: str) -> str:
            return f"NodeName={node} Gres=gpu:3,shard:300"

    async def look() -> None:
        folder = JobsFolder(tmp_path, "n1")
        node = ShardNode(Node({}), folder, "n1", "n1", uuids, Clients)  # type: ignore[arg-type]
        for gpu in (0, 2):
            assert (await node.placement(JobShards(2, gpu))).uuid == f"GPU-{gpu}"
        with pytest.raises(NotUnderstood, match=r"no device of that number \(0 is n1/0, 2 is n1/2\)"):
            await node.placement(JobShards(2, 1))

    asyncio.run(look())


def test_a_program_that_never_stops_asking_does_not_ask_slurm_as_often(tmp_path: Path) -> None:
    asked = []

    class Node:
        folder, name = JobsFolder(tmp_path, "n1"), "n1"

        async def allocation(self, job: str) -> JobShards | None:
            asked.append(job)
            raise NotUnderstood("on several GPUs")

    async def ask() -> None:
        job = JobLease(Node(), JobNote("7", 1000, 1000, "c", 0))  # type: ignore[arg-type]
        for _ in range(40):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(job.answers())
        await job.leave()

    asyncio.run(ask())
    assert 1 <= len(asked) <= 4


def test_a_socket_without_free_descriptors_is_served_again_when_there_are(tmp_path: Path) -> None:
    async def answers(job: str, user: int) -> AsyncIterator[tuple[str, str]]:
        yield "live", ""

    async def crowd() -> None:
        path = tmp_path / "socket"
        serving = asyncio.create_task(Calls(answers).serve(path))
        while not path.exists():
            await asyncio.sleep(0.01)
        waiting = socket.socket(socket.AF_UNIX)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, limits[1]))
        try:
            waiting.connect(str(path))
            await asyncio.sleep(0.1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        reader, writer = await asyncio.open_unix_connection(sock=waiting)
        writer.write(b"acquire 7\n")
        answer = asyncio.ensure_future(reader.readline())
        await asyncio.wait({answer, serving}, return_when=asyncio.FIRST_COMPLETED)
        assert answer.done()
        assert answer.result() == b"live\n"
        serving.cancel()
        writer.close()

    asyncio.run(crowd())
