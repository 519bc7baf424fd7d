"""Classic CUDA C++ kernels, compiled by NVRTC, through shim and worker on simulated devices, against NumPy and SciPy."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from tests.kernels.cases import CASES
from tests.remoting.conftest import worker

MODELS = {"compute_70": "v100", "compute_80": "a100", "compute_90": "h100", "compute_90a": "h100"}
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", CASES)
def test_kernel_agrees_with_numpy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU", MODELS[CASES[name].architecture])

    async def story() -> subprocess.CompletedProcess[str]:
        async with worker(memory_mib=256) as one:
            return await one.run_module("tests.kernels.cases", name)

    done = asyncio.run(story())
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("comparisons agree\n")
