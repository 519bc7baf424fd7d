"""The parts of the supply that need no Slurm: which GPUs are the job's, who counts as waiting, records, and mistakes on the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpukernel.client.admin import AnnouncedKind
from gpukernel.common.errors import PoolError
from gpukernel.common.model import Device, Holder, SliceRequest, Waiting
from gpukernel.engines.slurm.announcement import Announcement, parse_gpu
from gpukernel.engines.slurm.autoscaler import JobState
from gpukernel.engines.slurm.commands import SlurmJob
from gpukernel.engines.slurm.demand import waiting_gpus
from gpukernel.engines.slurm.job import Ear, NotTheJobs, await_way_in, own_devices
from gpukernel.engines.slurm.records import JobRecord, Records, connection_file
from gpukernel.engines.slurm.supply import Supply

FOUR = [(f"GPU-{number}0000000-aaaa", number) for number in range(4)]


@pytest.mark.parametrize(
    ("shown", "environment", "ours"),
    [
        (FOUR, {"SLURM_JOB_GPUS": "1,3", "CUDA_VISIBLE_DEVICES": "1,3"}, [1, 3]),
        # Where devices are constrained, a program sees its own only, and counts them from 0.
        (FOUR[2:], {"SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"}, [2, 3]),
        (FOUR[1:2], {"SLURM_JOB_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"}, [1]),
        (FOUR, {"CUDA_VISIBLE_DEVICES": "GPU-20000000-aaaa"}, [2]),
        (FOUR, {"SLURM_JOB_GPUS": "0,1,2,3"}, [0, 1, 2, 3]),
    ],
)
def test_a_job_lends_its_own_gpus(
    shown: list[tuple[str, int]], environment: dict[str, str], ours: list[int]
) -> None:
    assert own_devices(shown, environment) == {FOUR[number][0] for number in ours}


@pytest.mark.parametrize(
    "environment", [{}, {"SLURM_JOB_GPUS": "6"}, {"SLURM_JOB_GPUS": "1,1"}, {"CUDA_VISIBLE_DEVICES": "MIG-1"}]
)
def test_gpus_that_cannot_be_told_are_not_lent(environment: dict[str, str]) -> None:
    with pytest.raises(NotTheJobs):
        own_devices(FOUR, environment)


def test_a_job_lends_nothing_before_it_hears_slurm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate, number, heard = tmp_path / "gate", tmp_path / "pid", threading.Event()
    srun = tmp_path / "srun"  # a slow Slurm
    srun.write_text(
        f'#!/bin/sh\nuntil [ -e {gate} ]; do sleep 0.05; done\nwhile [ "$1" != sh ]; do shift; done\n'
        f'echo $$ > {number}\nexec "$@"\n'
    )
    srun.chmod(0o755)
    with Ear(heard.set, {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}) as ear:
        ear.await_listening(0.2)
        assert "are not heard: srun has started no step for 0 s" in capsys.readouterr().err
        gate.touch()
        ear.await_listening(60)
        os.kill(int(number.read_text()), signal.SIGTERM)
        assert heard.wait(60)
    assert capsys.readouterr().err == ""


def test_a_job_that_slurm_gives_no_step_lends_nevertheless(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "srun").chmod(0o755)
    with Ear(lambda: None, {"PATH": str(tmp_path)}) as ear:
        ear.await_listening(60)
    assert "are not heard: srun ended with 3" in capsys.readouterr().err


def test_a_job_that_is_over_starts_no_other_step(tmp_path: Path) -> None:
    starts, heard = tmp_path / "starts", threading.Event()
    srun = tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\necho >> {starts}\necho LISTENING\necho TERM\n")
    srun.chmod(0o755)
    with Ear(heard.set, {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}):
        assert heard.wait(60)
    for listener in [one for one in threading.enumerate() if one.name == "ear"]:
        listener.join(60)
    assert starts.read_text() == "\n"


def waiting(reason: str = "", **wanted: object) -> Waiting:
    return Waiting("key", Holder("anna"), SliceRequest(**wanted), 1, 0.0, reason=reason)  # type: ignore[arg-type]


def test_the_demand_is_what_more_jobs_could_serve() -> None:
    devices = [
        Device("gpu-7/0", "gpu-7", 0, "Tesla V100-SXM2-32GB", 32 << 30),
        Device("own/0", "own", 0, "A100", 80 << 30),
    ]

    def worth(*requests: Waiting, gpus: int = 2) -> float:
        return waiting_gpus(requests, devices, {"gpu-7"}, "gpu-", gpus)

    assert worth(waiting(share=0.5), waiting(share=0.25, devices=2)) == 1
    assert worth(waiting(memory_bytes=8 << 30)) == 0.25
    assert worth(waiting(share=1.0, model="v100"), waiting(share=1.0, server="gpu")) == 2
    for other in (
        waiting("The quota of course ml101 is full.", share=1.0),
        waiting(share=1.0, model="A100"),
        waiting(share=1.0, server="own"),
        waiting(share=1.0, device="gpu-7/0"),
        waiting(share=1.0, mode="direct"),
        waiting(share=1.0, devices=3),
        waiting(memory_bytes=40 << 30),
    ):
        assert worth(other) == 0
    # Before there is a device, the model is what was said.
    kinds = [AnnouncedKind("Tesla V100-SXM2-32GB", 32 << 30, 1)]
    assert waiting_gpus([waiting(share=1.0, model="V100")], [], set(), "gpu-", 1, kinds) == 1
    assert waiting_gpus([waiting(share=1.0, model="A100")], [], set(), "gpu-", 1, kinds) == 0
    assert waiting_gpus([waiting(memory_bytes=8 << 30)], [], set(), "gpu-", 1, kinds) == 0.25


def test_a_gpu_is_told_as_nvidia_smi_prints_it() -> None:
    assert parse_gpu("Tesla V100-SXM2-32GB, 32768 MiB\n") == ("Tesla V100-SXM2-32GB", 32 << 30)
    assert parse_gpu("A100,80 GiB") == ("A100", 80 << 30)
    for wrong in ("", "V100", "V100, 32", "V100, 0 MiB", ", 5 MiB", "V100, -5 MiB"):
        with pytest.raises(ValueError, match=r"is no GPU; write it as “nvidia-smi"):
            parse_gpu(wrong)


def test_what_a_jobs_gpus_were_is_known_to_the_next_supply(tmp_path: Path) -> None:
    told = ("V100", 16 << 30)
    records = Records(tmp_path)
    first = Announcement(records, "gpu", 2, told)
    assert first.kinds == [AnnouncedKind("V100", 16 << 30, 2)]
    seen = Device("gpu-7/0", "gpu-7", 0, "Tesla V100-SXM2-32GB", 32 << 30, available=True)
    first.learn([seen, replace(seen, server="own", name="A100")], {"gpu-7"})
    first.keep()
    first.learn([], set())
    records.release()
    again = Announcement(Records(tmp_path), "gpu", 2, told)  # what was seen counts, whatever is told
    assert again.kinds == first.kinds == [AnnouncedKind("Tesla V100-SXM2-32GB", 32 << 30, 2)]
    (tmp_path / "gpus.json").write_text("[[1]]")
    assert Announcement(again.records, "gpu", 2, None).kinds == []


def test_records_outlive_their_process_and_have_one_holder(tmp_path: Path) -> None:
    folder = tmp_path / "supply"
    records = Records(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    first, second = records.new(2.0, 60.0), records.new(1.0, 60.0)
    first = records.save(first, job="57", starts=1)
    records.write(connection_file(folder, first.tag, 0), "secret")
    (folder / "broken.job").write_text("{")
    other = Records(folder, hold=False)
    assert list(other.all()) == [second.tag, first.tag]
    assert other.all()[first.tag] == JobRecord(first.tag, 2.0, 60.0, "57", 1)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir() if path.name != "broken.job"} == {0o600}
    with pytest.raises(PoolError, match="A supply runs already on"):
        Records(folder)
    assert other.is_held()
    records.log(first.tag).write_text("one line\nand the last\n\n")
    assert records.last_words(first.tag) == "and the last"
    records.remove(first, keep_log=True)
    assert list(records.all()) == [second.tag]
    assert list(folder.glob(f"{first.tag}*")) == [records.log(first.tag)]


def test_a_job_without_a_way_in_says_why(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"the supply that asked for this job does not run"):
        await_way_in(tmp_path, "tag", 1, seconds=0)
    way = connection_file(tmp_path, "tag", 1)
    way.touch()
    assert await_way_in(tmp_path, "tag", 1, seconds=0) == way


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--schedule", "soon"], "“soon” is no entry of a schedule; write days and hours"),
        (["--min", "3", "--max", "2"], "--max 2 is less than --min 3."),
        (["--hours", "0.1", "--notice", "10m"], "A job of 0.1 h is too short for a notice of 10m; give it"),
        (["--notice", "0"], "--notice 0 is not possible; it is 1 to 43200 s."),
        (["--name", "A/../b"], "“A/../b” is no name for a supply; it has small letters, digits and “-”"),
        (["--simulate", "v100:2"], "“v100:2” is no model; write --simulate v100, without a number."),
        (["--jobs-pool", "here"], "“here” is no address for jobs; write HOST:PORT or tls://HOST:PORT."),
        (["--sbatch", "account"], "“account” is no option of sbatch; write --sbatch=--account=lab."),
        (["--folder", "/dev/null/x"], "/dev/null/x cannot be used: Not a directory; name another folder"),
    ],
)
def test_mistakes_are_one_sentence(options: list[str], sentence: str, tmp_path: Path) -> None:
    words = ["slurm", "supply", "--partition", "gpu", "--state", str(tmp_path), *options]
    done = subprocess.run(
        [sys.executable, "-m", "gpukernel.cli", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode in (1, 2)
    assert done.stderr.startswith(f"gpukernel: {sentence}")
    assert done.stderr.count("\n") == 1


def test_what_a_supply_saw_last_is_shown_with_what_is_left_of_each_job(tmp_path: Path) -> None:
    shown = {
        **dict.fromkeys(("tag", "reason", "leaving"), ""),
        "job": "4711",
        "state": "serving",
        "slurm_state": "RUNNING",
        "node": "n1",
        "server": "gpu-4711",
        "starts": 1,
        "leases": 3,
        "ends": time.time() + 8 * 3600,
    }
    records = Records(tmp_path / "slurm/gpu")
    records.publish({"name": "gpu", "jobs": [shown], "log": [], "at": time.time() - 720})
    records.release()
    words = ["slurm", "status", "gpu", "--state", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "gpukernel.cli", *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[1].split("  ")[-1] == "in 8.0 h"
    assert done.stdout.endswith("The supply does not run; this is of 12 min ago.\n")


def test_only_a_job_that_served_leaves_while_it_is_completing() -> None:
    job = SlurmJob("4711", "gpukernel.gpu.x", "COMPLETING")
    failed = JobRecord("x", 0.0, 60.0, "4711")
    assert Supply._state(failed, job, None) is JobState.STARTING  # no other one is asked for yet
    assert Supply._times(replace(job, starts=1.0, ends=2.0)) == (0.0, 0.0)  # nor since its time were over
    assert Supply._times(replace(job, state="RUNNING", starts=1.0, ends=2.0)) == (1.0, 2.0)
    assert Supply._state(replace(failed, served=True), job, None) is JobState.LEAVING


def test_who_asks_for_what_is_not_there_is_told(tmp_path: Path) -> None:
    for words in (["status", "gpu"], ["stop", "gpu"]):
        done = subprocess.run(
            [sys.executable, "-m", "gpukernel.cli", "slurm", *words, "--state", str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 5
        assert done.stderr == f"gpukernel: There is no supply gpu in {tmp_path}/slurm/gpu.\n"
    outside = subprocess.run(
        [sys.executable, "-m", "gpukernel.cli", "slurm", "job", "--folder", "x", "--tag", "x", "--name", "x", "--notice", "1"],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert "This runs in a job of Slurm" in outside.stderr
