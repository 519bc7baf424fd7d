"""Programs that know nothing of gpukernel, compiled by real compilers, on slices."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpukernel.client.pool import PoolClient
from gpukernel.common.model import Holder, SliceRequest
from gpukernel.remoting.environment import shim_environment
from gpukernel.remoting.lease_file import write_lease_file
from tests.conftest import PROGRAMS, Pool

MIB = 2**20


@pytest.mark.parametrize("name", ["numba_kernels.py", "nvrtc_matmul.py"])
def test_a_program_computes_the_right_answer(shared_pool: Pool, name: str) -> None:
    done = shared_pool.program(name)  # each compares with NumPy and fails where it differs
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])


def test_text_that_a_kernel_prints_reaches_the_program_s_output(shared_pool: Pool) -> None:
    done = shared_pool.program("nvrtc_matmul.py")
    printed, result = done.stdout.splitlines()
    assert printed == f"corner {json.loads(result)['corner']:.3f} of 128"


def test_a_slice_looks_like_a_small_gpu_and_more_than_it_is_out_of_memory(shared_pool: Pool) -> None:
    seen = json.loads(shared_pool.program("memory.py").stdout)
    assert seen == {
        "devices": 1,
        "free": 655 * MIB,
        "total": 655 * MIB,
        "total_of_device": 655 * MIB,
        "too_much": "CUDA_ERROR_OUT_OF_MEMORY",
        "free_after_one_mib": 654 * MIB,
    }


def test_two_devices_of_a_lease_are_devices_0_and_1(shared_pool: Pool) -> None:
    seen = json.loads(shared_pool.program("memory.py", "-n", "2", "-m", "100").stdout)
    assert (seen["devices"], seen["total"]) == (2, 100 * MIB)


async def _on(pool: Pool, kind: str, name: str, folder: Path) -> str:
    async with PoolClient(pool.address) as client:
        lease = await client.acquire_now(f"{name} over {kind}", SliceRequest(share=0.02), Holder("test"))
        only = [
            replace(piece, endpoints=tuple(e for e in piece.endpoints if e.startswith(kind)))
            for piece in lease.slices
        ]
        assert all(piece.endpoints for piece in only)
        write_lease_file(folder / kind, replace(lease, slices=tuple(only)))
        async with client.keep_alive(lease):
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, str(PROGRAMS / name)],
                env=shim_environment(folder / kind, os.environ),
                capture_output=True,
                text=True,
                check=False,
            )
        await client.release(lease.id)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["numba_kernels.py", "nvrtc_matmul.py"])
def test_the_numbers_are_the_same_over_tcp_and_over_the_unix_socket(
    shared_pool: Pool, tmp_path: Path, name: str
) -> None:
    outputs = [asyncio.run(_on(shared_pool, kind, name, tmp_path)) for kind in ("unix", "tcp")]
    assert outputs[0] == outputs[1]
