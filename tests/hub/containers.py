"""A Docker daemon for tests: the one that runs here, or podman's, in a directory of its own; and an image without a registry."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpukernel

__all__ = ["IMAGE", "daemon", "folders_of_this_python", "import_image"]

IMAGE = "gpukernel-test:latest"

# Rather few, as in containers of containers, where one may not have more than the outer one.
_PODMAN = """
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
"""


@contextlib.contextmanager
def daemon() -> Iterator[str]:
    """Its address; skips where there is none and none can be started."""
    docker = pytest.importorskip("docker")
    usual = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    with contextlib.suppress(docker.errors.DockerException):
        docker.DockerClient(base_url=usual).ping()
        yield usual
        return
    if os.geteuid() != 0 or not shutil.which("podman") or not shutil.which("runc"):
        pytest.skip("needs a Docker daemon, or root with podman and runc")
    home = Path(
        tempfile.mkdtemp(prefix="podman-", dir="/var/tmp")
    )  # podman takes no longer path than 50 characters
    (home / "containers.conf").write_text(_PODMAN)
    address = f"unix://{home}/docker.sock"
    podman = ["podman", "--root", str(home / "root"), "--runroot", str(home / "run")]
    environment = {
        **os.environ,
        "CONTAINERS_CONF": str(home / "containers.conf"),
        "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",  # of iptables
    }
    with (home / "log").open("wb") as log:
        service = subprocess.Popen(
            [*podman, "system", "service", "--time=0", address], env=environment, stdout=log, stderr=log
        )
    try:
        end = time.monotonic() + 30
        while True:
            with contextlib.suppress(docker.errors.DockerException):
                docker.DockerClient(base_url=address).ping()
                break
            if service.poll() is not None or time.monotonic() > end:
                pytest.skip(f"podman serves no Docker here: {(home / 'log').read_text()[-300:]}")
            time.sleep(0.1)
        yield address
    finally:
        for what in ("rm", "rmi"):
            done = [*podman, what, "--all", "--force"]
            subprocess.run(done, env=environment, capture_output=True, check=False)
        service.terminate()
        service.wait(30)
        mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
        for mount in sorted((one for one in mounts if one.startswith(f"{home}/")), reverse=True):
            subprocess.run(["umount", mount], capture_output=True, check=False)
        shutil.rmtree(home, ignore_errors=True)


def folders_of_this_python() -> list[str]:
    """The parts of this machine that an image needs to run this Python: read-only mounts stand for ``pip install``."""
    found = {"/usr", sys.prefix, sys.base_prefix, str(Path(gpukernel.__file__ or "").parent.parent)}
    return sorted(path for path in found if not any(path.startswith(f"{other}/") for other in found))


def import_image(client: Any) -> None:
    """An image with nothing but names of accounts, and empty folders."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in ("etc", "tmp", "root", "home", "proc", "sys", "dev", "run", "var", "var/tmp", "usr"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            tar.addfile(folder)
        for name in ("bin", "sbin", "lib", "lib64"):
            if Path(f"/{name}").is_symlink():
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
                tar.addfile(link)
        for name, text in (
            ("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n"),
            ("etc/group", b"root:x:0:\n"),
            ("etc/ld.so.cache", Path("/etc/ld.so.cache").read_bytes()),
        ):
            file = tarfile.TarInfo(name)
            file.size, file.mode = len(text), 0o644
            tar.addfile(file, io.BytesIO(text))
    repository, _, tag = IMAGE.partition(":")
    client.api.import_image_from_data(made.getvalue(), repository=repository, tag=tag)
