"""Accounts that try to compute on other jobs' slices, or on more or for longer than Slurm has given them, on a real Slurm."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpukernel import native
from gpukernel.common.model import Lease
from tests import slurm
from tests.engines.slurm.sharing import CONF, SHARDS, Sharing, memory_program, sharing

ANNA, BEN = 5, 1  # accounts that every Debian has: games and daemon

GRASP = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
typedef int (*Call)();
/* grasp MIB [FILE]: takes so much memory, and a MiB more once FILE is there. */
int main(int count, char **words) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context = 0;
    unsigned long long memory = 0;
    int device = 0, status;
    if (!cuda) return puts("no libcuda"), 1;
    status = ((Call)dlsym(cuda, "cuInit"))(0);
    if (!status) status = ((Call)dlsym(cuda, "cuDeviceGet"))(&device, 0);
    if (!status) status = ((Call)dlsym(cuda, "cuDevicePrimaryCtxRetain"))(&context, device);
    if (!status) status = ((Call)dlsym(cuda, "cuCtxSetCurrent"))(context);
    if (!status) status = ((Call)dlsym(cuda, "cuMemAlloc_v2"))(&memory, (size_t)atol(words[1]) << 20);
    printf("held %d\n", status), fflush(stdout);
    if (count < 3) return status;
    while (access(words[2], F_OK)) usleep(50000);
    printf("after %d\n", ((Call)dlsym(cuda, "cuMemAlloc_v2"))(&memory, (size_t)1 << 20)), fflush(stdout);
    return 0;
}
"""
OUT_OF_MEMORY = 2


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sharing]:
    """One node with two simulated V100 of 100 shards each."""
    if missing := slurm.missing():
        pytest.skip(missing)
    with (
        slurm.cluster_of(nodes=1, gpus=2, shards=SHARDS, more=CONF) as cluster,
        sharing(cluster, tmp_path_factory.mktemp("attacks")) as world,
    ):
        (cluster.home / "grasp.c").write_text(GRASP)
        build = ["cc", "-o", str(cluster.home / "grasp"), str(cluster.home / "grasp.c"), "-ldl"]
        subprocess.run(build, check=True, capture_output=True)
        yield world


@pytest.fixture
def hers(shards: Sharing) -> Iterator[tuple[str, Lease]]:
    """Anna's job with its slice, which lives to the end of the test."""
    job = shards.sbatch("exec sleep 600", "--gres=shard:30", "--output=/dev/null", user=ANNA)
    shards.until(lambda: [lease.state for lease in shards.leases()] == ["live"])
    (lease,) = shards.leases()
    yield job, lease
    shards.until(lambda: len(shards.leases()) == 1)
    assert [one.id for one in shards.leases()] == [lease.id]
    shards.cluster.ask("scancel", job)
    shards.until(lambda: shards.leases() == [] and shards.cluster.jobs() == [])


@pytest.fixture
def bens(shards: Sharing, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Ben's."""
    folder = Path(shards.cluster.home, "ben")
    folder.mkdir(exist_ok=True)
    os.chown(folder, BEN, BEN)
    return folder


def by_hand(shards: Sharing, job: str, node: str = "", folder: str = "") -> dict[str, str]:
    """Return an environment that says that it is of a job's."""
    own = shards.cluster.nodes[0]
    return {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(native.shim_dir()),
        "GPUKERNEL_LEASE_FILE": f"slurm:{folder or shards.folder}",
        "SLURM_JOB_ID": job,
        "SLURMD_NODENAME": node or own,
    }


def as_ben(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False, timeout=60,
        user=BEN, group=BEN, extra_groups=[], cwd="/tmp",
    )  # fmt: skip


def test_a_number_that_somebody_claims_opens_nothing_inside_a_job_or_outside(
    shards: Sharing, hers: tuple[str, Lease]
) -> None:
    program, (job, _) = memory_program(shards.cluster.home), hers
    node = shards.cluster.nodes[0]
    outside = as_ben([str(program)], by_hand(shards, job))
    assert outside.stdout.startswith("error")
    assert "lease cannot be read: Permission denied" in outside.stderr
    another = str(int(job) + 1000)  # that is nobody's: the daemon is asked
    asked = as_ben([str(program)], by_hand(shards, another))
    assert f"You have no job {another} on {node}." in asked.stderr
    inside = shards.srun(
        "--gres=shard:1",
        "--chdir=/tmp",
        "sh",
        "-c",
        f"SLURM_JOB_ID={job} SLURM_JOBID={job} {program}",
        user=BEN,
    )
    assert inside.stdout.startswith("error")
    assert "lease cannot be read: Permission denied" in inside.stderr
    for claim, where in (
        ("../../x", ""),
        (job, "../.."),
        (f"{job} x", ""),
        ("9" * 400, ""),
        (job, "n" * 300),
    ):
        done = as_ben([str(program)], by_hand(shards, claim, where))
        assert (done.returncode, done.stdout.startswith("error")) == (1, True), done


def test_a_step_in_anothers_job_is_slurms_to_refuse_and_it_does(
    shards: Sharing, hers: tuple[str, Lease]
) -> None:
    program, (job, _) = memory_program(shards.cluster.home), hers
    for options in ([], ["--gres=shard:30"], ["--export=ALL"]):
        done = shards.srun(f"--jobid={job}", "--overlap", "--chdir=/tmp", *options, str(program), user=BEN)
        assert (done.returncode != 0, done.stdout) == (True, ""), done
        assert "denied" in done.stderr.lower(), done.stderr


def test_nobody_but_the_nodes_own_epilog_ends_a_job(
    shards: Sharing, hers: tuple[str, Lease], bens: Path
) -> None:
    job, _ = hers
    node = shards.cluster.nodes[0]
    epilog = {"SLURM_SCRIPT_CONTEXT": "epilog_slurmd", "SLURM_JOB_ID": job, "SLURMD_NODENAME": node}
    hook = bens / "hook"  # a copy that this account can run
    shutil.copy(native.slurm_hook(), hook)
    hook.chmod(0o755)
    as_ben([str(hook), str(shards.folder)], epilog)
    told = "import socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'end %s', '%s/hooks')"
    done = as_ben(["/usr/bin/python3", "-c", told % (job, shards.node_folder())], {})
    assert "ermission denied" in done.stderr
    assert not (shards.jobs_folder() / job / "over").exists()


def test_a_lease_file_of_ones_own_making_gives_no_more_than_the_slice(
    shards: Sharing, hers: tuple[str, Lease], bens: Path
) -> None:
    """Whoever writes their own lease file, or changes the one that they have, says something to their own programs only."""
    grasp, (_, lease) = shards.cluster.home / "grasp", hers
    slice_mib = shards.devices()[0].memory_bytes // SHARDS * 10 >> 20
    node = shards.cluster.nodes[0]
    # Its own secret, a neighbour's lease and any number of devices.
    forged = bens / node / "jobs"
    script = (
        f"{grasp} {slice_mib * 2}; file={shards.jobs_folder()}/$SLURM_JOB_ID/lease; "
        f"mkdir -p {forged}/$SLURM_JOB_ID; sed 's/^lease .*/lease {lease.id}/' $file > {forged}/$SLURM_JOB_ID/lease; "
        f"GPUKERNEL_LEASE_FILE=slurm:{bens} {grasp} {slice_mib * 2}; "
        f"sed 's/^lease .*/lease {lease.id}/' $file > {bens}/text; cat {bens}/text > $file; {grasp} {slice_mib * 2}; {grasp} 16"
    )
    done = shards.srun("--gres=shard:10", "--chdir=/tmp", "sh", "-c", script, user=BEN)
    held = [line for line in done.stdout.splitlines() if line.startswith("held")]
    assert held[0] == f"held {OUT_OF_MEMORY}", done
    assert len(held) == 4
    assert "held 0" not in held[1:3]


def test_what_outlives_its_job_has_no_gpu_any_more(shards: Sharing, bens: Path) -> None:
    grasp, out, go, number = (shards.cluster.home / "grasp", bens / "out", bens / "go", bens / "pid")
    go.unlink(missing_ok=True)
    # A grandchild in a session of its own: Slurm, by linuxproc, does not find it.
    script = (
        f"setsid sh -c '{grasp} 512 {go} > {out} 2>&1 < /dev/null & echo $! > {number}' & wait; "
        f"until grep -q held {out}; do sleep 0.1; done"
    )
    job = shards.sbatch(script, "--gres=shard:20", "--output=/dev/null", "--chdir=/tmp", user=BEN)
    shards.until(lambda: out.exists() and "held 0" in out.read_text())
    try:
        shards.until(lambda: shards.cluster.jobs() == [])
        shards.until(lambda: shards.leases() == [])
        os.kill(int(number.read_text()), 0)  # it lives
        shards.until(lambda: {device.promised_bytes for device in shards.devices()} == {0})
        # All of the device is somebody else's.
        full = shards.srun(
            "--gres=shard:100", "--chdir=/tmp", str(memory_program(shards.cluster.home)), user=ANNA
        )
        assert full.stdout.split() == [str(shards.devices()[0].memory_bytes)], full.stderr
        go.touch()
        shards.until(lambda: "after" in out.read_text())
        assert "after 0" not in out.read_text()
        again = as_ben([str(grasp), "16"], by_hand(shards, job))
        assert f"You have no job {job}" in again.stdout + again.stderr
        assert not (shards.jobs_folder() / job).exists()
    finally:
        with contextlib.suppress(ProcessLookupError, ValueError):
            os.kill(int(number.read_text()), signal.SIGKILL)


FILTERS = {
    "none": "function slurm_cli_setup_defaults(o, e) return slurm.SUCCESS end\n"
    "function slurm_cli_pre_submit(o, p) return slurm.SUCCESS end\n"
    "function slurm_cli_post_submit(p, j, s) return slurm.SUCCESS end\n",
    "lying": "function slurm_cli_setup_defaults(o, e) return slurm.SUCCESS end\n"
    "function slurm_cli_pre_submit(o, p) o['export'] = 'ALL,SLURM_JOB_ID={job},GPUKERNEL_LEASE_FILE=slurm:{folder},"
    "LD_LIBRARY_PATH={shim}' return slurm.SUCCESS end\n"
    "function slurm_cli_post_submit(p, j, s) return slurm.SUCCESS end\n",
}


@pytest.mark.parametrize("kind", FILTERS)
def test_a_filter_of_ones_own_gives_nothing_that_is_anothers(
    shards: Sharing, hers: tuple[str, Lease], bens: Path, kind: str
) -> None:
    """Slurm's commands read their filter beside the slurm.conf that their caller names."""
    job, _ = hers
    conf = Path(shards.cluster.environment["SLURM_CONF"])
    text = FILTERS[kind]
    for name, value in (("{job}", job), ("{folder}", str(shards.folder)), ("{shim}", str(native.shim_dir()))):
        text = text.replace(name, value)
    (bens / "cli_filter.lua").write_text(text)
    (bens / "gres.conf").write_text((conf.parent / "gres.conf").read_text())
    (bens / "slurm.conf").write_text(conf.read_text())
    program = memory_program(shards.cluster.home)
    done = subprocess.run(
        ["srun", "--quiet", "--gres=shard:1", "--chdir=/tmp", str(program)],
        env={**shards.environment, "SLURM_CONF": str(bens / "slurm.conf")},
        capture_output=True, text=True, check=False, timeout=120, user=BEN, group=BEN, extra_groups=[], cwd="/tmp",
    )  # fmt: skip
    if kind == "none":
        assert done.stdout.startswith("error"), done
        return
    # Slurm itself says which job it is, after the filter: Ben has the one shard that he asked for.
    own = (shards.devices()[0].memory_bytes // SHARDS >> 20) << 20
    assert done.stdout == f"{own}\n", done
