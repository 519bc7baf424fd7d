"""Containerd 1.7 or newer gives containers slices by the same CDI file as podman, and runs its hooks."""

from __future__ import annotations

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
from tests.engines.containers.podman import SLICE
from tests.engines.containers.test_cdi import LOOK

PROGRAMS = ("containerd", "ctr", "containerd-shim-runc-v2", "runc")
# Neither what the kubelet asks nor plugins of others: no file of theirs outside of the test's folder.
_CONFIGURATION = """
version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri"]
"""


class Containerd:
    """A containerd with its files below `home`, and its commands."""

    def __init__(self, home: Path) -> None:
        (home / "config.toml").write_text(_CONFIGURATION)
        self.address = str(home / "socket")
        self.log = home / "log"
        words = ["--config", str(home / "config.toml"), "--address", self.address]
        words += ["--root", str(home / "root"), "--state", str(home / "state")]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(["containerd", *words], stdout=log, stderr=log)

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = ["ctr", "--address", self.address, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def run(
        self, name: str, device: str, root: Path, *command: str, options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run `command` in a container without a network on the files at `root`; this machine's ``/usr`` stands for an image's."""
        usr = "type=bind,src=/usr,dst=/usr,options=rbind:ro"
        return self(
            *("run", "--mount", usr, "--device", device, *options, "--rootfs", str(root), name, *command)
        )

    def number(self, name: str) -> int:
        """Return the number of a container's first process."""
        found = re.search(rf"^{name}\s+(\d+)\s", self("task", "ls").stdout, re.MULTILINE)
        assert found is not None, self("task", "ls")
        return int(found[1])

    def stop(self) -> None:
        for name in self("task", "ls", "--quiet").stdout.split():
            self("task", "delete", "--force", name)
        self.process.terminate()
        self.process.wait(30)


def version() -> tuple[int, ...]:
    """Return the version of this machine's containerd."""
    said = subprocess.run(["containerd", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r" v?(\d+)\.(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])


@pytest.fixture(scope="module")
def containerd() -> Iterator[Containerd]:
    missing = [one for one in PROGRAMS if not shutil.which(one)]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root with containerd 1.7 or newer; missing: {', '.join(missing) or 'root'}")
    if version() < (1, 7):
        pytest.skip(f"containerd {'.'.join(map(str, version()))} knows no CDI files; 1.7 does")
    home = Path(tempfile.mkdtemp(prefix="containerd-", dir="/var/tmp"))
    running = Containerd(home)
    try:
        eventually(lambda: running("version").returncode == 0)
        yield running
    finally:
        running.stop()
        mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
        for mount in sorted((one for one in mounts if one.startswith(f"{home}/")), reverse=True):
            subprocess.run(["umount", mount], capture_output=True, check=False)
        shutil.rmtree(home, ignore_errors=True)


def test_a_container_sees_its_share_as_the_whole_device_and_gives_it_back(
    containerd: Containerd, pool: Pool, root: Path
) -> None:
    done = containerd.run("looks", SLICE, root, "/usr/bin/python3", "-c", LOOK, options=("--rm",))
    assert done.stdout == "0 0 655 0\n", done
    eventually(lambda: pool.promised() == 0)
    assert len(pool.leases(ended=True)[0]) == 1


def test_a_container_that_is_killed_frees_its_slice(containerd: Containerd, pool: Pool, root: Path) -> None:
    begun = containerd.run("killed", SLICE, root, "/bin/sleep", "600", options=("--detach",))
    assert begun.returncode == 0, begun.stderr
    assert len(pool.live()) == 1
    os.kill(containerd.number("killed"), signal.SIGKILL)
    eventually(lambda: pool.promised() == 0, 30)
    containerd("task", "delete", "--force", "killed")
    containerd("container", "delete", "killed")


def test_a_container_asks_for_its_slice_when_it_first_uses_cuda(
    containerd: Containerd, asked_pool: Pool, root: Path
) -> None:
    idle = containerd.run("idle", SLICE, root, "/bin/true", options=("--rm",))
    assert idle.returncode == 0, idle.stderr
    assert asked_pool.leases(ended=True)[0] == []
    done = containerd.run("asks", SLICE, root, "/usr/bin/python3", "-c", LOOK, options=("--rm",))
    assert done.stdout == "0 0 655 0\n", done
    eventually(lambda: asked_pool.promised() == 0)


def test_an_image_with_musl_is_told_so(containerd: Containerd, asked_pool: Pool, tmp_path: Path) -> None:
    musl = tmp_path / "musl"
    for name in ("lib", "proc", "sys", "dev", "run", "etc"):
        (musl / name).mkdir(parents=True)
    (musl / "lib" / "ld-musl-x86_64.so.1").touch()
    words = ("run", "--rm", "--device", SLICE, "--rootfs", str(musl), "musl", "/bin/sh")
    done = containerd(*words)
    assert done.returncode != 0
    assert "musl in place of glibc" in done.stderr, done.stderr


def test_a_device_that_no_file_has_is_named(containerd: Containerd, pool: Pool, root: Path) -> None:
    done = containerd.run("none", "gpukernel.io/slice=b200-0.02", root, "/bin/true", options=("--rm",))
    assert done.returncode != 0
    assert "unresolvable CDI devices gpukernel.io/slice=b200-0.02" in done.stderr, done.stderr
    assert pool.leases(ended=True)[0] == []
