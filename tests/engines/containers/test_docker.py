"""Docker 28.2 or newer gives containers slices by the same CDI file as podman, without a setting of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Pool, eventually
from tests.engines.containers.podman import SLICE, root_filesystem
from tests.engines.containers.test_cdi import LOOK

PROGRAMS = ("dockerd", "docker", "containerd", "containerd-shim-runc-v2", "runc")
IMAGE = "plain:1"


class Docker:
    """A Docker daemon with its files below `home` and no network, and its commands."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "daemon.json").write_text(
            json.dumps({"exec-opts": ["native.cgroupdriver=cgroupfs"], "userland-proxy": False})
        )
        self.address = f"unix://{home}/socket"
        words = ["--host", self.address, "--config-file", str(home / "daemon.json")]
        words += ["--data-root", str(home / "root"), "--exec-root", str(home / "run")]
        words += ["--pidfile", str(home / "pid"), "--storage-driver", "vfs"]
        words += ["--bridge", "none", "--iptables=false", "--ip6tables=false"]
        self.log = home / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(["dockerd", *words], stdout=log, stderr=log)

    def begin(self) -> None:
        """Wait until it answers, and make the image `IMAGE`."""
        eventually(lambda: self("info").returncode == 0 or self.process.poll() is not None, 60)
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        tar = subprocess.run(
            ["tar", "-C", str(root_filesystem(self.home / "image")), "-c", "."],
            capture_output=True,
            check=True,
        )
        made = subprocess.run(
            ["docker", "--host", self.address, "import", "-", IMAGE],
            input=tar.stdout,
            capture_output=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["docker", "--host", self.address, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def run(
        self, device: str, *command: str, options: tuple[str, ...] = ("--rm",)
    ) -> subprocess.CompletedProcess[str]:
        """Run `command` in a container without a network; this machine's ``/usr`` stands for an image's."""
        usual = ("--network", "none", "-v", "/usr:/usr:ro", "--device", device)
        return self("run", *usual, *options, IMAGE, *command)

    def stop(self) -> None:
        names = self("ps", "--all", "--quiet").stdout.split()
        if names:
            self("rm", "--force", *names)
        self.process.terminate()
        self.process.wait(60)


@pytest.fixture(scope="module")
def docker() -> Iterator[Docker]:
    missing = [one for one in PROGRAMS if not shutil.which(one)]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root with Docker 28.2 or newer; missing: {', '.join(missing) or 'root'}")
    said = subprocess.run(["dockerd", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"version (\d+)\.(\d+)", said)
    assert found is not None, said
    if (int(found[1]), int(found[2])) < (28, 2):
        pytest.skip(f"Docker {found[1]}.{found[2]} reads CDI files only where it is told to; 28.2 does")
    home = Path(tempfile.mkdtemp(prefix="docker-", dir="/var/tmp"))
    running = Docker(home)
    try:
        running.begin()
        yield running
    finally:
        running.stop()
        mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
        for mount in sorted((one for one in mounts if one.startswith(f"{home}/")), reverse=True):
            subprocess.run(["umount", mount], capture_output=True, check=False)
        shutil.rmtree(home, ignore_errors=True)


def test_a_container_sees_its_share_as_the_whole_device_and_gives_it_back(docker: Docker, pool: Pool) -> None:
    done = docker.run(SLICE, "/usr/bin/python3", "-c", LOOK)
    assert done.stdout == "0 0 655 0\n", done
    eventually(lambda: pool.promised() == 0)
    other = docker.run(SLICE, "/usr/bin/python3", "-c", LOOK, options=("--rm", "--user", "1234:77"))
    assert other.stdout == "0 0 655 1234\n", other
    eventually(lambda: pool.promised() == 0)
    assert len(pool.leases(ended=True)[0]) == 2


def test_a_container_that_is_killed_frees_its_slice(docker: Docker, pool: Pool) -> None:
    begun = docker.run(SLICE, "/bin/sleep", "600", options=("--detach", "--name", "killed"))
    assert begun.returncode == 0, begun.stderr
    assert len(pool.live()) == 1
    os.kill(int(docker("inspect", "-f", "{{.State.Pid}}", "killed").stdout), signal.SIGKILL)
    eventually(lambda: pool.promised() == 0, 30)
    docker("rm", "--force", "killed")


def test_a_container_asks_for_its_slice_when_it_first_uses_cuda(docker: Docker, asked_pool: Pool) -> None:
    assert docker.run(SLICE, "/bin/true").returncode == 0
    assert asked_pool.leases(ended=True)[0] == []
    assert docker.run(SLICE, "/usr/bin/python3", "-c", LOOK).stdout == "0 0 655 0\n"
    eventually(lambda: asked_pool.promised() == 0)


def test_a_program_that_is_executed_in_it_is_on_the_same_slice(docker: Docker, asked_pool: Pool) -> None:
    begun = docker.run(SLICE, "/bin/sleep", "600", options=("--detach", "--name", "entered"))
    assert begun.returncode == 0, begun.stderr
    # As podman's, its “exec” gives programs none of the file's variables: the container's first process has them.
    script = 'xargs -0 -a /proc/1/environ sh -c \'exec env "$@" python3 -c "$0"\' "$0"'
    for _ in range(2):
        done = docker("exec", "entered", "sh", "-c", script, LOOK)
        assert done.stdout == "0 0 655 0\n", done
    assert len(asked_pool.live()) == 1
    docker("rm", "--force", "entered")
    eventually(lambda: asked_pool.promised() == 0)


def test_a_container_that_finds_no_room_does_not_start_and_the_reason_is_said(
    docker: Docker, pool: Pool
) -> None:
    whole = "gpukernel.io/slice=v100-1"
    begun = docker.run(whole, "/bin/sleep", "600", options=("--detach", "--name", "first"))
    assert begun.returncode == 0, begun.stderr
    second = docker.run(whole, "/bin/true")
    assert second.returncode != 0
    assert "gpukernel: " in second.stderr, second.stderr
    assert "free" in second.stderr, second.stderr
    docker("rm", "--force", "first")
    eventually(lambda: pool.promised() == 0)


def test_a_device_that_no_file_has_is_named(docker: Docker, pool: Pool) -> None:
    done = docker.run("gpukernel.io/slice=b200-0.02", "/bin/true")
    assert done.returncode != 0
    assert "gpukernel.io/slice=b200-0.02" in done.stderr, done.stderr
