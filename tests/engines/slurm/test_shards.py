"""Jobs of a real Slurm with ``--gres=shard:N`` have their slice, and nothing is left when they are over."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import pytest

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
    assert "GPUKERNEL" not in done.stdout
    assert "native/shim" not in done.stdout
    shards.until(lambda: not any(shards.jobs_folder().iterdir()))
    assert len(shards.leases(ended=True)) == before


def test_a_job_that_uses_no_gpu_and_is_over_at_once_asks_for_nothing(shards: Sharing) -> None:
    before = len(shards.leases(ended=True))
    assert shards.srun("--gres=shard:1", "true").returncode == 0
    shards.until(lambda: not any(shards.jobs_folder().iterdir()))
    assert len(shards.leases(ended=True)) == before


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
    shards.until(lambda: (shards.jobs_folder() / begins / "job").exists())
    assert len(shards.leases()) == 2  # nobody released, and nobody acquired
    shards.start_daemon(node)
    shards.until(lambda: str(slice_of(shards, 8)) in (shards.home / "begins").read_text(), 60)
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
    shards.until(lambda: [lease.state for lease in shards.leases()] == ["live"])
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
    # What it had not written it would not know; and it writes when something is new, which this is.
    now, state = time.time(), shards.cluster.home / "state" / "job_state"
    shards.cluster.ask("scontrol", "update", f"jobid={job}", "comment=runs")
    shards.until(lambda: state.exists() and state.stat().st_mtime > now)
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
