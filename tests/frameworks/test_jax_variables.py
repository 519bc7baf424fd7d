"""Variables that JAX's plugin sets for a program, with a stand-in for JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpukernel import native


@pytest.mark.parametrize(
    ("folders", "given", "found"),
    [
        ([native.shim_dir()], {}, "1"),
        ([native.shim_dir()], {"CUDA_LAUNCH_BLOCKING": "0"}, "0"),
        # Direct mode's launches are the real driver's: each would wait for its end.
        ([native.direct_dir(), native.shim_dir()], {}, "None"),
    ],
)
def test_launches_block_where_nothing_heeds_it(
    folders: list[Path], given: dict[str, str], found: str, tmp_path: Path
) -> None:
    package = tmp_path / "jax" / "_src"
    package.mkdir(parents=True)
    for name in ("../__init__", "__init__", "hardware_utils", "lib"):
        (package / f"{name}.py").touch()
    code = "import os; from gpukernel.frameworks.jax import initialize; initialize(); print(os.environ.get('CUDA_LAUNCH_BLOCKING'))"
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_LAUNCH_BLOCKING"}
    environment |= {"PYTHONPATH": str(tmp_path), "GPUKERNEL_LEASE_FILE": str(tmp_path / "lease"), **given}
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(map(str, folders))
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == found, done.stderr
