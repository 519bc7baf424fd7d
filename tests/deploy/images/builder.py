"""Buildah and podman with storage of their own, on a Debian that debootstrap makes: images are built without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deploy.images.wheel import wheel_of_this_installation
from tests.engines.containers.podman import Podman
from tools.images import build, make_context

__all__ = ["BASE", "PYTHON", "WHEN", "Builder", "debian", "running_builder", "skip_without"]

SUITE, PYTHON = "bookworm", "3.11"
# Made once, since it takes minutes.
CACHE = Path("/var/tmp") / f"gpukernel-tests-{SUITE}"
BASE = "localhost/base:1"
WHEN = "1700000000"


class Builder:
    """Buildah with storage of its own below `home`, and without a network."""

    def __init__(self, home: Path) -> None:
        self.home = home
        driver = "overlay" if _overlays(home) else "vfs"
        storage = ("--root", str(home / "root"), "--runroot", str(home / "run"), "--storage-driver", driver)
        self.words = ("unshare", "--net", "buildah", *storage)
        self.podman = Podman(home, driver)
        self.built: dict[str, str] = {}
        self._wheel: Path | None = None

    def __call__(self, *words: str, check: bool = True, timeout: float = 1200) -> str:
        done = subprocess.run(
            [*self.words, *words], capture_output=True, text=True, check=False, timeout=timeout
        )
        assert not check or done.returncode == 0, done.stderr
        return (done.stdout + ("" if check else done.stderr)).strip()

    def image(self, name: str) -> str:
        """Return the id of the image ``localhost/NAME:1``, built where it is not yet."""
        if name not in self.built:
            if self._wheel is None:
                self._wheel = wheel_of_this_installation(self.home)
            make_context(name, self._wheel, self.home / name, PYTHON)
            self.built[name] = build(self.home / name, f"localhost/{name}:1", BASE, WHEN, self.words)
        return self.built[name]

    def again(self, name: str) -> str:
        """Build `name` once more from the same context, and return the id."""
        return build(self.home / name, "localhost/again:1", BASE, WHEN, self.words)

    def forget(self, name: str) -> None:
        """Remove an image and what it was built from: gigabytes, with a framework."""
        self("rmi", "--force", "localhost/again:1", check=False)
        self("rmi", "--force", f"localhost/{name}:1", check=False)
        shutil.rmtree(self.home / name, ignore_errors=True)
        self.built.pop(name, None)


def _overlays(home: Path) -> bool:
    """Tell whether layers can be mounted above each other here; else each is a copy of all below it."""
    folders = [home / "tried" / name for name in ("lower", "upper", "work", "merged")]
    for folder in folders:
        folder.mkdir(parents=True)
    lower, upper, work, merged = map(str, folders)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    mounted = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, merged], capture_output=True, check=False
    )
    if mounted.returncode == 0:
        subprocess.run(["umount", merged], check=True)
    shutil.rmtree(home / "tried")
    return mounted.returncode == 0


def skip_without(*programs: str) -> None:
    """Skip where a program is missing, or where this is not root, and say which."""
    missing = [one for one in programs if not shutil.which(one)]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root with {', '.join(programs)}; missing: {', '.join(missing) or 'root'}")


def debian() -> Path:
    """Return the root file system of a Debian with Python and nothing else."""
    if not CACHE.is_dir():
        draft = Path(tempfile.mkdtemp(prefix=f"{CACHE.name}.", dir=CACHE.parent))
        made = subprocess.run(
            ["debootstrap", "--variant=minbase", "--include=python3", SUITE, str(draft / "root")],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            shutil.rmtree(draft)
            pytest.skip(f"debootstrap makes no Debian here: {made.stdout[-300:]}")
        (draft / "root").rename(CACHE)
        draft.rmdir()
    return CACHE


@contextmanager
def running_builder() -> Iterator[Builder]:
    """A builder that has the image `BASE`; skips where it cannot be."""
    skip_without("buildah", "debootstrap", "unshare")
    root = debian()
    home = Path(tempfile.mkdtemp(prefix="buildah-", dir="/var/tmp"))
    builder = Builder(home)
    try:
        container = builder("from", "scratch")
        builder("add", container, str(root), "/")
        builder("commit", container, BASE)
        builder("rm", container)
        yield builder
    finally:
        if shutil.which("podman"):
            builder.podman("rm", "--all", "--force", "--time", "0")
        builder("rm", "--all", check=False)
        builder("rmi", "--all", "--force", check=False)
        mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
        for mount in sorted((one for one in mounts if one.startswith(f"{home}/")), reverse=True):
            subprocess.run(["umount", mount], capture_output=True, check=False)
        shutil.rmtree(home, ignore_errors=True)
