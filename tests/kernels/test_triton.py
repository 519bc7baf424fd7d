"""Triton's code for `tl.dot` for an A100 and an H100, through shim and worker on simulated ones, against NumPy."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from tests.conftest import Pool
from tests.remoting.conftest import worker

#  what Triton is asked for, and the instruction that it takes for it on compute capability 8.0
KINDS = {
    "fp16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "fp16 sums": "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
    "bf16": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "tf32": "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
    "int8": "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32",
    "fp64": "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64",
}
#  the same on 9.0: by a warpgroup
OF_WARPGROUPS = {
    "fp16": "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16",
    "fp16 sums": "wgmma.mma_async.sync.aligned.m64n32k16.f16.f16.f16",
    "bf16": "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16",
    "tf32": "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32",
    "int8": "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8",
}


async def run(kind: str) -> subprocess.CompletedProcess[str]:
    async with worker(memory_mib=256) as one:
        return await one.run_module("tests.gpu.programs.triton_matmul", kind)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("kind", KINDS)
def test_a_dot_of_triton_agrees_with_numpy(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU", "a100")
    done = asyncio.run(run(kind))
    assert done.returncode == 0, done.stderr
    assert KINDS[kind] in json.loads(done.stdout)["instructions"]


@pytest.mark.parametrize("model", ["t4", "a100", "h100"])
def test_triton_launches_its_kernels_with_no_variable_set(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.delenv(variable, raising=False)
    with Pool(f"{model}:1", tmp_path / "state") as pool:
        command = [sys.executable, "-m", "tests.gpu.programs.triton_launch"]
        done = pool.gpukernel("run", "-m", "512", "--", *command, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert ".version" in json.loads(done.stdout)["image"]


@pytest.mark.parametrize("kind", OF_WARPGROUPS)
def test_a_dot_of_a_warpgroup_agrees_with_numpy(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU", "h100")
    done = asyncio.run(run(kind))
    assert done.returncode == 0, done.stderr
    assert OF_WARPGROUPS[kind] in json.loads(done.stdout)["instructions"]


@pytest.mark.parametrize("tile", [("128", "64", "64"), ("64", "128", "32")], ids="x".join)
def test_tensor_maps_that_kernels_make_agree_with_numpy(
    tile: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUKERNEL_SIMGPU", "h100")

    async def story() -> subprocess.CompletedProcess[str]:
        async with worker(memory_mib=256) as one:
            return await one.run_module("tests.gpu.programs.triton_tensor_maps", *tile)

    done = asyncio.run(story())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["instructions"]
    assert [any(word.startswith(kind) for word in found) for kind in ("cp.", "tensormap.", "wgmma.")] == [
        True
    ] * 3
