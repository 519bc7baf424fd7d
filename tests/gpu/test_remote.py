"""Programs in remote mode: shim and worker as on the simulated GPU, NVIDIA's driver below."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpukernel.agent.inventory import Inventory
from tests.conftest import Pool
from tests.kernels.cases import CASES

MIB = 2**20
HERE = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[2]


def run(pool: Pool, *command: str, share: str = "0.05") -> subprocess.CompletedProcess[str]:
    return pool.gpukernel("run", "-p", share, "--", sys.executable, *command, cwd=ROOT)


def test_the_pool_shows_what_nvml_shows(gpu_pool: Pool, inventory: Inventory) -> None:
    seen = [(device.name, device.memory_bytes, device.compute_capability) for device in gpu_pool.devices()]
    assert seen == [(d.name, d.memory_bytes, d.compute_capability) for d in inventory.devices]


@pytest.mark.parametrize("name", ["numba_kernels.py", "nvrtc_matmul.py"])
def test_a_program_computes_the_right_answer(gpu_pool: Pool, name: str) -> None:
    done = gpu_pool.program(name)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])


def test_a_slice_looks_like_a_small_gpu_and_more_than_it_is_out_of_memory(
    gpu_pool: Pool, inventory: Inventory
) -> None:
    seen = json.loads(gpu_pool.program("memory.py", "-p", "0.02").stdout)
    share = int(0.02 * inventory.devices[0].memory_bytes) // MIB * MIB
    assert seen["total"] == seen["total_of_device"] == share
    assert seen["too_much"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert 0 < seen["free_after_one_mib"] <= share - MIB


@pytest.mark.parametrize("name", CASES)
def test_classic_kernels_agree_with_numpy(gpu_pool: Pool, inventory: Inventory, name: str) -> None:
    major, minor = map(int, inventory.devices[0].compute_capability.split("."))
    if 10 * major + minor < int("".join(filter(str.isdigit, CASES[name].architecture))):
        pytest.skip(f"needs {CASES[name].architecture}")
    done = run(gpu_pool, "-m", "tests.kernels.cases", name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("comparisons agree\n")


def test_what_triton_compiles(gpu_pool: Pool, needs: Callable[[str], None]) -> None:
    needs("triton")
    done = run(gpu_pool, str(HERE / "triton_softmax.py"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]


@pytest.mark.parametrize("kind", ["fp16", "fp16 sums", "bf16", "tf32", "int8", "fp64"])
def test_dots_that_triton_compiles(gpu_pool: Pool, needs: Callable[[str], None], kind: str) -> None:
    needs("triton")
    done = run(gpu_pool, "-m", "tests.gpu.programs.triton_matmul", kind)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kind"] == kind


def test_a_fault_is_told_and_the_next_program_has_a_fresh_context(gpu_pool: Pool) -> None:
    code = """
import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError
@cuda.jit
def wild(a): a[1 << 40] = 1
try:
    wild[1, 1](cuda.to_device(np.zeros(1))); cuda.synchronize()
except CudaAPIError as error: print(int(error.code))
"""
    for _ in range(2):
        done = run(gpu_pool, "-W", "ignore", "-c", code)
        assert done.stdout.split()[-1:] == ["700"], done.stderr


def test_an_endless_kernel_ends_with_its_program(gpu_pool: Pool) -> None:
    code = """
import numpy as np
from numba import cuda
@cuda.jit
def forever(a):
    while a[0] == 0: cuda.threadfence()
forever[1, 1](cuda.to_device(np.zeros(1, np.int32))); cuda.default_stream().handle
import os; print(os.getpid(), flush=True); input()
"""
    program = gpu_pool.start_on_slice(code, "-p", "0.9")
    assert program.stdout is not None
    os.kill(int(program.stdout.readline()), signal.SIGKILL)  # the program, not `gpukernel run`
    program.wait()
    done = run(
        gpu_pool,
        "-c",
        "import numpy as np; from numba import cuda; cuda.to_device(np.zeros(9)); print(1)",
        share="0.9",
    )
    assert done.stdout == "1\n", done.stderr
