"""LocalProcessSpawner with accounts of their own: what one student's account can reach of another's."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Pool
from tests.hub.hub import Hub, environment_of

PEOPLE = ("gpukernel-anna", "gpukernel-ben")
COURSES = f"courses: {{ml101: {{students: [{', '.join(PEOPLE)}], offers: [V100 x 0.1]}}}}\n"


def _as(person: str, *command: str) -> subprocess.CompletedProcess[str]:
    account = pwd.getpwnam(person)
    return subprocess.run(
        command,
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
        env={"HOME": account.pw_dir, "PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(scope="module")
def people() -> Iterator[None]:
    """Two accounts of this machine, made for the test."""
    places = os.environ["PATH"] + ":/usr/sbin:/sbin"  # not in every root's PATH
    useradd, userdel = (shutil.which(name, path=places) for name in ("useradd", "userdel"))
    if os.geteuid() != 0 or not useradd or not userdel:
        pytest.skip("only root can make accounts")
    made = []
    try:
        for person in PEOPLE:
            subprocess.run([useradd, "--create-home", person], check=True, capture_output=True)
            made.append(person)
        try:
            reached = _as(PEOPLE[0], sys.executable, "-c", "import gpukernel").returncode == 0
        except PermissionError:
            reached = False
        if not reached:
            pytest.skip("this Python lies where other accounts cannot reach it")
        yield
    finally:
        for person in made:
            subprocess.run([userdel, "--remove", person], check=False, capture_output=True)


@pytest.fixture(scope="module")
def accounts(people: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, Pool]]:
    home = Path(f"/tmp/gpukernel-accounts-{os.getpid()}")  # pytest's own directories are closed to others
    home.mkdir(mode=0o711)
    try:
        (home / "courses.yaml").write_text(COURSES)
        with Pool("v100:1", home / "pool", options=("--everybody",)) as pool:
            assert pool.gpukernel("quota", "import", str(home / "courses.yaml")).returncode == 0
            environment = environment_of(pool.state, home)
            del environment["HOME"]
            spawner = "jupyterhub.spawner.LocalProcessSpawner"
            with Hub(home, environment, {"pool": pool.address}, spawner=spawner) as hub:
                yield hub, pool
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_each_has_a_server_of_their_own_account_and_nothing_of_the_others(accounts: tuple[Hub, Pool]) -> None:
    hub, pool = accounts
    anna, ben = PEOPLE
    for person in PEOPLE:
        hub.start_server(person)
        single = hub.server(person)
        started = single.start_kernel("gpu-v100-0.1")
        assert started.status_code == 201, started.text
    leases = {lease.holder.person: lease for lease in pool.live()}
    assert set(leases) == set(PEOPLE)
    pid = hub.pid(anna)
    assert os.stat(f"/proc/{pid}").st_uid == pwd.getpwnam(anna).pw_uid

    # Neither the token nor the lease's file of another account can be read.
    assert _as(ben, "cat", f"/proc/{pid}/environ").returncode != 0
    assert _as(anna, "cat", f"/proc/{pid}/environ").returncode == 0
    found = list(Path(pwd.getpwnam(anna).pw_dir).rglob("gpukernel-*.lease"))
    assert found
    assert _as(ben, "cat", str(found[0])).returncode != 0

    # Without a token one is the account that the kernel names, and sees one's own slices only.
    shell = [sys.executable, "-m", "gpukernel.cli"]
    where = ["--pool", pool.address]
    listed = _as(ben, *shell, "leases", "--json", *where)
    assert listed.returncode == 0, listed.stderr
    assert leases[ben].id in listed.stdout
    assert leases[anna].id not in listed.stdout
    ended = _as(ben, *shell, "release", leases[anna].id, *where)
    assert ended.returncode != 0
    assert leases[anna].id in {lease.id for lease in pool.live()}
