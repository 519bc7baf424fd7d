"""``gpukernel server delegate`` and ``gpukernel lease``: a prolog, a job and an epilog, against a real pool and a real worker."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpukernel.cli.engines.filters import lease_conditions
from gpukernel.cli.engines.job_files import check_folder
from gpukernel.cli.engines.placed import placements
from gpukernel.cli.terminal.output import Problem
from gpukernel.common.model import PlacedOn
from gpukernel.remoting.environment import shim_environment
from tests.conftest import Pool

MIB = 2**20
JOB = """
from cuda.bindings import driver as d
status = d.cuInit(0)[0]
if status: raise SystemExit(f"cuInit: {status}")
d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
print(d.cuMemGetInfo()[2] >> 20, d.cuMemAlloc(600 << 20)[0].name, d.cuMemAlloc(100 << 20)[0].name)
"""
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def jobs() -> Iterator[Path]:
    """A folder as a prolog has it."""
    with tempfile.TemporaryDirectory(prefix="gpukernel-jobs-") as folder:
        yield Path(folder)


@pytest.fixture
def pool(own_pool: Pool) -> Pool:
    """A pool whose one device Slurm decides over."""
    (device,) = own_pool.devices()
    given = own_pool.gpukernel("server", "delegate", device.id, "--to", "slurm")
    assert (given.returncode, given.stdout) == (0, f"Slurm decides over {device.id} ({device.uuid}).\n"), (
        given
    )
    return own_pool


def data(pool: Pool, *words: str) -> list[dict[str, Any]]:
    done = pool.gpukernel(*words, "--json")
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def prolog(pool: Pool, file: Path, *words: str, person: str = "nobody") -> tuple[str, ...]:
    (device,) = pool.devices()
    placed = ("lease", "acquire", "--engine", "slurm", "--placed-on", f"{device.uuid}=655MiB")
    return (*placed, "--key", "slurm-12", "--for", person, "--lease-file", str(file), *words)


def job(pool: Pool, file: Path) -> subprocess.CompletedProcess[str]:
    environment = shim_environment(file, pool.environment)
    return subprocess.run(
        [sys.executable, "-c", JOB], env=environment, capture_output=True, text=True, check=False, timeout=100
    )


def test_a_job_runs_on_the_slice_that_its_prolog_acquired(pool: Pool, jobs: Path) -> None:
    file = jobs / "12"
    (first,) = data(pool, *prolog(pool, file))
    assert (first["state"], first["decided_by"], first["key"]) == ("live", "slurm", "slurm-12")
    assert "secret" not in first
    assert file.stat().st_mode & 0o777 == 0o600
    ran = job(pool, file)
    assert (ran.returncode, ran.stdout) == (0, "655 CUDA_SUCCESS CUDA_ERROR_OUT_OF_MEMORY\n"), ran.stderr
    # A prolog that was killed is run again, and finds the same.
    (again,) = data(pool, *prolog(pool, file))
    assert again["id"] == first["id"]
    assert job(pool, file).stdout == ran.stdout
    other = pool.gpukernel(*prolog(pool, file, person="ben"))
    assert (other.returncode, other.stderr.count("\n")) == (1, 1)
    assert "slurm-12 has another lease" in other.stderr
    assert "it is for nobody, not ben" in other.stderr
    # The pool itself has nothing to give.
    refused = pool.gpukernel("run", "-p", "0.1", "--wait", "0", "--", "true")
    assert refused.returncode != 0
    (listed,) = data(pool, "lease", "list", "--engine", "slurm", "--key", "slurm-12")
    assert (listed["id"], listed["slices"][0]["usage"]["cuda_calls"] > 0) == (first["id"], True)
    assert [one["id"] for one in data(pool, "leases", "--filter", "key=slurm-12")] == [first["id"]]
    assert data(pool, "leases", "--filter", "decided_by=pool") == []
    released = pool.gpukernel(
        "lease", "release", "--engine", "slurm", "--key", "slurm-12", "--lease-file", str(file)
    )
    assert (released.returncode, released.stdout) == (
        0,
        f"Lease {first['id'][:8]} of key slurm-12 is released.\n",
    ), released.stderr
    assert not file.exists()
    assert pool.promised() == 0
    for key in ("slurm-12", "never-seen"):
        again_released = pool.gpukernel("lease", "release", "--engine", "slurm", "--key", key)
        assert (again_released.returncode, again_released.stdout) == (0, f"No lease of key {key} is left.\n")
    (use,) = data(pool, "report", "--by", "lease", "--since", "1h")
    assert use["what"] == listed["id"]


def test_a_prolog_outlives_a_pool_that_is_started_again(pool: Pool, jobs: Path) -> None:
    words = prolog(pool, jobs / "12")
    before = [lease for lease in pool.leases()[0] if lease.key == "slurm-12"]
    assert before == []
    pool.stop()
    unreached = pool.gpukernel(*words, "--wait", "0")
    assert (unreached.returncode, unreached.stderr.count("\n")) == (3, 1), unreached.stderr
    waits = subprocess.Popen(
        [sys.executable, "-m", "gpukernel.cli", *words],
        env=pool.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    pool.start()
    assert waits.wait(100) == 0
    (lease,) = pool.live()
    assert waits.communicate()[0] == f"{lease.id}\n"
    pool.stop()
    waits = subprocess.Popen(
        [sys.executable, "-m", "gpukernel.cli", "lease", "release", "--engine", "slurm", "--key", "slurm-12"],
        env=pool.environment,
    )
    pool.start()
    assert waits.wait(100) == 0
    assert pool.promised() == 0


@root_only
def test_a_lease_file_is_the_person_s_and_lies_where_only_root_may_write(pool: Pool, jobs: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    assert pool.gpukernel(*prolog(pool, jobs / "12")).returncode == 0
    assert (jobs / "12").stat().st_uid == nobody.pw_uid
    assert [one.name for one in jobs.iterdir()] == ["12"]
    theirs = jobs / "theirs"
    theirs.mkdir()
    os.chown(theirs, nobody.pw_uid, nobody.pw_gid)
    (jobs / "link").symlink_to(theirs)
    below = theirs / "below"
    below.mkdir()
    for folder in (theirs, jobs / "link", below):
        refused = pool.gpukernel(*prolog(pool, folder / "13"))
        assert (refused.returncode, "is not root's alone" in refused.stderr) == (2, True), refused.stderr
        assert not (folder / "13").exists()
    (theirs / "12").write_text("")
    epilog = (
        "lease",
        "release",
        "--engine",
        "slurm",
        "--key",
        "slurm-12",
        "--lease-file",
        str(theirs / "12"),
    )
    refused = pool.gpukernel(*epilog)
    assert (refused.returncode, (theirs / "12").exists()) == (2, True), refused.stderr
    assert pool.promised() == 0, "the lease is released all the same"


def test_a_device_in_use_is_given_away_when_it_is_free(pool: Pool, jobs: Path) -> None:
    (device,) = pool.devices()
    assert pool.gpukernel(*prolog(pool, jobs / "12")).returncode == 0
    refused = pool.gpukernel("server", "delegate", device.id, "--to", "pool")
    assert refused.returncode == 6
    assert f"1 lease that slurm placed is on {device.id}; end them, or say --when-free" in refused.stderr
    waits = pool.gpukernel("server", "delegate", device.uuid, "--to", "pool", "--when-free")
    assert waits.stdout == (
        f"{device.id} gets no new leases; the pool decides over it once its lease is over.\n"
    )
    table = pool.gpukernel("list-gpus").stdout
    assert "pool decides over it once it is free" in table
    assert pool.gpukernel("health").stdout.count("slurm decides over 1") == 1
    assert pool.gpukernel("lease", "release", "--engine", "slurm", "--key", "slurm-12").returncode == 0
    assert pool.gpukernel("run", "-p", "0.1", "--wait", "0", "--", "true").returncode == 0


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (("server", "delegate", "gpu7/0", "--to", "slurm"), 5, "no device “gpu7/0”"),
        (("server", "delegate", "", "--to", "slurm"), 2, "Name the device"),
        (("server", "delegate", "DEVICE", "--to", "lsf"), 2, "“lsf” is not one of pool, kubernetes, slurm"),
        (("leases", "--filter", "decided_by=lsf"), 2, "“lsf” decides over nothing"),
        (("lease", "release", "--key", "a b", "--engine", "slurm"), 2, "“a b” is no key"),
        (("lease", "list"), 2, "“” is not one of kubernetes, slurm"),
        (("lease", "acquire", "--placed-on", "UUID=655", "--key", "k", "--for", "a"), 2, "is no placement"),
        (
            (
                "lease",
                "acquire",
                "--placed-on",
                "UUID=1GiB",
                "--key",
                "k",
                "--for",
                "a",
                "--lease-file",
                "/no/f",
            ),
            5,
            "There is no folder /no",
        ),
        (
            (
                "lease",
                "acquire",
                "--placed-on",
                "GPU-1=1GiB",
                "--key",
                "k",
                "--for",
                "a",
                "--engine",
                "slurm",
            ),
            5,
            "The pool has no device GPU-1",
        ),
        (
            (
                "lease",
                "acquire",
                "--placed-on",
                "UUID=1GiB",
                "--key",
                "k",
                "--for",
                "a",
                "--engine",
                "kubernetes",
            ),
            4,
            "is decided by slurm, not by kubernetes",
        ),
        (
            (
                "lease",
                "acquire",
                "--placed-on",
                "UUID=40GiB",
                "--key",
                "k",
                "--for",
                "a",
                "--engine",
                "slurm",
            ),
            2,
            "40960 MiB do not fit on",
        ),
    ],
)
def test_what_is_wrong_is_one_sentence_with_its_status(
    delegated: Pool, words: tuple[str, ...], status: int, sentence: str
) -> None:
    (device, _) = delegated.devices()
    words = tuple(word.replace("UUID", device.uuid).replace("DEVICE", device.id) for word in words)
    wrong = delegated.gpukernel(*words)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (status, 1), wrong.stderr
    assert sentence in wrong.stderr


@pytest.fixture(scope="module")
def delegated() -> Iterator[Pool]:
    with Pool("v100:2", options=("--name", "gpu1")) as pool:
        assert pool.gpukernel("server", "delegate", "gpu1/0", "--to", "slurm").returncode == 0
        yield pool


def test_a_full_device_is_status_6(delegated: Pool) -> None:
    uuid = delegated.devices()[0].uuid
    first = ("lease", "acquire", "--engine", "slurm", "--for", "anna", "--placed-on", f"{uuid}=31GiB")
    assert delegated.gpukernel(*first, "--key", "one").returncode == 0
    full = delegated.gpukernel(*first, "--key", "two")
    assert full.returncode == 6
    assert "has 1024 MiB free, not the 31744 MiB that are asked for." in full.stderr
    assert delegated.gpukernel("lease", "release", "--engine", "slurm", "--key", "one").returncode == 0


def test_placements_have_a_unit() -> None:
    assert placements(["GPU-1=655MiB", "GPU-2=1.5GiB", "MIG-3=1048576B", "GPU-4=2048KiB"]) == [
        PlacedOn("GPU-1", 655 * MIB),
        PlacedOn("GPU-2", 1536 * MIB),
        PlacedOn("MIG-3", MIB),
        PlacedOn("GPU-4", 2 * MIB),
    ]
    for wrong in ("GPU-1", "GPU-1=", "GPU-1=1", "=1MiB", "GPU-1=-1MiB", "GPU-1=1mb", "GPU-1=1MiB "):
        with pytest.raises(Problem, match="is no placement"):
            placements([wrong])


def test_filters_of_leases() -> None:
    assert lease_conditions("") == {}
    assert lease_conditions("key=12 and decided_by=slurm") == {"key": "12", "decided_by": "slurm"}
    for wrong in ("key", "person=anna", "key=1 and key=2", "key=1 decided_by=slurm"):
        with pytest.raises(Problem, match="is no filter"):
            lease_conditions(wrong)


def test_a_folder_that_is_there_may_have_a_lease_file(jobs: Path) -> None:
    check_folder(jobs / "12")
    with pytest.raises(Problem, match="There is no folder"):
        check_folder(jobs / "nowhere" / "12")
