"""SystemdSpawner on a machine that systemd started: each server is a unit, and its slices end with it."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Pool, eventually
from tests.hub.hub import Hub, environment_of

pytest.importorskip("systemdspawner")
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/run/systemd/system").exists(),
    reason="needs root on a machine that systemd started",
)

PERSON = "gpukernel-unit"
COURSES = f"courses: {{ml101: {{students: [{PERSON}], offers: [V100 x 0.1]}}}}\n"
EXTRA = f"""
c.SystemdSpawner.unit_name_template = "gpukernel-test-{{USERNAME}}"
c.SystemdSpawner.cmd = ["{Path(sys.executable).parent}/jupyterhub-singleuser"]
c.SystemdSpawner.mem_limit = "2G"
"""


@pytest.fixture(scope="module")
def units() -> Iterator[tuple[Hub, Pool]]:
    # Neither home directories nor pytest's own are open to other accounts.
    home = Path(f"/var/lib/gpukernel-units-{os.getpid()}")
    home.mkdir(mode=0o711)
    subprocess.run(["useradd", "--create-home", PERSON], check=True, capture_output=True)
    try:
        reached = subprocess.run(
            [sys.executable, "-c", "import gpukernel"], user=PERSON, cwd="/", capture_output=True, check=False
        )
        if reached.returncode:
            pytest.skip("this Python lies where other accounts cannot reach it")
        (home / "courses.yaml").write_text(COURSES)
        with Pool("v100:1", home / "pool", options=("--everybody",)) as pool:
            assert pool.gpukernel("quota", "import", str(home / "courses.yaml")).returncode == 0
            environment = environment_of(pool.state, home)
            spawner = "systemdspawner.SystemdSpawner"
            with Hub(home, environment, {"pool": pool.address}, spawner=spawner, extra=EXTRA) as hub:
                yield hub, pool
    finally:
        subprocess.run(["userdel", "--remove", PERSON], check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def shown(unit: str, what: str) -> str:
    done = subprocess.run(
        ["systemctl", "show", "--property", what, "--value", unit], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_server_is_a_unit_of_its_account_and_its_slices_end_with_it(units: tuple[Hub, Pool]) -> None:
    hub, pool = units
    hub.start_server(PERSON, {"course": "ml101"})
    unit = f"gpukernel-test-{PERSON}.service"
    pid = int(shown(unit, "MainPID"))
    assert os.stat(f"/proc/{pid}").st_uid == pwd.getpwnam(PERSON).pw_uid
    started = hub.server(PERSON).start_kernel("gpu-v100-0.1")
    assert started.status_code == 201, started.text
    (lease,) = pool.live()
    assert (lease.holder.person, lease.holder.course) == (PERSON, "ml101")

    # The token is nobody's to read but the unit's and root's.
    token = next(
        line.partition("=")[2]
        for line in Path(f"/proc/{pid}/environ").read_text().split("\0")
        if line.startswith("GPUKERNEL_POOL_TOKEN=")
    )
    other = subprocess.run(
        ["systemctl", "show", unit], user="nobody", capture_output=True, text=True, check=False
    )
    assert token not in other.stdout + other.stderr

    hub.stop_server(PERSON)
    eventually(lambda: not pool.live())
    assert shown(unit, "ActiveState") in ("inactive", "failed")


def test_a_unit_that_is_killed_leaves_nothing(units: tuple[Hub, Pool]) -> None:
    hub, pool = units
    hub.start_server(PERSON, {"course": "ml101"})
    assert hub.server(PERSON).start_kernel("gpu-v100-0.1").status_code == 201
    assert pool.live()
    subprocess.run(["systemctl", "kill", "--signal=KILL", f"gpukernel-test-{PERSON}.service"], check=True)
    eventually(lambda: not pool.live())
    eventually(lambda: not hub.running())
