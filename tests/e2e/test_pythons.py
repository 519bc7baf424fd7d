"""The other Pythons of this machine: what the base install needs is there for them, and a program of theirs gets its slice."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import shutil
import subprocess
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

import gpukernel
from tests.conftest import eventually

OLDEST = (3, 11)
PROGRAM = """
import ctypes, sys
cuda, device, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_size_t()
assert not cuda.cuInit(0) and not cuda.cuDeviceGet(ctypes.byref(device), 0)
assert not cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
print(sys.version.split()[0], memory.value // 2**20)
"""


@functools.cache
def versions() -> dict[str, str]:
    """Return the place of each Python that gpukernel supports and that is not this one, by its full version."""
    names = ["python3", *(f"python3.{minor}" for minor in range(OLDEST[1], 20))]
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/bin", "/usr/local/bin"]
    found = {}
    for place in (Path(folder, name) for folder in dict.fromkeys(folders) for name in names):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            ask = [place, "-c", "import platform, venv, ensurepip; print(platform.python_version())"]
            found.setdefault(
                subprocess.run(ask, capture_output=True, text=True, check=True, timeout=60).stdout.strip(),
                str(place),
            )
    found.pop(platform.python_version(), None)
    return {said: place for said, place in found.items() if tuple(map(int, said.split(".")[:2])) >= OLDEST}


def install(python: str, folder: Path) -> Path:
    """A new environment with what the base install requires, and with this installation's own files."""
    subprocess.run([python, "-m", "venv", folder], check=True, capture_output=True)
    needed = [line for line in metadata.requires("gpukernel") or () if "extra ==" not in line]
    installed = subprocess.run(
        [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *needed],
        capture_output=True,
        text=True,
    )
    if installed.returncode:
        pytest.skip(f"pip cannot install what {python} needs: {installed.stderr.strip().splitlines()[-1]}")
    (site,) = folder.glob("lib/python3*/site-packages")
    sources = shutil.ignore_patterns("__pycache__", "*.cpp", "*.h", "*.proto")
    for part in gpukernel.__path__:  # an editable installation has two: the checkout, and what was built
        shutil.copytree(part, site / "gpukernel", ignore=sources, dirs_exist_ok=True)
    # The version is read from the installation's metadata.
    (described,) = Path(sysconfig.get_path("purelib")).glob("gpukernel-*.dist-info")
    shutil.copytree(described, site / described.name)
    return folder / "bin" / "python"


@pytest.mark.thorough
@pytest.mark.parametrize("version", sorted(versions()) or ["another"])
def test_another_python_runs_a_pool_and_gets_a_slice(version: str, tmp_path: Path) -> None:
    if (place := versions().get(version)) is None:
        pytest.skip("there is no other Python on this machine that gpukernel supports and that has venv")
    python = install(place, tmp_path / "venv")
    state = tmp_path / "state"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GPUKERNEL_STATE": str(state)}
    run = functools.partial(
        subprocess.run, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    command = [str(python), "-m", "gpukernel.cli"]
    with (tmp_path / "log").open("w") as log:
        up = subprocess.Popen(
            [*command, "up", "--simulate", "v100:1"], env=environment, cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        eventually(lambda: "The pool is ready" in (tmp_path / "log").read_text() or up.poll() is not None, 60)
        assert up.poll() is None, (tmp_path / "log").read_text()
        done = run([*command, "run", "-p", "0.05", "--", python, "-c", PROGRAM])
        assert done.stdout == f"{version} 1638\n", done.stderr + (tmp_path / "log").read_text()
        (lease,) = json.loads(run([*command, "leases", "--all", "--json"]).stdout)
        assert lease["state"] == "ended"
    finally:
        up.terminate()
        up.wait(60)
    assert "ERROR" not in (tmp_path / "log").read_text()
