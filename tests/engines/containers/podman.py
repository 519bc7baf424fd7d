"""Podman with runc in a directory of its own, and files for containers that have nothing of gpukernel in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["RUNTIME_FOLDER", "SLICE", "Podman", "root_filesystem", "running_podman"]

SLICE = "gpukernel.io/slice=v100-0.02"
RUNTIME_FOLDER = Path("/var/run/cdi")
"""The folder where podman looks for CDI files besides ``/etc/cdi``, with the higher rank."""

# Rather few, as in containers of containers, where one may not have more than the outer one.
_CONFIGURATION = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
"""


class Podman:
    """Its commands, with storage at `home`, which buildah may share; `driver` is the storage's, where it is not the usual one."""

    def __init__(self, home: Path, driver: str = "") -> None:
        storage = ["--root", str(home / "root"), "--runroot", str(home / "run")]
        storage += ["--storage-driver", driver] if driver else []
        (home / "containers.conf").write_text(_CONFIGURATION)
        self.command = ["podman", *storage]
        self.environment = {**os.environ, "CONTAINERS_CONF": str(home / "containers.conf")}

    def __call__(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(
        self, device: str, root: Path, *command: str, options: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run `command` in a container without a network on the files at `root`; this machine's ``/usr`` stands for an image's."""
        usual = ("--network", "none", "-v", "/usr:/usr:ro", "--device", device)
        return self("run", *usual, *options, "--rootfs", str(root), *command)

    def process(self, name: str) -> int:
        """Return the number of a container's first process."""
        return int(self("inspect", "-f", "{{.State.Pid}}", name).stdout)


def running_podman() -> Iterator[Podman]:
    """Podman; skips where it cannot run."""
    if os.geteuid() != 0 or not shutil.which("podman") or not shutil.which("runc"):
        pytest.skip("needs root with podman and runc")
    home = Path(
        tempfile.mkdtemp(prefix="podman-", dir="/var/tmp")
    )  # podman takes no longer path than 50 characters
    podman = Podman(home)
    try:
        tried = podman(
            "run",
            "--rm",
            "--network",
            "none",
            "-v",
            "/usr:/usr:ro",
            "--rootfs",
            str(root_filesystem(home / "tried")),
            "/bin/true",
        )
        if tried.returncode:
            pytest.skip(f"podman runs no container here: {tried.stderr[-300:]}")
        yield podman
    finally:
        podman("rm", "--all", "--force", "--time", "0")
        mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
        for mount in sorted((one for one in mounts if one.startswith(f"{home}/")), reverse=True):
            subprocess.run(["umount", mount], capture_output=True, check=False)
        shutil.rmtree(home, ignore_errors=True)


def root_filesystem(place: Path) -> Path:
    """Make the files of an image at `place`: names of accounts, and empty folders."""
    for name in ("etc", "tmp", "root", "proc", "sys", "dev", "run", "var", "usr"):
        (place / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (place / name).symlink_to(f"usr/{name}")
    (place / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    return place
