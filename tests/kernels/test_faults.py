"""The message in the cell when a kernel goes wrong: what, where in the source, which thread, which address."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc")

from tests.remoting.conftest import worker

ROOT = Path(__file__).parents[2]
ILLEGAL, MISALIGNED, ASSERT = (f"CUDA_ERROR_{n}" for n in ("ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS", "ASSERT"))
BLOCK = r"block \(0,0,0\)"

ROWS = {
    "beyond_the_end": (
        ILLEGAL,
        r"gpukernel: Invalid __global__ write of size 4 bytes at beyond_the_end in put\(int\*, int\), faults\.cu:6 "
        r"\(line \d+ of its PTX\) by thread \((0,0,0\) in block \(0|6,0,0\) in block \(1),0,0\): address 0x\w+ is out of bounds, "
        r"(88 bytes before|0 bytes after) the nearest allocation, 64 bytes at {data}",
    ),
    "before_the_start": (
        ILLEGAL,
        r"gpukernel: Invalid __global__ read of size 4 bytes at before_the_start, faults\.cu:11 \(line \d+ of its PTX\) "
        r"by thread \(5,0,0\) in block \([01],0,0\): address 0x\w+ is out of bounds, "
        r"8 bytes before the nearest allocation, 64 bytes at {data}",
    ),
    "null_pointer": (
        ILLEGAL,
        r"gpukernel: Invalid __global__ atomic of size 8 bytes at null_pointer, faults\.cu:14 \(line \d+ of its PTX\) "
        r"by thread \(0,0,0\) in block \([01],0,0\): address 0x0 is out of bounds",
    ),
    "beyond_shared_memory": (
        ILLEGAL,
        r"gpukernel: Invalid __shared__ write of size 4 bytes at beyond_shared_memory, faults\.cu:18 \(line \d+ of its PTX\) "
        r"by thread \(8,0,0\) in block \([01],0,0\): address 0x20 is out of bounds, the block has 32 bytes",
    ),
    "misaligned": (
        MISALIGNED,
        r"gpukernel: Misaligned __global__ read of size 4 bytes at misaligned, faults\.cu:23 \(line \d+ of its PTX\) "
        r"by thread \(3,0,0\) in block \([01],0,0\): address 0x\w+3 is misaligned",
    ),
    "_Z14with_argumentsPif": (
        ASSERT,
        r"faults\.cu:26: void with_arguments\(int \*, float\): block: \[[01],0,0\], thread: \[31,0,0\] "
        r"Assertion `threadIdx\.x < limit \+ 30` failed\.",
    ),
    "trap": (
        "CUDA_ERROR_LAUNCH_FAILED",
        r"gpukernel: Trap at trap, faults\.cu:30 \(line \d+ of its PTX\) by thread \(31,0,0\) in block \([01],0,0\)",
    ),
    "lacking": (
        "CUDA_ERROR_NOT_SUPPORTED",
        r"gpukernel: 'lacking', line \d+: instruction 'bogus\.sync\.b32' is not supported by the simulated GPU",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_fault_is_told_where_the_person_looks(name: str) -> None:
    async def story() -> subprocess.CompletedProcess[str]:
        async with worker() as one:
            return await one.run_module("tests.kernels.fault", name, GPUKERNEL_MEMCHECK="strict")

    done = asyncio.run(story())
    assert done.returncode == 0, done.stderr
    code, text = ROWS[name]
    data, *told, ended = done.stdout.splitlines()
    assert ended == code
    assert len(told) == 1, done.stdout  # one line, however many threads were wrong
    assert re.fullmatch(text.replace("{data}", data), told[0])
