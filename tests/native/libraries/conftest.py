from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gpukernel import native
from tests.real_gpu import REAL, cuda_library, library_folders
from tests.remoting.conftest import worker

ROOT = Path(__file__).parents[3]
# MiB.  NVIDIA's libraries take 30 to 100 for each handle, and the cases end none.
ROOM = 16384 if REAL else 512
NEEDS_OPENBLAS = pytest.mark.skipif(
    native.openblas_library() is None and not REAL,
    reason="the wheel scipy-openblas32 is not installed (pip install 'gpukernel[libraries]')",
)


def in_one_process(**settings: str) -> dict[str, str]:
    """Return the environment of a program that has the simulated GPU, and the libraries beside it, in its own process."""
    return {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(map(str, [cuda_library().parent, *library_folders()])),
        "GPUKERNEL_SIMGPU": "v100",
        "GPUKERNEL_OPENBLAS": str(native.openblas_library()),
        **settings,
    }


@functools.cache
def found_by(module: str, where: str) -> dict[str, str]:
    """Run the cases of a module of this folder in one process with the device, or on a slice, and return what they found."""
    if where == "in one process":
        done = subprocess.run(
            [sys.executable, "-m", module],
            cwd=ROOT,
            env=in_one_process(),
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
    else:

        async def on_a_slice() -> subprocess.CompletedProcess[str]:
            async with worker(memory_mib=ROOM) as its:
                return await its.run_module(module)

        done = asyncio.run(on_a_slice())
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, f"{done.returncode}: {done.stderr[-3000:]}"
    return dict(json.loads(lines[-1].removeprefix("FOUND ")))


def both_ways(module: ModuleType) -> pytest.MarkDecorator:
    """Parametrise a test by the places to run in and the cases of a module."""
    pairs = [
        (where, name) for where in ("in one process", "on a slice") for name in module.CASES.runs_in(where)
    ]
    return pytest.mark.parametrize(("where", "name"), pairs, ids=[f"{name}-{where}" for where, name in pairs])
