"""An ordinary image with Python and Numba, and nothing of gpukernel: its kernels compute on the slice that an option asks for."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from pathlib import Path

from tests.conftest import PROGRAMS, Pool, eventually
from tests.engines.containers.podman import SLICE, Podman

MIB = 2**20
BASE = Path("/opt/person")
INSIDE = BASE / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
# What “pip install numba-cuda[cu12]” brings.
INSTALLED = (
    "numba-cuda",
    *(f"nvidia-cuda-{name}-cu12" for name in ("nvcc", "nvrtc", "runtime", "cccl")),
)
RUN = """
import importlib.util, runpy, sys
assert importlib.util.find_spec("gpukernel") is None
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def files(*names: str) -> set[Path]:
    """Return the folders and modules of packages, and of those that they need, as they are installed here."""
    found: set[Path] = set()
    known: set[str] = set()
    waiting = list(names)
    while waiting:
        if (name := waiting.pop()) in known:
            continue
        known.add(name)
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another Python
        tops = {one.parts[0] for one in package.files or []} - {"..", "__pycache__"}
        found |= {Path(str(package.locate_file(top))) for top in tops}
        needed = (one for one in package.requires or [] if "extra ==" not in one)
        waiting += [re.match(r"[\w.-]+", one)[0] for one in needed]  # type: ignore[index]
    return found


def test_kernels_of_numba_compute_on_a_fiftieth_of_a_v100(
    podman: Podman, asked_pool: Pool, root: Path
) -> None:
    folders = {file: INSIDE / file.name for file in files(*INSTALLED)} | {PROGRAMS: Path("/opt/programs")}
    if not (python := Path(sys.base_prefix)).is_relative_to("/usr"):
        folders[python] = python
    options = [word for host, inside in folders.items() for word in ("-v", f"{host}:{inside}:ro")]
    options += ["-e", f"PYTHONUSERBASE={BASE}"]
    for name in ("memory", "numba_kernels"):
        command = (f"{python}/bin/python3", "-c", RUN, f"/opt/programs/{name}.py")
        done = podman.start(SLICE, root, *command, options=("--rm", *options))
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        if name == "memory":
            assert (told["devices"], told["total"], told["total_of_device"]) == (1, 655 * MIB, 655 * MIB)
        else:
            assert told["device"].startswith("Tesla V100")
            assert told["collatz"] > 0
    eventually(lambda: asked_pool.promised() == 0)
    assert len(asked_pool.leases(ended=True)[0]) == 2
