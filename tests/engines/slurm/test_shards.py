"""Jobs of a real Slurm with ``--gres=shard:N`` have their slice, and nothing is left when they are over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpukernel import native
from gpukernel.engines.shards.recipe import recipe
from gpukernel.remoting.environment import compiler_environment, shim_environment, with_commands
from tests import slurm
from tests.engines.slurm.sharing import CONF, MEMORY, SHARDS, Sharing, memory_program, sharing

ANNA, BEN = 5, 1  # accounts that every Debian has: games and daemon


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharing]:
    """One node with two simulated V100 of 100 shards each."""
    if missing := slurm.missing():
        pytest.skip(missing)
    with (
        slurm.cluster_of(nodes=1, gpus=2, shards=SHARDS, more=CONF) as cluster,
        sharing(cluster, tmp_path_factory.mktemp("shards")) as world,
    ):
        yield world


def slice_of(shards: Sharing, count: int) -> int:
    """Return the bytes of so many shards."""
    return shards.devices()[0].memory_bytes * count // SHARDS // 2**20 * 2**20


def test_a_job_sees_its_slice_as_the_whole_device(shards: Sharing) -> None:
    done = shards.python(MEMORY, "--gres=shard:2")
    assert done.stdout.split() == ["1", str(slice_of(shards, 2))], done.stderr + shards.logs()
    shards.until(lambda: shards.leases() == [])
    lease = shards.leases(ended=True)[-1]
    assert (lease.decided_by, lease.holder.person, lease.end_reason) == ("slurm", "root", "its job is over")
    assert abs(lease.slices[0].weight - 0.02) < 1e-4  # of the device's time, as everywhere


def test_a_job_s_first_program_may_be_a_monitor(shards: Sharing) -> None:
    code = "import pynvml as n; n.nvmlInit(); d = n.nvmlDeviceGetHandleByIndex(0); print(n.nvmlDeviceGetCount(), n.nvmlDeviceGetMemoryInfo(d).total)"
    done = shards.python(code, "--gres=shard:2")
    assert done.stdout.split() == ["1", str(slice_of(shards, 2))], done.stderr + shards.logs()
    shards.until(lambda: shards.leases() == [])


def test_the_slice_is_on_the_device_that_slurm_chose(shards: Sharing) -> None:
    jobs = [shards.sbatch("exec sleep 600", "--gres=shard:60", "--output=/dev/null") for _ in range(2)]
    shards.until(lambda: [lease.state for lease in shards.leases()] == ["live", "live"])
    found = {}
    for lease in shards.leases():
        found[lease.key.partition(":")[2].partition("/")[0]] = lease.slices[0].device_id
    said = {job: shards.cluster.ask("scontrol", "show", "job", "-d", "-o", job) for job in jobs}
    node = shards.cluster.nodes[0]
    assert found == {job: f"{node}/{said[job].partition('(IDX:')[2][0]}" for job in jobs}
    assert len(set(found.values())) == 2
    shards.cluster.ask("scancel", *jobs)
    shards.until(lambda: shards.leases() == [])


def test_steps_and_tasks_of_an_array_have_the_slice_of_their_own_job(shards: Sharing) -> None:
    program = shards.home / "memory.py"
    program.write_text(MEMORY)
    # The batch script itself, and a step that gets the variables a second time.
    job = shards.sbatch(
        f"{sys.executable} {program}; srun {sys.executable} {program}; echo $LD_LIBRARY_PATH; env | grep -c CUDA_VISIBLE_DEVICES",
        "--gres=shard:3", "--array=0-1", f"--output={shards.home}/out-%a",
    )  # fmt: skip
    shards.until(lambda: not shards.cluster.jobs(), 120)
    for number in range(2):
        said = (shards.home / f"out-{number}").read_text().split()
        assert said[:4] == ["1", str(slice_of(shards, 3))] * 2, said
        assert said[4].count("native/shim") == 1
        assert said[5] == "0"
    shards.until(lambda: shards.leases() == [])
    used = [one.key for one in shards.leases(ended=True)[-2:]]
    assert len(set(used)) == 2
    assert any(f":{job}/" in key for key in used)


def test_a_job_without_shards_has_nothing_of_ours(shards: Sharing) -> None:
    before = len(shards.leases(ended=True))
    done = shards.srun("sh", "-c", "sleep 1; env")
    ours = {line for line in done.stdout.splitlines() if line.startswith("GPUKERNEL")}
    assert ours <= {f"{name}={value}" for name, value in os.environ.items()}
    assert "native/shim" not in done.stdout
    shards.until(lambda: not any(shards.jobs_folder().iterdir()))
    assert len(shards.leases(ended=True)) == before


GIVEN: list[dict[str, str]] = [
    {},
    {"LD_LIBRARY_PATH": "/home/anna/lib", "LD_AUDIT": "/x.so", "XLA_FLAGS": "--xla_dump=1 --b=2"},
    {"XLA_FLAGS": "--xla_gpu_cuda_data_dir=/usr/local/cuda", "TRITON_PTXAS_PATH": "/opt/ptxas"},
    {
        "TF_FORCE_GPU_ALLOW_GROWTH": "false",
        "NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS": "1",
        "CUDA_VISIBLE_DEVICES": "1",
    },
    # gpukernel's own environment, activated: its commands stay the first.
    {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"},
]
SHOW = f"{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
_KEPT = ("PATH", "EXTRA", "OTHER")


def variables(text: str, *more: str) -> list[dict[str, str]]:
    """Return what jobs have said of their variables, without those of Slurm and of the shell."""
    names = {one.name for one in recipe(simulated=True)} | {"GPUKERNEL_LEASE_FILE", *_KEPT, *more}
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [{name: value for name, value in one.items() if name in names} for one in found]


def wanted(shards: Sharing, given: dict[str, str]) -> dict[str, str]:
    """Return the variables of a program on a slice, as everywhere, of these."""
    own = compiler_environment(with_commands(given), simulated=True, part=True)
    made = shim_environment(Path("/"), {name: own[name] for name in own if name != "CUDA_VISIBLE_DEVICES"})
    return {**made, "GPUKERNEL_LEASE_FILE": f"slurm:{shards.folder}"}


@pytest.mark.parametrize("given", GIVEN)
def test_jobs_and_steps_have_the_variables_of_a_program_on_a_slice(
    shards: Sharing, given: dict[str, str]
) -> None:
    path = f"{os.environ['PATH']}:/usr/sbin"
    given = {"PATH": path, "EXTRA": "with, a comma\nand a line", **given}
    script = f"#!/bin/sh\n{SHOW}\nsrun {SHOW}\nexport OTHER=new LD_LIBRARY_PATH=/mine:$LD_LIBRARY_PATH\nsrun {SHOW}\n"
    slurm_conf = shards.cluster.environment["SLURM_CONF"]
    output = shards.home / "variables"
    for command, stdin in (
        (["srun", "--quiet", "--gres=shard:1", "sh", "-c", SHOW], ""),
        (["salloc", "--quiet", "--gres=shard:1", "srun", "sh", "-c", SHOW], ""),
        (
            ["sbatch", "--wait", f"--output={output}"],
            script.replace("\n", "\n#SBATCH --gres=gpu:0,shard:2\n", 1),
        ),
    ):
        done = subprocess.run(
            command, input=stdin, env={"SLURM_CONF": slurm_conf, **given}, capture_output=True, text=True,
            check=False, timeout=120, cwd="/tmp",
        )  # fmt: skip
        told = variables(output.read_text() if command[0] == "sbatch" else done.stdout)
        assert told[:1] == [wanted(shards, given)], done.stderr
        if command[0] == "sbatch":
            changed = {
                **given,
                "LD_LIBRARY_PATH": ":".join(["/mine", *filter(None, [given.get("LD_LIBRARY_PATH")])]),
            }
            assert told[1:] == [told[0], {**wanted(shards, changed), "OTHER": "new"}]


@pytest.mark.parametrize(
    ("export", "kept"),
    [
        ("NONE", set[str]()),
        ("PATH,EXTRA=x", {"PATH", "EXTRA"}),
        ("ALL,OTHER=y", {"PATH", "EXTRA", "OTHER"}),
        ("LD_LIBRARY_PATH=/theirs", set[str]()),
    ],
)
def test_what_a_person_says_with_export_holds_beside_a_slice(
    shards: Sharing, export: str, kept: set[str]
) -> None:
    output = shards.home / "export"
    environment = {**shards.environment, "EXTRA": "e", "LD_LIBRARY_PATH": "/users"}
    done = subprocess.run(
        ["sbatch", "--wait", f"--output={output}", "--gres=shard:1", f"--export={export}"],
        input=f"#!/bin/sh\n{SHOW}\nsrun {SHOW}\n", env=environment, capture_output=True, text=True, check=False,
        timeout=120, cwd="/tmp",
    )  # fmt: skip
    first, step = variables(output.read_text())
    if "PATH" not in kept:  # the batch script has the node's, a step none: Slurm's own way
        del first["PATH"]
    assert first == step, done.stderr
    assert {name for name in ("EXTRA", "OTHER") if name in first} == kept - {"PATH"}
    assert first["GPUKERNEL_LEASE_FILE"] == f"slurm:{shards.folder}"
    last = {"ALL,OTHER=y": "/users", "LD_LIBRARY_PATH=/theirs": "/theirs"}.get(export)
    assert ("/users" in first["LD_LIBRARY_PATH"], "/theirs" in first["LD_LIBRARY_PATH"]) == (
        last == "/users",
        last == "/theirs",
    )
    assert first["LD_LIBRARY_PATH"].startswith(f"{native.shim_dir()}:")


def test_a_job_of_a_whole_gpu_has_nothing_of_ours(shards: Sharing) -> None:
    for command in (["srun", "--quiet", "--gres=gpu:1"], ["salloc", "--quiet", "--gres=gpu:1", "srun"]):
        done = subprocess.run(
            [*command, "env"], env=shards.environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert "SLURM_JOB_ID=" in done.stdout, done.stderr
        assert "native/shim" not in done.stdout
        assert "GPUKERNEL_LEASE_FILE" not in done.stdout


def test_a_job_that_uses_no_gpu_has_its_lease_too(shards: Sharing) -> None:
    shards.sbatch("exec sleep 600", "--gres=shard:3", "--output=/dev/null")
    shards.until(lambda: [lease.state for lease in shards.leases()] == ["live"])
    command = ["salloc", "--quiet", "--no-shell", "--gres=shard:4"]  # without any step
    subprocess.run(command, env=shards.environment, capture_output=True, check=True, timeout=60)
    shards.until(lambda: [lease.state for lease in shards.leases()] == ["live", "live"])
    shards.cluster.ask("scancel", "--user=root")
    shards.until(lambda: shards.leases() == [])
    shards.until(lambda: not any(shards.jobs_folder().iterdir()))


def test_another_account_uses_neither_the_lease_file_nor_the_socket(shards: Sharing) -> None:
    program = memory_program(shards.cluster.home)
    hers = shards.sbatch(f"{program} && exec sleep 600", "--gres=shard:5", "--output=/dev/null", user=ANNA)
    shards.until(lambda: [lease.state for lease in shards.leases()] == ["live"])
    (lease,) = shards.leases()
    assert lease.holder.person == "games"
    file = shards.jobs_folder() / hers / "lease"
    shards.until(lambda: "state live" in file.read_text())
    assert (file.stat().st_uid, file.stat().st_mode & 0o777) == (ANNA, 0o600)
    asking = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect('{shards.node_folder()}/socket'); s.send(b'acquire {hers}\\n'); print(s.recv(999))"
    attempts = f'cat {file}; ls {file.parent}; rm {file}; GPUKERNEL_LEASE_FILE={file} {program}; {program}; /usr/bin/python3 -c "{asking}"'
    done = shards.srun("--gres=shard:4", "--chdir=/tmp", "sh", "-c", attempts, user=BEN)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("error "), done.stdout + done.stderr
    assert lines[1] == str(slice_of(shards, 4))
    assert lines[2] == f"b'refused You have no job {hers} on {shards.cluster.nodes[0]}.\\n'"
    assert done.stderr.count("ermission denied") >= 3
    # Her own programs go on.
    again = shards.srun(f"--jobid={hers}", "--overlap", "--chdir=/tmp", str(program), user=ANNA)
    assert again.stdout.split() == [str(slice_of(shards, 5))], again.stderr
    shards.cluster.ask("scancel", hers)
    shards.until(lambda: shards.leases() == [])
    assert not file.exists()


def test_a_requeued_job_has_a_slice_under_the_same_number(shards: Sharing) -> None:
    job = shards.sbatch("exec sleep 600", "--gres=shard:7", "--requeue", "--output=/dev/null")
    shards.until(lambda: [lease.state for lease in shards.leases()] == ["live"])
    (first,) = shards.leases()
    shards.cluster.ask("scontrol", "requeue", job)
    shards.until(lambda: not any(one.id == first.id for one in shards.leases()), 60)

    # Slurm holds a requeued job back until its credential of before has expired.
    shards.until(lambda: [one.state for one in shards.leases()] == ["live"], 200)
    assert shards.leases()[0].id != first.id
    assert [one.key for one in shards.leases()] == [first.key]
    shards.cluster.ask("scancel", job)
    shards.until(lambda: shards.leases() == [])


def test_a_lost_epilog_leaves_nothing_for_long(shards: Sharing) -> None:
    hook = shards.cluster.home / "hook"
    honest = hook.read_text()
    job = shards.sbatch("exec sleep 600", "--gres=shard:9", "--output=/dev/null")
    shards.until(lambda: [lease.state for lease in shards.leases()] == ["live"])
    hook.write_text("#!/bin/sh\nkill -9 $$\n")
    try:
        shards.cluster.ask("scancel", job)
        shards.until(lambda: shards.leases() == [])
    finally:
        hook.write_text(honest)
        shards.resume()
    lease = shards.leases(ended=True)[-1]
    assert lease.end_reason == "its job is over, and no epilog was heard of"
    assert not any(shards.jobs_folder().iterdir())


def test_the_daemon_may_die_while_jobs_begin_run_and_end(shards: Sharing) -> None:
    node = shards.cluster.nodes[0]
    runs = shards.sbatch("exec sleep 600", "--gres=shard:6", "--output=/dev/null")
    ends = shards.sbatch("exec sleep 600", "--gres=shard:6", "--output=/dev/null")
    shards.until(lambda: [lease.state for lease in shards.leases()] == ["live", "live"])
    ours = {lease.key: lease.id for lease in shards.leases()}
    shards.kill(f"daemon-{node}")
    program = memory_program(shards.cluster.home)
    begins = shards.sbatch(
        f"sleep 3; {program}; exec sleep 600", "--gres=shard:8", f"--output={shards.home}/begins"
    )
    shards.cluster.ask("scancel", ends)
    shards.until(lambda: shards.cluster.ask("squeue", "-h", "-j", begins, "-o", "%T") == "RUNNING\n")
    assert len(shards.leases()) == 2  # nobody released, and nobody acquired
    shards.start_daemon(node)
    output = shards.home / "begins"  # there some time after Slurm calls the job RUNNING
    shards.until(lambda: output.exists() and str(slice_of(shards, 8)) in output.read_text(), 60)
    shards.until(lambda: len(shards.leases()) == 2)
    left = {lease.key: lease.id for lease in shards.leases()}
    assert set(left) == {f"gpukernel:{job}/{node}" for job in (runs, begins)}
    assert left[f"gpukernel:{runs}/{node}"] == ours[f"gpukernel:{runs}/{node}"]
    shards.cluster.ask("scancel", runs, begins)
    shards.until(lambda: shards.leases() == [])


def test_a_job_waits_for_a_device_that_slurm_may_not_use_and_is_told_why(shards: Sharing) -> None:
    for device in shards.devices():
        shards.run("server", "delegate", device.label, "--to", "pool", "--pool", str(shards.admin))
    done = shards.srun("--gres=shard:1", "--chdir=/tmp", str(memory_program(shards.cluster.home)))
    assert "is decided by the pool, not by slurm" in done.stdout + done.stderr
    for device in shards.devices():
        shards.run("server", "delegate", device.label, "--to", "slurm", "--pool", str(shards.admin))


def test_a_job_whose_slice_was_ended_gets_another_when_a_program_asks(shards: Sharing) -> None:
    program, output = memory_program(shards.cluster.home), shards.home / "ended"
    go = shards.cluster.home / "go"
    job = shards.sbatch(
        f"{program}; until [ -e {go} ]; do sleep 0.1; done; {program}; exec sleep 600",
        "--gres=shard:4",
        f"--output={output}",
    )
    shards.until(lambda: output.exists() and output.read_text().split() == [str(slice_of(shards, 4))])
    (lease,) = shards.leases()
    shards.end(lease)
    file = shards.jobs_folder() / job / "lease"
    shards.until(lambda: "state none" in file.read_text())
    assert "the pool has ended the job's slice" in file.read_text()
    go.touch()
    shards.until(lambda: output.read_text().split() == [str(slice_of(shards, 4))] * 2)
    (another,) = shards.leases()
    assert (another.key, another.id != lease.id) == (lease.key, True)
    shards.cluster.ask("scancel", job)
    shards.until(lambda: shards.leases() == [])


def test_leases_go_on_while_the_controller_is_down(shards: Sharing) -> None:
    seconds = 60 if os.environ.get("GPUKERNEL_SLURM") == "1" else 5
    output = shards.home / "goes-on"
    program = memory_program(shards.cluster.home)
    job = shards.sbatch(
        f"while sleep 0.5; do {program}; done", "--gres=shard:10", f"--output={output}", "--open-mode=append"
    )
    shards.until(lambda: output.exists() and str(slice_of(shards, 10)) in output.read_text())
    (lease,) = shards.leases()
    shards.cluster.kill_controller()
    try:
        end = time.monotonic() + seconds
        shards.until(lambda: time.monotonic() > end, seconds + 10)
        before = len(output.read_text().splitlines())
        shards.until(lambda: len(output.read_text().splitlines()) > before + 1)  # programs still start
        assert [one.id for one in shards.leases()] == [lease.id]
    finally:
        shards.cluster.start_controller()
    shards.until(lambda: len(shards.cluster.jobs()) == 1)
    assert [one.id for one in shards.leases()] == [lease.id]
    assert set(output.read_text().split()) == {str(slice_of(shards, 10))}
    shards.cluster.ask("scancel", job)
    shards.until(lambda: shards.leases() == [])
