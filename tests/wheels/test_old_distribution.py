"""The wheel on an older distribution, Debian 11 with glibc 2.31: workers, and programs on slices, in its root directory.

Its Python and its SQLite are too old for a pool, which stays outside.  `debootstrap` makes the root directory, where it can fetch it; a
folder in ``GPUKERNEL_OLD_ROOT`` that has one is taken as it is.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import venv
from pathlib import Path

import pytest

from tests.wheels.test_wheel import ROOT, wheel

__all__ = ["wheel"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# The same paths inside as outside, in a mount namespace of its own.
INSIDE = """
set -e
root=$1 shared=$2; shift 2
mkdir -p "$root$shared"
for each in /proc /dev "$shared"; do mount --rbind "$each" "$root$each"; done
exec "$@"
"""
WORKER = """#!/bin/sh
exec chroot {root} {worker} "$@"
"""


@pytest.fixture(scope="module")
def old_root(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert wheel.exists()  # without one there is no need for a root
    if os.geteuid() != 0:
        pytest.skip("only root may use another root directory")
    if given := os.environ.get("GPUKERNEL_OLD_ROOT"):
        return Path(given)
    if shutil.which("debootstrap") is None:
        pytest.skip("debootstrap is not installed")
    root = tmp_path_factory.mktemp("bullseye")
    command = ["debootstrap", "--variant=minbase", "--include=python3", "bullseye", str(root)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"debootstrap made no Debian 11: {(made.stdout + made.stderr)[-300:]}")
    return root


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment with the wheel, whose workers are still those of this machine."""
    folder = tmp_path_factory.mktemp("installed") / "env"
    venv.create(folder, with_pip=True)
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    subprocess.run([*map(str, pip), "--no-index", "--no-deps", str(wheel)], check=True)
    (own,) = (folder / "lib").glob("python3*/site-packages")
    (own / "here.pth").write_text("\n".join(site.getsitepackages()))
    return folder


def inside(root: Path, shared: Path, *command: object) -> subprocess.CompletedProcess[str]:
    """Run a command that can use `root`, in which `shared` has the path that it has here."""
    place = {"TMPDIR": str(shared), "XDG_RUNTIME_DIR": str(shared)}
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", INSIDE, "sh", str(root), str(shared), *map(str, command)],
        capture_output=True,
        text=True,
        env={**os.environ, **place},
        cwd=shared,
    )


def test_every_library_and_program_of_it_is_linked_there(installed: Path, old_root: Path) -> None:
    (native,) = installed.glob("lib/python3*/site-packages/gpukernel/native")
    found = [path for path in native.rglob("*") if path.is_file() and path.open("rb").read(4) == b"\x7fELF"]
    assert len(found) > 20
    glibc = inside(old_root, installed, "chroot", old_root, "ldd", "--version").stdout
    version = re.search(r"(\d+)\.(\d+)\s*$", glibc.partition("\n")[0])
    assert version, glibc
    assert (2, 28) <= (int(version[1]), int(version[2])) < (2, 34)  # older than what this was compiled beside
    linked = inside(old_root, installed, "chroot", old_root, "ldd", "-r", *found)
    said = f"{linked.stdout}{linked.stderr}"
    # In any other order than one per file something would be missing from it.
    assert all(f"{path}:" in said for path in found)
    wrong = [line for line in said.splitlines() if re.search("not found|undefined symbol|error", line)]
    assert wrong == []


def test_a_program_of_it_runs_a_kernel_in_a_worker_there(installed: Path, old_root: Path) -> None:
    (worker,) = installed.glob("lib/python3*/site-packages/gpukernel/native/bin/gpukernel-worker")
    real = worker.with_name("worker-itself")
    worker.rename(real)
    try:
        worker.write_text(WORKER.format(root=old_root, worker=real))
        worker.chmod(0o755)
        python = installed / "bin" / "python"
        done = inside(old_root, installed, python, ROOT / "tests" / "wheels" / "check.py", old_root)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        assert "a kernel ran on 655 MiB" in done.stdout
    finally:
        real.rename(worker)
