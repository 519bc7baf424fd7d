"""Programs that nvcc compiles to PTX with the shared runtime, and where they run: in process, or on a worker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpukernel import native
from tests import sanitizers
from tests.real_gpu import cuda_library
from tests.remoting.conftest import worker

PROGRAMS = Path(__file__).parent / "programs"
Run = Callable[..., subprocess.CompletedProcess[str]]


def in_process(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a program over the simulated GPU in its own process: an A100, without shim and worker."""
    folders = [cuda_library().parent, native.runtime_dir()]
    environment = {"LD_LIBRARY_PATH": ":".join(map(str, folders)), "GPUKERNEL_SIMGPU": "a100"}
    environment = {**os.environ, **environment, **settings}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)


def remotely(*words: str, devices: int = 1, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a program over the shim, on a worker of a simulated A100, or on two of them."""

    async def story() -> subprocess.CompletedProcess[str]:
        async with contextlib.AsyncExitStack() as stack:
            own = [
                await stack.enter_async_context(worker(secret="ab" * 32, memory_mib=512))
                for _ in range(devices)
            ]
            environment = {**own[0].environment(second=own[1] if devices == 2 else None), **settings}
            return await asyncio.to_thread(
                subprocess.run,
                words,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUKERNEL_SIMGPU", "a100")
        return asyncio.run(story())


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a function that compiles programs of ``programs/`` once, and gives the executable's path."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed; it compiles the programs of this test")
    folder = tmp_path_factory.mktemp("programs")
    known: dict[str, str] = {}

    def compile_(name: str, *options: str) -> str:
        if (key := " ".join([name, *options])) in known:
            return known[key]
        sources = sorted(map(str, PROGRAMS.glob(f"{name}*.cu")))
        out = str(folder / f"{len(known)}-{name}")
        words = [nvcc, "-std=c++17", "-cudart", "shared", "-gencode", "arch=compute_80,code=compute_80"]
        done = subprocess.run(
            [*words, *options, "-o", out, *sources],
            env=sanitizers.without(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        known[key] = out
        return out

    return compile_
