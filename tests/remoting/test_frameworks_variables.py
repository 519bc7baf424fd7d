"""The variable that XLA reads is set by the slice's libcuda where a library with XLA in it is loaded, with stand-ins for these."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.libraries.conftest import in_one_process
from tests.remoting.conftest import PRELUDE, WITHOUT_THREAD_SANITIZER, worker

# What C's own getenv finds: Python has a copy of the environment as it was at its start.
LOOK = """
getenv = ctypes.CDLL(None).getenv; getenv.restype = ctypes.c_char_p
if sys.argv[1]: ctypes.CDLL(sys.argv[1])
before = getenv(b"CUDA_LAUNCH_BLOCKING"); print(before, d.cuInit(0)[0].name, getenv(b"CUDA_LAUNCH_BLOCKING"))
"""


def looked(library: Path | None, environment: dict[str, str]) -> str:
    command = [sys.executable, "-u", "-c", PRELUDE + LOOK, str(library or "")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr


def stand_in(folder: Path, name: str) -> Path:
    """Copy some library, so that the dynamic linker takes it for another one."""
    found = next(
        path for path in map(Path, ("/lib/x86_64-linux-gnu/libm.so.6", "/lib64/libm.so.6")) if path.exists()
    )
    return Path(shutil.copy(found, folder / name))


@pytest.mark.parametrize(
    ("name", "given", "found"),
    [
        ("libtensorflow_framework.so.2", None, "None CUDA_SUCCESS b'1'"),
        ("xla_cuda_plugin.so", None, "None CUDA_SUCCESS b'1'"),
        ("xla_cuda_plugin.so", "0", "b'0' CUDA_SUCCESS b'0'"),
        ("libtorch_cuda.so", None, "None CUDA_SUCCESS None"),
        ("", None, "None CUDA_SUCCESS None"),
    ],
)
def test_launches_block_where_xla_is_loaded(name: str, given: str | None, found: str, tmp_path: Path) -> None:
    library = stand_in(tmp_path, name) if name else None

    async def story() -> str:
        async with worker() as its:
            environment = its.environment()
            environment.pop("CUDA_LAUNCH_BLOCKING", None)
            if given:
                environment["CUDA_LAUNCH_BLOCKING"] = given
            return await asyncio.to_thread(looked, library, environment)

    assert asyncio.run(story()) == found


@WITHOUT_THREAD_SANITIZER
def test_a_driver_in_the_process_leaves_it_alone(tmp_path: Path) -> None:
    """It is the slice's own that sets it: NVIDIA's driver, and direct mode before it, heed the variable, and each launch would wait."""
    environment = in_one_process()
    environment.pop("CUDA_LAUNCH_BLOCKING", None)
    library = stand_in(tmp_path, "xla_cuda_plugin.so")
    assert looked(library, environment) == "None CUDA_SUCCESS None"
